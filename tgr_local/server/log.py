"""One JSON line for each request, on stderr or in a file, and the middleware that writes it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import sys
import time
import uuid
from collections.abc import MutableMapping
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgr_local.apis.events import NewText
from tgr_local.apis.writing import Choice
from tgr_local.server.metrics import Metrics

Facts = MutableMapping[str, Any]

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Log:
    """Appends lines to the file of that name, or writes them to stderr. OSError for a bad file.

    A new file is readable by its owner only, since it may contain prompts.
    """

    def __init__(self, path: str) -> None:
        self._own = open(path, "a", encoding="utf-8", opener=_private) if path else None  # noqa: SIM115

    @property
    def is_shared(self) -> bool:
        """Whether other users than its owner can read the file."""
        if self._own is None or os.name == "nt":  # where the folder decides, and no mode says it
            return False
        return bool(os.fstat(self._own.fileno()).st_mode & 0o044)

    def write(self, facts: Facts) -> None:
        file: TextIO = self._own or sys.stderr
        with contextlib.suppress(OSError, ValueError):  # a full disk must not end a request
            file.write(f"{json.dumps(facts)}\n")  # at once: other threads write to stderr too
            file.flush()

    def close(self) -> None:
        if self._own:
            self._own.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def facts_of(scope: Scope) -> Facts:
    """The facts of a request, which are logged and counted at its end."""
    facts: Facts = scope["tgr.facts"]
    return facts


def client_id(scope: Scope) -> str:
    """The id that a client gave its request; empty where it gave none, or one that is not an id."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _ID.fullmatch(given) else ""


class Observe:
    """ASGI middleware that logs and counts every request, and gives each an id, unless its client
    did."""

    def __init__(self, app: ASGIApp, log: Log, metrics: Metrics) -> None:
        self._app, self._log, self._metrics = app, log, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        now = datetime.datetime.now(datetime.timezone.utc)
        request_id = client_id(scope) or uuid.uuid4().hex
        facts: Facts = {
            "time": now.isoformat(timespec="milliseconds"),
            "id": request_id,
            "method": scope["method"],
            "path": scope["path"],
            "status": 499,  # until a response is sent
        }
        scope["tgr.facts"] = facts

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts["status"] = message["status"]
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            facts["status"] = facts.pop("failed", facts["status"])
            facts["seconds"] = round(time.monotonic() - start, 4)
            route = scope.get("route")
            self._metrics.count(getattr(route, "path", "other"), facts)
            self._log.write(facts)


def said(choice: Choice) -> dict[str, Any]:
    """A choice as the log has it."""
    calls = [dataclasses.asdict(call) for call in choice.calls]
    return {
        "index": choice.index,
        "thinking": choice.text("thinking"),
        "answer": choice.text("answer"),
    } | ({"calls": calls} if calls else {})


def note_text(facts: Facts, part: NewText) -> None:
    """Notes a part of a stream, which may be cut."""
    choices: list[dict[str, Any]] = facts.setdefault("reply", [])
    choice = next((entry for entry in choices if entry["index"] == part.index), None)
    if choice is None:
        choices.append(choice := {"index": part.index, "thinking": "", "answer": ""})
    if part.kind in choice:
        choice[part.kind] += part.text
