"""llama.cpp's chat code, and what makes HTML of Markdown, run in a subprocess with limits.

A chat template is a program from a model file, the parameters of a client's functions or a text of
a model can keep a converter busy forever, and a reply is parsed by what all of them say. They run
in `confined_worker.py`, with a limit of CPU time and, where the system enforces one (Linux does,
macOS does not), of memory. A worker is reused by later calls. JSON goes in, and JSON comes out.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tgr_local.system import confined_worker, frozen
from tgr_local.system.cancel import Cancel, check_cancelled, watched
from tgr_local.system.confined_worker import CPU_SECONDS, RESULT_BYTES
from tgr_local.system.errors import InstallError, TgrError
from tgr_local.system.turnstile import Turnstile

WALL_SECONDS = 20.0  # wall time, for a worker that sleeps or that a busy machine slows down
_MOST_BYTES = RESULT_BYTES + (1 << 20)  # of an answer; an honest worker never sends more
_PIECE = 1 << 16  # bytes of a request that are written at a time
_MAX_WORKERS = 2  # at a time: each may take a few hundred MB
# how a process ends that has used up its CPU time, or its stack
_OVER_TIME, _OVER_STACK = (
    (-signal.SIGXCPU, -signal.SIGSEGV) if hasattr(signal, "SIGXCPU") else (1816, 0xC00000FD)
)


class ConfinedError(TgrError):
    """The code failed or exceeded a limit; the message says which."""


class FailedError(ConfinedError):
    """The code ended with an error of its own, as it will the next time."""


def apply_template(
    template: str, bos: str, eos: str, request: dict[str, Any], cancel: Cancel | None = None
) -> dict[str, Any]:
    """Applies a chat template to messages; returns the prompt, and how to read the replies to it.

    `bos` and `eos` are the texts of the vocabulary's begin and end tokens. The request holds
    ``messages`` and may hold ``tools``, ``tool_choice`` (none, auto, required), ``parallel``,
    ``thinking``, ``variables`` of the template, and ``only_prompt``.
    csrc/chat/module.cpp names the parts of the result. Raises ConfinedError, ValueError for what
    JSON cannot represent, and CancelledError if `cancel` is set.
    """
    work = {"do": "apply", "template": template, "bos": bos, "eos": eos, "request": request}
    if request.get("tools") or any(  # for a template that knows none
        m.get("tool_calls") or m.get("role") == "tool" for m in request["messages"]
    ):
        work["generic_tools"] = _generic_tools()
    result: dict[str, Any] = _call(work, cancel)
    return result


@functools.lru_cache(maxsize=64)
def abilities(template: str) -> dict[str, bool]:
    """Returns the capabilities of a chat template by llama.cpp's names: ``supports_tools``, …
    Raises ConfinedError."""
    result: dict[str, bool] = _call({"do": "abilities", "template": template}, None)
    return result


def parse(
    parser: tuple[int, str, str], text: str, *, partial: bool, cancel: Cancel | None = None
) -> dict[str, Any]:
    """The message in a reply: its ``content``, ``thinking`` and ``calls`` (``id``, ``name``,
    ``arguments``). The parser is its format's number, its text, and the text before the reply;
    `partial` = the reply may go on. Raises as `apply_template` does."""
    work = {"do": "parse", "key": _key(parser), "text": text, "partial": partial}
    message: dict[str, Any] | None = _call(work, cancel)
    if message is None:  # this worker has not seen the parser
        message = _call({**work, "parser": parser}, cancel)
    assert message is not None
    return message


def call(module: Path, arguments: dict[str, Any], cancel: Cancel | None = None) -> str:
    """Returns the result of a module's function ``render``. The module is loaded from its file,
    once in each process, and may import only other packages than this one. Raises as
    `apply_template` does."""
    return str(_call({"do": "call", "module": str(module), "arguments": arguments}, cancel))


@functools.lru_cache(maxsize=64)
def _key(parser: tuple[int, str, str]) -> str:
    return hashlib.blake2b(repr(parser).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _call(request: dict[str, Any], cancel: Cancel | None) -> Any:
    try:
        data = json.dumps(request, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text is not valid Unicode: it holds {error.object[error.start]!a}; remove it"
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the arguments must be JSON values: {error}") from None
    command = _command()
    if not command:
        confined_worker.extension = _extension()
        return _value(json.loads(confined_worker.answer(json.loads(data))))
    with _turnstile.taken(cancel):
        worker = _worker(command)
        try:
            answer = worker.ask(data, cancel)
            check_cancelled(cancel)  # a watcher that comes late may still end this process
        except BaseException:
            worker.end()
            raise
        _idle.append(worker)
    return _value(answer)


@functools.cache
def _generic_tools() -> str:
    return Path(__file__).with_name("generic_tools.jinja").read_text(encoding="utf-8")


@functools.cache
def _extension() -> str:
    """The file of the module that the worker loads."""
    spec = importlib.util.find_spec("tgr_local._chat")
    if spec is None or not spec.origin:
        raise InstallError("tgr_local._chat is missing; install the package again")
    return spec.origin


def main() -> None:
    """Runs the worker of a frozen program."""
    confined_worker.serve(_extension())


def _command() -> list[str]:
    """The program of a worker, and its arguments; empty if there is none to start."""
    if frozen.is_frozen():
        return frozen.command("confined")
    if not (python := interpreter()):
        return []
    # no site module: sys.path is passed as arguments; a bundle needs its PYTHONHOME
    flags = ["-s", "-S"] if "PYTHONHOME" in os.environ else ["-I", "-S"]
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    return [python, *flags, str(Path(confined_worker.__file__)), _extension(), *path]


@functools.cache
def interpreter() -> str:
    """The Python to start; empty if there is none, as in a frozen program or where another program
    embeds Python."""
    if frozen.is_frozen():
        return ""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for path in (sys.executable, os.path.join(sys.exec_prefix, "bin", name)):
        if os.path.basename(path or "").startswith(("python", "pypy")) and os.path.exists(path):
            return path
    return ""


def _worker(command: list[str]) -> _Worker:
    """An idle worker, or a new one."""
    with contextlib.suppress(IndexError):
        while True:
            worker = _idle.pop()
            if worker.is_alive:
                return worker
            worker.end()
    return _Worker(command)


def _value(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise FailedError(answer["error"])
    return answer["value"]


def _late() -> ConfinedError:
    return ConfinedError(f"takes more than {WALL_SECONDS:g} s")


class _Worker:
    """A worker process, which answers requests one after the other."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach this process only
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # the same, on Windows
        )
        if hasattr(select, "poll"):  # else a write waits for all of its bytes
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes, cancel: Cancel | None) -> dict[str, Any]:
        deadline = time.monotonic() + WALL_SECONDS

        def look() -> None:
            if cancel and cancel.is_set():
                self._process.kill()  # which ends the wait for its answer

        with watched(cancel, look):
            check_cancelled(cancel)
            try:
                self._write(data + b"\n", deadline)
            except OSError:  # the process has ended
                self._raise_end(deadline, cancel)
            answer: dict[str, Any] = json.loads(self._line(deadline, cancel))
            return answer

    def _write(self, data: bytes, deadline: float) -> None:
        """Gives the process all of the data, which it may take slowly or not at all. Raises
        OSError where it has ended."""
        assert self._process.stdin is not None
        pipe, unsent = self._process.stdin.fileno(), memoryview(data)
        with self._wait(pipe, deadline, to_write=True) as comes:
            while unsent:
                if not comes():
                    raise _late()
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[os.write(pipe, unsent[:_PIECE]) :]

    def _line(self, deadline: float, cancel: Cancel | None) -> bytearray:
        """The line that comes."""
        assert self._process.stdout is not None
        pipe, data = self._process.stdout.fileno(), bytearray()
        with self._wait(pipe, deadline) as comes:
            while not data.endswith(b"\n"):
                if not comes():
                    raise _late()
                part = os.read(pipe, 1 << 20)
                if not part:
                    self._raise_end(deadline, cancel)
                data += part
                if len(data) > _MOST_BYTES:
                    raise ConfinedError(f"answers with more than {RESULT_BYTES >> 20} MiB")
        return data

    @contextlib.contextmanager
    def _wait(
        self, pipe: int, deadline: float, *, to_write: bool = False
    ) -> Iterator[Callable[[], bool]]:
        """A function that waits for the next bytes or their end, or for room to write; False after
        the deadline. Windows cannot wait for a pipe: there the worker is killed at the deadline,
        which ends the pipe."""

        def left() -> float:
            return deadline - time.monotonic()

        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(pipe, select.POLLOUT if to_write else select.POLLIN)
            yield lambda: (most := 1000 * left()) > 0 and bool(poll.poll(most))
            return
        timer = threading.Timer(max(0.0, left()), self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield lambda: True
        finally:
            timer.cancel()

    def _raise_end(self, deadline: float, cancel: Cancel | None) -> NoReturn:
        """Raises what its end says; the process may have closed its pipes and live on."""
        check_cancelled(cancel)
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _late() from None
        check_cancelled(cancel)
        if time.monotonic() >= deadline:
            raise _late()
        if code == _OVER_TIME:
            raise ConfinedError(f"takes more than {CPU_SECONDS} s of CPU time")
        if code == _OVER_STACK:
            raise ConfinedError("is nested too deeply")
        raise ConfinedError(f"ended its process with exit code {code}")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()


_idle: list[_Worker] = []
_turnstile = Turnstile(_MAX_WORKERS)


@atexit.register
def _end_all() -> None:
    while _idle:
        _idle.pop().end()


def _after_fork() -> None:
    # the pipes of the workers belong to the parent
    global _turnstile
    _idle.clear()
    _turnstile = Turnstile(_MAX_WORKERS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
