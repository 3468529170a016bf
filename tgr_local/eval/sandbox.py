"""Runs a Python program that nobody has read: one process, hard limits, no way out.

In: source text and what it reads from stdin. Out: what it printed and how it ended. The walls are
the best that the machine offers, tried once in this order:

- ``bwrap``: bubblewrap; no network, no other processes, a read-only system without /home, /etc or
  this project, an own /tmp of bounded size.
- ``unshare``: no network, no other processes; files are guarded by their permissions alone.
- ``limits``: resource limits in a process group of its own, nothing more.

All of them bound wall time, CPU time, memory, file sizes and the number of processes. Started as
root, the first wall takes root's powers from the program; the others do not, so do not run them
as root.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Wall = Literal["bwrap", "unshare", "limits"]
WALLS: tuple[Wall, ...] = ("bwrap", "unshare", "limits")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group")
LAUNCHER = Path(__file__).with_name("_launch.py")


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 10.0
    """Wall time, and CPU time of each process."""
    memory: int = 2 << 30
    """Address space of each process, bytes."""
    disk: int = 64 << 20
    """Size of each file, and of the whole of /tmp behind the first wall, bytes."""
    processes: int = 64
    """Processes and threads at a time."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ended: bool
    """False: stopped at the limit of wall time."""
    code: int
    """Exit code; negative: the signal that ended it."""
    stdout: str
    stderr: str
    """Its end, at most 2,000 characters."""

    @property
    def why(self) -> str:
        """One line for a person: empty where it ended well."""
        if not self.ended:
            return "time limit"
        if self.code == 0:
            return ""
        lines = self.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {self.code}"


def run(code: str, stdin: str = "", limits: Limits | None = None) -> Outcome:
    """Run `code` as a program of its own with this Python and its packages."""
    return _run(wall(), code, stdin, limits or Limits())


@functools.cache
def wall() -> Wall:
    """The strongest wall that works here."""
    for kind in WALLS[:-1]:
        if shutil.which(kind) and _works(kind):
            return kind
    return "limits"


def _works(kind: Wall) -> bool:
    code = "import threading\nt = threading.Thread(target=print, args=('hello',))\nt.start()"
    outcome = _run(kind, code, "", Limits())
    return outcome.code == 0 and outcome.stdout == "hello\n"


def _run(kind: Wall, code: str, stdin: str, limits: Limits) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="tgr-sandbox-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "program.py").write_text(code, encoding="utf-8", errors="replace")
        (folder / "launch.py").write_text(LAUNCHER.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        (folder / "work").mkdir()
        orders = asdict(limits) | {"as_stranger": kind == "bwrap" and os.getuid() == 0}
        command = [*_entry(kind, folder, limits), json.dumps(orders)]
        ended, status = _wait(command, folder, limits.seconds)
        return Outcome(ended, status, _read(folder / "stdout"), _read(folder / "stderr")[-2000:])


def _wait(command: list[str], folder: Path, seconds: float) -> tuple[bool, int]:
    """Run a command to its end or for so many seconds; then nothing of it is left."""
    files = [(folder / name).open(mode) for name, mode in FILES]
    (folder / "stdin").unlink()  # it may hold what a program that has read it hides
    try:
        stdin, stdout, stderr = files
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=folder / "work",
            env=_environment(folder),
            start_new_session=True,
        )
    finally:
        for file in files:
            file.close()
    try:
        return True, process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False, -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


FILES = (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))


def _environment(folder: Path) -> dict[str, str]:
    """No secrets of the caller, and one thread for each library: every thread is a process."""
    one = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    home = str(folder / "work")
    plain = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
    return plain | dict.fromkeys(one, "1") | {"MPLBACKEND": "Agg"}


def _entry(kind: Wall, folder: Path, limits: Limits) -> list[str]:
    """The command that starts the launcher behind a wall."""
    python = [sys.executable, "-I", "-B"]
    if kind == "bwrap":
        return [*_bubble(folder, limits), *python, "/sandbox/launch.py"]
    # bwrap does this itself: nothing outlives a caller that was killed
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    plain = [*python, str(folder / "launch.py")]
    if kind == "unshare":
        user = [] if os.getuid() == 0 else ["--user", "--map-current-user"]
        spaces = ["--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*guard, "unshare", *user, *spaces, *plain]
    return [*guard, *plain]


def _bubble(folder: Path, limits: Limits) -> list[str]:
    """The bwrap command: a file system made of the system, Python and an empty /tmp."""
    command = ["bwrap", "--die-with-parent", "--new-session"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    if os.getuid() == 0:  # the launcher becomes a user without rights, for whom limits hold
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user"]
    for path in SYSTEM:
        if Path(path).is_symlink():
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind-try", path, path]
    command += ["--perms", "0755", "--dir", "/etc"]
    for path in SYSTEM_FILES:
        command += ["--ro-bind-try", path, path]
    for path in dict.fromkeys([sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)]):
        if not path.startswith("/usr/"):
            for parent in reversed(Path(path).parents[:-1]):
                command += ["--perms", "0755", "--dir", str(parent)]
            command += ["--ro-bind", path, path]
    command += ["--ro-bind", str(folder), "/sandbox", "--proc", "/proc", "--dev", "/dev"]
    command += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", "/tmp"]
    return [*command, "--setenv", "HOME", "/tmp", "--setenv", "TMPDIR", "/tmp", "--chdir", "/tmp"]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
