"""JSON schemas as grammars: every text is valid for its schema, or the keyword is named."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from gbnf_texts import Texts

from tgr_local.engine import Cancel, Engine
from tgr_local.generation.schemas import SchemaError, followable, json_grammar, schema_grammar
from tgr_local.generation.schemas.numbers import NumberRange, integers, numbers
from tgr_local.generation.schemas.patterns import pattern
from tgr_local.system.errors import CancelledError

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.exists():
    pytest.skip("bench is not next to the tests", allow_module_level=True)
spec = importlib.util.spec_from_file_location("schema_dags", BENCH / "schema_dags.py")
assert spec and spec.loader
sys.modules["schema_dags"] = dags = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dags)

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["name", "children"],
    "additionalProperties": False,
}
KINDS = [{"type": "object", "properties": {"kind": {"const": name}}} for name in ("a", "b")]
FOLLOWED: list[Any] = [
    True,
    {},
    {"type": "object"},
    {"type": ["string", "null"], "maxLength": 3},
    {"enum": ["x", None, 3, {"a": [1]}, "é\n\"\\"]},
    {"const": 1.0},
    {"type": "integer", "enum": [1, "a", 2.5, 7]},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -0.25, "exclusiveMaximum": 12.5},
    {"type": "integer", "minimum": -3, "exclusiveMaximum": 1005},
    {"type": "integer", "minimum": 2.5, "multipleOf": 100},
    {"type": "integer", "minimum": 0, "maximum": 50, "multipleOf": 7},
    {"type": "string", "minLength": 2, "maxLength": 4000},
    {"type": "string", "pattern": "[a-z]+"},
    {"type": "string", "pattern": "^[^\"]*\\.py$"},
    {"type": "string", "pattern": "^(a|b\\d){2,3}x?$"},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^\\w+\\s\\S.$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "email"},
    {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "boolean"}},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False},
    {"type": "array", "prefixItems": [{"type": "integer"}, False]},
    {"type": "array", "items": [{"type": "null"}], "additionalItems": {"type": "integer"}},
    {"type": "array", "items": False},
    {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}},
    {"type": "array", "prefixItems": [{"type": "integer"}], "contains": {"const": 1}},
    {"type": "array", "maxItems": 1, "uniqueItems": True},
    {"type": "object", "properties": {"a": False, "b": {"type": "null"}}, "required": ["b", "c"]},
    {"properties": {"n": {"type": "integer"}}, "required": ["n"], "default": {"maxItems": 5000}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {}, "b": {}},
     "additionalProperties": {"type": "string", "maxLength": 2}},
    {"type": "object", "patternProperties": {"^x-": {"type": "integer"}},
     "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "minProperties": 1},
    {"properties": {"b": {"type": "object"}}, "patternProperties": {"b$": {"type": "number"}}},
    {"type": "object", "patternProperties": {"b$": {}}, "not": {"required": ["b"]}},
    {"type": "object", "propertyNames": {"enum": ["u", "v"]}, "additionalProperties": {"const": 1}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}},
     "allOf": [{"additionalProperties": {"maximum": 3}}]},
    {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2,
     "maxProperties": 2},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
    {"allOf": [{"properties": {"a": {"minimum": 3}}}, {"required": ["a"]},
               {"type": "object", "properties": {"a": {"type": "integer", "maximum": 5}}}]},
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!x)"}]},  # as Decimal has it
    {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": "null"}]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
     "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": KINDS, "discriminator": {"propertyName": "kind"}},
    {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "null"}}]},
    {"not": {"type": ["object", "array"]}, "maxLength": 2},
    {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a"]}},
    {"enum": [1, 2, 3], "not": {"const": 2}},
    {"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"},
    {"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "null"}}},
    {"$id": "https://x.org/s", "$ref": "t", "$defs": {"t": {"$id": "t", "type": "boolean"}}},
    {"$ref": "#/$defs/S", "maxLength": 2, "$defs": {"S": {"type": "string", "minLength": 1}}},
    {"type": "object", "properties": {"größe": {"enum": ["klein", "日本"]}, "a\"b\\c": {}},
     "required": ["größe", "a\"b\\c"]},
    {"type": "string", "description": None, "pattern": None},
]  # fmt: skip


@pytest.mark.parametrize("schema", FOLLOWED, ids=lambda schema: json.dumps(schema)[:60])
def test_every_text_of_a_grammar_is_valid(schema: Any):
    texts, source = Texts(schema_grammar(schema)), random.Random(1)
    plain = schema
    if isinstance(schema, dict):  # what null says of a keyword is nothing
        plain = {k: v for k, v in schema.items() if v is not None}
        if isinstance(plain.get("items"), list):
            plain = {"prefixItems": plain["items"], "items": plain["additionalItems"]}
    validator = jsonschema_rs.Draft202012Validator(plain)
    seen = set()
    for _ in range(200):
        try:
            text = texts.draw(source)
        except RecursionError:  # a text that would be long
            continue
        validator.validate(json.loads(text))
        seen.add(text)
    assert seen


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "1", "0.5", "0.125", "1.0"]),
        ({"type": "number", "minimum": -1.5}, ["-1.5", "-0.3", "0", "12.25", "70000"]),
        ({"type": "number"}, ["-1.5e-7", "0.1", "1e10"]),
        ({"type": "integer", "minimum": 7, "maximum": 132}, ["7", "99", "100", "132"]),
        ({"type": "string", "maxLength": 4000}, [json.dumps("a" * 4000), '"\\u00e9\\n"']),
        ({"type": "string", "pattern": "[0-9]"}, ['"a7b"', '"7"']),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, ['{"a": 1, "b": [2]}', '{"b": 1}']),
        ({"type": "object", "properties": {"ab": {"type": "null"}}, "additionalProperties": {}},
         ['{"a": 1, "abc": 2}', '{"ab": null, "b": 2}']),
        ({"type": "array", "minItems": 1}, ['[1, "a"]']),
    ],
)  # fmt: skip
def test_ordinary_values_are_allowed(engine: Engine, schema: Any, wanted: list[str]):
    grammar = json_grammar(schema)
    for text in wanted:
        engine.check_grammar(grammar, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "minimum": 0, "maximum": 1}, "1.5"),
        ({"type": "number", "exclusiveMinimum": 2}, "2"),
        ({"type": "integer", "maximum": 131}, "132"),
        ({"type": "string", "maxLength": 3}, '"abcd"'),
        ({"type": "string", "pattern": "^[a-z]*$"}, '"a1'),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {}}, '{"a": 1, "a"'),
        ({"type": "array", "prefixItems": [{"type": "integer"}, False]}, "[1, "),
    ],
)
def test_what_a_bound_excludes_is_not_allowed(engine: Engine, schema: Any, text: str):
    if text == "2":  # may go on
        with pytest.raises(ValueError):
            engine.check_grammar(
                f'root ::= x "!"\n{json_grammar(schema).replace("root", "x")}', "2!"
            )
        return
    with pytest.raises(ValueError, match="grammar"):
        engine.check_grammar(json_grammar(schema), text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (False, "^it allows no value"),
        ({"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]},
         "^properties.a allows no value, or none"),
        ({"properties": {"a": {"type": "file"}}}, "properties.a.type is 'file', but must be"),
        ({"properties": {"a": {"$ref": "#/$defs/X"}}}, r"properties.a.\$ref is '#/\$defs/X', wh"),
        ({"$ref": "https://example.org/schema.json"}, r"^\$ref is 'https://example.org"),
        ({"$ref": "#"}, "leads to itself without end"),
        ({"properties": [{}]}, r"^properties is \[\{\}\], but must be an object of schemas"),
        ({"properties": {"a": 3}}, "properties.a is 3, but must be a schema"),
        ({"items": {"pattern": "^(?!x)"}}, r"items.pattern has the group \(\?!…\), which no gram"),
        ({"pattern": "(a"}, "pattern has a group without an end"),
        ({"pattern": "^a*b$", "maxLength": 3}, "maxLength is combined with a pattern of other"),
        ({"type": "array", "uniqueItems": True}, "^uniqueItems is nothing that a grammar can"),
        ({"contains": {"const": 1}, "minContains": 2}, "^contains is nothing that a grammar can"),
        ({"contains": {"const": 1}, "minContains": 0, "maxContains": 2}, "^maxContains is"),
        ({"if": {"const": 1}, "then": {"const": 1}}, "^if is"),
        ({"type": "number", "multipleOf": 0.1}, "^multipleOf is"),
        ({"minimum": "0"}, "^minimum is '0', but must be a number"),
        ({"maxLength": -1}, "^maxLength is -1, but must be a whole number of at least 0"),
        ({"minItems": 3001, "type": "array"}, "^minItems is 3001, but a grammar can count to 2000"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "^oneOf has schemas that a value may m"),
        ({"type": "number", "not": {"minimum": 3}}, "^not excludes values that a grammar cannot"),
        ({"not": {"dependentRequired": {"a": ["b"]}}}, "^not excludes values that a g"),
        ({"const": {"b": 1}, "unevaluatedProperties": False}, "^unevaluatedProperties is combined"),
        ({"enum": [{"a": 1}], "patternProperties": {".": {"const": 2}}}, "^patternProperties"),
        ({"oneOf": [{"type": "object", "dependentRequired": {"a": ["b"]}}, {"type": "object"}]},
         "^oneOf has schemas that a value may match at once"),
        ({"anyOf": []}, r"^anyOf is \[\], but must be a list of schemas"),
        ({"required": "a"}, "^required is 'a', but must be a list of names"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_named(schema: Any, message: str):
    with pytest.raises(SchemaError, match=message):
        schema_grammar(schema)


def test_the_first_property_keeps_the_schemas_of_a_choice_apart():
    names = [f"p{i}" for i in range(12)]
    one, other = (
        {"type": "object", "properties": {name: {"const": value} for name in names}}
        for value in (1, 2)
    )
    texts, source = Texts(schema_grammar({"oneOf": [one, other]})), random.Random(1)
    drawn = [json.loads(texts.draw(source)) for _ in range(100)]
    assert all("p0" in value for value in drawn)
    assert not all(name in value for value in drawn for name in names[1:])


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"anyOf": [{"maxLength": i}, {"pattern": f"^a{i}$"}]} for i in range(40)]},
        {"oneOf": [{"const": i} for i in range(3000)]},
        {"allOf": [{"properties": {f"n{i}": {}}} for i in range(3000)]},
    ],
)
def test_work_has_a_bound(schema: Any):
    with pytest.raises(SchemaError, match=r"alternatives in one place|steps to read; simplify it"):
        json_grammar(schema)


def steps(schema: Any) -> int:
    """The work of reading a schema as a function's parameter and as a response's format."""
    looks: list[int] = []
    _, found = dags.call_grammar([{"type": "object", "properties": {"a": schema}}])
    with contextlib.suppress(SchemaError):
        schema_grammar(schema, check=lambda: looks.append(1))
    return found.work.done + 256 * len(looks)  # steps between two looks


@pytest.mark.parametrize("kind", dags.STEPS)
def test_work_grows_with_the_definitions_and_not_with_the_ways_through_them(kind: str):
    leaf = {"type": ["string", "object"], "properties": {"a": {"enum": ["b", None]}}}
    short, long = (steps(dags.doubling(kind, depth, leaf)) for depth in (15, 30))
    assert long <= 3 * short + 1000


def test_every_schema_whose_definitions_meet_again_is_answered():
    draw = random.Random(3)
    for _ in range(60):
        name, schema = dags.schema(draw)
        assert dags.read(schema).startswith(("a grammar", "refused")), name
        assert steps(schema) < 220_000, name  # of both ways, each with its own bound


def test_the_end_of_the_work_is_no_failure_of_one_branch():
    costly = {"allOf": [{"anyOf": [{"maxLength": i}, {"pattern": f"^a{i}$"}]} for i in range(9)]}
    schema = {"anyOf": [{"oneOf": [{"const": i} for i in range(3000)]}, costly, {"type": "null"}]}
    with pytest.raises(SchemaError, match="takes more than 100000 steps to read; simplify it"):
        schema_grammar(schema)


def test_the_functions_of_a_request_share_its_work():
    long = {"type": "object", "oneOf": [{"required": [f"a{i}"]} for i in range(200)]}
    _, found = dags.call_grammar([long] * 40)
    assert len(found.functions) == 40 and "tools.f39.parameters" in found.unfollowed
    assert found.work.done < 110_000


def test_reading_a_schema_is_cancelled():
    cancel, looks = Cancel(), []

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            cancel.cancel()
        cancel.check()

    schema = {"oneOf": [{"const": i} for i in range(3000)]}
    with pytest.raises(CancelledError):
        schema_grammar(schema, check)
    with pytest.raises(CancelledError):
        followable([{"name": "f", "parameters": {"anyOf": [schema]}}], cancel.check)
    with pytest.raises(CancelledError):
        json_grammar(schema, cancel.check)
    assert len(looks) == 3


def test_a_deep_schema_is_refused():
    schema: Any = {}
    for _ in range(3000):
        schema = {"items": schema}
    with pytest.raises(SchemaError, match="nested too deeply"):
        json_grammar(schema)
    lists: Any = {}
    for _ in range(3000):
        lists = {"type": "array", "items": lists}
    parameters = {"type": "object", "properties": {"a": lists}}
    _, found = dags.call_grammar([parameters])
    assert found.unfollowed == ["tools.f0.parameters.properties.a"]


UUID, MAIL = {"type": "string", "format": "uuid"}, {"type": "string", "format": "email"}


@pytest.mark.parametrize(
    ("schema", "expression"),
    [
        (UUID, "[0-9a-fA-F-]{36}"),
        (UUID | {"minLength": 1, "maxLength": 36}, "[0-9a-fA-F-]{36}"),
        ({"allOf": [UUID, {"maxLength": 100}]}, "[0-9a-fA-F-]{36}"),
        (MAIL | {"minLength": 5}, r"\S+@\S+"),
        # notes, beside what counts more
        (MAIL | {"maxLength": 9}, ".{0,9}"),
        ({"allOf": [MAIL, {"maxLength": 9}]}, ".{0,9}"),
        (UUID | {"pattern": "^2+$"}, "2+"),
        ({"allOf": [UUID, {"pattern": "^2+$"}]}, "2+"),
    ],
    ids=str,
)
def test_a_format_is_followed_where_its_lengths_fit(schema: Any, expression: str):
    texts, source = Texts(schema_grammar(schema)), random.Random(1)
    for _ in range(50):
        assert re.fullmatch(expression, json.loads(texts.draw(source)), re.DOTALL)


@pytest.mark.parametrize("open_ends", [False, True])
def test_numbers_lie_between_their_bounds(open_ends: bool):
    source = random.Random(3)
    for _ in range(300):
        low, high = sorted(
            Fraction(source.randint(-3000, 3000), source.choice((1, 10, 8))) for _ in "12"
        )
        interval = NumberRange(low, high, open_ends, open_ends)
        for body, is_whole in ((numbers(interval), False), (integers(interval), True)):
            texts = Texts(f"root ::= {body}") if body else None
            assert texts or is_whole or interval.empty
            for _ in range(20 if texts else 0):
                assert texts is not None
                value = json.loads(texts.draw(source))
                assert interval.holds(Fraction(str(value)))


def test_a_pattern_knows_how_long_its_texts_are():
    assert [(p.least, p.most) for p in map(pattern, ("^ab?c$", "^(a|bcd){2}$", "a", "^a+$"))] == [
        (2, 3), (2, 6), (1, None), (1, None),
    ]  # fmt: skip
