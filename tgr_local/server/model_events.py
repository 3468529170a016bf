"""The stream of events about the models, for clients that show them.

As with llama-server: an event names a model, and its status or what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tgr_local.server.errors import ApiError

_WATCHERS_MOST, _UNREAD_MOST = 64, 256


class ModelEvents:
    """Passes events on to everyone who watches. Only one event loop uses it."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._ended = False

    def status(self, model: str, status: str, *, failed: bool = False) -> None:
        """A model has another status; one that failed to load is unloaded."""
        data: dict[str, Any] = {"status": status}
        if status == "unloaded":
            data["exit_code"] = int(failed)
        self._put({"model": model, "event": "status_change", "data": data})

    def listed(self) -> None:
        """Tells clients that the list of models has changed."""
        self._put({"model": "*", "event": "models_reload"})

    def end(self) -> None:
        """Ends all streams: the server shuts down."""
        self._ended = True
        for queue in self._queues:
            queue.put_nowait(None)

    def _put(self, event: dict[str, Any]) -> None:
        for queue in self._queues:
            if queue.qsize() < _UNREAD_MOST:
                queue.put_nowait(event)
            elif queue.qsize() == _UNREAD_MOST:  # nobody reads it: the client may ask again
                queue.put_nowait(None)

    def watch(self, seconds: float) -> AsyncIterator[dict[str, Any] | None]:
        """Yields None at the beginning, then events as they come, and None after `seconds` without
        one. Raises ApiError."""
        if self._ended:
            raise ApiError(503, "the server is shutting down")
        if len(self._queues) >= _WATCHERS_MOST:
            raise ApiError(503, f"{_WATCHERS_MOST} clients watch the models already; try later")
        return self._watched(seconds)

    async def _watched(self, seconds: float) -> AsyncIterator[dict[str, Any] | None]:
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield None
            while not self._ended:
                try:
                    event = await asyncio.wait_for(queue.get(), seconds)
                except asyncio.TimeoutError:
                    yield None
                    continue
                if event is None:
                    return
                yield event
        finally:
            self._queues.discard(queue)
