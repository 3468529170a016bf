"""Sends thousands of generated requests to a server, with extreme numbers, lengths and nesting, and
counts the answers; exit code 1 where a bound is broken.

Each request goes to a random endpoint of /openapi.json: a valid body in which some parameters, of
all endpoints, have other values. Several are sent at a time. The server must answer each within the
request's time limit and `SLACK` seconds with a status below 500, or 503 when that limit is over;
errors must have OpenAI's format, Anthropic's or Ollama's. It must stay below `--memory` MiB, stay
alive, answer /health, write no traceback, be idle at the end and obey SIGTERM. Request number i of
a seed is always the same: `--only` repeats some and prints them.

    python bench/fuzz_server.py --n 10000 --seed 0
    python bench/fuzz_server.py --only 17,4711
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from target import Answer, Target, Watch, seconds_until_idle, start

import tgr_local.server.app  # noqa: F401 - which loads the modules of all bodies
from tgr_local.apis.ollama import OllamaOptions
from tgr_local.apis.validation import RequestBody
from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig
from tgr_local.options.model_files import embedded_model

SLACK = 5.0
ERROR = {"message", "type", "param", "code"}
NUMBERS = [
    0, 1, 2, 3, 16, 100, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 10**6, 2**31 - 1, 2**31,
    2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**40, 10**4000, 0.5, 0.999999, 1e-300, 1e-9, 1e9,
    1e300, 0.1, 1.5,
]  # fmt: skip
WORDS = [
    "", " ", "\n", "\0", "a", "hello", "1+2=", "<think>", "</think>", "<|im_end|>", "<|im_start|>",
    "½", "日本", "👩‍👩‍👧", "\ud800", "\ufeff", "e\u0301\u0301\u0301", "{{7*7}}", "%s%n", "null",
    "-1", "../../etc",
    "text", "json_object", "json_schema", "float", "base64", "none", "auto", "user",
    "system", "assistant", "tool", *METHODS,
]  # fmt: skip
SCHEMAS: list[Any] = [
    {}, True, False, {"type": "string"}, {"type": "integer"}, {"type": "null"}, {"type": "object"},
    {"type": ["string", "null"]}, {"type": "array", "items": {"type": "number"}}, {"enum": [1]},
    {"const": None}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "boolean"}}}, {"pattern": "^[a-z]+$"},
    {"format": "date-time", "type": "string"}, {"not": {}}, {"type": "strnig"},
]  # fmt: skip
SCHEMA_KEYS = (
    "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "pattern", "properties",
    "required", "items", "prefixItems", "additionalProperties", "anyOf", "allOf", "oneOf", "enum",
    "const", "$ref", "$defs", "type", "format", "not",
)  # fmt: skip
GRAMMARS = [
    'root ::= "a"', "root ::= [a-z]+", "root ::= a", "root ::= (", "a ::= [b]", "", "root", "::=",
    'root ::= "a"{3}', 'root ::= "a"{2,1}', 'root ::= "a"{,999999}', 'root ::= ("a"{90}){90}',
    "root ::= root", 'root ::= "', "root ::= [^", "root ::= .*", 'root ::= "\\xZZ"', "root ::= ()*",
    "root ::= a* \n a ::= b*\n b ::= [x]*", "root ::= [a-z]{2147483648}",
]  # fmt: skip
IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "3"}]}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
BLOCKS: list[Any] = [
    [{"role": "user", "content": "1+2=?"}],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": [CALL]},
     {"role": "user", "content": [RESULT, {"type": "text", "text": "and?"}]}],
]  # fmt: skip
ITEMS: list[Any] = [
    "1+2=?",
    [{"role": "user", "content": "hi"}],
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
     {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]},
     {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
     {"type": "function_call_output", "call_id": "a", "output": "3"}],
]  # fmt: skip
MESSAGES: list[Any] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "user", "content": "a"},
     {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
     {"role": "tool", "tool_name": "f", "content": "3"}],
    [{"role": "user", "content": "hi", "images": ["AAAA"]}],
    [],
]  # fmt: skip
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL_FORMS: list[Any] = [
    {"type": "function", "function": FUNCTION}, FUNCTION, {"function": FUNCTION}, {"type": None},
    {"name": "f", "input_schema": {"type": "object"}}, {"functionDeclarations": [FUNCTION]},
    {"type": "custom", "custom": {"name": "apply_patch", "format": {}}}, {"type": "web_search"},
    {"type": "mcp", "server_label": "x", "server_url": "http://x"}, {},
]  # fmt: skip
"""Tools, as clients of other servers send them."""
EARLIER: list[dict[str, Any]] = [
    {"content": "3"}, {"content": "3", "reasoning": "h"}, {"content": "3", "thinking": "h"},
    {"content": "3", "reasoning_details": [{"type": "reasoning.text", "text": "h"}]},
    {"content": [{"type": "thinking", "thinking": "h"}, {"type": "text", "text": "3"}]},
    {"content": [{"type": "reasoning", "text": "h"}]}, {"content": "<think>h</think>3"},
    {"content": '{"name": "f", "arguments": {}}\n{"name": "f", "arguments": {"x": 1}}'},
    {"content": "<tools>\n[{\"name\": \"f\"}]\n</tools>", "tool_calls": []},
]  # fmt: skip
"""An earlier reply of the assistant: its thinking, and its calls as text."""
MORE: list[dict[str, Any]] = [
    {"reasoning": {"effort": "high"}}, {"plugins": [{"id": "web"}]}, {"models": ["a", "b"]},
    {"session_id": "a", "provider": {"order": ["a"]}, "route": "fallback"},
    {"top_n_sigma": 1.0, "typical_p": 0.9}, {"dynatemp_range": 0.5, "repeat_last_n": -1},
]  # fmt: skip


def bodies(above: type[RequestBody] = RequestBody) -> Iterator[type[RequestBody]]:
    """The bodies of the server's endpoints, and what they are made of."""
    for body in above.__subclasses__():
        yield body
        yield from bodies(body)


PARAMETERS = sorted(
    {name for body in bodies() if body.noun == "parameter" for name in body.model_fields}
)
OLLAMA_OPTIONS = sorted(OllamaOptions.model_fields)
OPTIONS = [spec.name for spec in dataclasses.fields(SearchConfig)] + ["method", "progress"]


@dataclass
class Case:
    """Request number `i`: method, path and body."""

    i: int
    verb: str
    path: str
    body: bytes

    def __str__(self) -> str:
        start = self.body[:1500].decode("utf-8", "replace")
        more = f" ... {len(self.body)} bytes" if len(self.body) > 1500 else ""
        return f"{self.verb} {self.path} {start}{more}"


# ---- requests ----


def number(rng: random.Random) -> int | float:
    value = rng.choice(NUMBERS)
    return -value if rng.random() < 0.3 else value


def length(rng: random.Random) -> int:
    """Mostly short, seldom very long."""
    return rng.choice([0, 1, 2, 3, 5, 9] * 12 + [100, 1000] * 3 + [30_000, 300_000])


def text(rng: random.Random) -> str:
    n = length(rng)
    word = rng.choice(WORDS)
    return word if rng.random() < 0.5 else (word * n)[: max(n, 1) * 2]


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON has."""
    kind = rng.choice(
        ["number", "number", "text", "text", "flag", "null", "list", "object", "deep"]
    )
    if kind == "number":
        return number(rng)
    if kind == "text":
        return text(rng)
    if kind == "flag":
        return rng.random() < 0.5
    if kind == "null" or depth > 2:
        return None
    if kind == "list":
        item = value(rng, depth + 1)
        few = [value(rng, depth + 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.6 or isinstance(item, list | dict):  # copies of those get too large
            return few
        return [item] * min(length(rng), 2_000_000 // (len(str(item)) + 1))
    if kind == "object":
        return {text(rng)[:40]: value(rng, depth + 1) for _ in range(rng.randrange(4))}
    inner: Any = number(rng)
    for _ in range(rng.choice([3, 30, 300, 900])):
        inner = [inner] if rng.random() < 0.5 else {"a": inner}
    return inner


def schema(rng: random.Random, depth: int = 0) -> Any:
    """A JSON schema, or nearly one."""
    form = rng.choice(SCHEMAS)
    if not isinstance(form, dict) or depth > 3:
        return form
    form = dict(form)
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        key = rng.choice(SCHEMA_KEYS)
        if key in ("properties", "$defs"):
            form[key] = {text(rng)[:20]: schema(rng, depth + 1) for _ in range(rng.randrange(3))}
        elif key in ("items", "not", "additionalProperties"):
            form[key] = schema(rng, depth + 1)
        elif key in ("anyOf", "allOf", "oneOf", "prefixItems"):
            form[key] = [schema(rng, depth + 1) for _ in range(rng.randrange(3))]
        elif key.startswith("m"):
            form[key] = number(rng)
        else:
            form[key] = value(rng, 2)
    return form


def good(rng: random.Random, path: str) -> dict[str, Any]:
    """A valid body of the endpoint that costs little."""
    if path == "/tokenize":
        return {"content": text(rng)}
    if path == "/detokenize":
        return {"tokens": [rng.randrange(200)] * min(length(rng), 1000)}
    if path == "/v1/embeddings":
        return {"input": rng.choice(["hello", ["a", "b"], [1, 2, 3]])}
    if path == "/v1/rerank":
        return {"query": text(rng), "documents": rng.choice([["a"], ["a", {"text": "b"}]])}
    if path.startswith("/models"):
        return {"model": text(rng)[:100]}
    n_tokens = rng.choice([1, 4, 16])
    if path.startswith("/api/"):
        return ollama(rng, path, n_tokens)
    if path.startswith("/v1/responses"):
        return {
            "input": copy.deepcopy(rng.choice(ITEMS)),
            "max_output_tokens": n_tokens,
            "tgr": {"max_seconds": 0.3},
        }
    if path == "/v1/messages/count_tokens":
        return {"messages": copy.deepcopy(rng.choice(BLOCKS))}
    body: dict[str, Any] = {"max_tokens": n_tokens, "tgr": {"max_seconds": 0.3}}
    if path == "/v1/messages":
        messages = {"messages": rng.choice(BLOCKS), "tools": rng.choice([[], TOOLS])}
        return body | copy.deepcopy(messages) | {"tool_choice": {"type": "none"}}
    if path == "/completion":
        return body | {"prompt": rng.choice(["1+2=", [1, "a", 3], ["a", "b"]])}
    if path == "/infill":
        return body | {"input_prefix": "a = ", "input_suffix": "\n"}
    if path == "/v1/completions":
        return body | {"prompt": rng.choice(["1+2=", [1, 2, 3], ["a", "b"]])}
    role = rng.choice(["user", "user", "system"])
    if rng.random() < 0.2:
        tools = rng.sample(TOOL_FORMS, rng.randrange(1, 4))
        body |= {"tools": copy.deepcopy(tools), "tool_choice": rng.choice(["none", "auto"])}
    if rng.random() < 0.1:
        body |= copy.deepcopy(rng.choice(MORE))
    messages = [{"role": role, "content": rng.choice(["hi", "1+2=?"])}]
    if rng.random() < 0.2:
        messages += [{"role": "assistant"} | copy.deepcopy(rng.choice(EARLIER)),
                  {"role": "user", "content": "and?"}]  # fmt: skip
    return body | {"messages": messages}


def ollama(rng: random.Random, path: str, n_tokens: int) -> dict[str, Any]:
    """A valid body of an endpoint of Ollama's."""
    if path == "/api/show":
        return {"model": text(rng)[:100]}
    if path == "/api/embed":
        return {"input": rng.choice(["hello", ["a", "b"], []])}
    if path == "/api/embeddings":
        return {"prompt": text(rng)}
    body: dict[str, Any] = {"options": {"num_predict": n_tokens}, "tgr": {"max_seconds": 0.3}}
    body |= {"format": rng.choice(["", "json", schema(rng)])} if rng.random() < 0.2 else {}
    if path == "/api/generate":
        return body | {"prompt": rng.choice(["hi", "1+2=?", ""]), "raw": rng.random() < 0.3}
    return body | {"messages": copy.deepcopy(rng.choice(MESSAGES))}


def changed(rng: random.Random, body: dict[str, Any], known: list[str]) -> None:
    """One change of a body, in place."""
    way = rng.choice(["option"] * 4 + ["field"] * 3 + ["schema", "grammar", "stop", "unknown",
                     "inside", "method", "drop", "stream"])  # fmt: skip
    options = body.get("tgr")
    if isinstance(body.get("options"), dict) and rng.random() < 0.2:
        body["options"][rng.choice(OLLAMA_OPTIONS)] = value(rng)
        return
    if way in ("option", "method") and isinstance(options, dict):
        name = rng.choice(OPTIONS)
        options[name] = number(rng) if rng.random() < 0.8 else value(rng)
        if way == "method":
            options["method"] = rng.choice(list(METHODS))
            options["chunk_len"] = rng.choice([1, 4, 16])
    elif way == "schema":
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(rng)}}
        body["response_format"] = form
    elif way == "grammar":
        body["grammar"] = rng.choice(GRAMMARS)
    elif way == "stop":
        body["stop"] = [text(rng) for _ in range(rng.choice([1, 2, 4, 5, 100]))]
    elif way == "unknown":
        body[text(rng)] = value(rng)
    elif way == "inside":
        nested = [part for part in body.values() if isinstance(part, list | dict) and part]
        if nested and isinstance(part := rng.choice(nested), dict):
            part[rng.choice(list(part))] = value(rng)
        elif nested:
            part[rng.randrange(len(part))] = value(rng)
    elif way == "drop":
        body.pop(rng.choice(list(body)), None) if body else None
    elif way == "stream":
        body["stream"] = True
    else:
        body[rng.choice(known)] = number(rng) if rng.random() < 0.4 else value(rng)


def generated(seed: int, i: int, paths: dict[str, str]) -> Case:
    """Request number i of a seed; `paths` are the endpoints and their verbs."""
    rng = random.Random(seed * 1_000_003 + i)
    posts = [path for path, verb in paths.items() if verb == "POST"]
    if rng.random() < 0.03:
        path, verb = rng.choice([pair for pair in paths.items() if pair[1] != "POST"])
        verb = rng.choice([verb, "DELETE"]) if "response_id" in path else verb
        return Case(i, verb, _filled(rng, path), b"")
    path = _filled(rng, rng.choice([*posts, "/v1/chat/completions", "/v1/completions"]))
    body: Any = good(rng, path)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3, 5])):
        changed(rng, body, PARAMETERS)
    if rng.random() < 0.02:
        body = value(rng)
    if i % 2:
        data = json.dumps(body).encode()
    else:
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.randbytes(rng.choice([0, 1, 3])) + data[at + rng.choice([0, 1]) :]
    return Case(i, "POST", path, data)


def _filled(rng: random.Random, path: str) -> str:
    """The path with something for each of its parameters."""
    return re.sub(r"\{\w+\}", lambda _: quote(_whole(text(rng)), safe="/"), path)


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:2000] or "a"


# ---- answers ----


@dataclass
class Outcome:
    """The outcome of a request; `failure` is empty if every bound held."""

    request: Case
    answer: Answer
    failure: str = ""


def ask(target: Target, request: Case, bound: float) -> Outcome:
    answer = target.ask(request.path, request.body, bound + 10, request.verb)
    status, text, failure = answer.status, answer.note, ""
    if not status:
        failure = f"no answer: {text}"
    elif status >= 500 and not (status == 503 and '"timeout"' in text):
        failure = f"status {status}: {text[:300]}"
    elif status >= 400 and not _is_error(text):
        failure = f"status {status} without an error in JSON: {text[:200]}"
    elif answer.seconds > bound:
        failure = f"took {answer.seconds:.1f} s of {bound:g}"
    return Outcome(request, answer, failure)


def _is_error(text: str) -> bool:
    try:
        body = json.loads(text)
        if isinstance(body["error"], str):
            return len(body) == 1
        return set(body["error"]) == ({"type", "message"} if body.get("type") == "error" else ERROR)
    except (ValueError, TypeError, KeyError):
        return False


def paths_of(target: Target) -> dict[str, str]:
    """Every endpoint of /openapi.json and its verb."""
    endpoints = json.loads(target.ask("/openapi.json", b"", 30, "GET").note)["paths"]
    return {path: next(iter(verbs)).upper() for path, verbs in sorted(endpoints.items())}


def run(arguments: argparse.Namespace, numbers: list[int]) -> Iterator[Outcome | str]:
    """The outcome of each request; a text is a failure of the server as a whole."""
    flags = [
        f"--model={arguments.model}", f"--request-seconds={arguments.request_seconds}",
        "--shutdown-seconds=1", f"--max-running={arguments.jobs}",
    ]  # fmt: skip
    bound, waiting, most = arguments.request_seconds + SLACK, collections.deque(numbers), 0
    while waiting:
        target = start(flags, arguments.cap << 20)
        paths = paths_of(target)

        def one(i: int, target: Target = target, paths: dict[str, str] = paths) -> Outcome | None:
            if not target.alive:
                return None
            return ask(target, generated(arguments.seed, i, paths), bound)

        watch = Watch(target, arguments.memory << 20)
        with watch, ThreadPoolExecutor(arguments.jobs) as pool:
            while waiting and target.alive:
                batch = [waiting.popleft() for _ in range(min(200, len(waiting)))]
                for i, outcome in zip(batch, pool.map(one, batch), strict=True):
                    if outcome:
                        yield outcome
                    else:
                        waiting.append(i)
        most = max(most, watch.peak)
        if not target.alive:
            yield f"the process ended: {target.end}"
            continue
        if watch.sick:
            yield watch.sick
        if seconds_until_idle(target, bound) == float("inf"):
            yield f"still busy {bound:g} s after the last reply"
        took, how = target.stop(1 + SLACK)
        if how != "exit code 0":
            yield f"SIGTERM: {how}"
        if any("Traceback" in line for line in target.lines):
            yield "a traceback on stderr"
        print(f"ended {took:.1f} s after SIGTERM with {how}")
    print(f"most memory: {most >> 20} MiB")
    if most > arguments.memory << 20:
        yield f"used {most >> 20} MiB, but may use {arguments.memory}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000, help="requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="numbers of requests to repeat and print")
    parser.add_argument("--jobs", type=int, default=4, help="requests at a time")
    parser.add_argument("--model", default=embedded_model(), help="GGUF file that is served")
    parser.add_argument("--request-seconds", type=float, default=2.0)
    parser.add_argument("--memory", type=int, default=1024, help="MiB that may be used at most")
    parser.add_argument("--cap", type=int, default=8192, help="MiB of address space of the server")
    arguments = parser.parse_args()
    only = [int(part) for part in arguments.only.split(",") if part]
    outcomes: list[Outcome] = []
    failures: list[str] = []
    begun = time.monotonic()
    folder = tempfile.TemporaryDirectory()
    arguments.folder = folder.name
    for outcome in run(arguments, only or list(range(arguments.n))):
        failure = outcome if isinstance(outcome, str) else outcome.failure
        if isinstance(outcome, Outcome):
            outcomes.append(outcome)
            if only:
                answer = outcome.answer
                took = f"{answer.status} {answer.seconds:.2f} s"
                print(f"{outcome.request}\n-> {took} {answer.note[:500]}")
            failure = failure and f"--seed {arguments.seed} --only {outcome.request.i}: {failure}"
        if failure:
            failures.append(failure)
            print("FAIL", failure[:400], flush=True)
    _sum_up(outcomes, time.monotonic() - begun)
    print(f"{len(failures)} failures" if failures else "passed")
    return int(bool(failures))


def _sum_up(outcomes: list[Outcome], seconds: float) -> None:
    print(f"{len(outcomes)} requests in {seconds:.0f} s")

    def key(outcome: Outcome) -> tuple[str, int]:
        path = outcome.request.path
        path = "answer-now" if "answer-now" in path else path
        verb = outcome.request.verb
        return path if verb == "POST" else verb, outcome.answer.status

    for (path, status), n in sorted(collections.Counter(map(key, outcomes)).items()):
        print(f"  {path:24} {status or 'none':>4} {n:6}")
    for outcome in sorted(outcomes, key=lambda outcome: -outcome.answer.seconds)[:5]:
        seconds, status = outcome.answer.seconds, outcome.answer.status
        print(f"  slowest: {seconds:.2f} s, {status}, --only {outcome.request.i}")


if __name__ == "__main__":
    sys.exit(main())
