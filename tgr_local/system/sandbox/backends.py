"""Sandbox backends: how a program of a model is isolated, and the command that starts it.

- ``bwrap``: bubblewrap; no network, no other processes, a read-only system without /home, /etc or
  this project, and its own /tmp and /dev/shm of limited size.
- ``unshare``: no network, no other processes; only file permissions protect files.
- ``limits``: limits on resources only.

There is no fallback from one to another: a user who accepts less than bubblewrap has to choose it.
Started as root, bwrap drops root's privileges for the program; the others do not, so do not run
them as root.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal, get_args

Backend = Literal["bwrap", "unshare", "limits"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
DEFAULT: Backend = "bwrap"
ISOLATION: dict[Backend, str] = {
    "bwrap": "no network, no other processes, only a read-only system and Python as files",
    "unshare": "no network and no other processes, but it can read and change your files",
    "limits": "only resources are limited; it can use the network, your files and your processes",
}
"""Description of each backend for users."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group")


def command(kind: Backend, folder: Path, disk: int) -> list[str]:
    """The command that starts ``launch.py`` of a folder; `disk` limits each of the sandbox's own
    file systems, bytes."""
    python = [sys.executable, "-I", "-B"]
    if kind == "bwrap":
        return [*_bubble(folder, disk), *python, f"/{folder.name}/launch.py"]
    # so that nothing outlives a killed caller; bwrap does this itself
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    plain = [*python, str(folder / "launch.py")]
    if kind == "unshare":
        user = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
        spaces = ["--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*guard, "unshare", *user, *spaces, *plain]
    return [*guard, *plain]


def environment(folder: Path) -> dict[str, str]:
    """Environment variables without the caller's secrets, and with one thread for each library: the
    limit on processes counts threads."""
    one = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    home = str(folder / "work")
    plain = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
    return plain | dict.fromkeys(one, "1") | {"MPLBACKEND": "Agg"}


def _bubble(folder: Path, disk: int) -> list[str]:
    """The bwrap command: a file system with the system, Python and an empty /tmp."""
    command = ["bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if os.getuid() == 0:  # the launcher becomes an unprivileged user, to whom limits apply
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user"]
    # these first: Python may be below any of them
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/tmp", "/dev/shm"):
        command += ["--perms", "1777", "--size", str(disk), "--tmpfs", path]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind-try", path, path]
    command += ["--perms", "0755", "--dir", "/etc"]
    for path in _SYSTEM_FILES:
        command += ["--ro-bind-try", path, path]
    for path in dict.fromkeys([sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)]):
        if not path.startswith("/usr/"):
            for parent in reversed(Path(path).parents[:-1]):
                command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", path, path]
    command += ["--ro-bind", str(folder), f"/{folder.name}"]
    # bwrap's own file systems have no size limit, and an ordinary user may write there
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp", "--chdir", "/tmp"]
