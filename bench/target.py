"""A server under test: started under a memory cap, on 127.0.0.1, measured from outside."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PDEATHSIG = 1
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Answer:
    """An answer: the status (0 = none), the seconds until it, and the beginning of its text."""

    status: int
    seconds: float
    note: str = ""


@dataclass
class Target:
    """A server's address and process; `lines` is its stderr, if it was started here."""

    url: str
    pid: int
    process: subprocess.Popen[bytes] | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def alive(self) -> bool:
        if self.process:
            return self.process.poll() is None
        return Path(f"/proc/{self.pid}").exists()

    @property
    def end(self) -> str:
        """How the process ended, and the last line on its stderr that is no log."""
        code = self.process.poll() if self.process else None
        how = signal.Signals(-code).name if code and code < 0 else f"exit code {code}"
        words = [line for line in self.lines if not line.startswith("{")]
        return f"{how}, {words[-1][-120:] if words else 'without a word'}"

    def post(self, path: str, body: bytes, seconds: float) -> Answer:
        """One request on its own connection, with a timeout."""
        start, answer = time.monotonic(), Answer(0, 0.0)
        try:
            with contextlib.closing(
                http.client.HTTPConnection(*self.address, timeout=seconds)
            ) as link:
                link.connect()
                with contextlib.suppress(
                    ConnectionError
                ):  # refused early: the answer can still be read
                    kind = {"Content-Type": "application/json"}
                    link.request("POST" if body else "GET", path, body or None, kind)
                response = link.getresponse()
                text = response.read(1 << 26)
                answer = Answer(response.status, 0.0, text[:300].decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            answer.note = f"{type(error).__name__} {error}"
        answer.seconds = time.monotonic() - start
        return answer

    def health(self, seconds: float) -> Answer:
        return self.post("/health", b"", seconds)

    def connect(self, seconds: float = 10.0) -> socket.socket:
        return socket.create_connection(self.address, timeout=seconds)

    def request(self, path: str, body: bytes, *, length: int | None = None) -> bytes:
        """The bytes of a POST request, its Content-Length true unless another is given."""
        n = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n\r\n"
        return head.encode() + body

    def stop(self, seconds: float) -> tuple[float, str]:
        """Sends SIGTERM; seconds until the process ended, and how. Kills it after `seconds`."""
        assert self.process is not None
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
        if self.process:
            for pid in family(self.pid)[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def start(flags: list[str], cap_bytes: int) -> Target:
    """A server on a free port with at most so much address space. RuntimeError if it fails."""

    libc = ctypes.CDLL(None)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (cap_bytes, cap_bytes))
        libc.prctl(_PDEATHSIG, signal.SIGKILL)  # it ends with this process

    process = subprocess.Popen(
        [sys.executable, "-m", "tgr_local", "serve", "--port", "0", *flags],
        stderr=subprocess.PIPE,
        preexec_fn=limit,
    )
    target = Target("", process.pid, process)
    ready = threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for raw in process.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            target.lines.append(line)
            if "listening on http" in line:
                target.url = line.split()[-1]
            if "is ready" in line:
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    is_ready = ready.wait(120) and any("is ready" in line for line in target.lines)
    if not is_ready or not target.url:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)  # its last line came before its end
        target.kill()
        raise RuntimeError(f"the server did not start: {target.lines[-3:]}")
    return target


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for folder in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path("/proc", str(int(folder)), "stat").read_text()
            parents[int(folder)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


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
    for one in family(pid):
        with contextlib.suppress(OSError, ValueError):
            stat = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += (int(stat[11]) + int(stat[12])) / _TICK
    return total


def seconds_until_idle(target: Target, most: float) -> float:
    """Until a quarter of a second costs less than a fifth of a core; infinite if it never does."""
    start = time.monotonic()
    while time.monotonic() - start < most and target.alive:
        before = cpu_seconds(target.pid)
        time.sleep(0.25)
        if cpu_seconds(target.pid) - before < 0.05:
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
