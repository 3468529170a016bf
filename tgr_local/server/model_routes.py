"""The addresses of the models: a list, one of them, load and unload, and their LoRA adapters, as
with llama-server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Request
from starlette.responses import Response, StreamingResponse

from tgr_local.server.errors import ApiError, no_model
from tgr_local.server.models import ModelRequest
from tgr_local.server.openapi import ANSWERS, Application
from tgr_local.server.service import Service
from tgr_local.server.wire import OPENAI, STREAM_HEADERS, JsonResponse


def add_models(app: Application, service: Service) -> None:
    """Adds the routes."""
    models = service.models

    async def listed(methods: bool = False, memory: bool = False) -> Response:
        models_by_name = await models.listed(methods, memory)
        return JsonResponse({"object": "list", "data": list(models_by_name.values())})

    app.get("/v1/models", **ANSWERS)(listed)
    app.get("/models", **ANSWERS)(listed)

    @app.get("/v1/models/{name:path}", **ANSWERS)
    async def model(name: str) -> Response:
        if name not in (known := await models.listed(with_methods=True)):
            raise no_model(f"there is no model {name!r:.80} here; GET /v1/models lists them")
        return JsonResponse(known[name])

    # not in /openapi.json, whose readers call what it lists: this answer has no end
    @app.get("/models/sse", include_in_schema=False)
    async def events() -> Response:
        watched = models.pool.events.watch(service.limits.ping_seconds)

        async def written() -> AsyncIterator[bytes]:
            async for event in watched:  # the head is sent with the first
                yield OPENAI.ping if event is None else OPENAI.event(event)

        return StreamingResponse(written(), media_type="text/event-stream", headers=STREAM_HEADERS)

    @app.post("/models/load", **app.takes(ModelRequest))
    async def load(request: Request) -> Response:
        await models.load_now(await asked(request))
        return JsonResponse({"success": True})

    @app.post("/models/unload", **app.takes(ModelRequest))
    async def unload(request: Request) -> Response:
        await models.unload(await asked(request))
        return JsonResponse({"success": True})

    @app.get("/lora-adapters", **ANSWERS)
    async def adapters() -> Response:
        return JsonResponse(models.lora)

    @app.post("/lora-adapters", include_in_schema=False)
    async def set_scales() -> Response:
        message = "this server does not change scales: tgr-local serve --lora FILE:SCALE sets one"
        raise ApiError(501, message)

    async def asked(request: Request) -> str:
        return ModelRequest.parse(await service.small(request, "the name of a model")).model
