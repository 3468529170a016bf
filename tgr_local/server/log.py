"""One JSON line for each request, on stderr or in a file; counts and times in Prometheus' format;
and the middleware that writes the one and counts the other."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgr_local.apis.events import NewText
from tgr_local.apis.writing import Choice
from tgr_local.engine import EngineStats
from tgr_local.server.jobs import Jobs
from tgr_local.server.pool import Pool

_COUNTED = (
    "n_positions", "n_decodes", "n_preemptions", "n_read_again", "decode_seconds", "sample_seconds",
)  # fmt: skip
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)  # seconds


class Metrics:
    """Counts since the start, and the present state of the jobs and of the models in the pool."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, jobs: Jobs, pool: Pool) -> None:
        self._jobs, self._pool = jobs, pool
        self._registry = registry = CollectorRegistry()
        registry.register(self)
        counter = functools.partial(Counter, registry=registry)
        times = functools.partial(Histogram, buckets=_BUCKETS, registry=registry)
        self._requests = counter("tgr_requests", "Requests answered", ["path", "status"])
        self._seconds = times("tgr_request_seconds", "Whole request", ["path"])
        self._queued = times("tgr_queue_seconds", "Waiting for a turn")
        self._first = times("tgr_first_part_seconds", "Until the first part of a stream")
        self._tokens = counter("tgr_tokens", "Tokens of prompts and of replies", ["kind"])
        self._forward = counter(
            "tgr_forward_tokens", "Positions decoded for finished replies, by purpose", ["purpose"]
        )
        self._reused = counter(
            "tgr_reused_tokens", "Positions of finished replies that were in the cache already"
        )

    def count(self, path: str, facts: Mapping[str, Any]) -> None:
        """Counts one request, by the facts that are also logged."""
        self._requests.labels(path, str(facts["status"])).inc()
        self._seconds.labels(path).observe(facts["seconds"])
        for name, histogram in (("queued", self._queued), ("first_part", self._first)):
            if name in facts:
                histogram.observe(facts[name])
        for kind in ("prompt", "completion"):
            self._tokens.labels(kind).inc(facts.get(f"{kind}_tokens", 0))
        for purpose, number in facts.get("forward_tokens", {}).items():
            if purpose != "total":
                self._forward.labels(purpose).inc(number)
        self._reused.inc(facts.get("reused_tokens", 0))

    def text(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The present state, which the registry asks for."""
        yield GaugeMetricFamily("tgr_running", "Requests that run", self._jobs.running)
        yield GaugeMetricFamily("tgr_waiting", "Requests that wait", self._jobs.waiting)
        models = self._pool.loaded
        yield GaugeMetricFamily("tgr_ready", "1 = a model is loaded", int(bool(models)))
        loads = CounterMetricFamily("tgr_model_loads", "Loads of a model", labels=["model"])
        for name, number in dict(self._pool.loads).items():
            loads.add_metric([name], number)
        yield loads
        for field in dataclasses.fields(EngineStats):
            kind = CounterMetricFamily if field.name in _COUNTED else GaugeMetricFamily
            about = f"Engine: {field.name.replace('_', ' ')}"
            family = kind(f"tgr_engine_{field.name}", about, labels=["model"])
            for model in models:
                family.add_metric([model.name], getattr(model.last_stats, field.name))
            yield family


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
        return self._own is not None and bool(os.fstat(self._own.fileno()).st_mode & 0o044)

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
