"""Runs an untrusted Python program with hard limits.

In: source text and standard input. Out: its output and how it ended. It runs in one of the sandbox
backends of `system.sandbox`, by default bubblewrap; where that backend does not work nothing runs.
Every backend limits wall time, CPU time, sizes of files and the number of processes and open files,
and on Linux the memory of all processes together, which is measured repeatedly.

The caller opens and deletes nothing by a name that the program could replace.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tgr_local.system.errors import InstallError
from tgr_local.system.sandbox import backends, usage
from tgr_local.system.sandbox.backends import Backend, Mount

OPEN_FILES = 256
"""Per process."""
OUTPUT = 16 << 20
"""Limit for stdout, and for stderr, bytes."""
_INTERVAL = 0.02  # seconds between two checks of a program; more where a check takes long
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group")
_chosen: Backend = backends.DEFAULT


@dataclass(frozen=True)
class ProgramLimits:
    """Limits of one program."""

    seconds: float = 10.0
    """Wall time, and CPU time of each process."""
    memory: int = 2 << 30
    """Address space of each process, and memory of all together with their /tmp and /dev/shm,
    bytes."""
    disk: int = 64 << 20
    """Size of each file, and of the whole of /tmp and of /dev/shm in bubblewrap, bytes."""
    processes: int = 64
    """Processes and threads at a time."""


@dataclass(frozen=True)
class ProgramOutcome:
    """Outcome of a program."""

    stopped: str
    """The limit at which it was stopped: time, memory, processes or output; empty where it ended
    itself."""
    code: int
    """Exit code; negative: the signal that ended it."""
    stdout: str
    """Standard output, at most `OUTPUT` bytes."""
    stderr: str
    """End of the standard error, at most 2,000 characters."""

    @property
    def why(self) -> str:
        """The reason of a failure in one line; empty after a success."""
        if self.stopped or self.code == 0:
            return self.stopped
        lines = self.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {self.code}"


def choose(backend: Backend) -> None:
    """Sets the default backend of this process."""
    global _chosen
    _chosen = backend


def run(
    code: str, stdin: str = "", limits: ProgramLimits | None = None, backend: Backend | None = None
) -> ProgramOutcome:
    """Run `code` as a program of its own with this Python and its packages. Raises as `check`."""
    backend = backend or _chosen
    check(backend)
    return _run(backend, code, stdin, limits or ProgramLimits())


def check(backend: Backend | None = None) -> None:
    """Raises ValueError for an unknown backend, InstallError for one that does not work here; None
    is the default."""
    backend = backend or _chosen
    backends.check_name(backend)
    backends.check_system("eval --allow-exec")
    if why := obstacle(backend):
        choices = [f"{kind} ({backends.ISOLATION[kind]})" for kind in (*usable(), backends.NONE)]
        raise InstallError(
            f"the sandbox {backend} does not work here: {why}; install bubblewrap (apt install "
            f"bubblewrap), or, at your risk, name another with --sandbox: {', or '.join(choices)}"
        )


def usable() -> list[Backend]:
    """The sandboxes that work here, the strongest first."""
    return [kind for kind in backends.BACKENDS if not obstacle(kind)]


def strongest() -> Backend:
    """The strongest sandbox that works here; where there is none the default, which says why when
    it is used."""
    return next(iter(usable()), backends.DEFAULT)


@functools.cache
def obstacle(kind: Backend) -> str:
    """Returns the reason why a backend does not work here; empty where it works."""
    if why := backends.lacking(kind):
        return why
    code = "import threading\nt = threading.Thread(target=print, args=('hello',))\nt.start()"
    outcome = _run(kind, code, "", ProgramLimits(seconds=60))
    return "" if outcome.stdout == "hello\n" and not outcome.why else outcome.why or "no output"


def _run(kind: Backend, code: str, stdin: str, limits: ProgramLimits) -> ProgramOutcome:
    with _folder() as folder, contextlib.ExitStack() as files:
        (folder / "program.py").write_text(code, encoding="utf-8", errors="replace")
        launcher = backends.LAUNCHER.read_text(encoding="utf-8")
        (folder / "launch.py").write_text(launcher, encoding="utf-8")
        (folder / "work").mkdir()
        user = backends.unused_user(kind)
        if user is not None:
            os.chown(folder / "work", user, user)
        # without names: the program cannot replace them
        streams = [files.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        streams[0].write(stdin.encode(errors="replace"))
        streams[0].seek(0)
        orders = {
            "user": user,
            "processes": limits.processes,
            "bounds": {
                "RLIMIT_CPU": int(limits.seconds) + 1,
                "RLIMIT_AS": limits.memory,
                "RLIMIT_FSIZE": limits.disk,
                "RLIMIT_NOFILE": OPEN_FILES,
                "RLIMIT_CORE": 0,
            },
        }
        command = [*_command(kind, folder, limits.disk), json.dumps(orders)]
        stopped, status = _wait(command, folder, streams, limits)
        return ProgramOutcome(stopped, status, _head(streams[1]), _tail(streams[2]))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tgr-sandbox-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        usage.remove(folder)


def _command(kind: Backend, folder: Path, disk: int) -> list[str]:
    """The command that starts ``launch.py`` of a folder; `disk` limits each of the sandbox's own
    file systems, bytes."""
    if kind == "bwrap":
        inside = f"/{folder.name}"
        mounts: list[Mount] = [("--ro-bind", folder, Path(inside))]
        isolated = backends.isolate(mounts, _SYSTEM_FILES, disk, "/tmp")
        return [*isolated, *backends.python(), f"{inside}/launch.py"]
    return backends.without_mounts(kind, [*backends.python(), str(folder / "launch.py")])


def _environment(folder: Path) -> dict[str, str]:
    """Environment variables without the caller's secrets, and with one thread for each library: the
    limit on processes counts threads."""
    thread_limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    home = str(folder / "work")
    plain = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home}
    return plain | dict.fromkeys(thread_limits, "1") | {"MPLBACKEND": "Agg"}


def _wait(
    command: list[str], folder: Path, streams: Sequence[IO[bytes]], limits: ProgramLimits
) -> tuple[str, int]:
    """Runs a command to its end or to a limit, then kills all of its processes."""
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder / "work",
        env=_environment(folder),
        start_new_session=True,
    )
    try:
        stopped = _watch(process, (stdout, stderr), limits)
        return stopped, -signal.SIGKILL if stopped else process.returncode
    finally:
        usage.end(process)


def _watch(
    process: subprocess.Popen[bytes], outputs: Sequence[IO[bytes]], limits: ProgramLimits
) -> str:
    """The limit that a process reached; empty where it ended itself."""
    deadline, pause = time.monotonic() + limits.seconds, _INTERVAL
    memory = usage.ProcessMemory(limits.memory)
    while True:
        seconds_left = deadline - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, min(pause, seconds_left)))
        if any(os.fstat(file.fileno()).st_size > OUTPUT for file in outputs):
            return f"output limit of {OUTPUT:,} bytes"
        if process.returncode is not None:
            return ""
        if seconds_left <= 0:
            return "time limit"
        start = time.monotonic()
        pids = usage.tree(process.pid)
        if len(pids) > limits.processes + backends.OURS:  # the system sets root no limit
            return f"limit of {limits.processes} processes"
        if memory.is_exceeded(pids):
            return f"memory limit of {limits.memory:,} bytes for all processes"
        pause = max(_INTERVAL, 4 * (time.monotonic() - start))


def _head(file: IO[bytes]) -> str:
    return _text(os.pread(file.fileno(), OUTPUT, 0))


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return _text(os.pread(file.fileno(), 8000, max(0, size - 8000)))[-2000:]


def _text(data: bytes) -> str:
    """Text with universal newlines."""
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace").read()
