"""The model with its state, and the way of a completion request through it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tgr_local.engine import Cancel, Engine, EngineStats, unused_gpu
from tgr_local.openai import completions, requests
from tgr_local.options.config import EngineConfig, SearchConfig, ServerConfig
from tgr_local.options.resolve import resolve
from tgr_local.server.bodies import Bodies, Body, Fields
from tgr_local.server.jobs import Job, Jobs
from tgr_local.server.limits import Memory, granted, limit_cache, memory_needed, method_of
from tgr_local.server.log import Facts, Log, facts_of
from tgr_local.server.metrics import Metrics
from tgr_local.server.problems import Problem
from tgr_local.server.wire import Encoded, EventStream, encoded

Check = Callable[..., requests.Request]
Shape = Callable[[Mapping[str, Any]], Any]
Items = Generator[Any, None, None]

_FIRST_SECONDS = 1.0  # in which an early failure still becomes a status
_QUICK_AT_ONCE, _QUICK_SECONDS = 2, 30.0  # for what needs no reply of the model
_STATS_SECONDS = 0.25  # for the engine to say how it is


class Service:
    """One model, served: loaded in the background, then shared by all requests."""

    def __init__(
        self,
        path: Path,
        limits: ServerConfig,
        *,
        method: str,
        engine_config: EngineConfig,
        options: Mapping[str, Any],
    ) -> None:
        """`options` are the fields of SearchConfig that the server's owner has set."""
        self.limits, self.method = limits, method
        self.name = limits.alias or path.stem
        self.created = int(time.time())
        self.config = SearchConfig()
        self.failure: Exception | None = None
        self._path, self._engine_config, self._options = path, engine_config, dict(options)
        self._engine: Engine | None = None
        self._bodies = Bodies(limits.max_body)
        self._asked_stats: asyncio.Future[EngineStats] | None = None
        self.log = Log(limits.log_file)
        self.jobs = Jobs(limits.max_running, limits.max_queue, limits.request_seconds)
        self._quick_jobs = Jobs(_QUICK_AT_ONCE, limits.max_queue, _QUICK_SECONDS)
        self.metrics = Metrics(self)

    # ---- the model ----

    def load(self, then: Callable[[], object]) -> threading.Thread:
        """Loads in a thread; `then` is called at the end, when `failure` says what went wrong."""

        def work() -> None:
            try:
                self._load()
            except Exception as error:
                self.failure = error
            then()

        thread = threading.Thread(target=work, name="load", daemon=True)
        thread.start()
        return thread

    def _load(self) -> None:
        engine = Engine(self._path, self._engine_config)
        self.config = resolve(engine.metadata, self._options).config
        limit_cache(engine, self.config, self.method, self.limits)
        self._memory = Memory(engine, self.limits)
        self.last_stats = engine.stats()
        self._engine = engine

    @property
    def ready(self) -> bool:
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """Raises Problem while there is none."""
        if self._engine is None:
            raise Problem(503, "the model is still being loaded", headers={"Retry-After": "2"})
        return self._engine

    @property
    def warning(self) -> str | None:
        """What the owner should know about the loaded model."""
        return unused_gpu(self._engine) if self._engine else None

    def close(self) -> None:
        """Ends all work and frees the model."""
        self._quick_jobs.close()
        self.jobs.close()
        if self._engine:
            self._engine.close()
        self.log.close()

    async def stats(self) -> EngineStats:
        """The engine's counts: of now, or the last ones while a long decode runs."""
        engine = self.engine
        asked = self._asked_stats
        if asked is None or asked.done():
            asked = self._asked_stats = asyncio.ensure_future(run_in_threadpool(engine.stats))
        done, _ = await asyncio.wait({asked}, timeout=_STATS_SECONDS)
        if done:
            self.last_stats = asked.result()
        return self.last_stats

    # ---- requests ----

    async def body(self, request: Request) -> Body:
        """The body of a request to the model. Raises Problem."""
        _ = self.engine  # while there is none, nothing is read
        body = await self._bodies.read(request)
        if body.fields is None and await request.is_disconnected():  # a long one costs a lot
            raise Problem(499, "the client went away")
        return body

    async def alone(
        self,
        request: Request,
        read: Callable[[Fields], Any],
        make: Callable[[Any, Cancel], Any] = lambda value, _: value,
        *,
        quick: bool = False,
    ) -> Any:
        """What `make` makes of what `read` takes out of the body, in a job; with `quick` in one of
        those that do not wait for replies. Raises Problem."""
        body = await self.body(request)

        def work(cancel: Cancel) -> Items:
            with body.used(cancel) as fields:
                value = read(fields)
            del fields
            yield make(value, cancel)

        async with self._job(request, work, self._quick_jobs if quick else self.jobs) as job:
            return await job.first(None)

    async def complete(
        self, request: Request, check: Check, shape: Shape = lambda part: part
    ) -> Response:
        """The response to a completion request: `check` makes a request of the body, `shape` makes
        of a part of the response what its clients read."""
        body = await self.body(request)
        facts = facts_of(request.scope)

        def work(cancel: Cancel) -> Items:
            with body.used(cancel) as fields:
                asked = self._checked(check, fields, facts, cancel)
            del fields
            yield asked
            with self._memory.held(memory_needed(self.engine, asked), cancel):
                if asked.stream:
                    all_parts = dataclasses.replace(asked, include_usage=True, progress=True)
                    yield from completions.chunks(self.engine, all_parts, cancel=cancel)
                else:
                    response = completions.respond(self.engine, asked, cancel=cancel)
                    self._note(facts, response)
                    yield encoded(shape(response))

        async with self._job(request, work, self.jobs) as job:
            # what is known to be a stream must not wait in silence
            streams = body.fields is not None and body.fields.get("stream") is True
            asked = await job.first(_FIRST_SECONDS if streams else None)
            if asked is None or asked.stream:
                first = await job.first(_FIRST_SECONDS) if asked else None
                return EventStream(job.taken_over(), self._events(job, asked, first, facts, shape))
            return Encoded(await job.first(None))

    @contextlib.asynccontextmanager
    async def _job(
        self, request: Request, work: Callable[[Cancel], Items], jobs: Jobs
    ) -> AsyncIterator[Job]:
        """A job that ends with the block or when the client goes away, unless it is taken over."""
        job = jobs.submit(work)
        watcher = asyncio.create_task(job.watch(request.receive))
        try:
            yield job
        finally:
            watcher.cancel()
            if not job.is_taken_over:
                facts_of(request.scope)["queued"] = round(job.seconds_queued, 4)
                job.end(Problem(499, "nobody waits for the reply"))

    def _checked(
        self, check: Check, body: Mapping[str, Any], facts: Facts, cancel: Cancel
    ) -> requests.Request:
        engine = self.engine
        if self.limits.log_prompts:
            facts["request"] = body
        body, method = method_of(body, self.name)
        asked = check(
            engine,
            body,
            config=self.config,
            method=method or self.method,
            model=self.name,
            cancel=cancel,
        )
        facts.update(model=asked.model, how=asked.method, stream=asked.stream)
        return granted(engine, asked, self.limits)

    async def _events(
        self,
        job: Job,
        asked: requests.Request | None,
        first: Any,
        facts: Facts,
        shape: Shape,
    ) -> AsyncIterator[Any]:
        """The chunks that were asked for; the others as comments, which clients skip. What is
        asked, if that is not known yet, is the first item."""
        unfinished = asked.n * len(asked.prompts) if asked else 0
        ending: dict[str, Any] = {}  # the end of the last choice, which waits for the bill
        async for chunk in _after(first, job.items(self.limits.ping_seconds)):
            if chunk is None:
                yield "ping"
                continue
            if asked is None:
                asked = chunk
                unfinished = asked.n * len(asked.prompts)
                continue
            if "first_part" not in facts:
                facts["first_part"] = round(job.age, 4)
                facts["queued"] = round(job.seconds_queued, 4)
            if not chunk["choices"] and not chunk.get("usage"):
                yield chunk if asked.progress else _comment(chunk)
                continue
            if chunk["choices"] and self.limits.log_prompts:
                facts.setdefault("reply", []).append(chunk["choices"])
            if chunk.get("usage"):
                self._note(facts, chunk)
            unfinished -= sum(choice["finish_reason"] is not None for choice in chunk["choices"])
            if not asked.include_usage:
                del chunk["usage"]
                if not unfinished and not ending:
                    ending = chunk
                    continue
                chunk |= ending
            yield shape(chunk)

    def _note(self, facts: Facts, response: Mapping[str, Any]) -> None:
        usage = response["usage"]
        for kind in ("prompt_tokens", "completion_tokens"):
            facts[kind] = usage[kind]
        facts["forward_tokens"] = response["tgr"]["forward_tokens"]
        if self.limits.log_prompts and response["choices"]:
            facts["reply"] = response["choices"]


def _comment(chunk: Mapping[str, Any]) -> str:
    return "tgr.step " + json.dumps(chunk["tgr"]["progress"], separators=(",", ":"))


async def _after(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    if first is not None:
        yield first
    async for item in rest:
        yield item
