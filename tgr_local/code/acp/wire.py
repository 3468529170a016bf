"""Lines on two streams ↔ messages of the protocol, within limits.

In: a stream of lines from the client. Out: messages as dicts that the SDK accepts. Lines that are
no message or too long, and requests beyond the limit, are refused here. Two threads read and write,
so a client that neither reads nor writes never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from typing import Any, BinaryIO

MAX_BYTES = 8 << 20
"""Largest size of a message from the client."""
MAX_REQUESTS = 64
"""Requests of the client that may be under way."""
_BUFFERED = 16  # messages in each direction
_LAST_SECONDS = 2.0  # for what is still to be written at the end
_PARSE_ERROR, _INVALID, _BUSY = -32700, -32600, -32000

Message = dict[str, Any]


class Wire:
    """A transport for the SDK's `Connection`; make it in a running event loop."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._sink = source, sink
        self._incoming: asyncio.Queue[Message | None] = asyncio.Queue()
        self._may_read = threading.Semaphore(_BUFFERED)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._may_write = asyncio.Semaphore(_BUFFERED)
        self._broken = False
        self._n_requests = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._reader.start()
        self._writer.start()

    async def receive(self) -> Message | None:
        """The next message; None at the end."""
        while (message := await self._incoming.get()) is not None:
            self._may_read.release()
            refusal = _refusal(message)
            is_request = "method" in message and "id" in message
            if not refusal and is_request and self._n_requests >= MAX_REQUESTS:
                refusal = _error(_BUSY, f"{MAX_REQUESTS} requests are under way; wait for one")
            if not refusal:
                self._n_requests += is_request
                return message
            known = message.get("id") if _is_id(message.get("id")) else None
            await self._put({"jsonrpc": "2.0", "id": known, **refusal})
        return None

    async def send(self, message: Message) -> None:
        """Writes a message, as soon as the client reads; after the end it is lost."""
        self._n_requests -= "id" in message and "method" not in message
        await self._put(message)

    def end(self) -> None:
        """Ends `receive`, and soon after it every `send` that waits for the client."""
        self._incoming.put_nowait(None)
        self._loop.call_later(_LAST_SECONDS, self._break)

    async def close(self) -> None:
        """Writes what is still to be written, if the client reads it."""
        self._outgoing.put(None)
        await asyncio.to_thread(self._writer.join, _LAST_SECONDS)

    async def _put(self, message: Message) -> None:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        await self._may_write.acquire()
        if self._broken:
            self._may_write.release()  # for the next one that waits
        else:
            self._outgoing.put(data)

    def _break(self) -> None:
        self._broken = True
        self._may_write.release()

    # ---- threads ----

    def _read(self) -> None:
        while line := self._source.readline(MAX_BYTES + 1):
            is_whole = line.endswith(b"\n") or len(line) <= MAX_BYTES
            while not is_whole and (more := self._source.readline(1 << 16)):
                is_whole = more.endswith(b"\n")
            if line.strip():
                self._may_read.acquire()
                self._call(self._incoming.put_nowait, _message(line))
        self._call(self.end)

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._sink.write(data)
                self._sink.flush()
            except OSError:
                self._call(self._break)
                self._call(self.end)
                return
            self._call(self._may_write.release)

    def _call(self, function: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)


def _message(line: bytes) -> Message:
    """A line as a message; a message with an `error` where the line is no message."""
    if len(line) > MAX_BYTES:
        text = f"a message has more than {MAX_BYTES:,} bytes"
        return {"refusal": _error(_INVALID, text)}
    try:
        message = json.loads(line)
        json.dumps(message, ensure_ascii=False).encode()  # half a character is no text
    except (ValueError, RecursionError):
        return {"refusal": _error(_PARSE_ERROR, "a line is no JSON text")}
    if not isinstance(message, dict):
        return {"refusal": _error(_INVALID, "a message must be one JSON object")}
    message.pop("refusal", None)
    return message


def _refusal(message: Message) -> Message:
    """The error for what the SDK cannot take; empty for a message."""
    if "refusal" in message:
        refusal: Message = message["refusal"]
        return refusal
    if "id" in message and not _is_id(message["id"]):
        return _error(_INVALID, "id must be a text, a number or null")
    if "method" in message:
        if isinstance(message["method"], str):
            return {}
        return _error(_INVALID, "method must be a text")
    error = message.get("error", {})
    is_answer = "id" in message and isinstance(error, dict)
    if is_answer and isinstance(error.get("message", ""), str):
        return {}
    return _error(_INVALID, "a message must have a method, or an id with a result or an error")


def _is_id(value: object) -> bool:
    return value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))


def _error(code: int, text: str) -> Message:
    return {"error": {"code": code, "message": text}}
