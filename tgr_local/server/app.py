"""The endpoints: which address calls what."""

from __future__ import annotations

import contextlib
import dataclasses
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
from tgr_local.errors import TgrError
from tgr_local.server import embeddings, tokens
from tgr_local.server.auth import Auth, origin_pattern
from tgr_local.server.bodies import Fields
from tgr_local.server.embeddings import EmbeddingsRequest
from tgr_local.server.errors import ApiError, api_error
from tgr_local.server.log import Observe
from tgr_local.server.openapi import ANSWERS, Application, takes
from tgr_local.server.replies import add_replies
from tgr_local.server.service import Service
from tgr_local.server.slots import SlotRequest
from tgr_local.server.tokens import DetokenizeRequest, TokenizeRequest
from tgr_local.server.wire import EncodedResponse, JsonResponse, failure

_PAGE = Path(__file__).with_name("index.html")
# the page is one file: it fetches nothing from elsewhere
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
    """The application. `loaded` is called once the model is loaded, or could not be."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.load(loaded)
        yield
        await run_in_threadpool(service.close)

    app = Application(
        title="tgr-local",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # both pages load their scripts from elsewhere
        redoc_url=None,
    )
    origins = service.limits.allow_origin
    app.add_middleware(Auth, keys=keys, host=service.limits.host, origins=origins)
    app.add_middleware(
        CORSMiddleware,
        allow_origin_regex=origin_pattern(origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", "Retry-After"],
    )
    app.add_middleware(Observe, log=service.log, metrics=service.metrics)
    app.add_exception_handler(ApiError, _failed)
    app.add_exception_handler(TgrError, _failed)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(Exception, _failed)
    add_replies(app, service)
    _add_embeddings(app, service)
    _add_tokens(app, service)
    _add_state(app, service)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = ApiError(error.status_code, str(error.detail), headers=headers)
    return failure(api_error(error), request.url.path)


def _add_embeddings(app: FastAPI, service: Service) -> None:
    @app.post("/embeddings", include_in_schema=False)
    @app.post("/v1/embeddings", **takes(EmbeddingsRequest))
    async def embed(request: Request) -> Response:
        engine, most, name = service.engine, service.limits.max_choices, service.name

        def read(fields: Fields) -> tuple[EmbeddingsRequest, list[list[int]]]:
            body = EmbeddingsRequest.parse(fields)
            return body, embeddings.input_tokens(engine, body, most)

        def make(asked: tuple[EmbeddingsRequest, list[list[int]]], cancel: Cancel) -> Any:
            return embeddings.respond(engine, *asked, name, cancel)

        return JsonResponse(await service.run(request, read, make))


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", **takes(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        def read(fields: Fields) -> bytes:
            return tokens.tokenize(service.engine, TokenizeRequest.parse(fields))

        return EncodedResponse(await service.run(request, read, quick=True))

    @app.post("/detokenize", **takes(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        def read(fields: Fields) -> bytes:
            return tokens.detokenize(service.engine, DetokenizeRequest.parse(fields))

        return EncodedResponse(await service.run(request, read, quick=True))

    @app.get("/tokenizer_info", **ANSWERS)
    async def tokenizer_info() -> Response:
        return JsonResponse(tokens.tokenizer_info(service.engine))


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/models", include_in_schema=False)
    @app.get("/v1/models", **ANSWERS)
    async def models() -> Response:
        return JsonResponse({"object": "list", "data": list(known().values())})

    @app.get("/v1/models/{name:path}", **ANSWERS)
    async def model(name: str) -> Response:
        if name not in (found := known()):
            raise ApiError(
                404, f"there is no model {name!r:.80} here; GET /v1/models lists them",
                param="model", code="model_not_found",
            )  # fmt: skip
        return JsonResponse(found[name])

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

    @app.get("/v1/health", include_in_schema=False)
    @app.get("/health", **ANSWERS)
    async def health() -> Response:
        stats = await service.stats()
        return JsonResponse({"status": "ok", "model": service.name, "n_ctx": stats.n_ctx})

    @app.get("/slots", **ANSWERS)
    async def slots(fail_on_no_slot: str = "") -> Response:
        n_running = service.jobs.running
        if fail_on_no_slot and n_running >= service.limits.max_running:
            raise ApiError(503, "no slot available")
        return JsonResponse(service.slots.shown(service.engine, n_running))

    @app.post("/slots/{id_slot}", **takes(SlotRequest))
    async def slot_action(id_slot: str, request: Request, action: str = "") -> Response:
        number = service.slots.number(id_slot, action)
        if action == "erase":
            return JsonResponse(service.slots.erase(number))
        act = service.slots.save if action == "save" else service.slots.restore

        def make(body: SlotRequest, cancel: Cancel) -> Any:
            return act(service.engine, number, body.filename, cancel)

        return JsonResponse(await service.run(request, SlotRequest.parse, make, quick=True))

    @app.get("/props", **ANSWERS)
    async def props() -> Response:
        engine, limits = service.engine, dataclasses.asdict(service.limits)
        for name in ("api_key", "api_key_file", "log_file", "slot_save_path"):
            limits.pop(name)
        return JsonResponse(
            {
                "model": service.name,
                "description": engine.description,
                "model_path": engine.path.name,
                "version": __version__,
                "method": service.method.name,
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

    @app.get("/metrics", **ANSWERS)
    async def metrics() -> Response:
        if service.ready:
            await service.stats()
        content = await run_in_threadpool(service.metrics.text)
        return Response(content, media_type=service.metrics.content_type)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(_PAGE.read_bytes(), headers=_PAGE_HEADERS)
