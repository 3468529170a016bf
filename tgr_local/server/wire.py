"""JSON bodies in; JSON and server-sent events out."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tgr_local.server.jobs import Job
from tgr_local.server.log import facts_of
from tgr_local.server.problems import Problem

BODY_SECONDS = 60.0  # in which a body must have come
_BODIES = 64  # of the largest size, that may be on their way at a time
_SMALL = 1 << 16  # bytes of a body that is always taken
_PARTS_MOST = 400_000  # lists and objects in a body: each takes 50 times its length
HALF_CLOSED = "half_closed"  # set in a scope's state once the client has ended its side
_PROBE_SECONDS = 0.5
_CLOSE = {"Connection": "close"}  # the rest of the body is not read


def encoded(value: Any) -> bytes:
    """Compact JSON, plain ASCII: half a surrogate pair from a client must not break a response."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class Json(Response):
    """A value as a JSON response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


class Encoded(Response):
    """A response that is JSON already."""

    media_type = "application/json"


def failure(problem: Problem) -> Response:
    """A problem as a response."""
    return Json(problem.body, problem.status, headers=problem.headers)


async def body_of(request: Request, max_bytes: int) -> bytes:
    """What a request carries. Raises Problem."""
    try:
        return await asyncio.wait_for(_read(request, max_bytes), BODY_SECONDS)
    except asyncio.TimeoutError:
        message = f"the body did not come within {BODY_SECONDS:g} s"
        raise Problem(408, message, headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem(499, "the client went away") from None


def parsed(data: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises Problem."""
    if (n := data.count(b"[") + data.count(b"{")) > _PARTS_MOST:
        raise Problem(
            400, f"the body has {n} brackets that open, but may have {_PARTS_MOST}; shorten it"
        )
    try:
        body = json.loads(data, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise Problem(400, f"the body is no valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise Problem(400, f"the body is a JSON {_kind(body)}, but must be an object")
    return body


class _Arriving:
    """Bytes of all bodies that are still on their way, which slow clients could make many."""

    n_bytes = 0


async def _read(request: Request, max_bytes: int) -> bytes:
    message = f"the body has more than {max_bytes} bytes, which is all that the server takes"
    too_large = Problem(413, message, headers=_CLOSE)
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            _Arriving.n_bytes += len(part)
            if len(data) > max_bytes:
                raise too_large
            if len(data) > _SMALL and _Arriving.n_bytes > _BODIES * max_bytes:
                message = f"bodies of {_Arriving.n_bytes} bytes are on their way; try again in 2 s"
                raise Problem(429, message, headers={"Retry-After": "2", **_CLOSE})
    finally:
        _Arriving.n_bytes -= len(data)
    return bytes(data)


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


class EventStream(Response):
    """Events as they come, `: ping` in between when nothing does, `[DONE]` at the end.

    Each event is a part of a response, or a text that becomes a comment. When the client goes
    away, the work ends.
    """

    media_type = "text/event-stream"

    def __init__(self, job: Job, events: AsyncIterator[Any]) -> None:
        # the second is for nginx, which would hold the events back
        super().__init__(None, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job, self._events = job, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        watcher = asyncio.create_task(self._job.watch(receive))
        prober = asyncio.create_task(_probe(scope, write))
        try:
            async for event in self._events:
                await write(_event(event))
            await write(b"data: [DONE]\n\n")
        except Problem as problem:
            facts_of(scope)["failed"] = problem.status
            await write(b"data: " + encoded(problem.body) + b"\n\n")
        finally:
            watcher.cancel()
            prober.cancel()
            self._job.end(Problem(499, "nobody reads the reply"))
        await write(b"", more=False)


async def _probe(scope: Scope, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Writes comments to a client that has ended its side: if it has gone, they fail."""
    while True:
        await asyncio.sleep(_PROBE_SECONDS)
        if scope.get("state", {}).get(HALF_CLOSED):
            await write(b":\n\n")


def _event(event: Any) -> bytes:
    if isinstance(event, str):
        return f": {event}\n\n".encode()
    return b"data: " + encoded(event) + b"\n\n"
