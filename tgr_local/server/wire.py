"""Responses: JSON, and server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tgr_local.server.errors import ApiError
from tgr_local.server.jobs import Job

_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encoded(value: Any) -> bytes:
    """Compact JSON, plain ASCII: half a surrogate pair from a client must not break a response."""
    return _json.encode(value).encode()


@dataclass(frozen=True)
class Frames:
    """Format of the events of a stream in an API."""

    named: bool = False
    """Whether the type of an event is also its name."""
    end: bytes = b"data: [DONE]\n\n"
    ping: bytes = b": ping\n\n"
    """Bytes to send after a silence."""
    failure: Callable[[ApiError], Any] = attrgetter("body")
    """The event of an error before anything is written."""
    media_type: str = "text/event-stream"

    def comment(self, text: bytes) -> bytes:
        """Returns a text as a comment, which clients skip."""
        return b": " + text + b"\n\n"

    def event(self, value: Any) -> bytes:
        """A value as an event."""
        name = f"event: {value['type']}\n".encode() if self.named else b""
        return name + b"data: " + encoded(value) + b"\n\n"


class Lines(Frames):
    """Events as lines of JSON, without comments."""

    def comment(self, text: bytes) -> bytes:
        return b""

    def event(self, value: Any) -> bytes:
        return encoded(value) + b"\n"


OPENAI = Frames()
OLLAMA = Lines(
    end=b"",
    ping=b"",
    failure=attrgetter("ollama_body"),
    media_type="application/x-ndjson",
)
# the second is for nginx, which would hold the events back
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class JsonResponse(Response):
    """A value as a JSON response; bytes are JSON already."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else encoded(content)


def failure(error: ApiError, path: str) -> Response:
    """An error as a response, in the format of the API at `path`."""
    body = error.anthropic_body if path.startswith("/v1/messages") else error.body
    body = error.ollama_body if f"{path}/".startswith("/api/") else body
    return JsonResponse(body, error.status, headers=error.headers)


class EventStream(Response):
    """Encoded events as they come, one or more at a time. The work ends when the client
    disconnects."""

    def __init__(self, job: Job, events: AsyncIterator[bytes], frames: Frames) -> None:
        super().__init__(None, headers=STREAM_HEADERS, media_type=frames.media_type)
        del self.headers["content-length"]
        self._job, self._events = job, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        watcher = asyncio.create_task(self._job.watch(receive))
        try:
            async for events in self._events:
                if events:
                    await write(events)
        finally:
            watcher.cancel()
            self._job.end(ApiError(499, "nobody reads the reply"))
        await write(b"", more=False)
