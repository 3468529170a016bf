"""Running requests that a client can ask for the answer now, by an id that it knows.

A request is known by the id of its response, which the first event of a stream has, and by the one
that the client gave it in ``X-Request-Id``; only clients with the key that it came with can ask.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope

from tgr_local.engine import Cancel
from tgr_local.server.auth import OWNER
from tgr_local.server.errors import ApiError
from tgr_local.server.log import client_id
from tgr_local.server.openapi import ANSWERS
from tgr_local.server.wire import JsonResponse


def add_answer_now(app: FastAPI, running: Running) -> None:
    """Adds the endpoint."""

    @app.post("/v1/chat/completions/{request_id}/answer-now", **ANSWERS)
    @app.post("/answer-now/{request_id}", **ANSWERS)
    async def answer_now(request_id: str, request: Request) -> Response:
        running.answer_now(request.scope, request_id)
        return JsonResponse({"id": request_id, "object": "answer_now", "asked": True})


class Running:
    """The running requests."""

    def __init__(self) -> None:
        self._cancels: dict[tuple[bytes, str], list[Cancel]] = {}
        self._lock = threading.Lock()  # requests come and go in their threads

    @contextlib.contextmanager
    def known(self, scope: Scope, ids: Iterable[str], cancel: Cancel) -> Iterator[None]:
        """The request of a scope has these ids, in addition to the one that its client gave, in the
        block."""
        keys = [(owner_of(scope), name) for name in {*ids, client_id(scope)} if name]
        with self._lock:
            for key in keys:
                self._cancels.setdefault(key, []).append(cancel)
        try:
            yield
        finally:
            with self._lock:
                for key in keys:
                    self._cancels[key].remove(cancel)
                    if not self._cancels[key]:
                        del self._cancels[key]

    def answer_now(self, scope: Scope, request_id: str) -> None:
        """Asks the requests of that id for their answers. Raises ApiError where there is none of
        this client's key."""
        with self._lock:
            cancels = list(self._cancels.get((owner_of(scope), request_id), ()))
        if not cancels:
            raise ApiError(
                404, f"no running request has the id {request_id!r:.140}; it may have ended",
                param="id", code="request_not_found",
            )  # fmt: skip
        for cancel in cancels:
            cancel.answer_now()


def owner_of(scope: Scope) -> bytes:
    """Returns the digest of the client's key; empty unless the server has several keys."""
    owner: bytes = scope.get(OWNER, b"")
    return owner
