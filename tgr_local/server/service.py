"""The model with its state, and the path of a request: body, checks, job, response."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tgr_local.engine import Cancel, Engine, EngineStats, slow_cache, unused_gpu
from tgr_local.errors import CancelledError
from tgr_local.methods import Method
from tgr_local.openai import answer
from tgr_local.openai.answer import Translation
from tgr_local.openai.bodies import GenerationRequest
from tgr_local.openai.completions import progress_object
from tgr_local.openai.events import ApiEvent, Searched, TextPart, Totals, Usage
from tgr_local.openai.messages import CountTokensRequest
from tgr_local.openai.requests import PreparedRequest
from tgr_local.openai.responses import ResponsesRequest
from tgr_local.options.config import EngineConfig, SearchConfig, ServerConfig
from tgr_local.options.resolve import resolve
from tgr_local.server.bodies import Bodies, Body, Fields
from tgr_local.server.errors import ApiError
from tgr_local.server.jobs import Job, Jobs, Put, Work
from tgr_local.server.limits import (
    Memory,
    limit_cache,
    memory_needed,
    model_and_method,
    within_limits,
)
from tgr_local.server.log import Facts, Log, facts_of
from tgr_local.server.metrics import Metrics
from tgr_local.server.slots import Slots
from tgr_local.server.wire import (
    OPENAI,
    EncodedResponse,
    EventStream,
    Frames,
    JsonResponse,
    comment,
    encoded,
)

Prepare = Callable[..., PreparedRequest]
AnyRequest = GenerationRequest | CountTokensRequest | ResponsesRequest

_FIRST_SECONDS = 1.0  # in which an early error still becomes a status
_QUICK_AT_ONCE, _QUICK_SECONDS = 2, 30.0  # for requests without a reply of the model
_STATS_SECONDS = 0.25  # for the engine to answer
_LOADING_SECONDS = 2.0  # for a load that is cancelled


@dataclass(frozen=True)
class Api:
    """An API for replies: how its requests are read, and how its responses are written."""

    body: type[AnyRequest]
    prepare: Prepare
    """Makes a `PreparedRequest` of an engine, a checked body and the server's options."""
    translate: Callable[[Engine, PreparedRequest], Translation]
    frames: Frames = OPENAI


class Service:
    """One model, served: loaded in the background, then shared by all requests."""

    def __init__(
        self,
        path: Path,
        limits: ServerConfig,
        *,
        method: Method,
        engine_config: EngineConfig,
        options: Mapping[str, Any],
    ) -> None:
        """`options` are the fields of SearchConfig that the owner of the server has set."""
        self.limits, self.method = limits, method
        self.name = limits.alias or path.stem
        self.created = int(time.time())
        self.config = SearchConfig()
        self.failure: Exception | None = None
        self._path, self._engine_config, self._options = path, engine_config, dict(options)
        self._engine: Engine | None = None
        self._loading: threading.Thread | None = None
        self._stop_loading = Cancel()
        self._bodies = Bodies(limits.max_body)
        self._stats_future: asyncio.Future[EngineStats] | None = None
        self._ignored: set[str] = set()  # parameters that the log has named
        self.slots = Slots(limits)
        self.log = Log(limits.log_file)
        self.jobs = Jobs(limits.max_running, limits.max_queue, limits.request_seconds)
        self._quick_jobs = Jobs(_QUICK_AT_ONCE, limits.max_queue, _QUICK_SECONDS)
        self.metrics = Metrics(self)

    # ---- the model ----

    def load(self, then: Callable[[], object]) -> threading.Thread:
        """Loads in a thread and calls `then` at the end; `failure` is the error, if any. `close`
        ends the load."""

        def work() -> None:
            try:
                self._load()
            except CancelledError:
                return
            except Exception as error:
                self.failure = error
            then()

        self._loading = threading.Thread(target=work, name="load", daemon=True)
        self._loading.start()
        return self._loading

    def _load(self) -> None:
        engine = Engine(self._path, self._engine_config, cancel=self._stop_loading)
        self.config = resolve(engine.metadata, self._options).config
        limit_cache(engine, self.config, self.method, self.limits)
        self._memory = Memory(engine, self.limits)
        self.last_stats = engine.stats()
        gc.collect()
        gc.freeze()  # what lives as long as the server is not searched again: that takes 20 ms
        self._engine = engine

    @property
    def ready(self) -> bool:
        return self._engine is not None

    @property
    def engine(self) -> Engine:
        """Raises ApiError while the model is being loaded."""
        if self._engine is None:
            raise ApiError(503, "the model is still being loaded", headers={"Retry-After": "2"})
        return self._engine

    @property
    def warning(self) -> str | None:
        """A warning about the loaded model for the owner."""
        return (unused_gpu(self._engine) or slow_cache(self._engine)) if self._engine else None

    def close(self) -> None:
        """Ends all work, a load too, and frees the model."""
        self._stop_loading.cancel()
        if self._loading:
            self._loading.join(_LOADING_SECONDS)
        self._quick_jobs.close()
        self.jobs.close()
        if self._engine:
            self._engine.close()
        self.log.close()

    async def stats(self) -> EngineStats:
        """The engine's present counts, or the last known ones while a long decode runs."""
        engine = self.engine
        future = self._stats_future
        if future is None or future.done():
            future = self._stats_future = asyncio.ensure_future(run_in_threadpool(engine.stats))
        done, _ = await asyncio.wait({future}, timeout=_STATS_SECONDS)
        if done:
            self.last_stats = future.result()
        return self.last_stats

    # ---- requests ----

    async def body(self, request: Request) -> Body:
        """The body of a request to the model. Raises ApiError."""
        _ = self.engine  # before it is loaded, nothing is read
        body = await self._bodies.read(request)
        if body.fields is None and await request.is_disconnected():  # a long one costs a lot
            raise ApiError(499, "the client disconnected")
        return body

    async def run(
        self,
        request: Request,
        read: Callable[[Fields], Any],
        make: Callable[[Any, Cancel], Any] = lambda value, _: value,
        *,
        quick: bool = False,
    ) -> Any:
        """Runs `read` on the body and `make` on its result, in a job, and returns that result;
        `quick` jobs have a queue of their own, which does not wait for replies. Raises ApiError."""
        body = await self.body(request)

        def work(cancel: Cancel, put: Put) -> None:
            with body.used(cancel) as fields:
                value = read(fields)
            del fields
            put(make(value, cancel))

        async with self._job(request, work, self._quick_jobs if quick else self.jobs) as job:
            return await job.first(None)

    async def complete(self, request: Request, api: Api) -> Response:
        """The response to a request for replies."""
        body = await self.body(request)
        facts = facts_of(request.scope)

        def work(cancel: Cancel, put: Put) -> None:
            with body.used(cancel) as fields:
                if self.limits.log_prompts:
                    facts["request"] = fields
                prepared = self._bounded(api.body.parse(fields), api.prepare, facts, cancel)
            del fields
            translation = api.translate(self.engine, prepared)
            put(_Begun(prepared, translation, translation.opening()))
            with self._memory.held(memory_needed(self.engine, prepared), cancel):
                if prepared.stream:

                    def pass_on(made: ApiEvent) -> None:
                        put((made, translation.parts(made)))

                    answer.write(self.engine, prepared, pass_on, cancel=cancel)
                else:
                    made = answer.write(self.engine, prepared, cancel=cancel)
                    self._note(facts, made.usage(), made.about())
                    if self.limits.log_prompts:
                        facts["reply"] = [_said(choice) for choice in made.best()]
                    put(encoded(translation.whole(made)))

        async with self._job(request, work, self.jobs) as job:
            # a request for a stream must not wait in silence
            streams = body.fields is not None and body.fields.get("stream") is True
            begun: _Begun | None = await job.first(_FIRST_SECONDS if streams else None)
            if begun is None or begun.prepared.stream:
                first = await job.first(_FIRST_SECONDS) if begun else None
                events = _Events(self, facts, api.frames)
                stream = self._stream(job, begun, first, events)
                return EventStream(job.taken_over(), stream, api.frames, events.failure)
            return EncodedResponse(await job.first(None))

    async def inspect(
        self, request: Request, api: Api, make: Callable[[Engine, PreparedRequest], Any]
    ) -> Response:
        """What `make` says of a request for replies, which is only prepared."""

        def made(body: AnyRequest, cancel: Cancel) -> Any:
            return make(self.engine, self._prepared(body, api.prepare, cancel))

        return JsonResponse(await self.run(request, api.body.parse, made, quick=True))

    @contextlib.asynccontextmanager
    async def _job(self, request: Request, work: Work, jobs: Jobs) -> AsyncIterator[Job]:
        """A job that ends with the block or with the connection, unless it is taken over."""
        job = jobs.submit(work)
        watcher = asyncio.create_task(job.watch(request.receive))
        try:
            yield job
        finally:
            watcher.cancel()
            if not job.is_taken_over:
                facts_of(request.scope)["queued"] = round(job.seconds_queued, 4)
                job.end(ApiError(499, "the client does not wait for the reply"))

    def _prepared(self, body: AnyRequest, prepare: Prepare, cancel: Cancel) -> PreparedRequest:
        """The request with this server's options. Raises RequestError, ApiError and others."""
        name, method = model_and_method(body.model, self.name)
        return prepare(
            self.engine,
            body.model_copy(update={"model": name}),
            config=self.config,
            method=method or self.method,
            model=self.name,
            cancel=cancel,
        )

    def _bounded(
        self, body: AnyRequest, prepare: Prepare, facts: Facts, cancel: Cancel
    ) -> PreparedRequest:
        """The request within this server's limits. Raises as `_prepared` does."""
        prepared = self._prepared(body, prepare, cancel)
        facts.update(model=prepared.model, how=prepared.method.name, stream=prepared.stream)
        prepared = within_limits(self.engine, prepared, self.limits, self.last_stats.n_ctx)
        self.slots.note(prepared.id_slot, prepared.prompts[0])
        return prepared

    async def _stream(
        self, job: Job, begun: _Begun | None, first: Any, events: _Events
    ) -> AsyncIterator[bytes]:
        """The encoded events of a stream, as many at a time as there are. If `begun` is None,
        it is the job's first item."""
        yield events.encoded([item for item in (begun, first) if item is not None], job)
        async for items in job.batches(self.limits.ping_seconds):
            yield events.encoded(items, job) if items else events.frames.ping

    def _note(self, facts: Facts, usage: Usage, about: Mapping[str, Any]) -> None:
        facts["prompt_tokens"], facts["completion_tokens"] = usage.prompt, usage.completion
        facts["cached_tokens"] = usage.cached
        for kind in ("forward_tokens", "reused_tokens"):
            facts[kind] = about[kind]
        if new := set(about.get("ignored", ())) - self._ignored:  # each is logged once
            self._ignored |= new
            facts["ignored"] = sorted(new)


@dataclass(frozen=True)
class _Begun:
    """The first item of a job: what it writes, and the opening of its stream."""

    prepared: PreparedRequest
    translation: Translation
    opening: list[dict[str, Any]]


class _Events:
    """The events of one response: what its API sends for them, and the search as comments, which
    clients skip."""

    def __init__(self, service: Service, facts: Facts, frames: Frames) -> None:
        self._service, self._facts, self.frames = service, facts, frames
        self._begun: _Begun | None = None
        self._is_logged = service.limits.log_prompts

    def encoded(self, items: Iterable[Any], job: Job) -> bytes:
        """What is sent for some items of the job."""
        data = b""
        for item in items:
            if isinstance(item, _Begun):
                self._begun = item
                data += b"".join(map(self.frames.event, item.opening))
                continue
            if "first_part" not in self._facts:
                self._facts["first_part"] = round(job.age, 4)
                self._facts["queued"] = round(job.seconds_queued, 4)
            made, parts = item
            if isinstance(made, Searched) and not parts:
                data += comment(f"tgr.step {encoded(progress_object(made)).decode()}")
            elif isinstance(made, Totals):
                self._service._note(self._facts, made.usage, made.about)
            elif self._is_logged and isinstance(made, TextPart):
                _log_text(self._facts, made)
            for part in parts:
                data += self.frames.event(part)
        return data

    def failure(self, error: ApiError) -> bytes:
        """What is sent for an error that ends the stream."""
        if self._begun is None:
            return self.frames.event(self.frames.failure(error))
        parts = self._begun.translation.failed(error.body["error"])
        return b"".join(map(self.frames.event, parts))


def _said(choice: answer.Choice) -> dict[str, Any]:
    """A choice as the log has it."""
    calls = [dataclasses.asdict(call) for call in choice.calls]
    return {
        "index": choice.index,
        "thinking": choice.text("thinking"),
        "answer": choice.text("answer"),
    } | ({"calls": calls} if calls else {})


def _log_text(facts: Facts, part: TextPart) -> None:
    choices: list[dict[str, Any]] = facts.setdefault("reply", [])
    found = next((one for one in choices if one["index"] == part.index), None)
    if found is None:
        choices.append(found := {"index": part.index, "thinking": "", "answer": ""})
    if part.kind in found:
        found[part.kind] += part.text
