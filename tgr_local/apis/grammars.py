"""The grammar that a request asks for: GBNF as it is, or made from a JSON schema."""

from __future__ import annotations

import json
from typing import Any

from tgr_local.apis.bodies import GenerationRequest
from tgr_local.apis.validation import RequestError, shown
from tgr_local.engine import Cancel
from tgr_local.generation.schemas import SchemaError, schema_grammar

_SCHEMA_MOST = 1 << 18  # characters of a JSON schema
_KINDS = {"type", "enum", "const"}  # keywords by which a schema says of what type its values are


def requested_grammar(body: GenerationRequest, cancel: Cancel | None = None) -> str:
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
        named = (form.get("json_schema") or {}).get("schema")
        schema = schema if named is None else named  # llama-server takes it without the wrapper too
        if schema is None:
            raise RequestError(
                "response_format has no json_schema.schema; add one, or use json_object",
                "response_format",
            )
    return json_grammar(schema, cancel)


def json_grammar(schema: Any = None, cancel: Cancel | None = None) -> str:
    """GBNF for a JSON object, or for JSON of a schema. Raises RequestError for a schema that is too
    long, or that cannot be followed, with the keyword and its place, and CancelledError."""
    try:
        if (length := len(json.dumps(schema))) > _SCHEMA_MOST:
            raise RequestError(
                f"the JSON schema has {length} characters, but may have {_SCHEMA_MOST}; shorten it",
                "response_format",
            )
        if not isinstance(schema, dict | bool | None):
            raise SchemaError(f"it is {shown(schema)}, but must be an object, true or false")
        if isinstance(schema, dict) and "properties" in schema and not schema.keys() & _KINDS:
            schema = {**schema, "type": "object"}  # which who writes it by hand leaves out
        check = cancel.check if cancel else None
        return schema_grammar({"type": "object"} if schema is None else schema, check)
    except (SchemaError, RecursionError) as error:
        why = error if isinstance(error, SchemaError) else "it is nested too deeply"
        raise RequestError(
            f"the JSON schema cannot be followed: {why}", "response_format"
        ) from None
