"""The endpoints that write replies, API by API."""

from __future__ import annotations

import functools
from operator import attrgetter
from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tgr_local.apis.bodies import (
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    NativeCompletionRequest,
)
from tgr_local.apis.completions import ChatTranslation, TextTranslation
from tgr_local.apis.inputs import text_of
from tgr_local.apis.message_events import MessageTranslation
from tgr_local.apis.messages import CountTokensRequest, MessagesRequest, messages_request
from tgr_local.apis.native import NativeTranslation, infill_request, native_request
from tgr_local.apis.requests import PreparedRequest, chat_request, completion_request
from tgr_local.apis.response_events import ResponseTranslation, failed_event
from tgr_local.apis.response_store import Responses, ResponseStore
from tgr_local.apis.responses import ResponsesRequest, responses_request
from tgr_local.engine import Engine
from tgr_local.server.answer_now import owner_of
from tgr_local.server.openapi import ANSWERS, Application
from tgr_local.server.service import Api, Service
from tgr_local.server.wire import Frames, JsonResponse

_NAMED = Frames(
    named=True,
    end=b"",
    ping=b'event: ping\ndata: {"type":"ping"}\n\n',
    failure=attrgetter("anthropic_body"),
)
_CHAT = Api(ChatRequest, chat_request, ChatTranslation)
_TEXT = Api(CompletionRequest, completion_request, TextTranslation)
_PLAIN = Frames(end=b"")
_NATIVE = Api(NativeCompletionRequest, native_request, NativeTranslation, _PLAIN)
_INFILL = Api(InfillRequest, infill_request, NativeTranslation, _PLAIN, method="base")  # at once
_MESSAGES = Api(MessagesRequest, messages_request, MessageTranslation, _NAMED)
_COUNT = Api(CountTokensRequest, messages_request, MessageTranslation, _NAMED)
_RESPONSES = Frames(named=True, end=b"", failure=lambda error: failed_event(error.body["error"]))


_WRITERS = (
    ("chat_completions", _CHAT, "/v1/chat/completions", "/chat/completions"),
    ("legacy_completions", _TEXT, "/v1/completions"),
    ("completion", _NATIVE, "/completion", "/completions"),
    ("fill_in", _INFILL, "/infill"),
    ("messages", _MESSAGES, "/v1/messages"),
)
"""The name in /openapi.json, the API, the address, and other addresses of the same."""


def add_replies(app: Application, service: Service) -> None:
    """Adds the endpoints of all APIs."""
    for name, api, *paths in _WRITERS:
        app.add(name, api.body, service.writes(api), *paths)
    _add_inspections(app, service)
    _add_responses(app, service)


def _add_inspections(app: Application, service: Service) -> None:
    @app.post("/apply-template", **app.takes(ChatRequest))
    async def apply_template(request: Request) -> Response:
        def made(engine: Engine, prepared: PreparedRequest) -> Any:
            return {"prompt": text_of(engine, list(prepared.prompts[0]))}

        return await service.inspect(request, _CHAT, made)

    @app.post("/v1/messages/count_tokens", **app.takes(CountTokensRequest))
    async def count_tokens(request: Request) -> Response:
        return await service.inspect(request, _COUNT, _input_tokens)


def _add_responses(app: Application, service: Service) -> None:
    limits = service.limits
    kept = Responses(limits.stored_responses, limits.stored_mib << 20)

    def store_of(request: Request) -> ResponseStore:
        return kept.of(owner_of(request.scope))

    def api(request: Request) -> Api:
        store = store_of(request)
        return Api(
            ResponsesRequest,
            functools.partial(responses_request, store=store),
            functools.partial(ResponseTranslation, store=store),
            _RESPONSES,
        )

    async def responses(request: Request) -> Response:
        return await service.complete(request, api(request))

    app.add("responses", ResponsesRequest, responses, "/v1/responses", "/responses")

    @app.post("/v1/responses/input_tokens", **app.takes(ResponsesRequest))
    async def input_tokens(request: Request) -> Response:
        def made(engine: Engine, prepared: PreparedRequest) -> Any:
            return {"object": "response.input_tokens"} | _input_tokens(engine, prepared)

        return await service.inspect(request, api(request), made)

    @app.get("/v1/responses/{response_id}", **ANSWERS)
    async def response(response_id: str, request: Request) -> Response:
        return JsonResponse(await run_in_threadpool(store_of(request).response, response_id))

    @app.delete("/v1/responses/{response_id}", **ANSWERS)
    async def delete(response_id: str, request: Request) -> Response:
        store_of(request).delete(response_id)
        return JsonResponse({"id": response_id, "object": "response", "deleted": True})


def _input_tokens(_: Engine, prepared: PreparedRequest) -> dict[str, Any]:
    return {"input_tokens": len(prepared.prompts[0])}
