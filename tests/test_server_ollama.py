"""Ollama's API, over HTTP as its clients speak it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Served, served

from tgr_local.options.model_files import embedded_model

SHORT = {"num_predict": 8, "temperature": 0, "seed": 7}
HELLO = [{"role": "user", "content": "What is 2 + 3?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 9}},
            "required": ["a"],
        },
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ollama")
    with served(embedded_model(), folder, method="base") as running:
        yield running
        running.until(running.is_free)


def ask(server: Served, path: str, status: int = 200, **body: Any) -> Any:
    """The answer to a request without a stream, whose status is checked."""
    more = {} if path.startswith("embed") else {"stream": False}
    answer = server.client.post(f"/api/{path}", content=json.dumps(more | body))
    assert answer.status_code == status, answer.text
    return answer.json()


def lines(server: Served, path: str, **body: Any) -> list[Any]:
    """The lines of the stream that comes by default."""
    answer = server.client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def check_end(end: Any, n_tokens: int | None = None) -> None:
    assert end["done"] is True and end["done_reason"] in ("stop", "length")
    times = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert all(type(end[name]) is int and end[name] >= 0 for name in times)
    assert end["total_duration"] > 1_000_000, "nanoseconds"
    assert end["total_duration"] >= end["eval_duration"]
    assert end["prompt_eval_count"] > 0
    assert end["eval_count"] == n_tokens or n_tokens is None
    assert end["created_at"].endswith("Z") and end["model"] == "tgr"


def test_a_chat_is_a_stream_of_lines_unless_it_says_otherwise(server: Served):
    asked: dict[str, Any] = {"model": "tgr:latest", "messages": HELLO, "options": SHORT}
    whole = ask(server, "chat", **asked)
    check_end(whole, 8)
    assert whole["done_reason"] == "length" and whole["message"]["role"] == "assistant"
    *parts, end = lines(server, "chat", **asked)
    check_end(end, 8)
    assert not any(part["done"] for part in parts) and parts
    for name in ("content", "thinking"):
        text = "".join(part["message"].get(name, "") for part in parts)
        assert text == whole["message"].get(name, "")
    assert lines(server, "chat", **asked, stream=None)[-1]["done"]
    same = server.chat("What is 2 + 3?", max_tokens=8, temperature=0, seed=7).json()
    message = same["choices"][0]["message"]
    assert message["content"] == whole["message"]["content"]
    assert message.get("reasoning_content", "") == whole["message"].get("thinking", "")


def test_generate_is_a_chat_or_raw_text(server: Served):
    asked: dict[str, Any] = {"model": "tgr", "prompt": "What is 2 + 3?", "options": SHORT}
    whole = ask(server, "generate", **asked)
    check_end(whole, 8)
    chat = ask(server, "chat", model="tgr", messages=HELLO, options=SHORT)
    assert whole["response"] == chat["message"]["content"]
    assert whole.get("thinking") == chat["message"].get("thinking")
    *parts, end = lines(server, "generate", **asked)
    check_end(end, 8)
    assert "".join(part["response"] for part in parts) == whole["response"]
    raw = ask(server, "generate", raw=True, **asked)
    text = {"prompt": "What is 2 + 3?", "max_tokens": 8, "temperature": 0, "seed": 7}
    same = server.client.post("/v1/completions", json=text).json()
    assert raw["response"] == same["choices"][0]["text"]
    told = ask(server, "generate", system="Answer in one word.", **asked)
    assert told["prompt_eval_count"] > whole["prompt_eval_count"]


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_a_request_without_a_text_loads_the_model(server: Served, path: str):
    key = {"chat": "messages", "generate": "prompt"}[path]
    for body in ({}, {key: [] if path == "chat" else ""}, {key: None, "keep_alive": 0}):
        loaded = ask(server, path, model="tgr", **body)
        assert loaded["done"] and loaded["done_reason"] == "load" and loaded["model"] == "tgr"
        (line,) = lines(server, path, model="tgr", **body)
        assert line["done_reason"] == "load"


def test_options_and_formats_are_followed(server: Served):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    body: dict[str, Any] = {"model": "tgr", "messages": HELLO, "think": False}
    formed = ask(server, "chat", **body, format=schema, options=SHORT | {"num_predict": 60})
    assert json.loads(formed["message"]["content"])["n"] in (1, 2)
    assert formed["done_reason"] == "stop"
    some = ask(server, "chat", **body, format="json", options=SHORT | {"num_predict": 4})
    assert some["message"]["content"].lstrip()[:1] in ("{", "[", '"', "")
    several = {"num_ctx": 4096, "num_gpu": 1, "top_k": 5, "top_p": 0.5, "min_p": 0.1}
    named = ask(server, "chat", **body, keep_alive="5m", options=SHORT | several)
    assert set(named["tgr"]["ignored"]) == {"keep_alive", "options.num_ctx", "options.num_gpu"}
    assert named["tgr"]["seed"] == 7
    for free in ({"num_predict": 0}, {"num_predict": -2}, {}):  # no limit of their own
        ended = ask(server, "chat", **body, format="", options=SHORT | {"num_predict": -1} | free)
        assert ended["done_reason"] == "stop" and ended["eval_count"] > 8
    again = [ask(server, "chat", **body, options={"seed": 3, "num_predict": 12}) for _ in range(2)]
    assert again[0]["message"] == again[1]["message"]
    first = ask(server, "generate", model="tgr", raw=True, prompt="1 2 3", options=SHORT)
    letter = next(letter for letter in first["response"] if not letter.isspace())
    ended = ask(server, "generate", raw=True, prompt="1 2 3", options=SHORT | {"stop": [letter]})
    assert letter not in ended["response"] and ended["done_reason"] == "stop"


def test_tools_are_called_with_objects(server: Served):
    history = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "I add.", "tool_calls": [
            {"function": {"name": "add", "arguments": {"a": 2}}},
            {"function": {"name": "add", "arguments": {"a": 3}}},
        ]},
        {"role": "tool", "tool_name": "add", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "user", "content": "Once more."},
    ]  # fmt: skip
    body = {"model": "tgr", "messages": history, "tools": [ADD]}
    check_end(ask(server, "chat", **body, options=SHORT))
    *_, end = lines(server, "chat", **body, options=SHORT)
    check_end(end)


def test_errors_are_ollamas(server: Served):
    wrong: list[tuple[str, Any, str]] = [
        ("chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        ("generate", {"prompt": "x", "images": ["aGk="]}, "sees images"),
        ("chat", {"messages": "x"}, "messages"),
        ("chat", {"messages": [{"role": "king", "content": "x"}]}, "role"),
        ("chat", {"messages": HELLO, "options": {"temperature": "hot"}}, "options.temperature"),
        ("chat", {"messages": HELLO, "options": {"num_predict": -3}}, "options.num_predict"),
        ("chat", {"messages": HELLO, "options": {"temprature": 1}}, "did you mean temperature"),
        ("chat", {"messages": HELLO, "max_tokens": 5}, "'max_tokens'; /openapi.json has all"),
        ("chat", {"messages": HELLO, "options": {"mirostat": 2.5}}, "mirostat"),
        (
            "chat",
            {"messages": HELLO, "format": "yaml"},
            "format is 'yaml', but must be one of json",
        ),
        (
            "chat",
            {"messages": HELLO, "format": {"type": "array", "uniqueItems": True}},
            "uniqueItems",
        ),
        ("generate", {"prompt": "x", "context": [1, 2]}, "context"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("chat", {"messages": HELLO, "mesages": 1}, "mesages"),
        ("embed", {}, "input"),
        ("embed", {"input": [1]}, "input"),
    ]
    for path, body, said in wrong:
        for stream in (True, False) if path != "embed" else (None,):
            more = {} if stream is None else {"stream": stream}
            answer = server.client.post(f"/api/{path}", json={"model": "tgr"} | body | more)
            assert answer.status_code == 400, (path, body, answer.text)
            (key,) = answer.json()
            assert key == "error" and said in answer.json()["error"], answer.json()
    assert server.client.post("/api/chat", content="{").json()["error"].startswith("the body is")


def test_what_changes_models_is_refused_with_a_way(server: Served):
    for method, path, said in (
        ("POST", "pull", "models pull"),
        ("POST", "push", "push"),
        ("POST", "create", "create"),
        ("POST", "copy", "--alias"),
        ("DELETE", "delete", "delete"),
        ("POST", "blobs/sha256:0", "models pull"),
    ):
        answer = server.client.request(method, f"/api/{path}", content='{"model": "x"}')
        assert answer.status_code == 501 and said in answer.json()["error"]
    for path in ("chats", "user", "x", ""):
        answer = server.client.get(f"/api/{path}")
        assert answer.status_code == 404 and "there is no /api" in answer.json()["error"]


def test_models_are_listed_shown_and_said_to_run(server: Served):
    (model,) = server.client.get("/api/tags").json()["models"]
    assert model["name"] == model["model"] and model["name"].endswith(":latest")
    assert model["size"] == embedded_model().stat().st_size and len(model["digest"]) == 64
    assert model["details"]["format"] == "gguf" and model["details"]["family"]
    (running,) = server.client.get("/api/ps").json()["models"]
    assert running["name"] == model["name"] and running["context_length"] > 0
    assert running["expires_at"] > "2300"
    for asked in ({"model": model["name"]}, {"name": model["name"]}):
        shown = server.client.post("/api/show", json=asked).json()
        assert shown["details"] == model["details"] and "completion" in shown["capabilities"]
        family = model["details"]["family"]
        assert shown["model_info"]["general.architecture"] == family
        assert shown["model_info"][f"{family}.context_length"] > 0
    assert server.client.get("/api/version").json()["version"]
    assert server.client.head("/").status_code == 200


def test_texts_become_vectors(server: Served):
    one = ask(server, "embed", model="tgr", input="a dog")
    two = ask(server, "embed", model="tgr", input=["a dog", "a fox"])
    assert one["embeddings"] == two["embeddings"][:1] and len(two["embeddings"]) == 2
    assert two["prompt_eval_count"] > one["prompt_eval_count"] > 0
    old = ask(server, "embeddings", model="tgr", prompt="a dog")
    assert old["embedding"] == one["embeddings"][0]


def test_the_clients_own_package_reads_all_of_it(server: Served):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url)
    assert client.list().models[0].model
    assert client.show(client.list().models[0].model).details.format == "gguf"
    assert client.ps().models[0].context_length > 0
    whole = client.chat("tgr", messages=HELLO, options=SHORT)
    assert whole.done and whole.eval_count == 8
    *parts, end = client.chat("tgr", messages=HELLO, options=SHORT, stream=True)
    assert parts and end.done_reason == "length"
    assert client.generate("tgr", "1 2 3", raw=True, options=SHORT).response
    assert len(client.embed("tgr", ["a", "b"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError, match="pull"):
        client.pull("x")
