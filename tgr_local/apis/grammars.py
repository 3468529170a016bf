"""The grammar that a request asks for: GBNF as it is, or made from a JSON schema."""

from __future__ import annotations

from typing import Any

from tgr_local.apis.bodies import GenerationRequest
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Cancel
from tgr_local.generation.schemas import SchemaError, json_grammar


def requested_grammar(body: GenerationRequest, cancel: Cancel | None = None) -> str:
    """GBNF of ``grammar`` or ``response_format``; empty = none. Raises RequestError for a
    schema that `json_grammar` refuses, and CancelledError."""
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
    try:
        return json_grammar(schema, cancel.check if cancel else None)
    except SchemaError as error:
        raise RequestError(str(error), "response_format") from None
