"""The parameters of functions: the arguments of calls are valid for their schemas."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
from gbnf_texts import Texts
from tool_models import TOOL_TEMPLATE, WEATHER, tool

from tgr_local.apis.requests import chat_request
from tgr_local.engine import Engine
from tgr_local.generation.schemas import Followable, followable, schema_grammar
from tgr_local.system import confined

SPACE = '| " " | "\\n"{1,2} [ \\t]{0,20}'
TAGGED = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Calls have each parameter between tags of its own, a text as it is."""


def arguments(parameters: Any) -> tuple[str, Followable]:
    """GBNF of the arguments of a function, as a call in JSON has them."""
    made = followable([{"name": "f", "parameters": parameters}])
    (function,) = made.functions
    mark = function["parameters"]["additionalProperties"]["const"]
    return made.complete(f"root ::= tgr-{mark}\nspace ::= {SPACE}\n"), made


def calls(template: str, *functions: dict[str, Any]) -> tuple[str, Followable]:
    """The grammar of calls, one of which is forced."""
    made = followable(functions)
    request = {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [tool(one) for one in made.functions], "tool_choice": "required",
        "parallel": False,
    }  # fmt: skip
    applied = confined.apply_template(template, "", "", request)
    return made.complete(applied["grammar"]), made


def with_root(grammar: str, root: str) -> str:
    """The same rules with another root."""
    return re.sub(r"^root ::= .*$", lambda _: f"root ::= {root}", grammar, flags=re.MULTILINE)


# --- what is followed ---


def pair(draw: random.Random, depth: int = 0) -> tuple[dict[str, Any], Any]:
    """A schema as functions have it, and a value that is valid for it."""
    kinds = ["text", "short", "integer", "bounded", "number", "boolean", "enum", "free"]
    kind = draw.choice(kinds + ["array", "object", "map", "optional", "types"] * (depth < 3))
    number = draw.randint(-300, 300)
    if kind == "array":
        item, value = pair(draw, depth + 1)
        return {"type": "array", "items": item, "maxItems": 4}, [value] * draw.randrange(4)
    if kind == "object":
        return objects(draw, depth + 1)
    if kind == "map":
        item, value = pair(draw, depth + 1)
        return {"type": "object", "additionalProperties": item}, {"any": value, "à b": value}
    if kind == "optional":
        item, value = pair(draw, depth + 1)
        return {"anyOf": [item, {"type": "null"}]}, draw.choice([value, None])
    made: dict[str, tuple[dict[str, Any], Any]] = {
        "text": ({"type": "string"}, draw.choice(["", 'a "b"\n', "日本\U0001f600", "\\d/"])),
        "short": (
            {"type": "string", "minLength": 1, "maxLength": 3},
            draw.choice(["a", "é\U0001f600z"]),
        ),
        "integer": ({"type": "integer"}, number),
        "bounded": ({"type": "integer", "minimum": number - 7, "maximum": number + 90}, number),
        "number": ({"type": "number"}, draw.choice([number, number / 8, 1e-07, 2.5e16])),
        "boolean": ({"type": "boolean"}, draw.choice([True, False])),
        "enum": ({"enum": ["a", 1, None, {"b": [1, {}]}]}, draw.choice(["a", 1, None])),
        "free": ({}, draw.choice([None, [1, {"a": []}], "x", 3])),
        "types": ({"type": ["string", "integer"]}, draw.choice(["x", 3])),
    }
    return made[kind]


def objects(draw: random.Random, depth: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    names = draw.sample(["a", "ab", "city", "x.y", "x-y", "name"], draw.randrange(5))
    pairs = {name: pair(draw, depth) for name in names}
    required = [name for name in names if draw.random() < 0.5]
    schema = {
        "type": "object", "properties": {name: one for name, (one, _) in pairs.items()},
        "required": required, "additionalProperties": draw.choice([False, True]),
    }  # fmt: skip
    kept = required + [name for name in names if name not in required and draw.random() < 0.5]
    return schema, {name: pairs[name][1] for name in kept}


def test_arguments_are_valid_and_common_json_is_allowed(engine: Engine):
    draw = random.Random(1)
    for _ in range(150):
        schema, value = objects(draw)
        grammar, made = arguments(schema)
        assert not made.unfollowed
        valid = jsonschema_rs.validator_for(schema)
        texts = Texts(grammar)
        for _ in range(5):
            assert valid.is_valid(json.loads(texts.draw(draw))), schema
        whole = with_root(grammar, grammar.split("\n")[0].partition(" ::= ")[2] + ' "\\n."')
        for given in ({}, {"indent": 2}, {"separators": (",", ":")}):
            for ascii_only in (False, True):
                text = json.dumps(value, ensure_ascii=ascii_only, **given)
                engine.check_grammar(whole, text + "\n.")


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (
            {"format": "date", "type": "string"},
            ["2020-10-31", "2024-02-29", "2000-02-29", "1900-02-28"],
        ),
        ({"format": "uuid4", "type": "string"}, ["123e4567-e89b-42d3-a456-426614174000"]),
        ({"const": {"a": [1, 2]}}, ['{"a":[1,2]}', '{"a": [1, 2]}', '{"a": [\n1, 2]}'][:2]),
        ({"type": "string", "maxLength": 1}, ["\\ud83d\\ude00", "\U0001f600"]),
    ],
    ids=str,
)
def test_values_that_clients_write_are_allowed(engine: Engine, schema: Any, texts: list[str]):
    grammar = schema_grammar(schema)
    for text in texts:
        engine.check_grammar(grammar, text if text[0] == "{" else f'"{text}"')


@pytest.mark.parametrize("text", ["1900-02-29", "2023-02-29", "0000-01-01", "2020-04-31"])
def test_days_that_no_year_has_are_not_allowed(engine: Engine, text: str):
    with pytest.raises(ValueError, match="grammar"):
        engine.check_grammar(schema_grammar({"type": "string", "format": "date"}), f'"{text}"')


def test_json_that_a_format_writes_by_itself_is_readable(engine: Engine):
    """llama.cpp's own rules allow numbers beyond every float and control characters in texts."""
    grammar, _ = calls(TOOL_TEMPLATE, WEATHER)
    own = with_root(grammar, 'json-value "."')
    for text in ("1e99.", "-0.25.", '"a\\n\\"\\u00e9".', '[1, {"a": null}].'):
        engine.check_grammar(own, text)
    for text in ("1e999", "1" * 17, '"\x01', '"\\ ', '"\x7f'):
        with pytest.raises(ValueError, match="grammar"):
            engine.check_grammar(own, text)


def test_a_schema_of_which_a_format_has_no_json_is_named():
    """Calls of some templates have texts as they are; numbers and objects are JSON there."""
    parameters = {
        "type": "object", "minProperties": 2,
        "properties": {
            "free": {"type": "string"}, "day": {"type": "string", "format": "date"},
            "n": {"type": "integer", "maximum": 5}, "any": {},
            "at": {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]},
        },
    }  # fmt: skip
    function = {"name": "f", "parameters": parameters}
    grammar, made = calls(TAGGED, function)
    place = "tools.f.parameters"
    assert made.unfollowed == [f"{place}.minProperties", f"{place}.properties.day"]
    numbers = re.search(r'"n" ">\\n"\) (tgr-\d+)', grammar)
    assert numbers, grammar
    texts, draw = Texts(with_root(grammar, numbers[1])), random.Random(1)
    assert all(json.loads(texts.draw(draw)) <= 5 for _ in range(20))
    assert calls(TOOL_TEMPLATE, function)[1].unfollowed == []
    assert made.complete("root ::= [a-z]*") == "root ::= [a-z]*"


def test_parameters_of_alternatives_are_there_in_every_format():
    parameters = {
        "type": "object", "properties": {"url": {"type": "string"}, "id": {"type": "integer"}},
        "anyOf": [{"required": ["url"]}, {"required": ["id"]}],
    }  # fmt: skip
    grammar, made = calls(TAGGED, {"name": "f", "parameters": parameters})
    assert "url" in grammar and "id" in grammar
    assert made.unfollowed == ["tools.f.parameters"]  # that one of them has to be there
    texts, draw = Texts(arguments(parameters)[0]), random.Random(1)
    valid = jsonschema_rs.validator_for(parameters)
    for _ in range(50):
        assert valid.is_valid(json.loads(texts.draw(draw)))


def test_a_property_that_is_named_as_our_rules_are_names_none():
    day = {"day": {"type": "string", "format": "date"}, "tgr-1": {"type": "integer"}}
    parameters = {"type": "object", "properties": day, "required": ["day"]}
    _, made = calls(TAGGED, {"name": "f", "parameters": parameters})
    assert made.unfollowed == ["tools.f.parameters.properties.day"]


def texts_of_names(n: int) -> list[str]:
    return [f"p{i}" for i in range(n)]


@pytest.mark.parametrize("parameters", [
    {"type": "object", "required": texts_of_names(60_000), "additionalProperties": False},
    {"type": "object", "properties": dict.fromkeys(texts_of_names(60_000), 3)},
    {"type": "object", "properties": {"n": {"allOf": [
        {"type": "integer", "multipleOf": 10**3900 + 2 * i + 1} for i in range(230)]}}},
    {"type": "object", "properties": {"n": {"allOf": [
        {"type": "integer", "multipleOf": 10**15 + 2 * i + 1} for i in range(5000)]}}},
], ids=["required", "properties", "huge steps", "steps"])  # fmt: skip
def test_the_work_for_many_names_and_steps_is_bounded(parameters: Any):
    made = followable([{"name": "f", "parameters": parameters}])
    (function,) = made.functions
    assert function["parameters"]["type"] == "object"


def test_a_number_that_is_none_is_no_fault():
    followable([{"name": "f", "parameters": {"properties": {"n": {"enum": [float("inf"), 1]}}}}])


def test_the_parts_of_a_recursive_schema_are_few():
    node = {
        "type": "object", "required": ["v"],
        "properties": {"v": {"type": "integer"}} | {
            f"n{i}": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]} for i in range(9)
        },
    }  # fmt: skip
    grammar, made = arguments({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert not made.unfollowed and len(json.dumps(made.functions)) < 40_000
    valid = jsonschema_rs.validator_for({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    texts, draw = Texts(grammar), random.Random(1)
    for _ in range(20):
        assert valid.is_valid(json.loads(texts.draw(draw)))


# --- what is not ---

STORE = {"type": "object", "required": ["v"]}
FREED: list[tuple[Any, list[str]]] = [
    (True, []),
    ({"type": "any"}, ["properties.v.type"]),
    ({"$ref": "#/$defs/Missing"}, ["properties.v.$ref"]),
    ({"$ref": "https://example.org/x.json"}, ["properties.v.$ref"]),
    ({"not": {}}, ["properties.v"]),
    (3, ["properties.v"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, []),
    ({"type": "array", "items": False}, []),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
     ["properties.v.uniqueItems"]),
    ({"type": "string", "default": {"maxItems": 5000}}, []),
    ({"type": "string", "pattern": "^(?!x)"}, ["properties.v.pattern"]),
    ({"$ref": "#"}, []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "names"), FREED, ids=lambda one: str(one)[:40])
def test_a_parameter_that_cannot_be_followed_is_freed_by_name(
    engine: Engine, schema: Any, names: list[str]
):
    """The call is forced all the same, and the prompt has the schema as it was given."""
    parameters = {**STORE, "properties": {"v": schema}}
    if schema == {"$ref": "#"}:  # not required, or it would have no end
        parameters = {"type": "object", "properties": {"v": schema}}
    function = {"name": "store", "parameters": parameters}
    request = chat_request(
        engine,
        {"messages": [{"role": "user", "content": "go"}], "tools": [tool(function)],
         "tool_choice": "required"},
    )  # fmt: skip
    assert list(request.ignored) == [f"tools.store.parameters.{name}" for name in names]
    assert request.form and "tgr-9007" not in request.form.grammar


@pytest.mark.parametrize("parameters", [{}, {"type": "object", "properties": None},
                                        {"type": "object", "properties": []}, None])  # fmt: skip
def test_parameters_without_any_are_no_fault(parameters: Any):
    grammar, made = arguments(parameters)
    assert not made.unfollowed and "string" not in grammar


@pytest.mark.parametrize("parameters", [[], 0, "x", True, False, {"type": "object", "required": 3}])
def test_parameters_that_are_no_schema_are_any_object(parameters: Any):
    grammar, _ = arguments(parameters)
    texts, draw = Texts(grammar), random.Random(1)
    assert all(isinstance(json.loads(texts.draw(draw)), dict) for _ in range(20))
