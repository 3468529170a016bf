"""The parameters of functions that a model may call, so that llama.cpp's converter follows them.

llama.cpp makes the grammar of a call, and the parser of a reply, from the same schema. Where its
converter refuses a schema or ignores a part of it, a constant stands in the place of that
parameter, and in the grammar a rule of ours in the place of the constant. What no grammar can
follow leaves its parameter freer than the schema, and is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local.generation.schemas.alternatives import (
    Alternative,
    Conjunction,
    kind_of,
    property_schemas,
)
from tgr_local.generation.schemas.grammar import conjunction_grammar, literal
from tgr_local.generation.schemas.normal import Normal, SchemaError, is_free
from tgr_local.generation.schemas.patterns import REPEATS_MOST
from tgr_local.generation.schemas.references import below
from tgr_local.generation.schemas.work import StepBudget, WorkError

_NUMBER = -9007199254740000  # the constants are numbers below it, or texts with it
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# what llama.cpp's converter follows exactly, by type
_EXACT = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
    "string": {"type", "minLength", "maxLength", "format"},
    "integer": {"type", *_BOUNDS},
    "number": {"type"}, "boolean": {"type"}, "null": {"type"},
}  # fmt: skip
_ASSERTIONS = set().union(*_EXACT.values()) | {
    "$ref", "$dynamicRef", "$recursiveRef", "anyOf", "oneOf", "allOf", "not", "if", "then", "else",
    "const", "enum", "pattern", "multipleOf", "uniqueItems", "contains", "prefixItems",
    "additionalItems", "unevaluatedItems", "unevaluatedProperties", "patternProperties",
    "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
    "dependencies", "nullable",
}  # fmt: skip


@dataclass
class Followable:
    """Schemas that the converter follows, and what its grammar needs afterwards."""

    work: StepBudget = field(default_factory=StepBudget)
    """Work for all functions together."""
    functions: list[dict[str, Any]] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)
    """Places of what no grammar follows: ``tools.NAME.parameters.properties.x.pattern``."""
    # constant in the grammar: our grammar, and the place of its schema
    _rules: dict[str, tuple[str, str]] = field(default_factory=dict)
    changed: bool = False
    """Whether a schema is another one than that of the client."""

    def complete(self, grammar: str) -> str:
        """The converter's grammar with our rules in the place of the constants. Where it has none,
        the format of the calls takes any text there, and the place is noted."""
        for constant, (rules, place) in self._rules.items():
            if constant in grammar:
                name = rules.partition(" ")[0]
                grammar = f"{grammar.replace(constant, name).rstrip()}\n{rules}"
            else:
                self.note(place)
        return grammar

    def add(self, function: Mapping[str, Any]) -> None:
        """Takes one more function, with or without ``parameters``."""
        given = function.get("parameters")
        try:
            is_exact = given is None or _is_exact(given, given, set())
        except RecursionError:
            is_exact = False
        if is_exact:
            self.functions.append(dict(function))
            return
        self.changed = True
        made = _FunctionParameters(self, given, f"tools.{function.get('name')}.parameters").schema()
        self.functions.append({**function, "parameters": made})

    def constant(self, grammar_of: Callable[[str], str], place: str, *, is_text: bool) -> Any:
        """A value that stands for a grammar; `grammar_of` makes it with a prefix of its rules."""
        number = _NUMBER - len(self._rules)
        value: Any = f"tgr{number}" if is_text else number
        made = grammar_of(f"tgr-{len(self._rules)}-")
        self._rules[literal(json.dumps(value))] = made, place
        return value

    def note(self, place: str) -> None:
        """Names what is not followed."""
        if place not in self.unfollowed:
            self.unfollowed.append(place)


def followable(
    functions: Sequence[Mapping[str, Any]], check: Callable[[], object] | None = None
) -> Followable:
    """Some functions, each with a name and perhaps ``parameters``, as the converter follows them.
    Raises nothing for any schema, but what `check` raises, which is called again and again."""
    made = Followable(StepBudget(check))
    for function in functions:
        made.add(function)
    return made


class _FunctionParameters:
    """Parameters of one function."""

    def __init__(self, made: Followable, given: Any, place: str) -> None:
        self._made, self._given, self._place = made, given, place

    def _note(self, place: str, _: str = "") -> None:
        self._made.note(f"{self._place}.{place}".rstrip("."))

    def schema(self) -> dict[str, Any]:
        try:
            normal = Normal(self._given, self._note, self._made.work)
            objects = [one for one in normal.of((self._given,)) if one.kind == "object"]
            if objects and all(one.values is None for one in objects):
                made = [self._object(normal, one) for one in objects]
                return made[0] if len(made) == 1 else {"anyOf": made}
        except (SchemaError, WorkError, RecursionError):
            pass
        self._note("")
        return {"type": "object", "additionalProperties": True}

    def _object(self, normal: Normal, one: Alternative) -> dict[str, Any]:
        names = {name: None for name in dict.fromkeys((*one.properties, *one.required))
                 if name not in one.forbidden}  # fmt: skip
        for key, is_given in (
            ("minProperties", one.least > len(one.required)),
            ("maxProperties", one.most is not None and one.most < len(names)),
            ("patternProperties", bool(one.by_pattern)),
            ("propertyNames", bool(one.names)),
        ):
            if is_given:
                self._note(below(one.place, key))
        made: dict[str, Any] = {
            "type": "object",
            "properties": {
                name: self._value(normal, property_schemas(one, name), f"properties.{name}")
                for name in names
            },
            "required": [name for name in one.required if name in names],
        }
        if one.additional is not None and not all(value is False for value in one.additional):
            made["additionalProperties"] = self._value(
                normal, one.additional, "additionalProperties"
            )
        elif one.additional is None and not names and not one.listed:
            made["additionalProperties"] = True
        return made

    def _value(self, normal: Normal, schemas: Conjunction, place: str) -> dict[str, Any]:
        """The schema of one parameter: its own, nothing, or a constant that stands for it."""
        own: Any = schemas[0] if len(schemas) == 1 else None
        if _is_exact(own, {}, set()):  # without references: the document is another one here
            return {**own}
        try:
            found = normal.of(schemas)
            if is_free(found):
                return {}
            is_text = any(one.kind == "string" for one in found)
            value = self._made.constant(
                lambda prefix: conjunction_grammar(normal, schemas, prefix),
                f"{self._place}.{place}",
                is_text=is_text,
            )
        except (SchemaError, RecursionError):
            self._note(normal.references.place(schemas[0]) if schemas else place)
            return {}
        return {"const": value}


def _is_exact(schema: Any, document: Any, seen: set[int]) -> bool:
    """Whether the converter follows a schema exactly."""
    if not isinstance(schema, dict):
        return False
    if id(schema) in seen:
        return True
    seen.add(id(schema))
    given = schema.keys() & _ASSERTIONS
    if "$ref" in given:
        target = _target(document, schema["$ref"])
        return given == {"$ref"} and _is_exact(target, document, seen)
    if "anyOf" in given:
        choices = schema["anyOf"]
        return (
            given == {"anyOf"} and isinstance(choices, list) and bool(choices)
            and all(_is_exact(one, document, seen) for one in choices)
        )  # fmt: skip
    kind = schema.get("type")
    if given & {"const", "enum"}:
        return given in ({"const"}, {"enum"}, {"type", "enum"}) and _has_values(schema)
    if isinstance(kind, list):
        return given == {"type"} and bool(kind) and all(
            isinstance(one, str) and one in _EXACT for one in kind
        )  # fmt: skip
    if "type" not in given:
        return not given
    if not isinstance(kind, str) or kind not in _EXACT or not given <= _EXACT[kind]:
        return False
    if kind == "object":
        return _is_exact_object(schema, document, seen)
    if kind == "array":
        return _counts(schema) and _is_exact(schema.get("items", {}), document, seen)
    if kind == "string":
        has_both = "format" in schema and bool(schema.keys() & set(_COUNTS))
        return _counts(schema) and not has_both and isinstance(schema.get("format", ""), str)
    return kind != "integer" or _is_exact_integer(schema)


def _has_values(schema: dict[str, Any]) -> bool:
    if "const" in schema:
        return True
    values = schema["enum"]
    kind = schema.get("type")
    return isinstance(values, list) and bool(values) and (
        "type" not in schema or all(kind_of(value) == kind for value in values)
    )  # fmt: skip


def _is_exact_object(schema: dict[str, Any], document: Any, seen: set[int]) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    more = schema.get("additionalProperties", False)
    return (
        isinstance(properties, dict)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in properties for name in required)
        and all(_is_exact(one, document, seen) for one in properties.values())
        and (isinstance(more, bool) or _is_exact(more, document, seen))
    )


def _is_exact_integer(schema: dict[str, Any]) -> bool:
    bounds = [schema[key] for key in _BOUNDS if key in schema]
    if any(type(bound) is not int or abs(bound) >= 2**53 for bound in bounds):
        return False
    twice = any(a in schema and b in schema for a, b in (_BOUNDS[::2], _BOUNDS[1::2]))
    return not twice and (len(bounds) < 2 or bounds[0] + 2 <= bounds[1])


def _counts(schema: dict[str, Any]) -> bool:
    counts = [schema[key] for key in _COUNTS if key in schema]
    if not all(type(count) is int and 0 <= count < 1 << 30 for count in counts):
        return False
    low, high = (schema.get(a, schema.get(b)) for a, b in (_COUNTS[::2], _COUNTS[1::2]))
    return (low or 0) <= REPEATS_MOST and (high is None or (low or 0) <= high)


def _target(document: Any, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = document
    for name in reference.split("/")[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found
