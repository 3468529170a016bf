"""Which address does what."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, Response

from tgr_local import __version__, methods
from tgr_local.engine import Cancel
from tgr_local.openai import requests
from tgr_local.server import embeddings, infill, schema
from tgr_local.server.auth import LOCAL_ORIGIN, Guard
from tgr_local.server.bodies import Fields
from tgr_local.server.log import Observe
from tgr_local.server.problems import Problem, problem_of
from tgr_local.server.service import Service
from tgr_local.server.tokens import detokenized, tokenized
from tgr_local.server.wire import Encoded, Json, failure

_PAGE = Path(__file__).with_name("index.html")
# the page is one file: nothing is fetched but from this server
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(
    service: Service, keys: tuple[str, ...] = (), loaded: Callable[[], object] = lambda: None
) -> FastAPI:
    """The application. `loaded` is called once the model is there, or has failed to be."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.load(loaded)
        yield
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="tgr-local",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both pages load their scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(Guard, keys=keys, host=service.limits.host)
    app.add_middleware(
        CORSMiddleware,
        allow_origin_regex=LOCAL_ORIGIN,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )
    app.add_middleware(Observe, log=service.log, metrics=service.metrics)
    app.add_exception_handler(Problem, _told)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(Exception, _told)
    _add_completions(app, service)
    _add_tokens(app, service)
    _add_state(app, service)
    return app


async def _told(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = Problem(error.status_code, str(error.detail), headers=headers)
    return failure(problem_of(error))


def _add_completions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", **schema.takes(schema.CHAT))
    async def chat_completions(request: Request) -> Response:
        return await service.complete(request, requests.chat_request)

    @app.post("/v1/completions", **schema.takes(schema.COMPLETION))
    async def legacy_completions(request: Request) -> Response:
        return await service.complete(request, requests.completion_request)

    @app.post("/infill", **schema.takes(schema.INFILL))
    async def fill_in(request: Request) -> Response:
        return await service.complete(request, infill.completion_request, infill.part)

    @app.post("/v1/embeddings", **schema.takes(schema.EMBEDDINGS))
    async def embed(request: Request) -> Response:
        engine, most, name = service.engine, service.limits.max_choices, service.name

        def read(fields: Fields) -> embeddings.Asked:
            return embeddings.asked(engine, fields, most)

        def make(asked: embeddings.Asked, cancel: Cancel) -> Any:
            return embeddings.respond(engine, asked, name, cancel)

        return Json(await service.alone(request, read, make))


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", **schema.takes(schema.TOKENIZE))
    async def tokenize(request: Request) -> Response:
        read = functools.partial(tokenized, service.engine)
        return Encoded(await service.alone(request, read, quick=True))

    @app.post("/detokenize", **schema.takes(schema.DETOKENIZE))
    async def detokenize(request: Request) -> Response:
        read = functools.partial(detokenized, service.engine)
        return Encoded(await service.alone(request, read, quick=True))

    @app.get("/tokenizer_info", **schema.GIVES)
    async def tokenizer_info() -> Response:
        engine = service.engine

        def text_of(token: int | None) -> str | None:
            if token is None:
                return None
            return engine.detokenize([token], special=True).decode("utf-8", "replace")

        return Json(
            {
                "eos_token": text_of(engine.eos),
                "bos_token": text_of(engine.bos),
                "pad_token": None,
                "chat_template": engine.chat_template,
            }
        )


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", **schema.GIVES)
    async def models() -> Response:
        return Json({"object": "list", "data": list(known().values())})

    @app.get("/v1/models/{name:path}", **schema.GIVES)
    async def model(name: str) -> Response:
        if name not in (found := known()):
            raise Problem(
                404, f"there is no model {name!r:.80} here; GET /v1/models lists them",
                param="model", code="model_not_found",
            )  # fmt: skip
        return Json(found[name])

    def known() -> dict[str, Any]:
        engine = service.engine
        meta = {
            "n_params": engine.n_params,
            "n_ctx_train": engine.n_ctx_train,
            "n_vocab": engine.n_vocab,
            "size": engine.size_bytes,
        }
        about = {"object": "model", "created": service.created, "owned_by": "tgr-local"}
        names = [service.name, *(f"{service.name}:{method}" for method in methods.METHODS)]
        return {name: {"id": name, **about, "meta": meta} for name in names}

    @app.get("/health", **schema.GIVES)
    async def health() -> Response:
        stats = await service.stats()
        return Json({"status": "ok", "model": service.name, "n_ctx": stats.n_ctx})

    @app.get("/props", **schema.GIVES)
    async def props() -> Response:
        engine, limits = service.engine, dataclasses.asdict(service.limits)
        for name in ("api_key", "api_key_file", "log_file"):
            limits.pop(name)
        return Json(
            {
                "model": service.name,
                "description": engine.description,
                "model_path": engine.path.name,
                "version": __version__,
                "method": service.method,
                "methods": list(methods.METHODS),
                "options": dataclasses.asdict(service.config),
                "limits": limits,
                "total_slots": limits["max_running"],
                "n_ctx": (await service.stats()).n_ctx,
                "n_ctx_train": engine.n_ctx_train,
                "chat_template": engine.chat_template,
                "devices": sorted(set(engine.devices())),
            }
        )

    @app.get("/metrics", **schema.GIVES)
    async def metrics() -> Response:
        if service.ready:
            await service.stats()
        content = await run_in_threadpool(service.metrics.text)
        return Response(content, media_type=service.metrics.content_type)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(_PAGE.read_bytes(), headers=_PAGE_HEADERS)
