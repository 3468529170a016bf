"""Counts and times in Prometheus' format."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

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
