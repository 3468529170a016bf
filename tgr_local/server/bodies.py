"""The bodies of all requests, from the socket to JSON.

Their bytes are bounded, and long bodies are parsed one at a time, because parsed JSON can take
fifty times the memory of its text. They wait for room in the event loop, which may not stop
at a `Turnstile`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from tgr_local.engine import Cancel
from tgr_local.server.errors import ApiError
from tgr_local.system.errors import without_advice
from tgr_local.system.turnstile import Turnstile

BODY_SECONDS = 60.0  # for a body to arrive
LARGEST = 8  # all bodies together may have this many times the largest size
SHORT = 1 << 16  # bytes of a body that is read without a reservation, and parsed at once
_PARTS_MOST = 400_000  # lists and objects in a body
PART_SECONDS = 10.0  # for the next part of one
_RESERVE_SECONDS = 20.0  # for a long body to wait for its reservation
_DROP_SECONDS, _DROP_MOST = 5.0, 8  # a body that is too long is read so far; times the largest size
_SILENT_SECONDS = 1.0  # … while parts of it come
LATE = "tgr.late"  # in the state of a request: its body did not come in time
_CLOSE = {"Connection": "close"}  # the rest of the body is not read

Fields = dict[str, Any]


class Bodies:
    """All bodies that are being read or wait to be used. `max_bytes` is the largest size of one.
    One event loop reads them; any thread uses them. `n_bytes` is the size of all long ones."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.n_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._freed = asyncio.Event()
        self._lock = threading.Lock()
        self.turn = Turnstile(1)  # to parse a long one

    async def read(self, request: Request, *, streams: bool = False) -> Body:
        """The body of a request. A long one is not read from the socket while others use up the
        limit. `streams` = one that does not say whether it wants a stream does.

        Raises ApiError for a body that is too long, too late, or short and not JSON.
        """
        if request.scope.get("state", {}).get(LATE):
            raise _too_late()
        self._loop = asyncio.get_running_loop()
        body = Body(self, streams)
        try:
            await asyncio.wait_for(self._fill(body, request), BODY_SECONDS)
            encoding = request.headers.get("content-encoding") or "identity"
            if encoding.lower() != "identity":
                message = f"the body is encoded as {encoding:.40}, but must be plain JSON"
                raise ApiError(415, f"{message}; switch the compression of requests off")
        except BaseException as error:
            body.give_back()
            if isinstance(error, asyncio.TimeoutError):
                raise _too_late() from None
            if isinstance(error, ClientDisconnect):
                raise ApiError(499, "the client disconnected") from None
            raise
        if len(body.data) <= SHORT:
            body.fields = body.parsed()
            body.give_back()
        return body

    async def _fill(self, body: Body, request: Request) -> None:
        message = f"the body has more than {self._max_bytes} bytes, the limit here; shorten it"
        too_large = ApiError(413, message, headers=_CLOSE)
        parts = request.stream()
        length = announced(request.headers)
        if length > self._max_bytes:
            if "expect" not in request.headers:  # such a client sends nothing before an answer
                await _drop(parts, _DROP_MOST * self._max_bytes)
            raise too_large
        if length > SHORT:
            await self._reserve(body, length)
        while part := await asyncio.wait_for(_next(parts), PART_SECONDS):
            body.data += part
            if len(body.data) > self._max_bytes:
                body.give_back()
                await _drop(parts, _DROP_MOST * self._max_bytes)
                raise too_large
            if len(body.data) > max(SHORT, body.n_reserved):  # its length was not announced
                await self._reserve(body, self._max_bytes)

    async def _reserve(self, body: Body, n_bytes: int) -> None:
        """Reserves the bytes of a body, which can then be read to its end. Raises ApiError."""
        deadline = time.monotonic() + _RESERVE_SECONDS
        while not self._take(n_bytes):
            self._freed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), PART_SECONDS)
            if time.monotonic() > deadline:
                raise ApiError(
                    429,
                    f"long requests hold {LARGEST * self._max_bytes} bytes already, the limit "
                    f"here; try again in {PART_SECONDS:g} s",
                    headers={"Retry-After": f"{PART_SECONDS:g}", **_CLOSE},
                )
        body.n_reserved = n_bytes

    def _take(self, n_bytes: int) -> bool:
        with self._lock:
            fits = self.n_bytes + n_bytes <= LARGEST * self._max_bytes
            self.n_bytes += n_bytes if fits else 0
        return fits

    def give_back(self, n_bytes: int) -> None:
        with self._lock:
            self.n_bytes -= n_bytes
        if n_bytes and self._loop:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._freed.set)


class Body:
    """One body. Its reservation ends when it is used or garbage-collected."""

    def __init__(self, bodies: Bodies, streams: bool = False) -> None:
        self.data = bytearray()
        self.n_reserved = 0
        self.fields: Fields | None = None
        """Fields of a short body; a long one is parsed when it is used."""
        self.streams: bool | None = None
        """Whether it asks for a stream; None = it was not parsed yet."""
        self._bodies, self._default = bodies, streams

    @contextlib.contextmanager
    def used(self, cancel: Cancel) -> Iterator[Fields]:
        """The fields, for the ``with`` block; one long body at a time. Raises ApiError for a body
        that is not a JSON object, and CancelledError by `cancel`."""
        if self.fields is not None:
            yield self.fields
            return
        with self._bodies.turn.taken(cancel):
            fields = self.parsed()
            self.give_back()
            yield fields

    def peek(self, key: str, cancel: Cancel) -> Any:
        """A value of a long body, which can still be used. Raises as `used` does."""
        with self._bodies.turn.taken(cancel):
            return self.parsed().get(key)

    def wants_stream(self, cancel: Cancel) -> bool:
        """Whether it asks for a stream; it can still be used, or is in use. Raises as `used`."""
        with self._bodies.turn.taken(cancel):
            if self.streams is None:  # it was not used meanwhile
                self.parsed()
        return bool(self.streams)

    def parsed(self) -> Fields:
        """The body as a JSON object. Raises ApiError."""
        fields = parsed(self.data)
        wanted = fields.get("stream")
        self.streams = self._default if wanted is None else wanted is True
        return fields

    def give_back(self) -> None:
        n_reserved, self.n_reserved, self.data = self.n_reserved, 0, bytearray()
        self._bodies.give_back(n_reserved)

    def __del__(self) -> None:
        self.give_back()


def announced(headers: Headers) -> int:
    """The bytes of a body by its Content-Length; 0 without one."""
    header = headers.get("content-length", "0")
    return int(header[:20]) if header.isdecimal() else 0


def _too_late() -> ApiError:
    return ApiError(
        408,
        f"the body did not arrive within {BODY_SECONDS:g} s, or no part of it for "
        f"{PART_SECONDS:g} s",
        headers=_CLOSE,
    )


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    """The next part that is not empty; nothing at the end."""
    async for part in parts:
        if part:
            return part
    return b""


async def _drop(parts: AsyncIterator[bytes], most: int) -> None:
    """Reads and discards up to that many bytes: a client that is still sending when its connection
    is closed would not read the error."""

    async def read() -> None:
        n_bytes = 0
        while n_bytes <= most and (part := await asyncio.wait_for(_next(parts), _SILENT_SECONDS)):
            n_bytes += len(part)

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _DROP_SECONDS)


def parsed(data: bytes | bytearray) -> Fields:
    """A body as a JSON object. Raises ApiError."""
    if (n := data.count(b"[") + data.count(b"{")) > _PARTS_MOST:
        raise ApiError(
            400, f"the body has {n} opening brackets, but may have {_PARTS_MOST}; shorten it"
        )
    try:
        body = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {without_advice(str(error))}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is a JSON {_kind(body)}, but must be an object")
    return body


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


def _kind(value: Any) -> str:
    names = {list: "list", dict: "object", str: "text", type(None): "null", bool: "boolean"}
    return names.get(type(value), "number")
