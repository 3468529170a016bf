"""The grammar that a request asks for: GBNF as it is, or made from a JSON schema."""

from __future__ import annotations

import json
import re
from typing import Any

from tgr_local.engine import Cancel
from tgr_local.openai.bodies import GenerationRequest
from tgr_local.openai.validation import RequestError
from tgr_local.system import confined

_SPACE = re.compile("^space ::= .*$", re.MULTILINE)  # else weak models write line after line
_SCHEMA_MOST = 1 << 18  # characters of a JSON schema
_REPEATS_MOST = 2000  # of a part of a grammar, in llama.cpp


def requested_grammar(body: GenerationRequest, cancel: Cancel | None) -> str:
    """GBNF of ``grammar`` or ``response_format``; empty = none. Raises as `json_grammar` does."""
    form: Any = body.response_format or {}
    kind = form.get("type") or "text"
    named = body.json_schema if body.json_schema is not None else body.guided_json
    if kind == "text" and named is not None:
        form, kind = {"schema": named}, "json_object"
    if kind == "text":
        return body.grammar or ""
    if body.grammar:
        raise RequestError("grammar and response_format exclude each other", "grammar")
    schema = form.get("schema")  # llama-cpp-python's way
    if kind == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if schema is None:
            raise RequestError(
                "response_format has no json_schema.schema; add one, or use json_object",
                "response_format",
            )
    return json_grammar(schema, cancel)


def json_grammar(schema: Any = None, cancel: Cancel | None = None) -> str:
    """GBNF for a JSON object, or for JSON of a schema, which is a dict.

    Made by llama.cpp's converter, in a process of its own with limits of time and memory. Raises
    RequestError for a schema that cannot be followed, and CancelledError by `cancel`.
    """
    _check_schema(schema)
    try:
        made = confined.schema_grammar({"type": "object"} if schema is None else schema, cancel)
        return _SPACE.sub('space ::= " "?', made)
    except confined.ConfinedError as error:
        raise RequestError(
            f"the JSON schema cannot be followed: {error}", "response_format"
        ) from None


def _check_schema(schema: Any) -> None:
    """Refuses a schema that is too long, or asks for more repetitions than a grammar can have."""
    length = len(json.dumps(schema))
    if length > _SCHEMA_MOST:
        raise RequestError(
            f"the JSON schema has {length} characters, but may have {_SCHEMA_MOST}; shorten it",
            "response_format",
        )
    parts = [schema]
    while parts:
        part = parts.pop()
        for key in ("minLength", "maxLength", "minItems", "maxItems"):
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, int | float) and value > _REPEATS_MOST:
                raise RequestError(
                    f"the JSON schema has {key} {value}, but a grammar can count to "
                    f"{_REPEATS_MOST}; lower it or leave it out",
                    "response_format",
                )
        if isinstance(part, dict | list):
            parts += part.values() if isinstance(part, dict) else part
