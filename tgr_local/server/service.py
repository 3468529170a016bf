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

from tgr_local import completions, doctor, methods, requests
from tgr_local.config import EngineConfig, SearchConfig, ServerConfig, for_model, updated
from tgr_local.engine import Cancel, Engine
from tgr_local.errors import CapacityError
from tgr_local.server import infill
from tgr_local.server.grants import granted, method_of
from tgr_local.server.jobs import Job, Jobs
from tgr_local.server.log import Facts, Log, facts_of
from tgr_local.server.metrics import Metrics
from tgr_local.server.problems import Problem, problem_of
from tgr_local.server.wire import EventStream, Json, body_of

Check = Callable[..., requests.Request]

_FIRST_SECONDS = 1.0  # in which an early failure still becomes a status
_TYPICAL_QUERY = 512  # tokens; what the cache is sized for at the start


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
        self.log = Log(limits.log_file)
        self.jobs = Jobs(limits.max_running, limits.max_queue, limits.request_seconds)
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
        self.config = updated(for_model(SearchConfig(), engine.metadata), self._options)
        with contextlib.suppress(CapacityError):  # each request is told on its own
            cells = methods.get(self.method).cells(engine, _TYPICAL_QUERY, self.config)
            engine.reserve(cells, self.limits.max_running)
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
        return doctor.unused_gpu(self._engine) if self._engine else None

    def close(self) -> None:
        """Ends all work and frees the model."""
        self.jobs.close()
        if self._engine:
            self._engine.close()
        self.log.close()

    # ---- requests ----

    async def body(self, request: Request) -> dict[str, Any]:
        """The body of a request to the model. Raises Problem."""
        body = await body_of(request, self.limits.max_body)
        if self.limits.log_prompts:
            facts_of(request.scope)["request"] = body
        return body

    async def in_thread(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of something short, such as tokenizing. Raises Problem."""
        try:
            return await run_in_threadpool(call, *args, **kwargs)
        except Exception as error:
            raise problem_of(error) from error

    async def alone(
        self, request: Request, work: Callable[[Cancel], Generator[Any, None, None]]
    ) -> Any:
        """The one item that a job comes to. Raises Problem."""
        facts = facts_of(request.scope)
        job = self.jobs.submit(work)
        watcher = asyncio.create_task(job.watch(request.receive))
        try:
            return await job.first(None)
        finally:
            facts["queued"] = round(job.seconds_queued, 4)
            watcher.cancel()
            job.end(Problem(499, "nobody waits for the reply"))

    async def complete(self, request: Request, check: Check) -> Response:
        """A chat or legacy completion."""
        body = await self.body(request)
        asked = await self.in_thread(self._checked, check, body)
        return await self._answer(request, asked, lambda part: part)

    async def infill(self, request: Request) -> Response:
        """What fills a gap, in llama.cpp's words."""
        body = await self.body(request)
        body = await self.in_thread(infill.completion_body, self.engine, body)
        asked = await self.in_thread(self._checked, requests.completion_request, body)
        return await self._answer(request, asked, infill.part)

    def _checked(self, check: Check, body: Mapping[str, Any]) -> requests.Request:
        engine = self.engine
        body, method = method_of(body, self.name)
        asked = check(
            engine, body, config=self.config, method=method or self.method, model=self.name
        )
        return granted(engine, asked, self.limits)

    async def _answer(
        self,
        request: Request,
        asked: requests.Request,
        shape: Callable[[Mapping[str, Any]], Any],
    ) -> Response:
        facts, engine = facts_of(request.scope), self.engine
        facts.update(model=asked.model, how=asked.method, stream=asked.stream)
        if not asked.stream:

            def whole(cancel: Cancel) -> Generator[Any, None, None]:
                yield completions.respond(engine, asked, cancel=cancel)

            response = await self.alone(request, whole)
            self._note(facts, response)
            return Json(shape(response))
        everything = dataclasses.replace(asked, include_usage=True, progress=True)

        def parts(cancel: Cancel) -> Generator[Any, None, None]:
            yield from completions.chunks(engine, everything, cancel=cancel)

        job = self.jobs.submit(parts)
        try:
            first = await job.first(_FIRST_SECONDS)
        except BaseException:
            job.end(Problem(499, "nobody reads the reply"))
            raise
        return EventStream(job, self._events(job, first, asked, facts, shape))

    async def _events(
        self,
        job: Job,
        first: Any,
        asked: requests.Request,
        facts: Facts,
        shape: Callable[[Mapping[str, Any]], Any],
    ) -> AsyncIterator[Any]:
        """The chunks that were asked for; the others as comments, which clients skip."""
        unfinished = asked.n * len(asked.prompts)
        ending: dict[str, Any] = {}  # the end of the last choice, which waits for the bill
        async for chunk in _after(first, job.items(self.limits.ping_seconds)):
            if chunk is None:
                yield "ping"
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
