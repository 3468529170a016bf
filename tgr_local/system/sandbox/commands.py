"""Runs a user's command, such as one that runs tests, in a folder that it may write, with limits.

In: a command for the shell, a folder. Out: the beginning and the end of its output, and how it
ended. With bubblewrap the command sees the folder at a place of its own, the system and the
person's tools as files that it cannot change, and neither the network nor other processes. The
other backends show it everything; they run it in the folder itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tgr_local.system import cores
from tgr_local.system.cancel import Cancel, check_cancelled
from tgr_local.system.errors import InstallError
from tgr_local.system.paths import program, program_folders
from tgr_local.system.sandbox import backends, own_path, usage
from tgr_local.system.sandbox.backends import Backend, Mount
from tgr_local.system.sandbox.fetched import fetched
from tgr_local.system.sandbox.own_path import OwnPath

Stopped = Literal["", "time", "memory", "processes", "disk", "output"]
_SEEN_LAUNCHER = Path("/tgr-launch.py")
_INTERVAL = 0.05  # seconds between two checks of a command; more where a check takes long
_KEPT = 64 << 10  # of the beginning and of the end of an output, bytes
_WAY_OUT = (
    "install bubblewrap (apt install bubblewrap), or name --sandbox none (TGR_SANDBOX=none) and "
    "accept the risk: the tests, with code of the model, then have the rights of this user, on "
    "this machine's files and network"
)
_SYSTEM = ("/etc", "/opt", "/nix", "/gnu", "/snap")
_SECRETS = ("credentials", "credentials.toml", "settings.xml", "gradle.properties")
"""Files of a folder of tools that no command sees."""
_PASSED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH",
    "JAVA_HOME", "GOROOT", "NODE_PATH",
)  # fmt: skip
_PATHS = ("PATH", "PYTHONPATH", "NODE_PATH")  # of those, what lists folders
_PLAIN = {
    "NO_COLOR": "1", "PY_COLORS": "0", "CARGO_TERM_COLOR": "never", "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INDEX": "1", "CARGO_NET_OFFLINE": "true",
    "GOPROXY": "off", "GOTOOLCHAIN": "local", "GIT_CONFIG_COUNT": "1",
    # as root the command becomes another user than the owner of the repository
    "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
}  # fmt: skip
"""Output without colours, nothing fetched, no files that only make the next run faster."""


@dataclass(frozen=True)
class CommandLimits:
    """Limits of one command."""

    seconds: float = 120.0
    """Wall time; the CPU time of each process is limited to that of all cores."""
    memory: int = 4 << 30
    """Memory of all processes together with their /tmp and /dev/shm, and what each may reserve,
    bytes."""
    disk: int = 1 << 30
    """Size of each file, of /tmp and of /dev/shm, and what the folder may grow by, bytes."""
    processes: int = 512
    """Processes and threads at a time."""
    output: int = 64 << 20
    """Output that is read, bytes; its beginning and its end are kept."""


@dataclass(frozen=True)
class Place:
    """Place in which a command runs."""

    folder: Path
    """The folder that the command may change; it may change nothing else."""
    seen_at: Path
    """Path of the folder inside bubblewrap."""
    mounted_read_only: tuple[Path, ...] = ()
    """Other paths, which the command sees in place and cannot change; without a sandbox it can."""
    scratch: Path | None = None
    """A folder for HOME and temporary files, where the backend has no /tmp of its own."""
    size: int = 0
    """Bytes in the folder before the command, as `usage.size` measures them."""

    def own_path(self) -> OwnPath:
        """Maps paths into the copy for a command that sees both it and the folder."""
        inside = [path for path in self.mounted_read_only if path.is_relative_to(self.seen_at)]
        return OwnPath(self.seen_at, self.folder, [path for path in inside if path != self.seen_at])


@dataclass(frozen=True)
class CommandOutcome:
    """Outcome of a command."""

    stopped: Stopped
    """The limit at which it was stopped; empty where it ended itself."""
    code: int
    """The shell's exit code; above 128 for a signal, as shells count."""
    output: str
    """Printed text, stdout and stderr together; the middle of a long output is left out."""
    seconds: float
    """Wall time."""


def run(
    command: str,
    place: Place,
    limits: CommandLimits | None = None,
    backend: Backend = backends.DEFAULT,
    cancel: Cancel | None = None,
) -> CommandOutcome:
    """Runs a command to its end or to a limit, and kills what is left of it.

    Raises InstallError where the backend does not work here, and CancelledError if `cancel` is set.
    """
    check(backend)
    outcome, is_started = _run(command, place, limits or CommandLimits(), backend, cancel)
    if not is_started:
        raise InstallError(f"the sandbox {backend} could not start: {outcome.output[-300:]}")
    return outcome


def _run(
    command: str,
    place: Place,
    limits: CommandLimits,
    backend: Backend,
    cancel: Cancel | None = None,
) -> tuple[CommandOutcome, bool]:
    """Returns the outcome of `run`, and whether the command was started."""
    user = backends.unused_user(backend)
    if user is not None:
        _give(place.folder, user)  # who could not write there otherwise
    if backend == backends.NONE:
        _link(place)
    if backend != "bwrap":
        command = place.own_path().in_command(command)
    read_end, write_end = os.pipe()
    ready, is_ready = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, read_end)
        stack.callback(os.close, ready)
        try:
            process = subprocess.Popen(
                _command(backend, command, place, limits, user, is_ready),
                stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end, cwd=place.folder,
                env=_environment(backend, place, command), start_new_session=True,
                pass_fds=[is_ready],
            )  # fmt: skip
        finally:
            os.close(write_end)
            os.close(is_ready)
        output = Output(read_end)
        start = time.monotonic()
        try:
            stopped = _watch(process, output, place, limits, cancel)
        finally:
            usage.end(process, is_contained=backend in ("bwrap", "unshare"))
        output.read()
        seconds = time.monotonic() - start
        is_started = bool(stopped) or _has_byte(ready)
    code = process.returncode
    outcome = CommandOutcome(stopped, 128 - code if code < 0 else code, output.text(), seconds)
    return outcome, is_started


def obstacle(kind: Backend) -> str:
    """Returns the reason why no command runs in a backend here; empty where it works."""
    if why := defect(kind):
        return why
    if kind in ("unshare", "limits") and backends.becomes_another_user():
        return "its commands run as another user, who does not see the files of root"
    return ""


@functools.cache
def defect(kind: Backend) -> str:
    """Returns the reason why no program with threads runs in a backend here; empty if one does."""
    if why := backends.lacking(kind):
        return why
    code = "import threading\nt = threading.Thread(target=print, args=('hello',))\nt.start()"
    command = shlex.join([*backends.python(), "-c", code])
    folder = Path(tempfile.mkdtemp(prefix="tgr-sandbox-"))
    try:
        outcome, _ = _run(command, Place(folder, folder), CommandLimits(seconds=60), kind)
    finally:
        usage.remove(folder)
    if outcome.stopped:
        return f"{outcome.stopped} limit"
    if "hello" in outcome.output.splitlines() and not outcome.code:  # a shell may warn before
        return ""
    lines = outcome.output.strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {outcome.code}"


def strongest() -> Backend:
    """The strongest sandbox that works here. Raises InstallError where there is none."""
    kinds: dict[str, list[Backend]] = {}
    for kind in backends.BACKENDS:
        if not (why := obstacle(kind)):
            return kind
        kinds.setdefault(why, []).append(kind)
    reasons = "; ".join(
        f"{', '.join(kinds_of_reason)}: {why}" for why, kinds_of_reason in kinds.items()
    )
    raise InstallError(f"no sandbox works here ({reasons}); {_WAY_OUT}")


def check(kind: Backend) -> None:
    """Raises ValueError for an unknown backend, InstallError for one that does not work here."""
    backends.check_name(kind)
    if why := obstacle(kind):
        raise InstallError(f"the sandbox {kind} does not work here: {why}; {_WAY_OUT}")


def _has_byte(descriptor: int) -> bool:
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False


def _give(folder: Path, user: int) -> None:
    """Makes a user the owner of a folder and everything in it; of links, not of their ends."""
    quiet = subprocess.DEVNULL
    chown = [program("chown") or "chown", "-R", "-h", "-P", f"{user}:{user}", "--", str(folder)]
    subprocess.run(chown, stdin=quiet, stdout=quiet, stderr=quiet, check=False)


def is_linked(path: Path) -> bool:
    """Whether a command without a sandbox sees a path of `Place.mounted_read_only`: not a
    repository, in which git writes even where it only reads."""
    return path.name != ".git"


def _link(place: Place) -> None:
    """Puts links in the folder to what bubblewrap shows there; a command can write through them."""
    for path in filter(is_linked, place.mounted_read_only):
        if path.is_relative_to(place.seen_at) and path != place.seen_at:
            link = place.folder / path.relative_to(place.seen_at)
            with contextlib.suppress(OSError):
                link.rmdir() if link.is_dir() else link.unlink()  # an empty one stands for it
                link.symlink_to(path)


def _command(
    backend: Backend,
    command: str,
    place: Place,
    limits: CommandLimits,
    user: int | None,
    ready: int,
) -> list[str]:
    orders = {
        "user": user,
        "processes": limits.processes,
        "bounds": {
            "RLIMIT_CPU": int(limits.seconds * cores.usable()) + 1,
            # not the address space: Node and Go reserve far more than they use
            "RLIMIT_DATA": limits.memory,
            "RLIMIT_FSIZE": limits.disk,
            "RLIMIT_NOFILE": 4096,
            "RLIMIT_CORE": 0,
        },
        "command": ["/bin/sh", "-c", command],
        "ready": ready,
    }
    launch = [*backends.python(), str(backends.LAUNCHER), json.dumps(orders)]
    if backend != "bwrap":
        return backends.without_mounts(backend, launch)
    launch[-2] = str(_SEEN_LAUNCHER)
    mounts: list[Mount] = []
    shown = backends.tools(command, place.mounted_read_only, place.seen_at)
    mounts += [("--ro-bind", path, path) for path in shown]
    mounts += [("--ro-bind", Path(os.devnull), secret) for secret in _secrets(shown)]
    mounts += [("--ro-bind-try", path, path) for path in place.mounted_read_only]
    mounts += [("--ro-bind", backends.LAUNCHER, _SEEN_LAUNCHER)]
    mounts += [("--bind", place.folder, place.seen_at)]
    start = str(place.seen_at)
    return [*backends.isolate(mounts, _SYSTEM, limits.disk, start), *launch]


def _secrets(shown: list[Path]) -> Iterator[Path]:
    """The places in these folders where a file of secrets is seen: bubblewrap hides no link."""
    files = [path / name for path in shown for name in _SECRETS]
    for real in (os.path.realpath(path) for path in files if os.path.isfile(path)):
        for folder in shown:
            if Path(real).is_relative_to(root := os.path.realpath(folder)):
                yield folder / Path(real).relative_to(root)


def _environment(backend: Backend, place: Place, command: str) -> dict[str, str]:
    """The variables that a command needs, none of the caller's secrets."""
    env = {name: os.environ[name] for name in _PASSED if name in os.environ} | _PLAIN
    home = Path(os.path.expanduser("~"))
    env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    env.setdefault("LANG", "C.UTF-8")
    for name, folder in {"CARGO_HOME": ".cargo", "RUSTUP_HOME": ".rustup"}.items():
        tools = os.environ.get(name) or str(home / folder)
        if os.path.isdir(tools):
            env[name] = tools
    env |= {tool.variable: tool.value for tool in fetched(command, place.seen_at)}
    if backend != "bwrap":
        scratch = str(place.scratch or place.folder)
        env |= {"HOME": scratch, "TMPDIR": scratch}
        copied = place.own_path()
        env |= {name: copied.in_paths(env[name]) for name in _PATHS if name in env}
        # before packages that are installed from the original folder
        more = [copied.in_path(str(path)) for path in editable(place)]
        paths = [str(place.folder), str(place.folder / "src"), *more, env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
        # git would find the repository of a folder around the copies, such as a home
        env["GIT_CEILING_DIRECTORIES"] = str(place.folder.parent)
    return env


def editable(place: Place) -> list[Path]:
    """The folders that the Pythons which a command may start import from, of the original."""
    pythons = {
        Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)
    }
    pythons |= {path for path in place.mounted_read_only if os.path.exists(path / "pyvenv.cfg")}
    for folder in program_folders():
        if any(os.access(folder / name, os.X_OK) for name in ("python", "python3")):
            pythons.add(folder.parent)
    return own_path.editable(place.seen_at, [*sorted(pythons), Path("/usr/local")])


def _watch(
    process: subprocess.Popen[bytes],
    output: Output,
    place: Place,
    limits: CommandLimits,
    cancel: Cancel | None,
) -> Stopped:
    """Reads the output until the command ends; the limit that it reached."""
    deadline = time.monotonic() + limits.seconds
    folders = [folder for folder in (place.folder, place.scratch) if folder]
    disk = usage.Disk(folders, limits.disk, place.size)
    memory = usage.ProcessMemory(limits.memory)
    pause, next_check = _INTERVAL, time.monotonic()
    while True:
        check_cancelled(cancel, "the command was cancelled")
        if process.poll() is not None:
            return ""
        now = time.monotonic()
        if now >= deadline:
            return "time"
        if output.total > limits.output:
            return "output"
        if now >= next_check:
            pids = usage.tree(process.pid)
            if len(pids) > limits.processes + backends.OURS:  # root has no limit of its own
                return "processes"
            if memory.is_exceeded(pids):
                return "memory"
            if disk.is_exceeded(pids):
                return "disk"
            pause = max(_INTERVAL, 4 * (time.monotonic() - now))
            next_check = time.monotonic() + pause
        output.wait(min(0.02, deadline - now))


@dataclass
class Output:
    """A pipe's beginning and end."""

    descriptor: int
    total: int = 0
    _head: bytes = b""
    _tail: bytes = b""
    _is_open: bool = True

    def __post_init__(self) -> None:
        os.set_blocking(self.descriptor, False)

    def wait(self, seconds: float) -> None:
        """Waits for output, and reads what there is."""
        if not self._is_open:
            time.sleep(max(0.0, seconds))
            return
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if poll.poll(max(0.0, 1000 * seconds)):
            self.read()

    def read(self) -> None:
        """Reads what the pipe holds, not more than a few MB at a time."""
        for _ in range(64):
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._is_open = False
                return
            self.total += len(data)
            n = _KEPT - len(self._head)
            self._head += data[:n]
            self._tail = (self._tail + data[n:])[-_KEPT:]

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        middle = f"\n… {left_out:,} bytes left out …\n".encode() if left_out else b""
        text = (self._head + middle + self._tail).decode("utf-8", "replace")
        return text.replace("\r\n", "\n")
