"""Grammars of JSON: any object, or what a schema allows, as people write one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tgr_local.generation.schemas.grammar import schema_grammar
from tgr_local.generation.schemas.normal import SchemaError

_SCHEMA_MOST = 1 << 18  # characters of a JSON schema
_SHOWN = 80  # characters of a value in an error
_KINDS = {"type", "enum", "const"}  # keywords by which a schema says of what type its values are


def json_grammar(schema: Any = None, check: Callable[[], object] | None = None) -> str:
    """GBNF for a JSON object, or for JSON of a schema. `check` is called again and again. Raises
    SchemaError, a whole sentence, for a schema that is too long, or that cannot be followed, with
    the keyword and its place, and what `check` raises."""
    try:
        length = len(json.dumps(schema))
        if length <= _SCHEMA_MOST:
            return schema_grammar(_typed(schema), check)
    except (SchemaError, RecursionError) as error:
        why = error if isinstance(error, SchemaError) else "it is nested too deeply"
        raise SchemaError(f"the JSON schema cannot be followed: {why}") from None
    raise SchemaError(
        f"the JSON schema has {length} characters, but may have {_SCHEMA_MOST}; shorten it"
    )


def _typed(schema: Any) -> Any:
    """Returns a schema with the type that who writes it by hand leaves out."""
    if not isinstance(schema, dict | bool | None):
        given = repr(schema[:_SHOWN] if isinstance(schema, str) else schema)[:_SHOWN]
        raise SchemaError(f"it is {given}, but must be an object, true or false")
    if schema is None:
        return {"type": "object"}
    if isinstance(schema, dict) and "properties" in schema and not schema.keys() & _KINDS:
        return {**schema, "type": "object"}
    return schema
