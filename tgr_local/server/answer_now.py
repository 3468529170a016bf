"""Running requests that a client can ask for the answer now, by an id that it knows.

A request is known by the id of its response, which the first event of a stream has, and by the one
that the client gave it in ``X-Request-Id``; only clients with the key that it came with can ask.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import Field
from starlette.types import Scope

from tgr_local.engine import Cancel
from tgr_local.openai.validation import RequestBody
from tgr_local.server.errors import ApiError

ID_MOST = 128  # characters
_ID = re.compile(rf"[\w.:-]{{1,{ID_MOST}}}", re.ASCII)
OWNER = "tgr.owner"
"""Where a scope has what tells the keys apart."""


class AnswerNowRequest(RequestBody):
    """The request whose answer is wanted now."""

    noun: ClassVar[str] = "parameter"
    id: str = Field(
        max_length=ID_MOST, description="of a response, or the X-Request-Id of its request"
    )


class Running:
    """The running requests."""

    def __init__(self) -> None:
        self._cancels: dict[tuple[bytes, str], list[Cancel]] = {}
        self._lock = threading.Lock()  # requests come and go in their threads

    @contextlib.contextmanager
    def known(self, scope: Scope, ids: Iterable[str], cancel: Cancel) -> Iterator[None]:
        """The request of a scope has these ids, beside the one that its client gave, in the
        block."""
        keys = [(owner_of(scope), one) for one in {*ids, client_id(scope)} if one]
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


def client_id(scope: Scope) -> str:
    """The id that a client gave its request; empty where it gave none, or one that is no id."""
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"x-request-id" and _ID.fullmatch(text):
            return str(text)
    return ""


def owner_of(scope: Scope) -> bytes:
    """What tells the client's key from others; empty without keys."""
    owner: bytes = scope.get(OWNER, b"")
    return owner
