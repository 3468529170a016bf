"""The endpoints: which address calls what.

Programs join a base address and a path in their own ways, so slashes are doubled or trail; monitors
ask with HEAD. Both mean the endpoint without.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tgr_local.apis import embeddings
from tgr_local.apis.embeddings import EmbeddingsRequest
from tgr_local.apis.rerank import RerankRequest, rerank_response
from tgr_local.apis.validation import RequestError, shown
from tgr_local.engine import Cancel, Engine
from tgr_local.server import page_files, tokens
from tgr_local.server.answer_now import add_answer_now
from tgr_local.server.auth import Auth, origin_pattern
from tgr_local.server.bodies import Fields
from tgr_local.server.errors import ApiError, api_error
from tgr_local.server.loaded import LoadedModel
from tgr_local.server.log import Observe
from tgr_local.server.model_routes import add_models
from tgr_local.server.ollama import add_ollama
from tgr_local.server.openapi import ANSWERS, Application
from tgr_local.server.replies import add_replies
from tgr_local.server.service import Service
from tgr_local.server.tokens import DetokenizeRequest, TokenizeRequest
from tgr_local.server.wire import JsonResponse, failure
from tgr_local.system.errors import TgrError
from tgr_local.system.near_names import near_names
from tgr_local.system.versions import __version__

_SHOWN = 200  # characters of a path
_Embedded = tuple[EmbeddingsRequest, list[list[int]]]
# Chromium asks before a page of the internet may reach this machine; older packages do not know it
_KNOWN = inspect.signature(CORSMiddleware.__init__).parameters
_PRIVATE_NETWORK: dict[str, Any] = dict.fromkeys({"allow_private_network"} & _KNOWN.keys(), True)


def create_app(
    service: Service, keys: tuple[str, ...] = (), loaded: Callable[[], object] = lambda: None
) -> Application:
    """The application. `loaded` is called once the model of the start is there, or could not be
    loaded."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Application) -> AsyncIterator[None]:
        service.models.load_first(loaded)
        watch = asyncio.create_task(service.watch.run())
        yield
        watch.cancel()
        await service.close()

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
        **_PRIVATE_NETWORK,
    )
    app.add_middleware(Addresses)
    app.add_middleware(Observe, log=service.log, metrics=service.metrics)
    # MemoryError: as another Exception it would be a traceback
    kinds = (ApiError, TgrError, RequestError, HTTPException, MemoryError, Exception)
    for kind in (*kinds, RequestValidationError):
        app.add_exception_handler(kind, _failed)
    add_replies(app, service)
    add_answer_now(app, service.running)
    add_ollama(app, service)
    _add_embeddings(app, service)
    _add_rerank(app, service)
    _add_tokens(app, service)
    add_models(app, service)
    _add_state(app, service)
    page_files.add_page(app)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        headers, detail = dict(error.headers or {}), str(error.detail)
        if error.status_code == 404:
            routes = (getattr(route, "path", "") for route in request.app.routes)
            detail = unknown(request.url.path, routes)
        elif error.status_code == 405:
            path = request.url.path[:_SHOWN]
            detail = f"{path} is not for {request.method:.20}; use {headers.get('Allow', 'POST')}"
        error = ApiError(error.status_code, detail, headers=headers)
    elif isinstance(error, RequestValidationError):  # a parameter in the address, all yes or no
        name, value = (error.errors()[0][key] for key in ("loc", "input"))
        why = f"{name[-1]} is {shown(value)}, but must be true or false"
        error = ApiError(400, why, param=str(name[-1]))
    return failure(api_error(error), request.url.path)


def _add_embeddings(app: Application, service: Service) -> None:
    def read(engine: Engine, body: EmbeddingsRequest) -> _Embedded:
        return body, embeddings.input_tokens(engine, body)

    def make(model: LoadedModel, asked: _Embedded, cancel: Cancel) -> Any:
        return embeddings.respond(model.engine, *asked, model.name, cancel)

    embed = service.answers(EmbeddingsRequest, make, read=read)
    app.add("embed", EmbeddingsRequest, embed, "/v1/embeddings", "/embeddings")


def _add_rerank(app: Application, service: Service) -> None:
    def make(model: LoadedModel, body: RerankRequest, cancel: Cancel) -> Any:
        return rerank_response(model.engine, body, model.name, cancel)

    same = ("/rerank", "/reranking", "/v1/reranking")  # as llama-server has them
    app.add("rerank", RerankRequest, service.answers(RerankRequest, make), "/v1/rerank", *same)


def _add_tokens(app: Application, service: Service) -> None:
    tokenize = service.answers(TokenizeRequest, read=tokens.tokenize, quick=True)
    app.add("tokenize", TokenizeRequest, tokenize, "/tokenize")
    detokenize = service.answers(DetokenizeRequest, read=tokens.detokenize, quick=True)
    app.add("detokenize", DetokenizeRequest, detokenize, "/detokenize")

    @app.post("/render", **app.takes(page_files.RenderRequest))
    async def render(request: Request) -> Response:
        def make(fields: Fields, cancel: Cancel) -> bytes:
            return page_files.render(page_files.RenderRequest.parse(fields), cancel)

        return JsonResponse(await service.make(request, make))

    @app.get("/tokenizer_info", **ANSWERS)
    async def tokenizer_info(model: str = "") -> Response:
        return JsonResponse(tokens.tokenizer_info((await service.models.find(model)).engine))


def _add_state(app: Application, service: Service) -> None:
    @app.get("/v1/health", include_in_schema=False)
    @app.get("/health", **ANSWERS)
    async def health() -> Response:
        service.models.check_started()
        service.watch.check(*service.models.pool.loaded)
        latest = service.models.pool.latest()
        about = {"model": latest.name, "n_ctx": latest.context} if latest else {}
        return JsonResponse({"status": "ok", "model": None, **about})

    @app.get("/slots", **ANSWERS)
    async def slots(model: str = "", fail_on_no_slot: str = "") -> Response:
        n_running = service.jobs.running
        if fail_on_no_slot and n_running >= service.limits.max_running:
            raise ApiError(503, "no slot available")
        slot = {"n_ctx": (await service.models.find(model)).context, "speculative": False}
        return JsonResponse(
            [
                {"id": number, **slot, "is_processing": number < n_running}
                for number in range(service.limits.max_running)
            ]
        )

    @app.post("/slots/{id_slot}", include_in_schema=False)
    async def slot_action(id_slot: str) -> Response:
        raise ApiError(
            501,
            "This server does not support slots action: nothing has to be saved. With "
            "`--prompt-cache FOLDER` it keeps what it has read",
        )

    @app.get("/props", **ANSWERS)
    async def props(model: str = "") -> Response:
        return JsonResponse(await service.models.props(model))

    @app.get("/metrics", **ANSWERS)
    async def metrics() -> Response:
        for loaded in service.models.pool.loaded:
            await loaded.stats()
        content = await run_in_threadpool(service.metrics.text)
        return Response(content, media_type=service.metrics.content_type)


# ---- addresses as clients write them ----


class Addresses:
    """ASGI middleware that makes `//v1//models/` the endpoint /v1/models, and answers HEAD as GET
    without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = re.sub("^https?://[^/]+", "", scope["path"])  # a whole address, as for a proxy
        path = re.sub("//+", "/", path)
        meant = {**scope, "path": path.rstrip("/") or "/"}
        is_over = False

        async def without_body(message: Message) -> None:
            nonlocal is_over
            if message["type"] == "http.response.body":
                if is_over:
                    return
                is_over, message = True, {"type": message["type"], "body": b"", "more_body": False}
            await send(message)

        is_head = scope["method"] == "HEAD"
        if is_head:
            meant["method"] = "GET"
        try:
            await self._app(meant, receive, without_body if is_head else send)
        finally:
            scope["route"] = meant.get("route")  # `Observe` counts by it


def unknown(path: str, known: Iterable[str]) -> str:
    """The message for a path that is none of the known ones."""
    path = path[:_SHOWN]
    paths = [place for place in known if "{" not in place and not place.startswith("/page/")]
    ends = [place for place in paths if len(place) > 1 and path.endswith(place)]
    ends.sort(key=len, reverse=True)
    near = near_names(path, paths, 0.9) or ends or near_names(path, paths)
    hint = f"did you mean {near[0]}?" if near else "the API is below /v1"
    return f"there is no {path}; {hint}"
