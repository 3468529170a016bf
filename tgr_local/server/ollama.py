"""Ollama's addresses, below /api: replies, the models as Ollama lists them, vectors of texts; what
changes the models is refused with a sentence."""

from __future__ import annotations

import datetime
import hashlib
import time
from pathlib import Path
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tgr_local.apis import embeddings
from tgr_local.apis.bodies import NAME_MAX
from tgr_local.apis.client_parameters import Ignoring, ignoring
from tgr_local.apis.embeddings import EmbeddingsRequest
from tgr_local.apis.ollama import (
    OllamaChatRequest,
    OllamaChatTranslation,
    OllamaGenerateRequest,
    OllamaTranslation,
    loaded_response,
    ollama_chat_request,
    ollama_generate_request,
)
from tgr_local.apis.search_options import optional
from tgr_local.apis.validation import RequestBody
from tgr_local.engine import Cancel, Engine
from tgr_local.options import model_files, model_parts
from tgr_local.server.errors import ApiError
from tgr_local.server.loaded import LoadedModel
from tgr_local.server.openapi import ANSWERS, Application
from tgr_local.server.service import Api, Service
from tgr_local.server.wire import OLLAMA, JsonResponse
from tgr_local.system.errors import ModelError
from tgr_local.system.versions import __version__

FOLLOWED = "0.12.6"
"""The version of Ollama whose API this is."""
_CHAT = Api(
    OllamaChatRequest, ollama_chat_request, OllamaChatTranslation, OLLAMA,
    streams=True, instead=loaded_response,
)  # fmt: skip
_GENERATE = Api(
    OllamaGenerateRequest, ollama_generate_request, OllamaTranslation, OLLAMA,
    streams=True, instead=loaded_response,
)  # fmt: skip
_CHANGES = {
    "pull": ("POST", "pull models", "tgr-local models pull NAME"),
    "push": ("POST", "push models", ""),
    "create": ("POST", "create models", ""),
    "copy": ("POST", "copy models", "--alias NAME=MODEL"),
    "delete": ("DELETE", "delete models", ""),
    "blobs/{digest}": ("POST", "take files of models", "tgr-local models pull NAME"),
}
"""Ollama's management of models: the HTTP method, the refused action, its substitute here."""
_FOREVER = "2318-01-01T00:00:00Z"


@ignoring("keep_alive", "options", "truncate")
class OllamaEmbedRequest(Ignoring):
    """The body of /api/embed."""

    model: str | None = optional("the model", max_length=NAME_MAX)
    input: str | Annotated[list[str], Field(fail_fast=True)] = Field(
        description="a text, or a list of texts"
    )
    dimensions: int | None = optional("the width of the model, or absent")


@ignoring("keep_alive", "options")
class OllamaEmbeddingsRequest(Ignoring):
    """The body of /api/embeddings, which is the older one."""

    model: str | None = optional("the model", max_length=NAME_MAX)
    prompt: str = Field(description="the text")


class OllamaShowRequest(RequestBody):
    """The body of /api/show."""

    model: str | None = optional("the model", max_length=NAME_MAX)
    name: str | None = optional("an older name for model", max_length=NAME_MAX)
    verbose: bool | None = optional("with the vocabulary, which is never there")


def add_ollama(app: Application, service: Service) -> None:
    """Adds the routes."""

    for name, api in (("chat", _CHAT), ("generate", _GENERATE)):
        app.add(name, api.body, service.writes(api), f"/api/{name}")

    @app.get("/api/version", **ANSWERS)
    async def version() -> Response:
        return JsonResponse({"version": FOLLOWED, "tgr_local": __version__})

    @app.get("/api/tags", **ANSWERS)
    async def tags() -> Response:
        listed = await service.models.listed()
        files = service.models.catalog.files  # of one moment
        entries = [await _entry(name, files[name]) for name in listed if name in files]
        return JsonResponse({"models": entries})

    @app.get("/api/ps", **ANSWERS)
    async def loaded() -> Response:
        seconds, running = service.limits.idle_seconds, []
        until = _time(time.time() + seconds) if seconds else _FOREVER
        for model in service.models.pool.loaded:
            more = {"expires_at": until, "size_vram": 0, "context_length": model.context}
            running.append(await _entry(model.name, model.engine.path) | more)
        return JsonResponse({"models": running})

    @app.post("/api/show", **app.takes(OllamaShowRequest))
    async def show(request: Request) -> Response:
        fields = await service.small(request, "the name of a model")
        asked = OllamaShowRequest.parse(fields)
        return JsonResponse(await _shown(service, asked.model or asked.name))

    _add_embeddings(app, service)
    for path, (method, action, instead) in _CHANGES.items():
        app.add_api_route(
            f"/api/{path}", _refusal(action, instead), methods=[method], include_in_schema=False
        )


def _add_embeddings(app: Application, service: Service) -> None:
    def read(engine: Engine, body: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> Any:
        texts = body.input if isinstance(body, OllamaEmbedRequest) else body.prompt
        fields = {"input": texts, "dimensions": getattr(body, "dimensions", None)}
        asked = EmbeddingsRequest.parse(fields)
        return body, asked, embeddings.input_tokens(engine, asked) if texts else []

    def make(model: LoadedModel, asked: Any, cancel: Cancel) -> Any:
        (body, request, tokens), start = asked, time.monotonic()
        response = embeddings.respond(model.engine, request, tokens, model.name, cancel)
        vectors = [vector["embedding"] for vector in response["data"]]
        more = {"tgr": {"ignored": list(ignored)}} if (ignored := body.ignored()) else {}
        if isinstance(body, OllamaEmbeddingsRequest):
            return {"embedding": vectors[0] if vectors else []} | more
        return {
            "model": body.model or model.name,
            "embeddings": vectors,
            "total_duration": int((time.monotonic() - start) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": response["usage"]["prompt_tokens"],
        } | more

    embed = service.answers(OllamaEmbedRequest, make, read=read)
    app.add("embed", OllamaEmbedRequest, embed, "/api/embed")
    older = service.answers(OllamaEmbeddingsRequest, make, read=read)
    app.add("older", OllamaEmbeddingsRequest, older, "/api/embeddings")


def _refusal(action: str, instead: str) -> Any:
    way = f"; {instead} does that on its machine" if instead else "; its models are files"

    async def refuse() -> Response:
        raise ApiError(501, f"this server does not {action}{way}")

    return refuse


async def _entry(name: str, path: Path) -> dict[str, Any]:
    """A model as Ollama lists it."""
    return {"name": f"{name}:latest", "model": f"{name}:latest"} | (
        await run_in_threadpool(_of_file, path)
    )


def _of_file(path: Path) -> dict[str, Any]:
    """Returns Ollama's description of a model file; only its name where it cannot be read."""
    facts: dict[str, Any] = {}
    n_bytes, changed = 0, 0.0
    try:
        facts = model_files.card(path).facts()
        n_bytes = model_parts.bytes_of(path)
        changed = path.stat().st_mtime
    except (ModelError, OSError):
        pass
    family = facts.get("architecture", "")
    return {
        "modified_at": _time(changed),
        "size": n_bytes,
        # tells it from others as that of Ollama does; that of all its bytes would take long
        "digest": hashlib.sha256(f"{path.name} {n_bytes} {changed}".encode()).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": [family] if family else [],
            "parameter_size": _parameters(facts.get("parameters") or 0),
            "quantization_level": facts.get("quantization", ""),
        },
    }


async def _shown(service: Service, name: str | None) -> dict[str, Any]:
    """Returns the response of /api/show for a model."""
    models = service.models
    about = await models.props(name)
    path = models.catalog.files.get(about["model"] or "")
    if path is None:
        raise ApiError(400, "model is missing; name one that /api/tags lists", param="model")
    of_file = await run_in_threadpool(_of_file, path)
    card = await run_in_threadpool(model_files.card, path)
    facts = await run_in_threadpool(card.facts)
    takes_tools = bool(about["chat_template"])
    info = {key: _value(text) for key, text in card.metadata.items() if len(text) < _LONGEST}
    return {
        "modelfile": "",
        "parameters": "",
        "template": about["chat_template"],
        "details": of_file["details"],
        "model_info": info | {"general.parameter_count": int(facts["parameters"] or 0)},
        "capabilities": ["completion", *(["tools"] if takes_tools else [])],
        "modified_at": of_file["modified_at"],
    }


_LONGEST = 512  # characters of a value of the metadata


def _value(text: str) -> str | int:
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else text


def _parameters(n: int) -> str:
    """A number of parameters, as ``494M`` or ``7.6B``."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"


def _time(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)
    return moment.isoformat().replace("+00:00", "Z")
