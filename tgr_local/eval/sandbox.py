"""Runs a Python program that nobody has read: one process, hard limits, no way out.

In: source text and what it reads from stdin. Out: what it printed and how it ended. It runs behind
one of the walls of `walls.py`, by default bubblewrap; where that wall does not work nothing runs.
Every wall bounds wall time, CPU time, sizes of files and the number of processes and open files,
and on Linux the memory of all processes together, whose use is measured again and again.

The caller reads and deletes nothing by a name that the program may put something else behind.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tgr_local.errors import InstallError
from tgr_local.eval import usage, walls
from tgr_local.eval.walls import Wall

LAUNCHER = Path(__file__).with_name("_launch.py")
OUTPUT = 16 << 20
"""Bytes that a program may write to stdout, and to stderr."""
_LOOK = 0.02  # seconds between two looks at a program; more where a look takes long
_chosen: Wall = walls.DEFAULT


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 10.0
    """Wall time, and CPU time of each process."""
    memory: int = 2 << 30
    """Address space of each process, and memory of all together with their /tmp and /dev/shm,
    bytes."""
    disk: int = 64 << 20
    """Size of each file, and of the whole of /tmp and of /dev/shm behind bubblewrap, bytes."""
    processes: int = 64
    """Processes and threads at a time."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    stopped: str
    """The limit that it was stopped at: of time, memory or output; empty where it ended itself."""
    code: int
    """Exit code; negative: the signal that ended it."""
    stdout: str
    """At most `OUTPUT` bytes."""
    stderr: str
    """Its end, at most 2,000 characters."""

    @property
    def why(self) -> str:
        """One line for a person: empty where it ended well."""
        if self.stopped or self.code == 0:
            return self.stopped
        lines = self.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {self.code}"


def choose(wall: Wall) -> None:
    """The programs of this process run behind another wall from now on."""
    global _chosen
    _chosen = wall


def run(
    code: str, stdin: str = "", limits: Limits | None = None, wall: Wall | None = None
) -> Outcome:
    """Run `code` as a program of its own with this Python and its packages. Raises as `check`."""
    wall = wall or _chosen
    check(wall)
    return _run(wall, code, stdin, limits or Limits())


def check(wall: Wall | None = None) -> None:
    """Raises ValueError for an unknown wall, InstallError for one that does not work here; None is
    the one in use."""
    wall = wall or _chosen
    if wall not in walls.WALLS:
        raise ValueError(f"wall is {wall!r}, but must be one of {', '.join(walls.WALLS)}")
    if why := obstacle(wall):
        others = [f"{kind} ({walls.GUARDS[kind]})" for kind in usable()]
        raise InstallError(
            f"the sandbox {wall} does not work here: {why}; install bubblewrap (apt install "
            f"bubblewrap), or accept another wall with --wall: {', or '.join(others) or 'none'}"
        )


def usable() -> list[Wall]:
    """The walls that work here, the strongest first."""
    return [kind for kind in walls.WALLS if not obstacle(kind)]


@functools.cache
def obstacle(kind: Wall) -> str:
    """Why a wall does not work here; empty where it does."""
    if kind != "limits" and not shutil.which(kind):
        return f"there is no program {kind}"
    code = "import threading\nt = threading.Thread(target=print, args=('hello',))\nt.start()"
    outcome = _run(kind, code, "", Limits(seconds=60))
    return "" if outcome.stdout == "hello\n" and not outcome.why else outcome.why or "no output"


def remove(folder: Path | str) -> None:
    """Delete a folder whatever a program has left in it; what cannot be deleted stays. Python's own
    way fails at deep trees."""
    for tool in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if os.path.lexists(folder):
            with contextlib.suppress(OSError):
                quiet = subprocess.DEVNULL
                subprocess.run([*tool, "--", str(folder)], stderr=quiet, stdin=quiet, check=False)


def _run(kind: Wall, code: str, stdin: str, limits: Limits) -> Outcome:
    with _folder() as folder, contextlib.ExitStack() as files:
        (folder / "program.py").write_text(code, encoding="utf-8", errors="replace")
        (folder / "launch.py").write_text(LAUNCHER.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / "work").mkdir()
        # without names: nothing that a program does can lead the reading of them elsewhere
        streams = [files.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        streams[0].write(stdin.encode(errors="replace"))
        streams[0].seek(0)
        orders = asdict(limits) | {"as_stranger": kind == "bwrap" and os.getuid() == 0}
        command = [*walls.command(kind, folder, limits.disk), json.dumps(orders)]
        stopped, status = _wait(command, folder, streams, limits)
        return Outcome(stopped, status, _head(streams[1]), _tail(streams[2]))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tgr-sandbox-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        remove(folder)


def _wait(
    command: list[str], folder: Path, streams: Sequence[IO[bytes]], limits: Limits
) -> tuple[str, int]:
    """Run a command to its end or to a limit; then nothing of it is left."""
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder / "work",
        env=walls.environment(folder),
        start_new_session=True,
    )
    try:
        stopped = _watch(process, (stdout, stderr), limits)
        return stopped, -signal.SIGKILL if stopped else process.returncode
    finally:
        pids = usage.tree(process.pid) if process.poll() is None else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _watch(process: subprocess.Popen[bytes], outputs: Sequence[IO[bytes]], limits: Limits) -> str:
    """The limit that a process has met; empty where it came to its end."""
    deadline, pause = time.monotonic() + limits.seconds, _LOOK
    while True:
        left = deadline - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, min(pause, left)))
        if any(os.fstat(file.fileno()).st_size > OUTPUT for file in outputs):
            return f"output limit of {OUTPUT:,} bytes"
        if process.returncode is not None:
            return ""
        if left <= 0:
            return "time limit"
        start = time.monotonic()
        if usage.memory(usage.tree(process.pid), limits.memory) > limits.memory:
            return f"memory limit of {limits.memory:,} bytes for all processes"
        pause = max(_LOOK, 4 * (time.monotonic() - start))


def _head(file: IO[bytes]) -> str:
    return _text(os.pread(file.fileno(), OUTPUT, 0))


def _tail(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return _text(os.pread(file.fileno(), 8000, max(0, size - 8000)))[-2000:]


def _text(data: bytes) -> str:
    """As a text file is read: every end of a line is one character."""
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace").read()
