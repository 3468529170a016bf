"""Request bodies that need much memory or time unless they are bounded; attack.py sends them.

Each is a path and a function that makes the body, since together they are large.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable
from typing import Any

from schema_dags import STEPS, doubling

from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig

Body = tuple[str, Callable[[], bytes]]

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HUGE = 2_000_000_000
INT_MAX = 2**31 - 1
ENDPOINTS = (CHAT, COMPLETION, "/infill", "/v1/embeddings", "/tokenize", "/detokenize")
# the methods that read an option; the others go with the default method
_METHOD_OF = {
    "n_samples": "best-of-n", "power_": "power", "tree_": "tot",
    "kappa_max": "hard-geometry",
}  # fmt: skip


_DAG_LEAF = {"type": ["string", "object"], "properties": {"a": {"enum": ["b", None]}}}


def dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def chat(**more: Any) -> Callable[[], bytes]:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}
    return lambda: dumped(body | more)


def completion(**more: Any) -> Callable[[], bytes]:
    return lambda: dumped({"prompt": "1+2=", "max_tokens": 16} | more)


def tgr(method: str, **options: Any) -> Body:
    """A completion of several chunks with these options, for two seconds."""
    more = {"method": method, "chunk_len": 16, "max_seconds": 2} | options
    return COMPLETION, completion(max_tokens=400, tgr=more)


def schema(make: Callable[[], Any]) -> Body:
    def body() -> bytes:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": make()}}
        return chat(response_format=form)()

    return CHAT, body


def grammar(make: Callable[[], str]) -> Body:
    return CHAT, lambda: chat(grammar=make())()


def _nested(n: int, inner: Any, wrap: Callable[[Any, int], Any]) -> Any:
    for i in range(n):
        inner = wrap(inner, i)
    return inner


def _array(items: Any, n: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": n, "maxItems": n}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _doubling(n: int) -> dict[str, Any]:
    """Each definition is two of the next."""
    ends: dict[str, Any] = {f"d{n}": {"type": "null"}}
    for i in range(n):
        reference = {"$ref": f"#/$defs/d{i + 1}"}
        ends[f"d{i}"] = {"anyOf": [_object({"a": reference, "b": reference}, "a", "b"), reference]}
    return {"$defs": ends, "$ref": "#/$defs/d0"}


def expensive() -> dict[str, Body]:
    """Those that are also sent by clients that leave, and before SIGTERM."""
    text, cjk = {"type": "string"}, range(0x4E00, 0x4E00 + 700)

    def long_names() -> Any:
        return _nested(200, text, lambda inner, i: _object({"a" * 16_000 + str(i): inner}))

    tgr_latent = {"rollout_len": 4000, "n_candidates": 255, "n_mc": 64, "reevaluate": 255}
    return {
        "schema: minLength": schema(lambda: text | {"minLength": HUGE}),
        "schema: maxLength": schema(lambda: text | {"maxLength": HUGE}),
        "schema: minItems": schema(lambda: {"type": "array", "items": text, "minItems": HUGE}),
        "schema: repetitions that multiply": schema(
            lambda: _nested(4, text | {"minLength": 900, "maxLength": 900},
                            lambda inner, _: _array(inner, 900))
        ),
        "schema: lengths below each other": schema(
            lambda: _nested(9, text | {"minLength": 9, "maxLength": 99999},
                            lambda inner, i: _object({"a": inner, "b": inner}))
        ),
        "schema: 3.2 MB of nested names": schema(long_names),
        "schema: 700 CJK names": schema(
            lambda: _object({chr(code): {"type": "null"} for code in cjk})
        ),
        "schema: 700 CJK names, required": schema(
            lambda: _object({chr(c): {"type": "null"} for c in cjk}, *map(chr, cjk))
        ),
        "schema: pattern {2000000000}": schema(lambda: text | {"pattern": "^a{2000000000}$"}),
        "schema: pattern of patterns": schema(
            lambda: text | {"pattern": "^(((a{1,900}){1,900}){1,900}){1,900}$"}
        ),
        "schema: $ref of itself": schema(
            lambda: {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"},
                                                   "b": {"$ref": "#/$defs/a"}}}
        ),
        "schema: $ref that doubles": schema(lambda: _doubling(60)),
        "schema: enum of 1 MB": schema(lambda: {"enum": [f"{i:09}" for i in range(90_000)]}),
        "schema: anyOf of 50,000": schema(lambda: {"anyOf": [text] * 50_000}),
        "schema: integer bounds": schema(
            lambda: {"type": "integer", "minimum": -(10**4000), "maximum": 10**4000}
        ),
        "grammar: {1,2000000000}": grammar(lambda: 'root ::= "a"{1,2000000000}'),
        "grammar: repetitions that multiply": grammar(
            lambda: "root ::= " + _nested(6, '"a"', lambda inner, _: f"({inner}){{1,999}}")
        ),
        "grammar: 1 MB of alternatives": grammar(
            lambda: "root ::= " + " | ".join(f'"{i}"' for i in range(100_000))
        ),
        "grammar: 100,000 rules": grammar(
            lambda: "root ::= a0\n" + "".join(f"a{i} ::= a{i + 1}\n" for i in range(100_000))
            + "a100000 ::= [a]"
        ),
        "grammar: ambiguous": grammar(lambda: "root ::= " + '[a-z]* ' * 3000),
        "grammar: exponential": grammar(lambda: 'root ::= (([a-z]* [a-z]*)* ([a-z]* [a-z]*)*)*'),
        "grammar: 100,000 parentheses": grammar(
            lambda: "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000
        ),
        "grammar: left recursion": grammar(lambda: 'root ::= root "a" | root root | "a"'),
        "option: rank and d_z": tgr("tgr-latent", rank=4096, d_z=65536),
        "option: rollouts": tgr("tgr-latent", **tgr_latent),
        "option: power_steps": tgr("power", power_steps=INT_MAX),
        "option: proposals": tgr("hard-geometry", kappa_max=0.0, d_z=65536, n_candidates=255),
        "option: thoughts": tgr("tot", tree_breadth=64, tree_proposals=64),
        "option: samples": tgr("best-of-n", n_samples=255, chunk_len=4000),
        "32 replies": (COMPLETION, completion(n=32, max_tokens=4000)),
        "stop: 1 MB": (COMPLETION, completion(max_tokens=400, stop="x" * 1_000_000)),
        "stop: 4 of 250 kB": (
            COMPLETION, completion(max_tokens=400, stop=[c * 250_000 for c in "abcd"])
        ),
        "stop: 300,000 texts": (
            COMPLETION, lambda: completion(stop=[f"{i:06}" for i in range(300_000)])()
        ),
        "tokenize: 4 MB with pieces": (
            "/tokenize", lambda: dumped({"content": "1+2=3 " * 690_000, "with_pieces": True})
        ),
        "detokenize: 2,000,000 ids": ("/detokenize", lambda: dumped({"tokens": [1] * 2_000_000})
                                      .replace(b" ", b"")),
        "a prompt of 4 MB": (COMPLETION, lambda: completion(prompt="1+2=3 " * 690_000)()),
        "a chat of 100,000 messages": (
            CHAT, lambda: chat(messages=[{"role": "user", "content": "a"}] * 100_000)()
        ),
    }  # fmt: skip


def plain() -> dict[str, Body]:
    """Large bodies, otherwise ordinary."""
    long, text = "x" * 4_000_000, {"type": "null"}
    dags = {
        f"schema: {kind}, doubled 60 times": schema(lambda kind=kind: doubling(kind, 60, _DAG_LEAF))
        for kind in STEPS
    }
    return dags | {
        "schema: pattern that backtracks": schema(
            lambda: {"type": "string", "pattern": "^(a+)+$" + "(b|b)*" * 5000}
        ),
        "schema: const of 1 MB": schema(lambda: {"const": "a" * 1_000_000}),
        "schema: from another host": schema(lambda: {"$ref": "https://127.0.0.1:1/a.json"}),
        "schema: 900 deep": schema(
            lambda: _nested(900, {"type": "null"}, lambda inner, _: _array(inner, 1))
        ),
        "schema: allOf that multiplies": schema(
            lambda: {"allOf": [{"anyOf": [_object({f"p{i}{j}": text}) for j in range(40)]}
                               for i in range(40)]}
        ),
        "schema: minItems of enums": schema(
            lambda: _array({"enum": list(range(10_000))}, 1000)
        ),
        "grammar: a name of 1 MB": grammar(lambda: "root ::= " + "a" * 1_000_000),
        "grammar: a text of 1 MB": grammar(lambda: 'root ::= "' + "a" * 1_000_000 + '"'),
        "grammar: a class of 1 MB": grammar(lambda: "root ::= [" + "a-z" * 300_000 + "]"),
        "grammar: 4 MB of spaces": grammar(lambda: "root ::= " + " " * 4_000_000),
        "grammar: {0,} of nothing": grammar(lambda: 'root ::= (""*)* ((""){0,})*'),
        "stop: never met, one letter each": (
            COMPLETION, completion(max_tokens=400, stop=[chr(i) for i in range(256, 9000)])
        ),
        "a parameter of 2 MB": (COMPLETION, lambda: completion(**{"x" * 2_000_000: 1})()),
        "an option of 2 MB": tgr("tgr-latent", **{"x" * 2_000_000: 1}),
        "100,000 parameters": (
            COMPLETION, lambda: completion(**{f"p{i}": 1 for i in range(100_000)})()
        ),
        "a method of 4 MB": (COMPLETION, lambda: completion(tgr={"method": long})()),
        "a model of 4 MB": (COMPLETION, lambda: completion(model=long[1:])()),
        "a model of 4 MB with a method": (COMPLETION, lambda: completion(model=f":{long[9:]}")()),
        "a bias of 300,000 tokens": (
            COMPLETION, lambda: completion(logit_bias={f"{i:07}": 1 for i in range(300_000)})()
        ),
        "a bias of 4,000,000 digits": (
            COMPLETION, lambda: completion(logit_bias={"1" * 4_000_000: 1})()
        ),
        "100,000 prompts": (COMPLETION, lambda: completion(prompt=["a"] * 100_000)()),
        "32 prompts of 100 kB": (COMPLETION, lambda: completion(prompt=["1+2=" * 25_000] * 32)()),
        "1,000,000 token ids": (COMPLETION, lambda: completion(prompt=[1] * 1_000_000)()),
        "best_of 32 with 255 samples": (
            COMPLETION, completion(best_of=32, tgr={"method": "best-of-n", "n_samples": 255})
        ),
        "a chat of 4 MB": (CHAT, lambda: chat(messages=[{"role": "user", "content": long}])()),
        "a chat of 300,000 parts": (
            CHAT, lambda: chat(messages=[{"role": "user", "content":
                                         [{"text": ""}] * 300_000}])()
        ),
        "an embedding of 4 MB": ("/v1/embeddings", lambda: dumped({"input": long[9:]})),
        "32 embeddings of 100 kB": (
            "/v1/embeddings", lambda: dumped({"input": ["ab " * 33_000] * 32})
        ),
        "infill of 4 MB": (
            "/infill", lambda: dumped({"input_prefix": long[: 1 << 21], "input_suffix": long[:999]})
        ),
        "infill of 200,000 files": (
            "/infill", lambda: dumped({"input_prefix": "", "input_suffix": "",
                                       "input_extra": [{"text": "a"}] * 200_000})
        ),
        "tokenize: 4 MB": ("/tokenize", lambda: dumped({"content": long[99:]})),
        "tokenize: 4 MB of one word": ("/tokenize", lambda: dumped({"content": "ab" * 2_000_000})),
        "tokenize: 4 MB of specials": (
            "/tokenize", lambda: dumped({"content": "<|im_end|>" * 400_000})
        ),
        "tokenize: 4 MB of NUL": (
            "/tokenize", lambda: b'{"content": "' + b"\\u0000" * 690_000 + b'"}'
        ),
        "GET /metrics": ("/metrics", lambda: b""),
    }  # fmt: skip


def judged() -> dict[str, tuple[str, Callable[[], bytes], set[int]]]:
    """Bodies that must be refused or accepted: path, body, and the expected statuses."""
    refused = {400, 413, 422}
    bad_json = {
        "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
        "objects 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "a number of 1,000,000 digits": b'{"seed": ' + b"1" * 1_000_000 + b"}",
        "a number of 5,000 digits": b'{"max_tokens": -' + b"9" * 5000 + b"}",
        "1e400": b'{"temperature": 1e400, "prompt": "a"}',
        "NaN": b'{"temperature": NaN, "prompt": "a"}',
        "-Infinity": b'{"prompt": "a", "max_tokens": -Infinity}',
        "no end": b'{"prompt": "',
        "no UTF-8": b'{"prompt": "\xff\xfe"}',
    }
    bodies: dict[str, tuple[str, Callable[[], bytes], set[int]]] = {}
    for path in ENDPOINTS:
        for name, data in bad_json.items():
            bodies[f"JSON: {name}: {path}"] = path, lambda data=data: data, refused
        surrogate = b'{"prompt": "\\ud800", "content": "\\udfff", "input": "\\ud800", "tokens": 1}'
        bodies[f"JSON: half a surrogate: {path}"] = path, lambda data=surrogate: data, refused
    twice = b'{"prompt": 1, "max_tokens": 0, "max_tokens": 2, "prompt": "a"}'
    bodies["JSON: keys twice"] = COMPLETION, lambda: twice, {200, 400}
    million = b'{"prompt": "a", ' + b'"seed": 1, ' * 300_000 + b'"max_tokens": 1}'
    bodies["JSON: a key 300,000 times"] = COMPLETION, lambda: million, {200, 400}
    for name, text in (
        ("unknown rule", "root ::= nope"),
        ("no rule", "root ::= ("),
        ("no root", "a ::= [a]"),
    ):
        body = chat(grammar=text, max_tokens=2, chat_template_kwargs={"enable_thinking": True})
        bodies[f"grammar: {name}, all is thinking"] = CHAT, body, {400}
        bodies[f"grammar: {name}"] = COMPLETION, completion(grammar=text), {400}
    return bodies


def options() -> dict[str, Body]:
    """Every option of the search at its upper bound, or far out where it has none."""
    bodies = {}
    types = typing.get_type_hints(SearchConfig)
    for spec in dataclasses.fields(SearchConfig):
        high = spec.metadata["high"]
        value: Any = {int: high or INT_MAX, float: high or 1e300, bool: True}.get(types[spec.name])
        if value is None:
            continue
        near = [name for start, name in _METHOD_OF.items() if spec.name.startswith(start)]
        for method in near or ["tgr-latent"]:
            bodies[f"option at its bound: {spec.name}"] = tgr(method, **{spec.name: value})
    for method in METHODS:
        bodies[f"method: {method}, wide"] = tgr(
            method, n_candidates=255, n_mc=64, rollout_len=64, n_samples=255, tree_breadth=64,
            tree_proposals=64, power_steps=INT_MAX, reevaluate=255,
        )  # fmt: skip
        bodies[f"method: {method}, long"] = (
            COMPLETION,
            completion(max_tokens=INT_MAX, tgr={"method": method, "chunk_len": INT_MAX}),
        )
    return bodies
