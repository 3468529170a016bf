"""Schemas whose definitions lead to the next one several times, by every keyword that combines
schemas: whoever follows each way by itself never ends. Each is read in a forked process, as a
response format and as the parameters of a function, with bounds of CPU time and memory.

    python bench/schema_dags.py --n 5000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tgr_local.generation.schemas import Followable, SchemaError, followable, schema_grammar

SECONDS, MIB = 2.0, 200  # of one schema: CPU time, and memory beyond what the process had

Refs = list[dict[str, str]]
Step = Callable[[int, Refs], dict[str, Any]]


def _object(*, required: bool = False, **properties: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "object", "properties": properties}
    return form | ({"required": list(properties)} if required else {})


def _named(refs: Refs) -> dict[str, Any]:
    return {f"p{i}": ref for i, ref in enumerate(refs)}


# what a level makes of references to the next: its number, and as many references as it has
STEPS: dict[str, Step] = {
    "anyOf": lambda _, refs: {"anyOf": refs},
    "oneOf": lambda _, refs: {"oneOf": refs},
    "allOf": lambda _, refs: {"allOf": refs},
    "anyOf and allOf": lambda _, refs: {"anyOf": refs, "allOf": refs},
    "anyOf times anyOf": lambda _, refs: {
        "allOf": [{"anyOf": [ref, {"type": "null"}]} for ref in refs]
    },
    "anyOf with titles": lambda _, refs: {
        "anyOf": [{"allOf": [ref], "title": str(i)} for i, ref in enumerate(refs)]
    },
    "anyOf of one": lambda _, refs: {"anyOf": refs[:1]},
    "anyOf of types": lambda _, refs: {
        "anyOf": [{"type": ["string", "object"], "allOf": [ref]} for ref in refs]
    },
    "anyOf of lengths": lambda i, refs: {
        "anyOf": [{"maxLength": 90 + i + n, "allOf": [ref]} for n, ref in enumerate(refs)]
    },
    "type": lambda _, refs: {"type": ["string", "null"], "anyOf": refs},
    "enum": lambda _, refs: {"enum": ["a", 1, None, {"a": 1}], "anyOf": refs},
    "enum in allOf": lambda _, refs: {"allOf": [{"enum": [{"a": 1}, {"b": 2}]}, {"anyOf": refs}]},
    "const": lambda _, refs: {"anyOf": [{"const": {"p0": "a"}}, *refs]},
    "not": lambda _, refs: {"not": {"anyOf": refs}},
    "not of properties": lambda _, refs: (
        _object(a=refs[0]) | {"not": _object(required=True, a=refs[-1])}
    ),
    "properties": lambda _, refs: _object(required=True, **_named(refs)),
    "optional properties": lambda _, refs: _object(**_named(refs)),
    "items": lambda _, refs: {"type": "array", "prefixItems": refs, "minItems": len(refs)},
    "anyOf of objects": lambda _, refs: {
        "anyOf": [_object(**{name: ref}) for name, ref in _named(refs).items()]
    },
    "allOf of objects": lambda _, refs: {"allOf": [_object(a=ref) for ref in refs]},
    "allOf within objects": lambda i, refs: {
        "allOf": [_object(a={"allOf": [ref], "title": str(i)}) for ref in refs]
    },
    "oneOf of objects": lambda _, refs: {
        "oneOf": [_object(required=True, **{name: ref}) for name, ref in _named(refs).items()]
    },
    "oneOf of kinds": lambda _, refs: {
        "oneOf": [_object(required=True, kind={"const": i}, v=ref) for i, ref in enumerate(refs)]
    },
    "propertyNames": lambda _, refs: {"type": "object", "propertyNames": {"anyOf": refs}},
    "patternProperties": lambda _, refs: {
        "type": "object", "patternProperties": {f"^{'a' * (i + 1)}": r for i, r in enumerate(refs)},
    },
    "patterns in allOf": lambda i, refs: {
        "allOf": [{"type": "object", "patternProperties": {f"^x{i}": ref}} for ref in refs]
    },
    "additionalProperties": lambda _, refs: _object(a=refs[0]) | {"additionalProperties": refs[-1]},
    "contains": lambda _, refs: {"type": "array", "contains": refs[0], "items": refs[-1]},
    "dependentSchemas": lambda _, refs: {"type": "object", "dependentSchemas": {"a": refs[0]}},
    "if": lambda _, refs: {"if": refs[0], "then": refs[-1], "else": refs[-1]},
    "unevaluatedProperties": lambda _, refs: {"allOf": refs, "unevaluatedProperties": False},
    "unevaluatedItems": lambda _, refs: {"allOf": refs, "unevaluatedItems": False},
    "a branch that fails": lambda _, refs: {"anyOf": [*refs, {"pattern": "^(?!x)"}]},
}  # fmt: skip
LEAVES: list[Any] = [
    {"type": "string"}, _object(a={"type": "string"}), {}, {"enum": ["a", 1, None]}, False, True,
    {"type": "number", "minimum": 3}, {"pattern": "^(?!x)"}, {"$ref": "#/$defs/none"},
    {"type": "array", "items": {"type": "integer"}}, {"$ref": "#/$defs/d0"}, {"$ref": "#"},
]  # fmt: skip


def doubling(kind: str, depth: int, leaf: Any) -> dict[str, Any]:
    """A schema of one kind whose every level leads to the next one twice."""
    levels = {
        f"d{i}": STEPS[kind](i, [{"$ref": f"#/$defs/d{i + 1}"} for _ in "12"]) for i in range(depth)
    }
    shared = {"$defs": levels | {f"d{depth}": leaf}, "$ref": "#/$defs/d0"}
    separate: dict[str, Any] = json.loads(json.dumps(shared))  # each part an object of its own
    return separate


def schema(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A schema, each part of which is an object of its own as in JSON, and what it is made of."""
    depth = draw.randint(1, 60)
    kinds = draw.sample(list(STEPS), draw.randint(1, 3))
    together = draw.random() < 0.3  # the keywords of all kinds, or of one in turn
    levels: dict[str, Any] = {}
    for i in range(depth):
        level: dict[str, Any] = {}
        for kind in kinds if together else [draw.choice(kinds)]:
            refs = [{"$ref": f"#/$defs/d{i + 1}"} for _ in range(draw.randint(2, 4))]
            if draw.random() < 0.05 and i + 1 < depth:
                refs[-1] = {"$ref": f"#/$defs/d{draw.randint(i + 1, depth)}"}
            level |= STEPS[kind](i, refs)
        levels[f"d{i}"] = level
    leaf = draw.choice(LEAVES)
    shared = {"$defs": levels | {f"d{depth}": leaf}, "$ref": "#/$defs/d0"}
    separate: dict[str, Any] = json.loads(json.dumps(shared))
    return f"{' + '.join(kinds)}, {depth} deep, ends with {json.dumps(leaf)}", separate


def call_grammar(several: list[Any]) -> tuple[str, Followable]:
    """GBNF of the arguments of functions with such parameters, as a call in JSON has them, and what
    was read."""
    followed = followable([{"name": f"f{i}", "parameters": form} for i, form in enumerate(several)])
    shapes = [function["parameters"] for function in followed.functions]
    marks = [form["additionalProperties"]["const"] for s in shapes for form in s.get("anyOf", [s])]
    root = " | ".join(f"tgr-{mark}" for mark in marks)
    return followed.complete(
        f'root ::= {root}\nspace ::= | " " | "\\n"{{1,2}} [ \\t]{{0,20}}\n'
    ), followed


def read(form: dict[str, Any]) -> str:
    """What comes of a schema."""
    call_grammar([form, _object(a=form)])
    try:
        return f"a grammar of {len(schema_grammar(form)) >> 10} kB"
    except SchemaError as error:
        text = str(error)
        clear = text and "\n" not in text and len(text) < 600
        return f"refused: {text.rpartition(' ')[2]}" if clear else f"UNCLEAR {text!r:.300}"


def outcome(form: dict[str, Any]) -> tuple[str, float, int]:
    """What comes of a schema in a process of its own, with its CPU seconds and its memory in
    MiB."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS) * 3, int(SECONDS) * 3 + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        at_start, start = _resident(), time.process_time()
        try:
            text = read(form)
        except BaseException as error:
            text = f"UNEXPECTED {type(error).__name__}: {error}"
        used = time.process_time() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        os.write(theirs, json.dumps([text[:400], used, peak - at_start]).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not said:
        return f"ENDED with status {status}", SECONDS * 3, 0
    text, seconds, mib = json.loads(said)
    return text, seconds, mib


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=5000, help="schemas (5000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    counts: collections.Counter[str] = collections.Counter()
    slowest, largest, n_bad = 0.0, 0, 0
    for i in range(options.n):
        name, form = schema(draw)
        text, seconds, mib = outcome(form)
        slowest, largest = max(slowest, seconds), max(largest, mib)
        counts[text.split()[0].rstrip(":")] += 1
        if text.split()[0].isupper() or seconds > SECONDS or mib > MIB:
            n_bad += 1
            print(f"{i}: {name}: {text}, {seconds:.2f} s, {mib} MiB", flush=True)
    ends = ", ".join(f"{n:,} {name}" for name, n in counts.most_common())
    print(f"{options.n:,} schemas: {ends}; at most {slowest:.2f} s and {largest} MiB; {n_bad} bad")
    return min(n_bad, 1)


if __name__ == "__main__":
    sys.exit(main())
