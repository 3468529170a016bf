"""The walls that a program of a model can be put behind, and the commands that start it there.

- ``bwrap``: bubblewrap; no network, no other processes, a read-only system without /home, /etc or
  this project, and /tmp and /dev/shm of its own, of bounded size.
- ``unshare``: no network, no other processes; files are guarded by their permissions alone.
- ``limits``: limits on resources, nothing more.

None stands in for another: who accepts less than bubblewrap says so. Started as root, the first
takes root's powers from the program; the others do not, so do not run them as root.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal, get_args

Wall = Literal["bwrap", "unshare", "limits"]
WALLS: tuple[Wall, ...] = get_args(Wall)
DEFAULT: Wall = "bwrap"
GUARDS: dict[Wall, str] = {
    "bwrap": "no network, no other processes, no files but a read-only system and Python",
    "unshare": "no network and no other processes, but it may read and change your files",
    "limits": "resources alone are limited; it may use the network and your files and processes",
}
"""What each wall keeps a program from, for people."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group")


def command(kind: Wall, folder: Path, disk: int) -> list[str]:
    """Starts ``launch.py`` of a folder behind a wall; `disk` bounds each file system that is its
    own, bytes."""
    python = [sys.executable, "-I", "-B"]
    if kind == "bwrap":
        return [*_bubble(folder, disk), *python, f"/{folder.name}/launch.py"]
    # bwrap does this itself: nothing outlives a caller that was killed
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    plain = [*python, str(folder / "launch.py")]
    if kind == "unshare":
        user = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
        spaces = ["--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*guard, "unshare", *user, *spaces, *plain]
    return [*guard, *plain]


def environment(folder: Path) -> dict[str, str]:
    """No secrets of the caller, and one thread for each library: every thread is a process."""
    one = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    home = str(folder / "work")
    plain = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
    return plain | dict.fromkeys(one, "1") | {"MPLBACKEND": "Agg"}


def _bubble(folder: Path, disk: int) -> list[str]:
    """The bwrap command: a file system made of the system, Python and an empty /tmp."""
    command = ["bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if os.getuid() == 0:  # the launcher becomes a user without rights, for whom limits hold
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user"]
    # these first: Python may lie below any of them
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
    # bwrap's own file systems have no bound, and an ordinary user may write there
    command += ["--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp", "--chdir", "/tmp"]
