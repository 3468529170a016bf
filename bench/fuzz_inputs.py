"""Fuzzing, by Atheris (libFuzzer), of what strangers can send: texts for the tokenizer, grammars,
chat templates, bodies of requests.

    pip install atheris
    python bench/fuzz_inputs.py grammar --seconds 3600

For requests the Python code is instrumented and guides the search. Native code is not instrumented,
so its inputs are made of pieces of valid ones instead; fuzz_native.sh builds it so that it guides
the search too (`--guided`). A crash ends this process, and is reported with the input. What must
hold: a text comes back from its tokens; whatever is refused is refused in one line with an error
that is meant for it; every input takes less than `--each` seconds. Inputs that failed, or were
slow, stay in `build/fuzz`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import fuzz_server
from fuzz_files import change_bytes
from hostile_templates import template

from tgr_local.apis import messages, native, requests, responses
from tgr_local.apis.response_store import Responses
from tgr_local.engine import Engine
from tgr_local.generation.schemas import followable, schema_grammar
from tgr_local.options.model_files import embedded_model
from tgr_local.server import bodies
from tgr_local.server.errors import ApiError
from tgr_local.system import confined
from tgr_local.system.errors import TgrError

STORE = Responses(8, 1 << 20).of(b"")
ROOT = Path(__file__).parents[1] / "build" / "fuzz"
PATHS = {
    "/v1/chat/completions": lambda engine, body: requests.chat_request(engine, body),
    "/v1/completions": lambda engine, body: requests.completion_request(engine, body),
    "/v1/messages": lambda engine, body: messages.messages_request(engine, body),
    "/v1/responses": lambda engine, body: responses.responses_request(engine, body, store=STORE),
    "/completion": lambda engine, body: native.native_request(engine, body),
    "/infill": lambda engine, body: native.infill_request(engine, body),
}  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
INSTRUMENTED = ("tgr_local.apis", "tgr_local.options", "tgr_local.server.bodies")

Target = Callable[[Engine, bytes], None]


def tokenizer(engine: Engine, data: bytes) -> None:
    text = data.decode("utf-8", "replace").replace("\0", "")
    tokens = engine.tokenize(text, parse_special=False)
    if engine.detokenize(tokens) != text.encode():
        raise AssertionError(f"{text!r} does not come back")
    assert all(0 <= token < engine.n_vocab for token in engine.tokenize(text, add_special=True))


def grammar(engine: Engine, data: bytes) -> None:
    engine.check_grammar(data.decode("utf-8", "replace"))


def chat_template(engine: Engine, data: bytes) -> None:
    request = {"messages": MESSAGES, "only_prompt": True}
    confined.apply_template(data.decode("utf-8", "replace"), "<s>", "</s>", request)


def schema(engine: Engine, data: bytes) -> None:
    """As a response's format, and as the parameters of a function."""
    value = dict(bodies.parsed(data))
    engine.check_grammar(schema_grammar(value))
    engine.check_grammar(converted(value))


def converted(schema: dict[str, Any]) -> str:
    """The grammar of calls of a function with such parameters."""
    functions = followable([{"name": "f", "description": "", "parameters": schema}])
    tools = [{"type": "function", "function": function} for function in functions.functions]
    request = {"messages": MESSAGES, "tools": tools, "tool_choice": "required"}
    return functions.complete(confined.apply_template(TEMPLATE, "<s>", "</s>", request)["grammar"])


def request(engine: Engine, data: bytes) -> None:
    """The first byte chooses the endpoint."""
    read = list(PATHS.values())[(data[:1] or b"0")[0] % len(PATHS)]
    read(engine, dict(bodies.parsed(data[1:])))


TARGETS: dict[str, Target] = {
    "tokenizer": tokenizer,
    "grammar": grammar,
    "template": chat_template,
    "schema": schema,
    "request": request,
}


def seeds(name: str) -> Iterator[bytes]:
    """Inputs to begin with."""
    draw = random.Random(0)
    if name == "tokenizer":
        yield from (word.encode("utf-8", "replace") for word in fuzz_server.WORDS)
    elif name == "grammar":
        yield from (text.encode() for text in fuzz_server.GRAMMARS)
        for _ in range(30):
            schema = fuzz_server.schema(draw)
            with contextlib.suppress(TgrError, ValueError):
                yield converted(schema).encode()[:4000]
    elif name == "template":
        yield from (template(draw).encode("utf-8", "replace") for _ in range(100))
    elif name == "schema":
        yield from (json.dumps(fuzz_server.schema(draw)).encode()[:4000] for _ in range(100))
    else:
        for at, path in enumerate(PATHS):
            for _ in range(20):
                body = fuzz_server.good(draw, path)
                for _ in range(draw.choice([0, 0, 1, 3])):
                    fuzz_server.changed(draw, body, fuzz_server.PARAMETERS)
                yield bytes([at]) + json.dumps(body).encode()[:4000]


def instrument() -> None:
    """Makes the functions that read requests report what of them is reached. (As modules they would
    have to be found by Python's own finder, which those of an editable installation are not.)"""
    for thing in gc.get_objects():
        module = str(getattr(thing, "__module__", ""))
        if isinstance(thing, types.FunctionType) and module.startswith(INSTRUMENTED):
            with contextlib.suppress(Exception):  # bytecode that Atheris cannot change
                atheris.instrument_func(thing)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--each", type=int, default=60, help="seconds of an input at most (60)")
    parser.add_argument("--guided", action="store_true", help="by native code; see fuzz_native.sh")
    arguments = parser.parse_args()
    corpus = ROOT / arguments.target
    corpus.mkdir(parents=True, exist_ok=True)
    samples = list(seeds(arguments.target))
    for number, data in enumerate(samples):
        (corpus / f"seed-{number}").write_bytes(data)
    target = TARGETS[arguments.target]
    engine = Engine(embedded_model())

    def run_sample(data: bytes) -> None:
        try:
            target(engine, data)
        except (TgrError, ValueError, ApiError) as error:
            text = str(error)
            if "\n" in text.strip() or not text.strip():
                raise AssertionError(f"unclear: {text!r}") from error

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """Damage to a seed, or to two that are joined."""
        draw = random.Random(seed)
        if draw.random() < 0.2 and arguments.target == "template":
            sample = template(draw).encode("utf-8", "replace")
        elif draw.random() < 0.3:
            a, b = draw.choice(samples), draw.choice(samples)
            sample = a[: draw.randrange(len(a) + 1)] + b[draw.randrange(len(b) + 1) :]
        else:
            sample = draw.choice(samples)
        return (change_bytes(draw, sample) if draw.random() < 0.9 else sample)[:most]

    flags = [f"-max_total_time={arguments.seconds}", f"-timeout={arguments.each}"]
    flags += ["-rss_limit_mb=2048", "-max_len=4096", f"-artifact_prefix={ROOT}/found-"]
    if arguments.guided:
        sys.frozen = True  # type: ignore[attr-defined]  # no confined process: templates run in this one
        atheris.Setup([sys.argv[0], *flags, str(corpus)], run_sample)
    elif target is request:
        instrument()
        atheris.Setup([sys.argv[0], *flags, str(corpus)], run_sample)
    else:
        flags.append("-len_control=0")
        atheris.Setup([sys.argv[0], *flags], run_sample, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
