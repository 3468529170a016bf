"""A server under test, measured from outside: memory and time of all its processes, its health."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PDEATHSIG = 1
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 300.0  # also on a busy machine, with a large model


@dataclass
class Answer:
    """An answer: the status, 0 where there is none, the seconds until its end, and its text, or why
    there is none."""

    status: int
    seconds: float
    note: str = ""


@dataclass
class Target:
    """A server's process and address; `lines` is its stderr."""

    process: subprocess.Popen[str]
    url: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def end(self) -> str:
        """How the process ended, and the last line on its stderr that is no log."""
        code = self.process.poll()
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        words = [line for line in self.lines if not line.startswith("{")]
        return f"{how}, {words[-1][-120:] if words else 'without a word'}"

    def ask(self, path: str, body: bytes, seconds: float, verb: str = "POST") -> Answer:
        """One request on its own connection, with a timeout."""
        start, answer = time.monotonic(), Answer(0, 0.0)
        try:
            link = http.client.HTTPConnection(*self.address, timeout=seconds)
            with contextlib.closing(link):
                link.connect()
                kind = {"Content-Type": "application/json"}
                with contextlib.suppress(ConnectionError):  # refused early: there is an answer
                    link.request(verb, path, body or None, kind)
                response = link.getresponse()
                text = response.read(1 << 26).decode("utf-8", "replace")
                answer = Answer(response.status, 0.0, text)
        except (OSError, http.client.HTTPException) as error:
            answer.note = f"{type(error).__name__} {error}"
        answer.seconds = time.monotonic() - start
        return answer

    def health(self, seconds: float) -> Answer:
        return self.ask("/health", b"", seconds, "GET")

    def connect(self, seconds: float = 10.0) -> socket.socket:
        return socket.create_connection(self.address, timeout=seconds)

    def request(self, path: str, body: bytes, *, length: int | None = None) -> bytes:
        """The bytes of a POST request, its Content-Length true unless another is given."""
        n = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n\r\n"
        return head.encode() + body

    def stop(self, seconds: float) -> tuple[float, str]:
        """Sends SIGTERM; seconds until the process ended, and how. Kills it after `seconds`."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
            how = f"exit code {code}"
        except subprocess.TimeoutExpired:
            self.kill()
            how = f"alive after {seconds:g} s"
        return time.monotonic() - start, how

    def kill(self) -> None:
        for pid in family(self.pid)[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def launch(
    command: Sequence[str],
    ready: str,
    *,
    cap_bytes: int = 0,
    env: Mapping[str, str] | None = None,
) -> Target:
    """A server as soon as a line of its stderr matches `ready`, with at most so much address space
    (0 = any). Its address is the one that a line names. It ends with the thread that started it.
    RuntimeError if it fails."""

    libc = ctypes.CDLL(None)

    def limit() -> None:
        if cap_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (cap_bytes, cap_bytes))
        libc.prctl(_PDEATHSIG, signal.SIGKILL)

    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        env=env, preexec_fn=limit,
    )  # fmt: skip
    target, ended, is_ready = Target(process), threading.Event(), threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            target.lines.append(line.rstrip("\n"))
            if match := re.search(r"listening on (http://[\w.:]+)", line):
                target.url = match[1]
            if re.search(ready, line):
                is_ready.set()
                ended.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    ended.wait(START_SECONDS)
    if not is_ready.is_set() or not target.url:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)  # its last line came before its end
        target.kill()
        raise RuntimeError(f"the server did not start: {target.lines[-3:]}")
    return target


def start(
    flags: Sequence[str], cap_bytes: int = 0, python: str = sys.executable, **more: Any
) -> Target:
    """`tgr-local serve` on a free port; `more` is for `launch`."""
    command = [python, "-m", "tgr_local", "serve", "--port=0", *flags]
    return launch(command, "is ready", cap_bytes=cap_bytes, **more)


def start_llama_server(program: str, flags: Sequence[str]) -> Target:
    """llama.cpp's server on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [program, "--host", "127.0.0.1", "--port", port, *flags]
    return launch(command, r"llama_server: listening on|server is listening on")


@contextlib.contextmanager
def serving(flags: Sequence[str]) -> Iterator[Target]:
    """The same for a block. RuntimeError if it does not end at SIGTERM."""
    target = start(flags)
    try:
        yield target
    finally:
        _, how = target.stop(30)
    if how != "exit code 0":
        raise RuntimeError(f"SIGTERM: {how}")


def flags_of(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for folder in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path("/proc", str(int(folder)), "stat").read_text()
            parents[int(folder)] = int(stat.rpartition(")")[2].split()[1])
    pids = [pid]
    for ancestor in pids:
        pids += [child for child, parent in parents.items() if parent == ancestor]
    return pids


def resident(pid: int) -> int:
    """Bytes in memory; 0 for a process that has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def high_water(pid: int) -> int:
    """The most bytes in memory since `reset_high_water`."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def reset_high_water(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its descendants so far."""
    total = 0.0
    for process_id in family(pid):
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            total += (int(stat[11]) + int(stat[12])) / _TICK
    return total


def seconds_until_idle(target: Target, most: float) -> float:
    """Until a quarter of a second costs less than a fifth of a core; infinite if it never does."""
    start = time.monotonic()
    while time.monotonic() - start < most and target.alive:
        cpu_before = cpu_seconds(target.pid)
        time.sleep(0.25)
        if cpu_seconds(target.pid) - cpu_before < 0.05:
            return max(0.0, time.monotonic() - start - 0.25)
    return float("inf")


class Watch:
    """While the block runs: `peak` bytes of memory of all processes together, seconds of the
    slowest `/health`, whose every answer must be 200, and `tracebacks` on stderr."""

    def __init__(self, target: Target, cap_bytes: int) -> None:
        self.peak, self.slowest, self.tracebacks = 0, 0.0, 0
        self.sick = ""
        self._target, self._cap = target, cap_bytes
        self._ended = threading.Event()

    def __enter__(self) -> Watch:
        self._n_lines = len(self._target.lines)
        reset_high_water(self._target.pid)
        self._threads = [
            threading.Thread(target=self._repeat, args=(work, pause), daemon=True)
            for work, pause in ((self._measure, 0.05), (self._ask, 0.2))
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._measure()
        self._ask()
        self.peak = max(self.peak, high_water(self._target.pid))
        lines = self._target.lines[self._n_lines :]
        self.tracebacks = sum("Traceback" in line for line in lines)

    def _repeat(self, work: Callable[[], None], pause: float) -> None:
        while not self._ended.wait(pause):
            work()

    def _measure(self) -> None:
        total = sum(resident(pid) for pid in family(self._target.pid))
        self.peak = max(self.peak, total)
        if total > 2 * self._cap:
            self._target.kill()  # before this machine runs out of memory

    def _ask(self) -> None:
        if not self._target.alive:
            return
        answer = self._target.health(10)
        if answer.status != 200 and self._target.alive:
            self.sick = f"/health: {answer.status or answer.note}"
        self.slowest = max(self.slowest, answer.seconds)


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Allows thousands of sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
