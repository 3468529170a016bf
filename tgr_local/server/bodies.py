"""The bodies of all requests, from the socket to their use: so many bytes, and one long one at a
time, because JSON of a few bytes can take fifty times as many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from tgr_local.engine import Cancel
from tgr_local.errors import CancelledError
from tgr_local.server.errors import ApiError

BODY_SECONDS = 60.0  # in which a body must have come
_LARGEST = 8  # bodies of the largest size, which all that are there may take together
_SHORT = 1 << 16  # bytes of a body that is always taken, and parsed at once
_PARTS_MOST = 400_000  # lists and objects in a body
_PART_SECONDS = 10.0  # for the next part of one
_ROOM_SECONDS = 20.0  # for a long one to wait until there is room for it
_POLL_SECONDS = 0.02
_DROP_SECONDS, _DROP_MOST = 5.0, 8  # for a body that is too long; times the largest size
_CLOSE = {"Connection": "close"}  # the rest of the body is not read

Fields = dict[str, Any]


class Bodies:
    """What is read, and what waits to be used. `max_bytes` is the largest size of one. One event
    loop reads; any thread uses."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._freed = asyncio.Event()
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # to use a long one

    async def read(self, request: Request) -> Body:
        """What a request carries. A long body waits at the socket while others take all room.

        Raises ApiError for one that is too long, does not come in time, or is short and no JSON.
        """
        self._loop = asyncio.get_running_loop()
        body = Body(self)
        try:
            await asyncio.wait_for(self._fill(body, request), BODY_SECONDS)
        except BaseException as error:
            body.give_back()
            raise _problem(error) from None
        if len(body.data) <= _SHORT:
            body.fields = parsed(body.data)
            body.give_back()
        return body

    async def _fill(self, body: Body, request: Request) -> None:
        message = f"the body has more than {self._max_bytes} bytes, which is all that is taken"
        too_large = ApiError(413, message, headers=_CLOSE)
        parts = request.stream()
        header = request.headers.get("content-length", "0")
        length = int(header[:20]) if header.isdecimal() else 0
        if length > self._max_bytes:
            await _drop(parts, _DROP_MOST * self._max_bytes)
            raise too_large
        if length > _SHORT:
            await self._reserve(body, length)
        while part := await asyncio.wait_for(_next(parts), _PART_SECONDS):
            body.data += part
            if len(body.data) > self._max_bytes:
                body.give_back()
                await _drop(parts, _DROP_MOST * self._max_bytes)
                raise too_large
            if len(body.data) > max(_SHORT, body.n_reserved):  # it did not say how long it is
                await self._reserve(body, self._max_bytes)

    async def _reserve(self, body: Body, n_bytes: int) -> None:
        """Waits for room for a body, which can then be read to its end. Raises ApiError."""
        deadline = time.monotonic() + _ROOM_SECONDS
        while not self._take(n_bytes):
            self._freed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _PART_SECONDS)
            if time.monotonic() > deadline:
                raise ApiError(
                    429,
                    f"{_LARGEST * self._max_bytes} bytes of long requests are here, which is all "
                    f"that the server takes; try again in {_PART_SECONDS:g} s",
                    headers={"Retry-After": f"{_PART_SECONDS:g}", **_CLOSE},
                )
        body.n_reserved = n_bytes

    def _take(self, n_bytes: int) -> bool:
        with self._lock:
            fits = self._n_bytes + n_bytes <= _LARGEST * self._max_bytes
            self._n_bytes += n_bytes if fits else 0
        return fits

    def give_back(self, n_bytes: int) -> None:
        with self._lock:
            self._n_bytes -= n_bytes
        if n_bytes and self._loop:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._freed.set)

    @contextlib.contextmanager
    def turn(self, cancel: Cancel) -> Iterator[None]:
        while not self._turn.acquire(timeout=_POLL_SECONDS):
            _check(cancel)
        try:
            _check(cancel)
            yield
        finally:
            self._turn.release()


def _check(cancel: Cancel) -> None:
    if cancel.is_set():
        raise CancelledError("cancelled while waiting for its turn")


class Body:
    """One body. Its room is given back when it is used, or garbage."""

    def __init__(self, bodies: Bodies) -> None:
        self.data = bytearray()
        self.n_reserved = 0
        self.fields: Fields | None = None
        """Those of a short body; the fields of a long one are known when it is used."""
        self._bodies = bodies

    @contextlib.contextmanager
    def used(self, cancel: Cancel) -> Iterator[Fields]:
        """The fields, for the ``with`` block; one long body at a time. Raises ApiError for a body
        that is no JSON object, and CancelledError by `cancel`."""
        if self.fields is not None:
            yield self.fields
            return
        with self._bodies.turn(cancel):
            fields = parsed(self.data)
            self.give_back()
            yield fields

    def give_back(self) -> None:
        n_reserved, self.n_reserved, self.data = self.n_reserved, 0, bytearray()
        self._bodies.give_back(n_reserved)

    def __del__(self) -> None:
        self.give_back()


def _problem(error: BaseException) -> BaseException:
    if isinstance(error, asyncio.TimeoutError):
        return ApiError(
            408,
            f"the body did not come within {BODY_SECONDS:g} s, or nothing of it for "
            f"{_PART_SECONDS:g} s",
            headers=_CLOSE,
        )
    return ApiError(499, "the client went away") if isinstance(error, ClientDisconnect) else error


async def _next(parts: AsyncIterator[bytes]) -> bytes:
    """The next part that is not empty; nothing at the end."""
    async for part in parts:
        if part:
            return part
    return b""


async def _drop(parts: AsyncIterator[bytes], most: int) -> None:
    """Reads what comes and keeps none of it, up to so many bytes: a client that is still sending
    when its connection ends would not see why."""

    async def read() -> None:
        n_bytes = 0
        async for part in parts:
            n_bytes += len(part)
            if n_bytes > most:
                return

    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(read(), _DROP_SECONDS)


def parsed(data: bytes | bytearray) -> Fields:
    """The JSON object that a body is. Raises ApiError."""
    if (n := data.count(b"[") + data.count(b"{")) > _PARTS_MOST:
        raise ApiError(
            400, f"the body has {n} brackets that open, but may have {_PARTS_MOST}; shorten it"
        )
    try:
        body = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body is a JSON {_kind(body)}, but must be an object")
    return body


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


def _kind(value: Any) -> str:
    return {list: "list", str: "text", type(None): "null", bool: "boolean"}.get(
        type(value), "number"
    )
