"""Attacks a server in every way that is known to have hurt one, each in bounded time, and says what
each did: seconds, statuses, memory, whether /health answered; exit code 1 where a bound is broken.

    python bench/attack.py                        # all, against servers of its own on 127.0.0.1
    python bench/attack.py --only 'schema|stop'   # those whose name the expression finds

1. Single requests: schemas, grammars, stop texts, options at their upper bound, invalid JSON.
   Each must be answered within the server's time for a request and `SLACK` seconds more.
2. 40 clients that send one of the expensive ones and leave: the server must be idle again after
   the same time.
3. Model files with a hostile chat template, each on a server of its own.
4. Connections: silent, slow, cut off, pipelined, requests with two ends; pages of
   other sites; a key that guesses what another key has sent.
5. SIGTERM while each expensive request runs: the process must end within `--shutdown-seconds` and
   `SLACK` seconds.

In every case no more than `--memory` MiB may be used by all the server's processes together,
/health must answer 200 within `--health-seconds`, the process must live, and its stderr
must have no traceback. The clients share this machine's cores, so all times are upper bounds.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import attack_bodies
from gguf_edit import STRING, Gguf
from hostile_templates import TEMPLATES
from target import Answer, Target, Watch, many_files, seconds_until_idle, start

from tgr_local.options.model_files import embedded_model

SLACK = 5.0
DOCUMENTED = {200, 400, 404, 408, 413, 414, 422, 429, 431, 503}  # 503: time is over, or it stops
REFUSED = {400, 413, 414, 422, 431}
HEAD_SECONDS = 25.0  # in which a connection without a whole head must have been closed
N_LEAVERS, N_SOCKETS = 40, 1100

Run = Callable[[Target, float], list[Answer]]


@dataclass(frozen=True)
class Attack:
    """`run` takes the server and the seconds it may take for an answer."""

    name: str
    run: Run
    statuses: frozenset[int] = frozenset(DOCUMENTED)
    seconds: float = 0.0
    """Of each answer at most; 0 = the server's time for a request and SLACK."""
    template: str = ""
    """The chat template of the model file; empty = the model as it is."""
    stop: bool = False
    """Whether it ends with SIGTERM while it runs."""
    flags: tuple[str, ...] = ()
    """Of a server of its own; none = the one of the others."""


# ---- what runs ----


def post(path: str, body: Callable[[], bytes]) -> Run:
    def run(target: Target, seconds: float) -> list[Answer]:
        data = body()
        return [target.ask(path, data, seconds + 2, "POST" if data else "GET")]

    return run


def leave(path: str, body: Callable[[], bytes], n: int = N_LEAVERS) -> Run:
    """`n` clients that send a complete request and disconnect."""

    def run(target: Target, seconds: float) -> list[Answer]:
        request = target.request(path, body())

        def go(_: int) -> Answer:
            begun = time.monotonic()
            try:
                with target.connect() as link:
                    link.sendall(request)
                note = "left"
            except OSError as error:
                note = type(error).__name__  # the server closed first
            return Answer(499, time.monotonic() - begun, note)

        with ThreadPoolExecutor(n) as pool:
            answers = list(pool.map(go, range(n)))
        time.sleep(1)
        return answers

    return run


def terminate(path: str, body: Callable[[], bytes], after: float) -> Run:
    """SIGTERM so many seconds after two such requests were sent."""

    def run(target: Target, seconds: float) -> list[Answer]:
        request = target.request(path, body())
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                link = stack.enter_context(target.connect())
                threading.Thread(target=_quietly, args=(link.sendall, request)).start()
            time.sleep(after)
            took, how = target.stop(seconds + 2)
        return [Answer(200 if how in ("exit code 0", "exit code 130") else 0, took, how)]

    return run


def _quietly(call: Callable[..., object], *args: object) -> None:
    with contextlib.suppress(OSError):
        call(*args)


# ---- connections ----


@contextlib.contextmanager
def sockets(target: Target, n: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Many open connections that have sent the same bytes."""
    links: list[socket.socket] = []
    try:
        for _ in range(n):
            with contextlib.suppress(OSError):
                links.append(target.connect(5))
                links[-1].sendall(first)
        yield links
    finally:
        for link in links:
            link.close()


def is_closed(link: socket.socket) -> bool:
    """Whether the other side has closed; reads what came before."""
    link.setblocking(False)
    try:
        while link.recv(1 << 16):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def lock_out(first: bytes, n: int = N_SOCKETS) -> Run:
    """More sockets than the server accepts; they send `first` and then nothing for some seconds."""

    def run(target: Target, seconds: float) -> list[Answer]:
        with sockets(target, n, first):
            return [_after(target.health(seconds), 1.0) for _ in range(3)]

    return run


def _after(answer: Answer, seconds: float) -> Answer:
    time.sleep(seconds)
    return answer


def trickle(first: bytes, n: int = 50) -> Run:
    """Connections that send a byte every second; the answer is the time until all are closed."""

    def run(target: Target, seconds: float) -> list[Answer]:
        with sockets(target, n, first) as links:
            begun, open_links = time.monotonic(), list(links)
            while open_links and time.monotonic() - begun < seconds:
                time.sleep(1)
                open_links = [link for link in open_links if not is_closed(link)]
                for link in open_links:
                    _quietly(link.send, b"x")
            took = time.monotonic() - begun
            return [Answer(0 if open_links else 408, took, f"{len(open_links)} of {n} still open")]

    return run


SHORT = b'{"prompt": "a", "max_tokens": 8, "tgr": {"method": "base"}}'


def _read(link: socket.socket, begun: float) -> Answer:
    """The status of the reply on a socket."""
    with contextlib.suppress(OSError):
        data = link.recv(1 << 16)
        if data.startswith(b"HTTP/1.1 "):
            return Answer(int(data[9:12]), time.monotonic() - begun)
    return Answer(0, time.monotonic() - begun, "no reply")


def hang_up(target: Target, seconds: float) -> list[Answer]:
    """Clients that disconnect in the middle of a body, with a close or a reset."""
    for reset in (False, True):
        for sent in (b"", b'{"content": "'):
            with target.connect() as link:
                link.sendall(target.request("/tokenize", sent, length=1000))
                time.sleep(0.2)
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    time.sleep(1)
    return [Answer(499, 0.0, "left")]


def pipelined(n: int, path: str = "/health", read: bool = True) -> Run:
    def run(target: Target, seconds: float) -> list[Answer]:
        begun, received = time.monotonic(), b""
        with target.connect(seconds) as link:
            requests = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * n
            sender = threading.Thread(target=_quietly, args=(link.sendall, requests), daemon=True)
            sender.start()
            if not read:
                time.sleep(3)
                return [Answer(499, 0.0, "left")]
            link.settimeout(2)
            with contextlib.suppress(OSError):
                while received.count(b"HTTP/1.1 200") < n and (part := link.recv(1 << 20)):
                    received += part
        n_replies = received.count(b"HTTP/1.1 200")
        took = time.monotonic() - begun
        return [Answer(200 if n_replies == n else 0, took, f"{n_replies} of {n} replies")]

    return run


def raw(data: Callable[[], bytes]) -> Run:
    """Bytes that are not a valid request; the status, or 400 if the connection is just closed."""

    def run(target: Target, seconds: float) -> list[Answer]:
        begun = time.monotonic()
        with target.connect(seconds) as link:
            _quietly(link.sendall, data())
            answer = _read(link, begun)
            closed = not answer.status and answer.seconds < seconds
        return [Answer(400, answer.seconds, "closed") if closed else answer]

    return run


def unread(target: Target, seconds: float) -> list[Answer]:
    """Clients that ask for long streams and read nothing."""
    body = attack_bodies.dumped(
        {"prompt": "a", "max_tokens": 4000, "stream": True, "logprobs": 100}
        | {"tgr": {"method": "base"}}
    )
    with sockets(target, 20, target.request("/v1/completions", body)):
        time.sleep(seconds)
    return [Answer(499, 0.0, "left")]


SECRET, KNOWN = "73918264", "The number of the account that nobody else may know is "
KEYS = ("--api-key=one", "--api-key=two")


def guess(target: Target, seconds: float) -> list[Answer]:
    """A key that guesses a number in the prompt of another one, digit by digit, by the tokens that
    were in the cache; 403 where it does not find it."""

    def read(key: str, text: str) -> tuple[int, float]:
        link = http.client.HTTPConnection(*target.address, timeout=seconds)
        body = attack_bodies.dumped(
            {"prompt": text, "max_tokens": 1, "tgr": {"method": "base"}, "temperature": 0}
        )
        begun = time.monotonic()
        with contextlib.closing(link):
            link.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
            usage = json.loads(link.getresponse().read())["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], time.monotonic() - begun

    digits, slowest = "", 0.0
    read("one", f"{KNOWN}{SECRET}. Keep it.")
    for _ in SECRET:
        answers = {digit: read("two", f"{KNOWN}{digits}{digit}.") for digit in "0123456789"}
        digits += max(answers, key=lambda digit: answers[digit][0])
        slowest = max(slowest, *(took for _, took in answers.values()))
    n_found = sum(a == b for a, b in zip(digits, SECRET, strict=True))
    return [Answer(200 if digits == SECRET else 403, slowest, f"{n_found} digits are right")]


def of_a_page(head: str) -> Run:
    """A request that a page of another site makes without an `Origin`."""
    text = f"{head} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n"
    return raw(text.encode)


HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
BOTH = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n0\r\n\r\n")
BIG = BODY.replace(b"100000", b"4000000") + b" " * 3_900_000
_GONE = frozenset({499})
_BAD = frozenset(REFUSED)
CONNECTIONS = [
    Attack(f"{N_SOCKETS} silent sockets", lock_out(b""), frozenset({200}), 2),
    Attack(f"{N_SOCKETS} sockets with half a head", lock_out(HEAD), frozenset({200}), 2),
    Attack(f"{N_SOCKETS} sockets with half a body", lock_out(BODY), frozenset({200}), 2),
    Attack("300 bodies that stop at 3.9 MB", lock_out(BIG, 300), frozenset({200}), 2),
    Attack("silence is ended", trickle(b"", 1), frozenset({408}), HEAD_SECONDS),
    Attack("slow heads", trickle(HEAD + b"X-A: "), frozenset({408}), HEAD_SECONDS),
    Attack("slow bodies", trickle(BODY), frozenset({408}), 70),
    Attack("hang up in a body", hang_up, _GONE),
    Attack("500 pipelined requests", pipelined(500), frozenset({200}), 20),
    Attack("pipelined, never read", pipelined(20000, "/", read=False), _GONE, 20),
    Attack("streams that nobody reads", unread, _GONE, 30),
    Attack("a head of 8 MB", raw(lambda: HEAD + b"X-A: " + b"a" * (8 << 20)), _BAD),
    Attack("100,000 headers", raw(lambda: HEAD + b"X: 1\r\n" * 100_000), _BAD),
    Attack("a path of 8 MB", raw(lambda: b"GET /" + b"a" * (8 << 20)), _BAD),
    Attack("bytes that are no HTTP", raw(lambda: b"\x16\x03\x01\0\xff" * 1000), _BAD),
    Attack("a chunk of 16^30 bytes", raw(lambda: CHUNKED + b"f" * 30 + b"\r\nx"), _BAD),
    Attack("a negative length", raw(lambda: BODY.replace(b"100", b"-1")), _BAD),
    Attack("a length and chunks", raw(lambda: BOTH), _BAD),
    Attack("two lengths", raw(lambda: BODY[:-2] + b"Content-Length: 5\r\n\r\n"), _BAD),
    Attack("a length of +5", raw(lambda: BODY.replace(b"100000", b"+5")), _BAD),
    Attack("chunks in HTTP/1.0", raw(lambda: CHUNKED.replace(b"1.1", b"1.0")), _BAD),
    Attack("a page fetches the models", of_a_page("GET /v1/models"), frozenset({403})),
    Attack("a page fetches /health", of_a_page("HEAD /health"), frozenset({403})),
    Attack("a key guesses what another has sent", guess, frozenset({403}), flags=KEYS),
    Attack("a length of 10^30", raw(lambda: BODY.replace(b"100000", b"9" * 30)), _BAD),
]  # fmt: skip

# ---- the list ----


def attacks() -> Iterator[Attack]:
    """All of them, in the order in which they run."""
    bodies = attack_bodies.expensive()
    cheap = attack_bodies.plain()
    for name, (path, body) in bodies.items():
        yield Attack(name, post(path, body))
    for name, (path, body) in cheap.items():
        yield Attack(name, post(path, body))
    for name, (path, body, statuses) in attack_bodies.judged().items():
        yield Attack(name, post(path, body), frozenset(statuses))
    for name, (path, body) in attack_bodies.options().items():
        yield Attack(name, post(path, body))
    for name, (path, body) in bodies.items():
        yield Attack(f"{N_LEAVERS} leave: {name}", leave(path, body), _GONE, 20)
    yield from CONNECTIONS
    chat = "/v1/chat/completions"
    for name, text in TEMPLATES.items():
        # llama.cpp's filter `format` knows no widths, and leaves the text as it is
        ends = frozenset({200} if name == "format" else {400, 503})
        yield Attack(f"template: {name}", post(chat, attack_bodies.chat()), ends, 0, text)
    for name in ("nested ranges", "doubling"):
        run = leave(chat, attack_bodies.chat(), 43)
        yield Attack(f"43 leave: template: {name}", run, _GONE, 20, TEMPLATES[name])
    for i, (name, (path, body)) in enumerate(bodies.items()):
        run = terminate(path, body, 0.2 + 0.3 * (i % 4))
        yield Attack(f"SIGTERM: {name}", run, frozenset({200}), -1, stop=True)
    run = terminate(chat, attack_bodies.chat(), 0.5)
    text = TEMPLATES["nested ranges"]
    yield Attack("SIGTERM: template", run, frozenset({200}), -1, text, stop=True)


# ---- the servers ----


class Servers:
    """The server to attack: a new one where the last is dead, busy or has another model file."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments, self._folder = arguments, folder
        self._target: Target | None = None
        self._kind: tuple[str, tuple[str, ...]] = ("", ())

    def get(self, template: str, more: tuple[str, ...] = ()) -> Target:
        """A server with this template and `more` flags."""
        if self._target is None or not self._target.alive or (template, more) != self._kind:
            self.drop()
            flags = [
                f"--model={self._model(template)}",
                f"--request-seconds={self._arguments.request_seconds}",
                f"--shutdown-seconds={self._arguments.shutdown_seconds}",
                *more,
            ]
            self._target = start(flags, self._arguments.cap << 20)
            self._kind = (template, more)
        return self._target

    def _model(self, template: str) -> Path:
        """The model file, or a copy of it with another chat template."""
        if not template:
            return Path(self._arguments.model)
        file = Gguf.parse(Path(self._arguments.model).read_bytes())
        file.set("tokenizer.chat_template", template.encode(), STRING)
        path = self._folder / "template.gguf"
        path.write_bytes(file.to_bytes())
        return path

    def drop(self) -> None:
        if self._target:
            self._target.kill()
            self._target = None


def judged(attack: Attack, servers: Servers, arguments: argparse.Namespace) -> list[str]:
    """A row of the table; it ends with the broken bounds, or "ok"."""
    bound = attack.seconds or arguments.request_seconds + SLACK
    if attack.stop:
        bound = arguments.shutdown_seconds + SLACK
    try:
        target = servers.get(attack.template, attack.flags)
    except RuntimeError as error:
        return [attack.name, "", "", "", "", "", f"BROKEN: {error}"]
    broken, n_lines = [], len(target.lines)
    with contextlib.ExitStack() as stack:
        watch = Watch(target, arguments.memory << 20)
        if not attack.stop:
            stack.enter_context(watch)
        try:
            answers = attack.run(target, bound)
        except OSError as error:
            answers = [Answer(0, 0.0, f"{type(error).__name__} {error}")]
    if attack.stop:
        watch.tracebacks = sum("Traceback" in line for line in target.lines[n_lines:])
    slowest = max(answer.seconds for answer in answers)
    counts = collections.Counter(answer.status for answer in answers)
    if not counts.keys() <= attack.statuses:
        wrong = next(answer for answer in answers if answer.status not in attack.statuses)
        broken.append(f"{wrong.status or 'no answer'}: {' '.join(wrong.note.split())[:160]}")
    if slowest > bound:
        broken.append(f"took {slowest:.1f} s of {bound:g}")
    if watch.peak > arguments.memory << 20:
        broken.append(f"{watch.peak >> 20} MiB")
    if watch.slowest > arguments.health_seconds:
        broken.append(f"/health took {watch.slowest:.1f} s")
    if watch.sick:
        broken.append(watch.sick)
    if watch.tracebacks:
        broken.append(f"{watch.tracebacks} tracebacks")
    idle = 0.0
    if not attack.stop:
        if not target.alive:
            broken.append(f"THE PROCESS ENDED: {target.end}")
        idle = seconds_until_idle(target, arguments.request_seconds + SLACK)
        if idle == float("inf"):
            broken.append(f"still busy {arguments.request_seconds + SLACK:g} s later")
            servers.drop()
    statuses = " ".join(f"{status}x{n}" for status, n in sorted(counts.items()))
    return [
        attack.name, statuses, f"{slowest:.2f}", f"{watch.peak >> 20}", f"{watch.slowest:.2f}",
        f"{idle:.1f}", "BROKEN: " + "; ".join(broken) if broken else "ok",
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression of the names to run")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--model", default=embedded_model(), help="GGUF file that is served")
    parser.add_argument("--request-seconds", type=float, default=3.0)
    parser.add_argument("--shutdown-seconds", type=float, default=1.0)
    parser.add_argument("--health-seconds", type=float, default=2.0)
    parser.add_argument("--memory", type=int, default=1024, help="MiB that may be used at most")
    parser.add_argument("--cap", type=int, default=8192, help="MiB of address space of a server")
    arguments = parser.parse_args()
    chosen = [attack for attack in attacks() if re.search(arguments.only, attack.name)]
    if arguments.list:
        print("\n".join(attack.name for attack in chosen))
        return 0
    n_broken, begun = 0, time.monotonic()
    row = "{:46.46} {:>12} {:>7} {:>6} {:>7} {:>6}  {}".format
    print(row("attack", "status", "s", "MiB", "health", "idle", ""), flush=True)
    with tempfile.TemporaryDirectory() as folder, many_files():
        servers = Servers(arguments, Path(folder))
        try:
            for attack in chosen:
                cells = judged(attack, servers, arguments)
                n_broken += cells[-1] != "ok"
                print(row(*cells), flush=True)
        finally:
            servers.drop()
    took = time.monotonic() - begun
    print(f"{n_broken} of {len(chosen)} attacks broke a bound; {took:.0f} s in all")
    return int(n_broken > 0)


if __name__ == "__main__":
    sys.exit(main())
