"""Requests generated from the server's own OpenAPI schema, valid and invalid, must not break it.

FUZZ_EXAMPLES=2000 pytest tests/test_server_fuzz.py  # for longer
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, served
from surroundings import HANG

from tgr_local.apis.bodies import (
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    NativeCompletionRequest,
)
from tgr_local.apis.embeddings import EmbeddingsRequest
from tgr_local.apis.messages import CountTokensRequest, MessagesRequest
from tgr_local.apis.ollama import OllamaChatRequest, OllamaGenerateRequest, OllamaOptions
from tgr_local.apis.rerank import RerankRequest
from tgr_local.apis.responses import ResponsesRequest
from tgr_local.options.config import SearchConfig
from tgr_local.server.models import ModelRequest
from tgr_local.server.ollama import OllamaEmbeddingsRequest, OllamaEmbedRequest, OllamaShowRequest
from tgr_local.server.page_files import RenderRequest
from tgr_local.server.tokens import DetokenizeRequest, TokenizeRequest

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is absent")
schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is absent")

N_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "6"))


def settings(n_examples: int) -> Any:
    return hypothesis.settings(
        max_examples=n_examples,
        deadline=None,
        derandomize=N_EXAMPLES < 100,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


@pytest.fixture(scope="module")
def fuzzed(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("fuzz")
    limits = {"request_seconds": 0.1, "max_choices": 4, "max_body": 10**6}
    with served(model(), folder, **limits) as running:
        yield running
        running.until(running.is_free)
        assert not any("Traceback" in line for line in running.lines)


BODIES = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/completion": NativeCompletionRequest,
    "/infill": InfillRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountTokensRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/render": RenderRequest,
    "/models/load": ModelRequest,
    "/api/chat": OllamaChatRequest,
    "/api/generate": OllamaGenerateRequest,
    "/api/embed": OllamaEmbedRequest,
    "/api/embeddings": OllamaEmbeddingsRequest,
    "/api/show": OllamaShowRequest,
}
OPERATIONS = tuple(BODIES)
SETTABLE = {spec.name for spec in dataclasses.fields(SearchConfig) if not spec.metadata["is_path"]}
"""Options of ``tgr``."""
ALIKE = ("/apply-template", "/v1/responses/input_tokens", "/models/unload")
"""Those that take a body of another one, or a part of it."""


SMALL = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 1}
SMALL |= {"input": "hi", "tokens": [1], "content": "hi"}


@pytest.fixture(scope="module")
def its_schema(fuzzed: Served) -> Any:
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


def check(response: Any) -> None:
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        if isinstance(error, str):  # Ollama's
            assert len(response.json()) == 1 and "\n" not in error
            return
        is_anthropic = response.json().get("type") == "error"
        assert {*error} == ({"message", "type"} | (set() if is_anthropic else {"param", "code"}))
        assert "\n" not in error["message"]


def properties(schema: Any, schemas: dict[str, Any]) -> set[str]:
    """The names of all properties that a schema reaches, through its references too."""
    if isinstance(schema, list):
        return {name for one in schema for name in properties(one, schemas)}
    if not isinstance(schema, dict):
        return set()
    found = properties([one for key, one in schema.items() if key != "properties"], schemas)
    if reference := schema.get("$ref"):
        found |= properties(schemas[reference.rpartition("/")[2]], schemas)
    own = schema.get("properties", {})
    return found | set(own) | properties(list(own.values()), schemas)


def test_the_schema_has_every_parameter_of_every_body(its_schema: Any):
    raw = its_schema.raw_schema
    posts = {path: item["post"] for path, item in raw["paths"].items() if "post" in item}
    posts = {path: post for path, post in posts.items() if "requestBody" in post}
    assert set(posts) == {*OPERATIONS, *ALIKE}
    for path, model in BODIES.items():
        body = posts[path]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{model.__name__}"}
        reached = properties(body, raw["components"]["schemas"])
        assert reached >= set(model.model_fields)
        if "tgr" in model.model_fields:
            assert reached >= SETTABLE
        if path in ("/api/chat", "/api/generate"):
            assert reached >= set(OllamaOptions.model_fields)


def one_by_one(raw: dict[str, Any], contract: Any, seen: list[Any]) -> dict[str, Any]:
    """Operations of a schema, one for each parameter of a contract and each option of ``tgr`` that
    is not in `seen`: its body holds that one and what makes it a small request."""
    schemas = raw["components"]["schemas"]
    whole, operations = schemas[contract.__name__], {}
    small = {name: {"const": value} for name, value in SMALL.items() if name in whole["properties"]}

    def add(path: str, properties: dict[str, Any]) -> None:
        if properties in seen:
            return
        seen.append(properties)
        content = {"application/json": {"schema": only(small | properties)}}
        responses = {"200": {"description": ""}}
        operation = {"requestBody": {"required": True, "content": content}, "responses": responses}
        operations[path] = {"post": operation}

    for name, schema in whole["properties"].items():
        add(f"/{name}", {name: schema})
    if "tgr" in whole["properties"]:
        for name, schema in schemas["TgrOptions"]["properties"].items():
            add(f"/tgr/{name}", {"tgr": only({name: schema})})
    return operations


def only(properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties} | closed


def reach(fuzzed: Served, path: str, cases: Any, reached: set[str]) -> None:
    """Sends generated bodies to `path` and adds the names of their parameters to `reached`."""

    @settings(max(2, N_EXAMPLES // 4))
    @hypothesis.given(case=cases)
    def ask(case: Any) -> None:
        reached.update(case.body, case.body.get("tgr") or ())
        check(fuzzed.client.post(path, content=json.dumps(case.body).encode()))

    ask()


@pytest.mark.parametrize("path", [*OPERATIONS, f"{OPERATIONS[0]} tgr"])
def test_every_parameter_is_reached(fuzzed: Served, its_schema: Any, path: str):
    """Those that an earlier operation has too are reached there; the options of ``tgr`` have a test
    of their own."""
    path, _, part = path.partition(" ")
    mode, raw = schemathesis.GenerationMode.POSITIVE, its_schema.raw_schema
    seen: list[Any] = []
    reached: set[str] = set()
    for earlier in OPERATIONS[: OPERATIONS.index(path)]:
        one_by_one(raw, BODIES[earlier], seen)
    paths = one_by_one(raw, BODIES[path], seen)
    every = {name.rpartition("/")[2] for name in paths}
    if path == OPERATIONS[0]:
        paths = {name: one for name, one in paths.items() if name.startswith("/tgr/") == bool(part)}
    operations = schemathesis.openapi.from_dict(raw | {"paths": paths})
    for name in paths:
        cases = operations[name]["POST"].as_strategy(generation_mode=mode)
        reach(fuzzed, path, cases, reached)
    wanted = {name.rpartition("/")[2] for name in paths}
    assert wanted <= reached <= every | set(SMALL) | {"tgr"}


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", [*OPERATIONS, *ALIKE])
def test_no_request_breaks_it(its_schema: Any, path: str, mode: str):
    cases = its_schema[path]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @settings(N_EXAMPLES)
    @hypothesis.given(case=cases)
    def ask(case: Any) -> None:
        check(case.call(timeout=HANG))

    ask()
