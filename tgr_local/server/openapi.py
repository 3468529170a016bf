"""/openapi.json: the schemas of all bodies, made from their pydantic models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tgr_local.apis.validation import RequestBody
from tgr_local.server.errors import ErrorBody

Respond = Callable[[Request], Awaitable[Response]]
_REFERENCE = "#/components/schemas/{model}"


class Application(FastAPI):
    """FastAPI, which reads bodies in `bodies` and has their schemas from here."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._bodies: set[type[BaseModel]] = {ErrorBody}

    def takes(self, model: type[RequestBody]) -> dict[str, Any]:
        """The arguments of a route with such a body."""
        self._bodies.add(model)
        return _with_body(_reference(model.__name__))

    def add(
        self, name: str, model: type[RequestBody], respond: Respond, path: str, *others: str
    ) -> None:
        """Adds a POST route, whose body is a `model`, by its name in /openapi.json. `others` are
        paths that do the same and are not listed there."""
        self.post(path, name=name, **self.takes(model))(respond)
        for other in others:
            self.post(other, include_in_schema=False)(respond)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            models: list[Any] = [(model, "validation") for model in self._bodies]
            _, schemas = models_json_schema(models, ref_template=_REFERENCE)
            components = super().openapi().setdefault("components", {})
            components["schemas"] = components.get("schemas", {}) | schemas["$defs"]
        return super().openapi()


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(model=name)}


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": _reference(name)}}


_ERRORS = {
    "4XX": {
        "description": "Invalid request, or the queue is full",
        "content": _content(ErrorBody.__name__),
    },
    "503": {
        "description": "The model is being loaded, or the server is shutting down",
        "content": _content(ErrorBody.__name__),
    },
}
ANSWERS: dict[str, Any] = {"responses": _ERRORS}
"""The arguments of a route without a body."""


def _with_body(schema: dict[str, Any]) -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return ANSWERS | {"openapi_extra": {"requestBody": body}}
