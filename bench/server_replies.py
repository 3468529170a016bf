"""Records what the server answers to a fixed list of requests, and compares two records: for a
change of the code that must change nothing.

A server with the embedded model in F32 weights, on one thread, gets the requests one at a time:
those that are written down here, good and bad, and --n that are made up by number. Then a second
server, with an alias, API keys and narrow limits, gets a few more. A record holds status, headers
and content of every answer without what is new each time: ids, times and the version. A stream is
recorded as one answer, since a chunk has the text that was ready at that time; all have a
seed.

    python bench/server_replies.py record before.json
    python bench/server_replies.py record after.json              # with the changed code
    python bench/server_replies.py compare before.json after.json # exit code 1 for a difference
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exact_records import add_compare, compare_files, joined, lasting, save
from replies import embedded_f32
from target import Target, start

from tgr_local.methods import METHODS

Json = dict[str, Any]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FLAGS = [
    "--type-k=f32", "--type-v=f32", "--flash-attn=off", "--n-threads=1", "--n-gpu-layers=0",
    "--chunk-len=20", "--max-chunks=5", "--rollout-len=6", "--n-candidates=4", "--sigma=0.3",
    "--relative-strength=0.15", "--temperature=0.9", "--n-samples=3",
    "--power-steps=2", "--tree-proposals=2", "--request-seconds=0", "--shutdown-seconds=2",
]  # fmt: skip
NARROW = [
    "--alias=narrow", "--api-key=first", "--api-key=second", "--max-choices=2", "--max-body=1024",
    "--max-reply-tokens=12", "--method=base",
]  # fmt: skip
CAP = 8192 << 20  # bytes of address space of the server
HEADERS = (
    "content-type", "cache-control", "allow", "retry-after", "www-authenticate", "connection",
    "access-control-allow-origin", "access-control-allow-methods", "content-security-policy",
    "x-content-type-options", "referrer-policy", "x-accel-buffering",
)  # fmt: skip
UNCERTAIN = ("/metrics",)  # only their status is recorded

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer"],
}
QUESTIONS = [
    "What is 17 * 23?",
    "1+2=?",
    "Solve for x: 2x + 6 = 30",
    "hi",
    "é 日本 ½",
    "48 * 7 - 5",
]
TEXTS = ["1+2=", "17*23=", "<think>\n12", "The answer is ", "\n", "x = 3, 2x + 1 = "]
OPTIONS: list[Json] = [
    {"n_mc": 2}, {"reevaluate": 2},
    {"shift_cells": True}, {"d_z": 16, "rank": 2},
    {"calibration": "absolute"}, {"thinking_budget": 16},
    {"max_forward_tokens": 200}, {"reuse_winner": True},
    {"chunk_len": 8}, {"progress": True}, {"stop": ["7"]}, {"loop_guard": 2}, {"thinking": False},

]  # fmt: skip
SAMPLING: list[Json] = [
    {"temperature": 0}, {"temperature": 1.4}, {"top_p": 0.8}, {"top_k": 5}, {"top_k": -1},
    {"min_p": 0.1}, {"repeat_penalty": 1.3}, {"frequency_penalty": 0.7}, {"presence_penalty": -1},
    {"logit_bias": {"300": 4}}, {"logit_bias": {"20": -100, "21": 2.5}}, {"stop": "4"},
    {"stop": ["2", "\n\n", "an"]}, {"grammar": 'root ::= [0-9]+ " " [a-z]*'},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    {"response_format": {"type": "text"}}, {"user": "a", "metadata": {"b": 1}}, {"model": "other"},
]  # fmt: skip
BAD: list[Json] = [
    {"temperature": "warm"}, {"temperature": -1}, {"temperature": 1e300}, {"top_p": 2},
    {"top_k": 1.5}, {"min_p": -0.1}, {"repeat_penalty": 0}, {"frequency_penalty": 3},
    {"presence_penalty": [1]}, {"max_tokens": -2}, {"max_tokens": "5"}, {"max_tokens": 2**40},
    {"max_tokens": True}, {"n": 0}, {"n": 129}, {"n": 33}, {"n": "2"}, {"seed": -5},
    {"seed": 2**63}, {"seed": "a"}, {"seed": 1.5}, {"stop": 5}, {"stop": [1]}, {"stop": [""]},
    {"stop": ["a"] * 65},
    {"stop": "x" * 1025}, {"logit_bias": {"a": 1}}, {"logit_bias": {"5": 101}}, {"logit_bias": []},
    {"logit_bias": {"999": 1}}, {"grammar": "root ::= ("}, {"grammar": 5}, {"grammar": "a ::= [b]"},
    {"response_format": {"type": "yaml"}}, {"response_format": {"type": "json_schema"}},
    {"response_format": "json"},
    {"grammar": "root ::= [a]", "response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strnig"}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"maxLength": 10**6}}}},
    {"stream": "yes"}, {"stream_options": {"include_usage": True}}, {"stream_options": 1},
    {"tools": [{"type": "function"}]}, {"tool_choice": "required"}, {"suffix": "x"},
    {"modalities": ["audio"]}, {"mirostat_mode": 2}, {"typical_p": 0.5}, {"temprature": 1},
    {"unknown": None}, {"": 1}, {"tgr": 5}, {"tgr": {"n_candidate": 4}}, {"tgr": {"method": "bas"}},
    {"tgr": {"method": 5}}, {"tgr": {"progress": 1}}, {"tgr": {"n_candidates": 0}},
    {"tgr": {"n_candidates": 255, "n_mc": 64}}, {"tgr": {"sigma": "a"}}, {"tgr": {"sigma": 1e400}},
    {"tgr": {"chunk_len": 2**31 - 1}}, {"tgr": {"eoc_token": "no such token"}},
    {"tgr": {"max_forward_tokens": 2}}, {"tgr": {"kappa_max": -1.0}},
    {"tgr": {"grammar": "root ::= root"}}, {"tgr": {"top_logprobs": 500}}, {"method": "zzz"},
    {"method": 5}, {"model": "x" * 300}, {"model": 7}, {"best_of": 0}, {"n": 3, "best_of": 2},
    {"stream": True, "best_of": 3}, {"logprobs": "a"}, {"top_logprobs": 3},
    {"reasoning_effort": "max"},
    {"chat_template_kwargs": {"a": 1}}, {"echo": 1}, {"messages": []}, {"prompt": []},
    {"messages": "hi"}, {"prompt": {"a": 1}}, {"prompt": [1, "a"]}, {"prompt": [[], [1]]},
    {"prompt": [10**6]}, {"prompt": [-1]}, {"prompt": [5] * 3000}, {"prompt": "long " * 20000},
    {"messages": [{"role": "user"}]}, {"messages": [{"content": "a"}]}, {"messages": [5]},
    {"messages": [{"role": "user", "content": 5}]}, {"prompt": ["a"] * 200}, {"prompt": None},
    {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"messages": None},
]  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request; `body` None has none, a text is sent as it is."""

    verb: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def say(*texts: str, **more: Any) -> Json:
    """The body of a chat, the texts being the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": messages, "max_tokens": 40, "seed": 7} | more


def on(prompt: Any, **more: Any) -> Json:
    """The body of a completion."""
    return {"prompt": prompt, "max_tokens": 24, "seed": 7} | more


def written() -> list[Ask]:
    """The requests that are written down."""
    get = ["/", "/health", "/props", "/v1/models", "/openapi.json", "/tokenizer_info", "/metrics",
           "/slots", "/v1/models/embedded-f32", "/v1/models/embedded-f32:base", "/v1/models/none",
           "/nothing", CHAT, "/v1", "/docs"]  # fmt: skip
    asks = [Ask("GET", path) for path in get]
    asks += [
        Ask(verb, path)
        for verb, path in (
            ("DELETE", CHAT), ("PUT", "/tokenize"), ("POST", "/health"), ("HEAD", "/health"),
            ("POST", "/v1/models"), ("OPTIONS", CHAT), ("POST", CHAT), ("POST", "/tokenize"),
        )
    ]  # fmt: skip
    origin = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    asks += [
        Ask("OPTIONS", CHAT, None, origin),
        Ask("GET", "/health", None, {"Origin": "http://localhost:3000"}),
        Ask("GET", "/v1/models", None, {"Origin": "https://example.com"}),
        Ask("GET", "/v1/models", None, {"Host": "example.com"}),
    ]
    broken = [
        "{", "", "[]", "5", "null", '"a"', '{"messages": NaN}', '{"a": 1e999}', "[" * 5000, "{}",
        '{"prompt": "a", "prompt": "1+", "seed": 1, "max_tokens": 3}', "\ufeff{}",
    ]  # fmt: skip
    asks += [Ask("POST", TEXT, body) for body in broken]
    asks += [Ask("POST", CHAT, "{}"), Ask("POST", "/infill", "{"), Ask("POST", "/tokenize", "{}")]
    for body in (
        {"content": "hello 12 + 5"}, {"prompt": "hello"}, {"content": ""}, {"content": 5},
        {"content": "<think>é\0</think>", "with_pieces": True}, {"content": "a", "add_special": 1},
        {"content": "<think>", "parse_special": False, "add_special": True},
    ):  # fmt: skip
        asks.append(Ask("POST", "/tokenize", body))
    for tokens in ([], [1, 2, 300, 507, 511], [512], [-1], ["a"], "a", None, [1.0], [True]):
        asks.append(Ask("POST", "/detokenize", {"tokens": tokens}))
    for body in (
        {"input": "hello"}, {"input": ["a", "b"]}, {"input": [1, 2, 3]}, {"input": ""},
        {"input": [[1, 2], "x"], "encoding_format": "base64"}, {"input": []}, {"input": {"a": 1}},
        {"input": "a", "encoding_format": "hex"}, {"input": "a", "dimensions": 5}, {},
        {"input": "a", "dimensions": 192}, {"input": ["a"] * 33}, {"input": [1] * 2049},
    ):  # fmt: skip
        asks.append(Ask("POST", "/v1/embeddings", body))
    for path in (
        "/embedding",
        "/embeddings",
        "/completion",
        "/apply-template",
        "/chat/completions",
    ):
        asks.append(Ask("POST", path, {"content": "a", "prompt": "a", **say("hi")}))
    gap = {"input_prefix": "a = 1", "input_suffix": "\nprint(a)", "seed": 3, "n_predict": 8}
    extra = {"input_extra": [{"text": "b = 2", "filename": "b.py"}], "stream": True}
    for body in (gap, gap | extra, {"input_prefix": 5}, gap | {"input_extra": "a"}):
        asks.append(Ask("POST", "/infill", body))
    for method in METHODS:
        asks.append(Ask("POST", CHAT, say(QUESTIONS[0], tgr={"method": method}, max_tokens=60)))
        asks.append(Ask("POST", TEXT, on(TEXTS[1], method=method, logprobs=2)))
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    history = say("1+1?", "<think>\n1\n</think>\n2", "and 2+2?")
    asks += [
        Ask("POST", CHAT, body)
        for body in (
            say(QUESTIONS[0], max_tokens=None), say(QUESTIONS[2], stream=True), history,
            say(QUESTIONS[1], n=2, logprobs=True, top_logprobs=3),
            say(QUESTIONS[1], n=3, **usage), say(QUESTIONS[2], stream=True, logprobs=True),
            say(QUESTIONS[2], stream=True, tgr={"progress": True, "thinking_budget": 20}),
            say(QUESTIONS[0], reasoning_effort="none"), say(QUESTIONS[0], max_completion_tokens=9),
            say(QUESTIONS[0], chat_template_kwargs={"enable_thinking": False}),
            say(QUESTIONS[0], model="embedded-f32:base"), say("a", model="embedded-f32:nothing"),
            say(QUESTIONS[0], best_of=3, n=2), say("a", max_tokens=0),
            say("4*5", response_format=SAMPLING[15]["response_format"], tgr={"thinking_budget": 9}),
            say("4*5", response_format={"type": "json_object"}, **usage),
            {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Be short"}]},
                          {"role": "user", "content": "2*3"}], "seed": 1, "max_tokens": 12},
        )
    ]  # fmt: skip
    asks += [
        Ask("POST", TEXT, body)
        for body in (
            on(TEXTS[0], echo=True), on(TEXTS[0], echo=True, logprobs=3, max_tokens=0),
            on([TEXTS[0], TEXTS[3]], n=2, echo=True, logprobs=1), on([1, 2, 3], logprobs=0),
            on([[1, 2], [3, 4, 5]], stream=True), on(TEXTS[1], n=2, best_of=4, logprobs=1),
            on(TEXTS[1], echo=True, logprobs=2, n=2, **usage), on(TEXTS[2], stream=True),
            on(TEXTS[1], stream=True, tgr={"progress": True, "n_mc": 2}), on("", max_tokens=3),
            on(TEXTS[4], max_tokens=-1), on(TEXTS[5], stop=["2", "\n"], logprobs=1),
            {"prompt": TEXTS[1], "seed": 5}, on(TEXTS[1], model="embedded-f32:tgr-token"),
        )
    ]  # fmt: skip
    return asks


def spoilt(i: int) -> Ask:
    """Request number i of those with something bad: to the endpoint that knows it, or to both in
    turn."""
    bad = BAD[i]
    of_chat = {"messages", "reasoning_effort", "chat_template_kwargs", "top_logprobs"} & {*bad}
    chat = bool(of_chat) or (i % 2 == 0 and not {"prompt", "echo"} & {*bad})
    body = say(QUESTIONS[i % 6], max_tokens=8) if chat else on(TEXTS[i % 6], max_tokens=8)
    return Ask("POST", CHAT if chat else TEXT, body | bad)


def made_up(i: int) -> Ask:
    """Request number i: a body with some changes, which may exclude each other."""
    rng = random.Random(1_000_003 + i)
    chat = rng.random() < 0.5
    body = say(rng.choice(QUESTIONS)) if chat else on(rng.choice(TEXTS))
    body |= {"seed": rng.randrange(1000), "max_tokens": rng.choice([1, 5, 24, 45])}
    body["tgr"] = {"method": rng.choice([*METHODS, "tgr-latent", "tgr-latent"])}
    for _ in range(rng.choice([0, 1, 1, 2])):
        body |= rng.choice(SAMPLING)
    for _ in range(rng.choice([0, 1, 1, 2])):
        body["tgr"] = body["tgr"] | rng.choice(OPTIONS)
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(5)} if chat else {"logprobs": 2}
    if rng.random() < 0.2:
        body["n"] = rng.choice([2, 3])
    if rng.random() < 0.3:
        body["stream"] = True
    if not chat and rng.random() < 0.3:
        body["echo"] = True
    return Ask("POST", CHAT if chat else TEXT, body)


def with_narrow_limits() -> list[Ask]:
    """What the second server gets."""
    key = {"Authorization": "Bearer second"}
    return [
        Ask("GET", "/health"), Ask("GET", "/v1/models"), Ask("GET", "/"),
        Ask("GET", "/v1/models", None, {"Authorization": "Bearer third"}),
        Ask("GET", "/v1/models", None, {"Authorization": "Basic second"}),
        Ask("GET", "/v1/models", None, key), Ask("GET", "/props", None, key),
        Ask("GET", "/v1/models", None, key | {"Host": "example.com"}),
        Ask("POST", CHAT, say(QUESTIONS[0])), Ask("POST", CHAT, say(QUESTIONS[0]), key),
        Ask("POST", CHAT, say(QUESTIONS[0], model="narrow:tgr-latent"), key),
        Ask("POST", TEXT, on(TEXTS[1], n=3), key), Ask("POST", TEXT, on(TEXTS[1], n=2), key),
        Ask("POST", TEXT, on("a" * 2000), key),
        Ask("POST", "/v1/embeddings", {"input": ["a"] * 3}, key),
    ]  # fmt: skip


# ---- answers ----


def answer(target: Target, ask: Ask) -> Json:
    """What the server says to a request, without what is new each time."""
    link = http.client.HTTPConnection(*target.address, timeout=120)
    body = ask.body if isinstance(ask.body, str) or ask.body is None else json.dumps(ask.body)
    data = body.encode("utf-8") if body is not None else None
    try:
        link.request(ask.verb, ask.path, data, {"Content-Type": "application/json"} | ask.headers)
        response = link.getresponse()
        status, raw = response.status, response.read()
        found = {name: response.headers[name] for name in HEADERS if name in response.headers}
    except (OSError, http.client.HTTPException) as error:
        return {"status": 0, "error": type(error).__name__}
    finally:
        link.close()
    if ask.path in UNCERTAIN:
        return {"status": status}
    return {"status": status, "headers": found, "content": content(raw, found)}


def content(raw: bytes, headers: Mapping[str, str]) -> Any:
    kind = headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return of_stream(raw.decode("utf-8"))
    if kind.startswith("application/json"):
        with contextlib.suppress(ValueError):
            return unversioned(lasting(json.loads(raw)))
    return {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def of_stream(text: str) -> Json:
    """A stream as one answer. Comments that report steps are recorded, pings are not."""
    events: list[Any] = []
    comments: dict[str, list[Any]] = {}
    ends: list[str] = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            events.append(json.loads(line.removeprefix("data: ")))
        elif line.startswith(": tgr.step"):
            step = json.loads(line.removeprefix(": tgr.step "))
            steps = comments.setdefault(str(step["index"]), [])
            steps += [step] if [step] != steps[-1:] else []  # how often is a matter of speed
        elif line and not line.startswith(":"):
            ends.append(line)
    errors = [event for event in events if "error" in event]
    chunks = [event for event in events if "error" not in event]
    return {"reply": joined(chunks), "errors": errors, "comments": comments, "ends": ends}


def unversioned(value: Any) -> Any:
    """The same without the version of the package, where an endpoint tells it."""
    if isinstance(value, dict):
        if isinstance(info := value.get("info"), dict):
            value = value | {"info": unversioned(info)}
        return {k: one for k, one in value.items() if k != "version"}
    return value


def asked(flags: list[str], asks: list[Ask], name: str) -> Json:
    """The answers of a server with these flags, by number and request."""
    begun, found = time.monotonic(), {}
    target = start(flags, CAP)
    try:
        for i, ask in enumerate(asks):
            shown = json.dumps(ask.body)[:60] if ask.body is not None else ""
            found[f"{name}/{i}/{ask.verb} {ask.path} {shown}"] = answer(target, ask)
            if not target.alive:
                raise RuntimeError(f"the server ended: {target.end}")
        _, how = target.stop(10)
    finally:
        target.kill()
    found[f"{name}/end"] = {"how": how, "tracebacks": sum("Traceback" in s for s in target.lines)}
    print(f"{name}: {len(asks)} requests, {time.monotonic() - begun:.0f} s", flush=True)
    return found


def record(n: int) -> Json:
    """All answers; n requests are made up."""
    with tempfile.TemporaryDirectory() as folder:
        model = embedded_f32(Path(folder))
        for name in [name for name in os.environ if name.startswith("TGR_")]:
            del os.environ[name]
        os.environ |= {"HOME": folder, "XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        flags = [f"--model={model}", *FLAGS]
        asks = [*written(), *map(spoilt, range(len(BAD))), *map(made_up, range(n))]
        cases = asked(flags, asks, "server")
        cases |= asked([*flags, *NARROW], with_narrow_limits(), "narrow")
    statuses: dict[str, int] = {}
    for case in cases.values():
        status = str(case.get("status", "end"))
        statuses[status] = statuses.get(status, 0) + 1
    print("answers by status:", dict(sorted(statuses.items())))
    return {"about": {"n": n, "methods": list(METHODS)}, "cases": cases}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="write down what the server answers")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--n", type=int, default=120, help="requests that are made up")
    add_compare(commands)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare_files(arguments)
    save(arguments.out, record(arguments.n))
    return 0


if __name__ == "__main__":
    sys.exit(main())
