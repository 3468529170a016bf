"""The path of a request: body, model, job, checks, response."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tgr_local.apis import writing
from tgr_local.apis.bodies import CommonRequest, SampledRequest
from tgr_local.apis.completions import progress_object
from tgr_local.apis.events import ApiEvent, NewText, Searched, Usage
from tgr_local.apis.requests import PreparedRequest
from tgr_local.apis.validation import RequestBody
from tgr_local.apis.writing import Translation
from tgr_local.engine import Cancel, Engine
from tgr_local.server.answer_now import Running, owner_of
from tgr_local.server.bodies import Bodies, Body, Fields
from tgr_local.server.errors import ApiError
from tgr_local.server.jobs import Job, Jobs, Put, Work
from tgr_local.server.lease import Lease, without_folder
from tgr_local.server.limits import RequestMemory, memory_needed, within_limits, within_time
from tgr_local.server.loaded import LoadedModel, Setup
from tgr_local.server.log import Facts, Log, facts_of, note_text, said
from tgr_local.server.metrics import Metrics
from tgr_local.server.models import Models
from tgr_local.server.openapi import Respond
from tgr_local.server.pool import Pool
from tgr_local.server.prompt_cache import PromptCache
from tgr_local.server.watch import DeviceWatch
from tgr_local.server.wire import OPENAI, EventStream, Frames, JsonResponse, encoded
from tgr_local.system import confined
from tgr_local.system.errors import ModelError

AnyBody = TypeVar("AnyBody", bound=RequestBody)

_FIRST_SECONDS = 1.0  # in which an early error still becomes a status
_QUICK_AT_ONCE, _QUICK_SECONDS = 2, 30.0  # for requests without a reply of the model

WAITS: tuple[tuple[str, str, Callable[..., object]], ...] = (
    ("body", "its bytes; a long one first for room beside the other long ones", Bodies.read),
    ("model", "the models that older requests wait for, then the load of its own", Pool.lease),
    ("thread", "one of `--max-running`, and those before it", Jobs.submit),
    ("parsing", "a long body: those before it, which are parsed one at a time", Body.used),
    ("template", "one of the two processes that read chat templates", confined.apply_template),
    ("memory", "its share of `--request-memory`, and those before it", RequestMemory.held),
    ("kept prompt", "a prompt that another request loads from a file", PromptCache.restore),
    ("cells", "its cells of the KV cache, and those before it", Engine.session),
)
"""Waits of a request for replies, in order: name, reason, and the function that waits. It keeps
its thread and its memory until the reply has ended. As every request takes them in this order, no
two wait for each other."""


@dataclass(frozen=True)
class Api:
    """An API for replies: how its requests are read, and how its responses are written."""

    body: type[CommonRequest]
    prepare: Callable[..., PreparedRequest]
    """Makes a `PreparedRequest` of an engine, a checked body and the server's options."""
    translate: Callable[[Engine, PreparedRequest], Translation]
    frames: Frames = OPENAI
    method: str | None = None
    """Method of requests that name none; None = the server's."""
    streams: bool = False
    """Whether a request that does not say so wants a stream."""
    instead: Callable[[Any, str], Any] = lambda _, __: None
    """The response to a checked body that wants no text, once its model, of that name, is loaded;
    None = it does."""


class Service:
    """The models of a server, and the requests to them."""

    def __init__(
        self, path: Path | None, setup: Setup, tell: Callable[[str], object] = lambda _: None
    ) -> None:
        """`path` is the model of the start; `tell` receives a line for the owner about each load
        and unload."""
        self.limits = limits = setup.limits
        self.method = setup.method
        self.models = Models(path, setup, tell)
        self._bodies = Bodies(limits.max_body)
        self._ignored: set[str] = set()  # parameters that the log has named
        self.log = Log(limits.log_file)
        self.running = Running()
        self.jobs = Jobs(limits.max_running, limits.max_queue, limits.request_seconds)
        self._quick_jobs = Jobs(_QUICK_AT_ONCE, limits.max_queue, _QUICK_SECONDS)
        self.metrics = Metrics(self.jobs, self.models.pool)
        both = (self.jobs, self._quick_jobs)
        self.watch = DeviceWatch(self.models.pool, both, limits.device_seconds)

    def stop(self) -> None:
        """Cancels all requests and accepts no more. In the event loop."""
        self.jobs.stop()
        self._quick_jobs.stop()

    async def close(self) -> None:
        """Ends all work, a load too, and frees the models."""
        self.stop()
        await run_in_threadpool(self._quick_jobs.close)
        await run_in_threadpool(self.jobs.close)
        await self.models.pool.close()
        self.log.close()

    # ---- requests ----

    def reader(self, scope: Scope) -> bytes:
        """Owner whose requests alone reuse what this one reads; empty = all do."""
        return b"" if self.limits.share_cache else owner_of(scope)

    async def body(self, request: Request, *, streams: bool = False) -> Body:
        """The body of a request to a model, as `Bodies.read` has it. Raises ApiError."""
        self.models.check_started()  # before that, nothing is read
        body = await self._bodies.read(request, streams=streams)
        if body.fields is None and await request.is_disconnected():  # a long one costs a lot
            raise ApiError(499, "the client disconnected")
        return body

    async def small(self, request: Request, needed: str) -> Fields:
        """The fields of a body that need not be long. Raises ApiError, which names what they are,
        for a long one."""
        body = await self.body(request)
        if body.fields is None:
            raise ApiError(413, f"the body is too long; it needs only {needed}")
        return body.fields

    async def run(
        self,
        request: Request,
        kind: type[AnyBody],
        make: Callable[[LoadedModel, Any, Cancel], Any] = lambda _, value, __: value,
        *,
        read: Callable[[Engine, AnyBody], Any] = lambda _, body: body,
        quick: bool = False,
    ) -> Any:
        """Applies `read`, then `make`, to a body of this kind in a job, and returns the result;
        long bodies are read one at a time. `quick` jobs have a queue of their own, which does not
        wait for replies. Raises ApiError."""
        body = await self.body(request)
        lease = await self._lease(request, body)

        def work(cancel: Cancel, put: Put) -> None:
            loaded = lease.model
            with body.used(cancel) as fields:
                value = read(loaded.engine, kind.parse(fields))
            del fields
            put(make(loaded, value, cancel))

        jobs = self._quick_jobs if quick else self.jobs
        async with self._job(request, work, jobs, lease) as job:
            return await job.first(None)

    def answers(self, kind: type[AnyBody], *make: Any, **options: Any) -> Respond:
        """A route's function that responds with what `run` returns."""

        async def respond(request: Request) -> Response:
            return JsonResponse(await self.run(request, kind, *make, **options))

        return respond

    async def make(self, request: Request, make: Callable[[Fields, Cancel], Any]) -> Any:
        """Applies `make` to the body, in a quick job without a model. Raises ApiError."""
        body = await self.body(request)

        def call(cancel: Cancel) -> Any:
            with body.used(cancel) as fields:
                return make(fields, cancel)

        return await self._quick(request, call)

    async def _quick(self, request: Request, call: Callable[[Cancel], Any]) -> Any:
        """The result of a call in a quick job without a model. Raises ApiError."""
        async with self._job(
            request, lambda cancel, put: put([call(cancel)]), self._quick_jobs
        ) as job:
            (result,) = await job.first(None)
        return result

    async def _lease(self, request: Request, body: Body) -> Lease:
        """A lease on the model that a request names. Raises ApiError."""
        name: object = None
        if self.models.catalog.folder:
            name = (
                await self._quick(request, functools.partial(body.peek, "model"))
                if body.fields is None
                else body.fields.get("model")
            )
        lease = await self.models.lease(name)
        try:
            self.watch.check(lease.pooled.model)
        except ApiError:
            lease.end()
            raise
        return lease

    async def _streams(self, request: Request, body: Body) -> bool:
        """Whether a body asks for a stream; a long one may have to be parsed for it."""
        if body.streams is None:
            with contextlib.suppress(ApiError):  # its own job says what is wrong
                await self._quick(request, body.wants_stream)
        return bool(body.streams)

    def writes(self, api: Api) -> Respond:
        """A route's function that responds as `complete` does."""

        async def respond(request: Request) -> Response:
            return await self.complete(request, api)

        return respond

    async def complete(self, request: Request, api: Api) -> Response:
        """The response to a request for replies, which passes `WAITS`: the first two here, the
        others in its job."""
        body = await self.body(request, streams=api.streams)
        lease = await self._lease(request, body)
        reply = _ReplyWork(self, request.scope, api, body, lease)
        async with self._job(request, reply.work, self.jobs, lease) as job:
            begun = await job.first(None if body.streams is False else _FIRST_SECONDS)
            # a request for a stream must not wait in silence
            if begun is None and not await self._streams(request, body):
                begun = await job.first(None)
            if not body.streams:
                return JsonResponse(await job.first(None))
            first = None if begun is None else await job.first(_FIRST_SECONDS)
            begun = (begun or b"") + (first or b"")
            job.is_taken_over = True
            return EventStream(job, reply.stream(job, begun), api.frames)

    async def inspect(
        self, request: Request, api: Api, make: Callable[[Engine, PreparedRequest], Any]
    ) -> Response:
        """Responds with `make` of a chat, which is only prepared and may be of any length."""

        def made(loaded: LoadedModel, body: CommonRequest, cancel: Cancel) -> Any:
            return make(loaded.engine, self.prepared(loaded, body, api, cancel, bounded=False))

        return JsonResponse(await self.run(request, api.body, made, quick=True))

    @contextlib.asynccontextmanager
    async def _job(
        self, request: Request, work: Work, jobs: Jobs, lease: Lease | None = None
    ) -> AsyncIterator[Job]:
        """A job that ends with the block or with the connection, unless it is taken over. It begins
        when its lease is granted, and ends it."""
        try:
            job = jobs.submit(work, lease)
        except ApiError:
            if lease:
                lease.end()
            raise
        watcher = asyncio.create_task(job.watch(request.receive))
        try:
            yield job
        finally:
            watcher.cancel()
            if not job.is_taken_over:
                facts_of(request.scope)["queued"] = round(job.seconds_queued, 4)
                job.end(ApiError(499, "the client does not wait for the reply"))

    def prepared(
        self, loaded: LoadedModel, body: CommonRequest, api: Api, cancel: Cancel, **options: Any
    ) -> PreparedRequest:
        """The request with this server's options. Raises RequestError, ApiError and others."""
        name, method = self.models.catalog.name_and_method(body.model)
        own: dict[str, Any] = {"model": name}
        if isinstance(body, SampledRequest):
            tgr = body.tgr.options() if body.tgr else {}
            own["seed"] = loaded.seed if body.seed is None and "seed" not in tgr else body.seed
        try:
            return api.prepare(
                loaded.engine,
                body.model_copy(update=own),
                config=loaded.config,
                method=method or api.method or self.method,
                model=loaded.name,
                cancel=cancel,
                **options,
            )
        except ModelError as error:
            raise ModelError(without_folder(str(error), loaded.engine.path)) from None

    def note(self, facts: Facts, usage: Usage, about: Mapping[str, Any]) -> None:
        """Notes what a response has cost."""
        facts["prompt_tokens"], facts["completion_tokens"] = usage.prompt, usage.completion
        facts["cached_tokens"] = usage.cached
        for kind in ("forward_tokens", "reused_tokens"):
            facts[kind] = about[kind]
        if new := set(about.get("ignored", ())) - self._ignored:  # each is logged once
            self._ignored |= new
            facts["ignored"] = sorted(new)


class _ReplyWork:
    """The response to one request for replies: the stages of its job, and the stream of its events,
    with the search as comments, which clients skip."""

    def __init__(self, service: Service, scope: Scope, api: Api, body: Body, lease: Lease) -> None:
        self._service, self._limits, self._api = service, service.limits, api
        self._scope, self._body, self._lease = scope, body, lease
        self._facts, self._created = facts_of(scope), time.monotonic()
        self._translation: Translation | None = None

    # ---- in the job's thread ----

    def work(self, cancel: Cancel, put: Put) -> None:
        """All stages: the body is prepared, then the replies are written."""
        start, loaded = time.monotonic(), self._lease.model
        engine = loaded.engine_of(self._service.reader(self._scope))
        if (prepared := self._prepare(loaded, engine, cancel, put)) is None:
            return
        translation = self._api.translate(engine, prepared)
        with (
            self._service.running.known(self._scope, (translation.id,), cancel),
            loaded.memory.held(memory_needed(engine, prepared), cancel),
        ):
            begun = b""
            if prepared.stream:
                self._translation, begun = translation, self._sent(translation.opening())
            put(begun)
            if loaded.prompts:
                loaded.prompts.restore(prepared.prompts, cancel, engine.prefix_digest)
            self._write(engine, prepared, translation, start, cancel, put)
        if loaded.prompts:
            loaded.prompts.request_ended()

    def _prepare(
        self, loaded: LoadedModel, engine: Engine, cancel: Cancel, put: Put
    ) -> PreparedRequest | None:
        """The request within the server's limits; None for one that wants no text, which is
        answered."""
        api, body = self._api, self._body
        with body.used(cancel) as fields:
            if self._limits.log_prompts:
                self._facts["request"] = fields
            asked = api.body.parse(fields)
            if (whole := api.instead(asked, loaded.name)) is not None:
                put(b"")
                put(api.frames.event(whole) if body.streams else encoded(whole))
                return None
            prepared = self._service.prepared(loaded, asked, api, cancel)
            self._facts.update(
                model=prepared.model, how=prepared.method.name, stream=prepared.stream
            )
            return within_limits(engine, prepared, self._limits, loaded.last_stats.n_ctx)

    def _write(
        self,
        engine: Engine,
        prepared: PreparedRequest,
        translation: Translation,
        start: float,
        cancel: Cancel,
        put: Put,
    ) -> None:
        """Writes the replies, as events or whole; the job began at `start`."""
        facts, shows = self._facts, self._limits.log_prompts

        def pass_on(event: ApiEvent) -> None:
            if "first_part" not in facts:
                facts["first_part"] = round(time.monotonic() - self._created, 4)
                facts["queued"] = round(start - self._created, 4)
            if shows and isinstance(event, NewText):
                note_text(facts, event)
            parts = translation.parts(event)
            if isinstance(event, Searched) and not parts:
                put(self._api.frames.comment(b"tgr.step " + encoded(progress_object(event))))
            else:
                put(self._sent(parts))

        prepared = within_time(prepared, self._limits, time.monotonic() - start)
        on_event = pass_on if prepared.stream else None
        whole = writing.write(engine, prepared, on_event, cancel=cancel)
        self._service.note(facts, whole.usage(), whole.about())
        if shows:
            facts["reply"] = [said(choice) for choice in whole.best()]
        if not prepared.stream:
            put(encoded(translation.whole(whole)))

    # ---- in the event loop ----

    async def stream(self, job: Job, begun: bytes) -> AsyncIterator[bytes]:
        """All that is sent, as many events at a time as there are; `begun` is how it begins."""
        frames = self._api.frames
        try:
            yield begun
            async for items in job.batches(self._limits.ping_seconds):
                yield b"".join(items) if items else frames.ping
            yield frames.end
        except ApiError as error:
            self._facts["failed"] = error.status
            if self._translation is None:
                yield frames.event(frames.failure(error))
            else:
                yield self._sent(self._translation.failed(error.body["error"]))

    def _sent(self, parts: Iterable[Any]) -> bytes:
        return b"".join(map(self._api.frames.event, parts))
