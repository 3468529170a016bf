"""Connections that are silent, slow, cut off or too many; and the end of a server
whose requests do not end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from serving import START, Served, served
from starlette.requests import Request
from surroundings import HANG
from threads import wait_until

from tgr_local.engine import Cancel
from tgr_local.server import bodies, connection
from tgr_local.server.connection import Connection
from tgr_local.server.errors import ApiError
from tgr_local.system.errors import CancelledError

PLACES = 6
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class App:
    """An application that replies once `gate` is open; `left` counts clients that disconnected."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.left = 0
        self.begun = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.begun += 1
        watcher = asyncio.create_task(self._watch(receive))
        while not self.gate.is_set() and not watcher.done():
            await asyncio.sleep(0.01)
        watcher.cancel()
        start = {"type": "http.response.start", "status": 200}
        await send(start | {"headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left += 1


class Front:
    """A server of that application with connections of ours, in a thread."""

    def __init__(self) -> None:
        self.app = App()
        on_event = socket.create_server(("127.0.0.1", 0))
        self.address = on_event.getsockname()
        config = uvicorn.Config(
            self.app,
            http=Connection,
            limit_concurrency=2 * PLACES,
            log_level="error",
            lifespan="off",
        )
        self.server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, args=([on_event],), daemon=True)
        self._thread.start()

    def connect(self, first: bytes = b"") -> socket.socket:
        link = socket.create_connection(self.address, timeout=HANG)
        link.sendall(first)
        return link

    def get(self) -> bytes:
        """The reply to a client that waits for nothing."""
        with self.connect(HEAD + b"Connection: close\r\n\r\n") as link:
            return everything(link)

    def end(self) -> None:
        self.app.gate.set()
        self.server.should_exit = True
        self._thread.join(HANG)
        assert not self._thread.is_alive()


def everything(link: socket.socket) -> bytes:
    """What comes until the other side closes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := link.recv(1 << 16):
            received += part
    return received


def reply(link: socket.socket) -> bytes:
    """One reply of the application on a connection that stays open."""
    received = b""
    while not received.endswith(b"ok"):
        part = link.recv(1000)
        assert part, received
        received += part
    return received


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    yield front
    front.end()


# ---- silent and slow clients ----


@pytest.mark.parametrize("first", [b"", b"G", HEAD, HEAD + b"X-A: "])
def test_a_head_that_does_not_come_ends_the_connection(front: Front, monkeypatch, first: bytes):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    with front.connect(first) as link:
        assert everything(link) == b""


def test_single_bytes_do_not_prolong_the_limit(front: Front, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)
    with front.connect(HEAD + b"X-A: ") as link, contextlib.suppress(ConnectionError):
        link.setblocking(False)
        deadline = time.monotonic() + HANG
        while True:
            assert time.monotonic() < deadline
            link.send(b"x")
            time.sleep(0.02)
            with contextlib.suppress(BlockingIOError):
                assert link.recv(100) == b""
                break


def test_the_limit_of_a_body_holds_while_nobody_reads_it(front: Front, monkeypatch):
    monkeypatch.setattr(connection, "REST_SECONDS", 0.2)
    front.app.gate.clear()
    enough = b"x" * 70_000  # that the application begins
    with front.connect(HEAD + b"Content-Length: 99999\r\n\r\n" + enough) as link:
        assert everything(link) == b""
    wait_until(lambda: front.app.left == 1)


def test_the_application_refuses_a_body_that_does_not_come(front: Front, monkeypatch):
    monkeypatch.setattr(bodies, "PART_SECONDS", 0.05)
    with front.connect(HEAD + b"Content-Length: 9\r\n\r\n1") as link:
        assert reply(link)  # of an application that does not look at it
    scope = {"type": "http", "method": "POST", "headers": [], "state": {bodies.LATE: True}}
    with pytest.raises(ApiError, match="did not arrive") as refused:
        asyncio.run(bodies.Bodies(1000).read(Request(scope)))
    assert refused.value.status == 408


def test_in_a_crowd_a_body_that_does_not_come_costs_nothing(front: Front, monkeypatch):
    monkeypatch.setattr(connection, "CROWD", -1)
    front.app.gate.clear()  # where the application would wait
    half = HEAD + b"Content-Length: 60000\r\n\r\n1"
    with front.connect(half):
        pass
    monkeypatch.setattr(bodies, "PART_SECONDS", 0.05)
    with front.connect(half) as link:
        assert everything(link) == b""
    monkeypatch.setattr(bodies, "PART_SECONDS", HANG)
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.0)
    with front.connect(half) as link, contextlib.suppress(ConnectionError):
        while not select.select([link], [], [], 0.05)[0]:
            link.sendall(b"2")
        assert everything(link) == b""
    assert front.app.begun == 0


_SECRET = b"GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"


_UNCLEAR = (
    _CHUNKED + b"Content-Length: 6\r\n",
    b"Content-Length: 0\r\nTransfer-Encoding: Chunked\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 5, 6\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: -0\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length: 1_0\r\n",
    b"Content-Length: 5 5\r\n",
    b"Content-Length:\r\n",
    b"Content-Length : 5\r\n",
    "Content-Length: ٥\r\n".encode(),
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    _CHUNKED + _CHUNKED,
    b"Transfer-Encoding: \x0bchunked\r\n",
    _CHUNKED + b"Content-Length\r\n",
    b"Host: other\r\n",
    b"X: a\rTransfer-Encoding: chunked\r\n",
    b"X: a\0b\r\n",
)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_request_whose_end_is_unclear_ends_the_connection(front: Front, version: bytes):
    """What comes behind it would be another request to one of two servers in a row."""
    first = b"POST / HTTP/" + version + b"\r\nHost: localhost\r\nConnection: keep-alive\r\n"
    for head in _UNCLEAR:
        with front.connect(first + head + b"\r\n0\r\n\r\n" + _SECRET) as link:
            received = everything(link)
        assert received.count(b"HTTP/1.1 ") == 1, (head, received)
        assert received[9:12] in (b"400", b"501"), (head, received)
    assert front.app.begun == 0


def test_chunks_are_for_the_newer_version_alone(front: Front):
    head = b"Host: localhost\r\nConnection: close\r\n" + _CHUNKED + b"\r\n0\r\n\r\n"
    for version, status in ((b"1.0", b"400"), (b"1.1", b"200")):
        with front.connect(b"POST / HTTP/" + version + b"\r\n" + head) as link:
            assert everything(link)[9:12] == status


def test_a_connection_is_kept_for_the_next_request(front: Front):
    with front.connect() as link:
        for _ in range(3):
            link.sendall(HEAD + b"\r\n")
            assert reply(link)


def test_a_reply_that_is_not_read_ends_the_connection(front: Front, monkeypatch):
    monkeypatch.setattr(connection, "READ_SECONDS", 0.2)
    ended = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await asyncio.sleep(0)) is None:
            part = {"type": "http.response.body", "body": b"x" * 65536, "more_body": True}
            await send(part)
            if not front.server.server_state.connections:
                break
        ended.set()

    wait_until(lambda: front.server.started)
    front.server.config.loaded_app = endless
    with front.connect(HEAD + b"\r\n"):
        assert ended.wait(HANG)


# ---- too many ----


def has_ended(link: socket.socket) -> bool:
    """Whether the server has ended a connection, or sent something."""
    return bool(select.select([link], [], [], 0)[0])


@pytest.mark.parametrize("first", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n1"])
def test_silent_clients_lock_nobody_out(front: Front, first: bytes):
    front.app.gate.clear() if b"\r\n\r\n" in first else None
    links = [front.connect(first) for _ in range(4 * PLACES)]
    wait_until(lambda: has_ended(links[0]))  # the one that has waited longest
    front.app.gate.set()
    # those that have just been ended may still be counted
    wait_until(lambda: front.get().endswith(b"ok"))
    assert everything(links[0]) == b""
    for link in links:
        link.close()


def test_running_requests_keep_their_connections(front: Front):
    front.app.gate.clear()
    with front.connect(HEAD + b"\r\n") as working:
        wait_until(lambda: front.app.begun == 1)
        links = [front.connect() for _ in range(3 * PLACES)]
        assert everything(links[0]) == b""  # which has been driven out
        front.app.gate.set()
        assert reply(working)
        for link in links:
            link.close()


def test_there_are_file_descriptors_for_all_connections():
    code = """if True:
        import resource
        from tgr_local.server import serve
        for limits in ((256, 4096), (3000, 4096), (256, 512)):
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            print(serve._places(), *resource.getrlimit(resource.RLIMIT_NOFILE))"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"no more than {hard} files may be open here")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["2048 2176 4096", "2048 3000 4096", "384 512 512"]


# ---- cut off ----


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("half", [False, True])
def test_a_disconnect_is_noticed(front: Front, version: bytes, half: bool):
    front.app.gate.clear()
    with front.connect(HEAD.replace(b"1.1", version) + b"\r\n") as link:
        wait_until(lambda: front.app.begun == 1)
        if half:
            link.shutdown(socket.SHUT_WR)
        else:
            link.close()
        wait_until(lambda: front.app.left == 1)


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("connections")
    with served(model(), folder, ping_seconds=100) as running:
        yield running
        running.until(running.is_free)


def posted(server: Served, path: str, body: Any, length: int | None = None) -> socket.socket:
    """A connection that has sent a request, its length true or another."""
    data = json.dumps(body).encode()
    url = server.client.base_url
    link = socket.create_connection((url.host, url.port), timeout=HANG)
    n = len(data) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {n}\r\n\r\n"
    link.sendall(head.encode() + data)
    return link


@pytest.mark.parametrize("reset", [False, True])
def test_a_disconnect_within_a_body_is_not_a_bug(server: Served, reset: bool):
    def left() -> int:
        """How many requests of this kind have ended as a disconnect."""
        facts = [(line["path"], line["status"]) for line in server.log()]
        return facts.count(("/tokenize", 499))

    n_before = left()
    with posted(server, "/tokenize", {"content": "a"}, length=1000) as link:
        if reset:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.until(lambda: left() == n_before + 1)
    assert all(line.startswith(("{", "tgr-local: ")) for line in server.lines), server.lines


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_while_nothing_is_written_frees_its_place(server: Served, stream: bool):
    options = {"method": "tgr-latent", "n_candidates": 64, "rollout_len": 900, "chunk_len": 1000}
    body = {"prompt": "a", "max_tokens": 1000, "stream": stream, "tgr": options}
    link = posted(server, "/v1/completions", body)
    server.until(lambda: server.gauge("tgr_running") == 1)
    link.close()
    server.until(server.is_free)


# ---- bodies ----


def test_numbers_beyond_all_bounds_are_refused_everywhere(server: Served):
    body = b'{"content": "a", "x": -1e999}'
    response = server.client.post("/tokenize", content=body)
    assert response.status_code == 400 and "-1e999 is too large" in response.text
    response = server.client.post("/tokenize", content=body.replace(b"999", b"9"))
    assert response.status_code == 400 and "unknown parameter 'x'" in response.text


def test_long_bodies_wait_for_their_reservation(monkeypatch):
    monkeypatch.setattr(bodies, "SHORT", 100)
    monkeypatch.setattr(bodies, "LARGEST", 2)
    monkeypatch.setattr(bodies, "PART_SECONDS", 0.05)  # parts that are there need no time
    all_of_them = bodies.Bodies(1000)

    async def read(parts: list[bytes], gate: asyncio.Event) -> bodies.Body:
        async def receive() -> Any:
            if len(parts) == 1:
                await gate.wait()
            body = parts.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(parts)}

        scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
        return await all_of_them.read(Request(scope, receive))

    async def several() -> None:
        closed, opened = asyncio.Event(), asyncio.Event()
        opened.set()
        long = b'{"x": "' + b"x" * 900
        first = [await read([long, b'"}'], opened) for _ in range(2)]
        waits = asyncio.create_task(read([long, b'"}'], opened))
        assert (await read([b'{"x": 1}', b""], opened)).fields == {"x": 1}  # short ones always
        slow = asyncio.create_task(read([b" " * 50, b""], closed))
        with pytest.raises(ApiError, match="did not arrive"):
            await slow
        assert not waits.done() and all_of_them.n_bytes == 2 * 1000
        with first.pop().used(Cancel()) as fields:
            assert fields == {"x": "x" * 900}
        assert len((await waits).data) == len(long) + 2
        first.clear()

    asyncio.run(several())
    gc.collect()
    assert all_of_them.n_bytes == 0


def test_a_body_that_stops_arriving_is_refused(monkeypatch):
    monkeypatch.setattr(bodies, "PART_SECONDS", 0.01)
    all_of_them, parts = bodies.Bodies(1000), [b'{"x":']

    async def receive() -> Any:
        while not parts:
            await asyncio.sleep(HANG)
        return {"type": "http.request", "body": parts.pop(), "more_body": True}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with pytest.raises(ApiError, match="did not arrive") as refused:
        asyncio.run(all_of_them.read(Request(scope, receive)))
    assert refused.value.status == 408
    gc.collect()
    assert all_of_them.n_bytes == 0


def test_one_long_body_is_used_at_a_time():
    all_of_them, cancel = bodies.Bodies(1000), Cancel()
    one, other = bodies.Body(all_of_them), bodies.Body(all_of_them)
    one.data, other.data = bytearray(b"{}"), bytearray(b"[]")
    cancel.cancel()
    with one.used(Cancel()), pytest.raises(CancelledError), other.used(cancel):
        pass
    with pytest.raises(ApiError, match="must be an object"), other.used(Cancel()):
        pass


# ---- the end ----

DEAF = """if True:
    import sys, time
    from tgr_local.apis import writing
    from tgr_local.server import serve
    serve._LAST_SECONDS = 0.2
    def write(*args, **kwargs):
        sys.stderr.write("deaf\\n")
        time.sleep(3600)
    writing.write = write
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_work_that_does_not_end_ends_with_the_process(
    model: Callable[..., Path], tmp_path, number: int, code: int
):
    start = f"{DEAF}    {START}"
    with served(model(), tmp_path, start=start, shutdown_seconds=0.1) as running:
        with posted(running, "/v1/completions", {"prompt": "a"}):
            running.until(lambda: "deaf" in running.lines)
            running.process.send_signal(number)
            assert running.wait() == code
        assert any("cancelled work is still running" in line for line in running.lines)


def test_half_a_request_does_not_delay_the_end(model: Callable[..., Path], tmp_path):
    with served(model(), tmp_path, shutdown_seconds=HANG) as running:
        link = posted(running, "/tokenize", {"content": "a"}, length=1000)
        with link, posted(running, "/health", {}, length=1000):
            running.until(lambda: running.client.get("/health").status_code == 200)
            assert running.stop() == 0
    words = ("Traceback", "Cancel", "still run")
    assert not any(word in line for line in running.lines for word in words)
