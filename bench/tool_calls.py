"""Calls with random schemas, forced by their grammar on a model of random weights.

    python bench/tool_calls.py [--n 1000] [--template FILE] [--apis chat messages responses]

Every schema is asked for through each API, whole and streamed, with one seed. A call counts as good
when its arguments parse and its schema allows them; the arguments that are streamed together must
be those of the whole, and every API must give the same. Prints the counts; exits with 1 when any is
not complete.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import httpx
import jsonschema_rs
from serving import served
from tool_models import write_tool_model

Call = tuple[str, str]
"""A name and arguments."""


def schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of values that short texts can be."""
    kinds = ["integer", "number", "boolean", "string", "enum", "const", "null", "any"]
    kind = draw.choice(kinds + ["array", "object"] * (depth < 2))
    if kind == "integer":
        low = draw.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 1000)}
    if kind == "string":
        least = draw.randint(0, 3)
        letters = draw.choice(["[a-z]", "[0-9A-F]", "(ab|c)"])  # bytes alone are no characters
        return {"type": "string", "pattern": f"^{letters}{{{least},{least + 6}}}$"}
    if kind == "enum":
        return {"enum": draw.sample(["red", "green", "blue", 1, 2.5, None, True, "é", "a b"], 3)}
    if kind == "const":
        return {"const": draw.choice(["one", 2, False, "日本", 'qu"ote'])}
    if kind == "any":
        return {"anyOf": [{"type": "boolean"}, {"enum": ["x", "y"]}]}
    if kind == "array":
        most = draw.randint(1, 3)
        return {"type": "array", "items": schema(draw, depth + 1), "maxItems": most}
    if kind == "object":
        return parameters(draw, depth + 1)
    return {"type": kind}


def parameters(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    """The schema of an object."""
    names = draw.sample(["a", "b", "city", "n_days", "x-y", "größe", "list of", "$ref2"], 4)
    properties = {name: schema(draw, depth) for name in names[: draw.randint(0 if depth else 1, 4)]}
    required = [name for name in properties if draw.random() < 0.6]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def functions(draw: random.Random) -> list[dict[str, Any]]:
    names = draw.sample(["get_weather", "f", "Read-File", "a.b", "search_2"], draw.randint(1, 3))
    return [
        {"name": name, "description": f"It is {name}.", "parameters": parameters(draw)}
        for name in names
    ]


# --- the APIs ---

# Each API has the path and the body of a request that forces a call, and reads the calls of a whole
# response and of a stream.

ASK = [{"role": "user", "content": "Call it."}]


class Chat:
    path = "/v1/chat/completions"

    def body(self, functions: list[dict[str, Any]], forced: str) -> dict[str, Any]:
        choice = {"type": "function", "function": {"name": forced}} if forced else "required"
        tools = [{"type": "function", "function": function} for function in functions]
        return {
            "messages": ASK,
            "tools": tools,
            "tool_choice": choice,
            "max_tokens": 3000,
            "parallel_tool_calls": False,
        }

    def whole(self, response: dict[str, Any]) -> list[Call]:
        (choice,) = response["choices"]
        assert choice["finish_reason"] == "tool_calls", choice
        calls = [call["function"] for call in choice["message"]["tool_calls"]]
        return [(call["name"], call["arguments"]) for call in calls]

    def streamed(self, events: Iterator[dict[str, Any]]) -> list[Call]:
        calls: list[list[str]] = []
        finish = None
        for event in events:
            for choice in event.get("choices", []):
                finish = choice["finish_reason"] or finish
                for call in choice["delta"].get("tool_calls", []):
                    if call["index"] == len(calls):
                        calls.append([call["function"]["name"], ""])
                    calls[call["index"]][1] += call["function"].get("arguments", "")
        assert finish == "tool_calls", finish
        return [(name, arguments) for name, arguments in calls]


class Messages:
    path = "/v1/messages"

    def body(self, functions: list[dict[str, Any]], forced: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"type": "tool", "name": forced} if forced else {"type": "any"}
        choice["disable_parallel_tool_use"] = True
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
            for f in functions
        ]
        return {"messages": ASK, "tools": tools, "tool_choice": choice, "max_tokens": 3000}

    def whole(self, response: dict[str, Any]) -> list[Call]:
        assert response["stop_reason"] == "tool_use", response
        blocks = [block for block in response["content"] if block["type"] == "tool_use"]
        return [(block["name"], json.dumps(block["input"])) for block in blocks]

    def streamed(self, events: Iterator[dict[str, Any]]) -> list[Call]:
        calls: dict[int, list[str]] = {}
        reason = None
        for event in events:
            if event["type"] == "content_block_start":
                block = event["content_block"]
                if block["type"] == "tool_use":
                    calls[event["index"]] = [block["name"], ""]
            elif event["type"] == "content_block_delta" and event["index"] in calls:
                calls[event["index"]][1] += event["delta"]["partial_json"]
            elif event["type"] == "message_delta":
                reason = event["delta"]["stop_reason"]
        assert reason == "tool_use", reason
        return [(name, arguments) for name, arguments in calls.values()]


class Responses:
    path = "/v1/responses"

    def body(self, functions: list[dict[str, Any]], forced: str) -> dict[str, Any]:
        choice = {"type": "function", "name": forced} if forced else "required"
        tools = [{"type": "function", **function} for function in functions]
        return {
            "input": ASK,
            "tools": tools,
            "tool_choice": choice,
            "max_output_tokens": 3000,
            "parallel_tool_calls": False,
        }

    def whole(self, response: dict[str, Any]) -> list[Call]:
        assert response["status"] == "completed", response
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        return [(call["name"], call["arguments"]) for call in calls]

    def streamed(self, events: Iterator[dict[str, Any]]) -> list[Call]:
        calls: dict[int, list[str]] = {}
        last = ""
        for event in events:
            last = event["type"]
            if last == "response.output_item.added":
                if event["item"]["type"] == "function_call":
                    calls[event["output_index"]] = [event["item"]["name"], ""]
            elif last == "response.function_call_arguments.delta":
                calls[event["output_index"]][1] += event["delta"]
        assert last == "response.completed", last
        return [(name, arguments) for name, arguments in calls.values()]


Api = Chat | Messages | Responses
APIS: dict[str, Api] = {"chat": Chat(), "messages": Messages(), "responses": Responses()}


def events_of(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[len("data: ") :])


# --- the counts ---


def is_good(calls: list[Call], offered: list[dict[str, Any]], forced: str) -> str:
    """What is wrong with calls; empty = nothing."""
    schemas = {function["name"]: function["parameters"] for function in offered}
    if not calls:
        return "no call"
    for name, arguments in calls:
        if name not in schemas or (forced and name != forced):
            return f"calls {name}"
        try:
            value = json.loads(arguments)
        except ValueError:
            return f"does not parse: {arguments!r}"
        if not jsonschema_rs.is_valid(schemas[name], value):
            return f"{arguments} is not what {json.dumps(schemas[name])} allows"
    return ""


def parsed(calls: list[Call]) -> list[Any]:
    """Calls whatever the white space of their arguments."""
    return [(name, json.loads(arguments)) for name, arguments in calls]


def ask(client: httpx.Client, api: Api, body: dict[str, Any]) -> tuple[list[Call], list[Call]]:
    """The calls of a whole response and of a stream."""
    response = client.post(api.path, json=body)
    assert response.status_code == 200, response.text
    calls = api.whole(response.json())
    with client.stream("POST", api.path, json=body | {"stream": True}) as stream:
        assert stream.status_code == 200, stream.read()
        return calls, api.streamed(events_of(stream))


def check(
    client: httpx.Client, apis: list[str], number: int, method: str
) -> tuple[collections.Counter[str], list[str]]:
    """One set of random functions through every API."""
    draw = random.Random(number)
    offered = functions(draw)
    forced = draw.choice(offered)["name"] if draw.random() < 0.3 else ""
    counts: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    by_api: dict[str, list[Any]] = {}
    for name in apis:
        body = APIS[name].body(offered, forced)
        body |= {"temperature": 1.0, "tgr": {"method": method, "seed": number}}
        try:
            calls, streamed = ask(client, APIS[name], body)
            why = is_good(calls, offered, forced) or is_good(streamed, offered, forced)
        except (AssertionError, KeyError, ValueError, httpx.HTTPError) as error:
            calls, streamed, why = [], [], f"{type(error).__name__}: {error!s:.300}"
        counts[f"{name} asked"] += 1
        counts[f"{name} good"] += not why
        exact = (
            calls == streamed
            if name != "messages"
            else not why and parsed(calls) == parsed(streamed)
        )
        counts[f"{name} streamed = whole"] += not why and exact
        if why or not exact:
            problems.append(f"{number} {name}: {why or f'{calls} but streamed {streamed}'}")
        else:
            by_api[name] = parsed(calls)
    counts["asked through all"] += 1
    counts["equal through all"] += len(by_api) == len(apis) and all(
        result == by_api[apis[0]] for result in by_api.values()
    )
    return counts, problems


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1000, help="schemas")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--apis", nargs="+", choices=tuple(APIS), default=list(APIS))
    parser.add_argument("--template", type=Path, help="a chat template; else one like Qwen's")
    parser.add_argument("--method", default="base")
    parser.add_argument("--at-once", type=int, default=4, help="requests at a time")
    args = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        template = args.template.read_text(encoding="utf-8") if args.template else ""
        model = write_tool_model(Path(folder) / "random.gguf", template)
        options = {"chunk_len": 64, "max_chunks": 64}
        server = stack.enter_context(served(model, Path(folder), **options))
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(args.at_once))
        numbers = range(args.first, args.first + args.n)
        work = [pool.submit(check, server.client, args.apis, n, args.method) for n in numbers]
        for future in concurrent.futures.as_completed(work):
            own_counts, problems = future.result()
            counts += own_counts
            for problem in problems:
                print(problem)
    for name, count in sorted(counts.items()):
        print(f"{name:32} {count:6}")
    print(f"{time.monotonic() - start:.0f} s")
    wanted = [counts["asked through all"]] * (2 * len(args.apis) + 1)
    good = [counts[f"{name} {kind}"] for name in args.apis for kind in ("good", "streamed = whole")]
    sys.exit(wanted != [*good, counts["equal through all"]])


if __name__ == "__main__":
    main()
