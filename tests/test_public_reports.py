"""What users of other servers reported, rebuilt as small requests (docs/log.md has the sources)."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serving import HELD, Served, events, served
from tool_models import WEATHER, tool, write_tool_model

from tgr_local.apis.bare_calls import bare_calls
from tgr_local.server.app import unknown
from tgr_local.server.bodies import parsed
from tgr_local.server.errors import ApiError

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "he said"}]
BASE = {"method": "base"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}},
    "required": ["a"],
    "additionalProperties": False,
}
UNTYPED = {key: value for key, value in SCHEMA.items() if key != "type"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("reports")
    path = write_tool_model(folder / "caller.gguf")
    with served(path, folder, start=HELD, allow_origin="https://app.example") as running:
        yield running
        running.until(running.is_free)


def asked(server: Served, **body: Any) -> Any:
    return server.client.post(CHAT, json={"messages": USER, "max_tokens": 24, "tgr": BASE} | body)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": {"type": "null"}},
        {"type": "json_schema", "json_schema": {"schema": UNTYPED}},
    ],
)
def test_a_schema_is_followed_wherever_it_is_given(server: Served, form: dict[str, Any]):
    (choice,) = asked(server, response_format=form).json()["choices"]
    assert json.loads(choice["message"]["content"]) in ({"a": "x"}, {"a": "yy"})


@pytest.mark.parametrize("pattern", ["(", "[a-", "a{2,1}", "(?<=x)y"])
def test_a_pattern_that_cannot_be_followed_is_no_free_text(server: Served, pattern: str):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}
    refused = asked(server, response_format=form)
    assert refused.status_code == 400
    assert "properties.a.pattern" in refused.json()["error"]["message"]


@pytest.mark.parametrize("content", ["18 °C", [{"type": "text", "text": "18 °C"}]])
def test_a_call_without_content_and_results_in_parts_go_on(server: Served, content: Any):
    result = {"role": "tool", "tool_call_id": "c1", "content": content}
    body = {"messages": [*USER, CALLED, result], "tools": [tool(WEATHER)], "max_tokens": 2}
    assert asked(server, **body).status_code == 200
    shown = server.client.post("/apply-template", json=body).json()["prompt"]
    assert "18 °C" in shown and '"text"' not in shown and "None" not in shown


def test_a_stream_whose_call_is_cut_ends_as_a_stream(server: Served):
    made = asked(server, tools=[tool(WEATHER)], tool_choice="required", stream=True, max_tokens=2)
    found = [event for event in events(made) if isinstance(event, dict)]
    assert made.text.rstrip().endswith("data: [DONE]")
    assert [one["finish_reason"] for event in found for one in event["choices"]][-1] == "length"


def test_fields_that_are_null_or_empty_are_as_absent_ones(server: Served):
    empty = dict.fromkeys(
        ["stop", "seed", "tools", "tool_choice", "response_format", "functions", "function_call",
         "metadata", "service_tier", "parallel_tool_calls", "logprobs", "top_logprobs",
         "stream_options", "max_completion_tokens", "reasoning_effort"],
    )  # fmt: skip
    body = empty | {"logit_bias": {}, "user": "", "n": 1, "store": False}
    assert asked(server, **body).status_code == 200


FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CUSTOM = {"type": "custom", "custom": {"name": "freeform", "format": {"type": "text"}}}


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ({"tools": [tool(WEATHER), CUSTOM]}, ["tools.freeform"]),
        ({"tools": [FLAT]}, None),
        ({"tools": [{"functionDeclarations": []}]}, ["tools[0]"]),
        ({"tools": []}, None),
        ({"tools": [tool(WEATHER)], "tool_choice": {"type": "auto"}}, None),
        ({"tool_choice": "auto"}, None),
        ({"reasoning": {"effort": "xhigh", "exclude": False}, "include_reasoning": True}, None),
        ({"reasoning": {"max_tokens": 1}}, None),
        ({"usage": {"include": True}, "thinking": {"type": "disabled"}}, ["usage"]),
    ],
)
def test_tools_and_parameters_of_other_hosts_end_no_chat(
    server: Served, body: dict[str, Any], ignored: Any
):
    made = asked(server, **body)
    assert made.status_code == 200, made.text
    assert made.json()["tgr"].get("ignored") == ignored


def test_an_agents_turns_keep_their_thinking_in_its_place(server: Served):
    details = [{"type": "reasoning.text", "text": "first", "format": "unknown", "index": 0}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "18"}
    turns = [
        *USER,
        {**CALLED, "content": "", "reasoning": "first", "reasoning_details": details},
        result,
        {**CALLED, "content": [{"type": "thinking", "thinking": "then"}]},
        result,
    ]
    shown = server.client.post("/apply-template", json={"messages": turns}).json()["prompt"]
    assert "first" not in shown and "then" not in shown  # which this template leaves out
    assert asked(server, messages=turns, tools=[tool(WEATHER)]).json()["tgr"].get("ignored") is None


READ = '{"name": "read", "arguments": {"path": "a.md"}}'


@pytest.mark.parametrize(
    ("text", "n"),
    [
        (
            '{\n  "name": "read",\n  "arguments": {}\n} {\n  "name": "list",\n  "arguments": {}\n}',
            2,
        ),
        (f"```json\n{READ}\n```", 1),
        ('```\n{\n"name": "read",\n"arguments": {\n"path": "x"\n}\n}\n```', 1),
        ('{"type": "function", "function": {"name": "read", "arguments": "{}"}}', 1),
        ('{"name": "read", "arguments": {"text": "```py\\nx\\n```\\n"}}', 1),
        (READ.replace("read", "write"), 0),
        (f"One writes it like this:\n{READ}\nand gets the file.", 0),
    ],
)
def test_calls_as_text_are_calls_of_the_given_functions(text: str, n: int):
    found = bare_calls(text, ("read", "list"))
    assert len(found.calls if found else ()) == n


def test_embeddings_in_base64_are_the_floats(server: Served):
    def embedded(kind: str) -> Any:
        body = {"input": "he said", "encoding_format": kind}
        return server.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    packed = np.frombuffer(base64.b64decode(embedded("base64")), "<f4")
    assert np.allclose(packed, embedded("float"), atol=1e-6)


def test_every_event_of_responses_has_its_type_and_its_end_the_response(server: Served):
    body = {"input": "he said", "stream": True, "max_output_tokens": 4, "tgr": BASE}
    made = server.client.post("/v1/responses", json=body).text
    blocks = [block.split("\ndata: ") for block in made.strip().split("\n\n") if "data: {" in block]
    found = [(name.removeprefix("event: "), json.loads(data)) for name, data in blocks]
    assert all(name == data["type"] for name, data in found)
    assert found[0][1]["response"]["id"] == found[-1][1]["response"]["id"]
    assert found[-1][0] in ("response.completed", "response.incomplete")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/", "//v1//models", "/"])
def test_monitors_and_doubled_slashes(server: Served, method: str, path: str):
    got = server.client.request(method, server.url + path)
    assert got.status_code == 200
    assert bool(got.content) is (method == "GET")
    assert server.client.head("/v1/models/none").status_code == 404
    assert server.client.head("/tokenize").status_code == 405


def test_a_whole_address_as_for_a_proxy_is_its_path(server: Served):
    for path, status in (("/v1/models", 200), ("/v1/none", 404), ("", 200)):
        target = {"target": f"{server.url}{path}".encode()}
        assert server.client.get("/", extensions=target).status_code == status


def test_a_post_to_an_address_with_a_slash_is_no_redirect(server: Served):
    body = {"messages": USER, "max_tokens": 1, "tgr": BASE}
    assert server.client.post(f"{server.url}//v1/chat/completions/", json=body).status_code == 200
    wrong = server.client.post("/v1/v1/chat/completions", json=body)
    assert wrong.status_code == 404
    message = "there is no /v1/v1/chat/completions; did you mean /v1/chat/completions?"
    assert wrong.json()["error"]["message"] == message


def test_a_compressed_body_is_named_as_such(server: Served):
    body = json.dumps({"messages": USER, "max_tokens": 1, "tgr": BASE}).encode()

    def posted(data: bytes, encoding: str) -> Any:
        return server.client.post(CHAT, content=data, headers={"Content-Encoding": encoding})

    assert posted(body, "identity").status_code == 200
    refused = posted(gzip.compress(body), "gzip")
    assert refused.status_code == 415
    assert "the body is encoded as gzip" in refused.json()["error"]["message"]


def test_a_number_of_many_digits_is_no_lesson_in_python():
    with pytest.raises(ApiError, match="not valid JSON: it has a number of more than 4300 dig"):
        parsed(f'{{"seed": {"9" * 4301}}}'.encode())


def test_a_wrong_address_gets_a_near_one():
    known = ["/", "/v1/models", "/models", "/v1/models/{name}", "/v1/chat/completions"]
    known.append("/completion")  # which the first wrong one ends with
    assert unknown("/v1/chat/completion", known).endswith("did you mean /v1/chat/completions?")
    assert unknown("/x/v1/models", known).endswith("did you mean /v1/models?")
    assert unknown("/api/tags", known) == "there is no /api/tags; the API is below /v1"
    page = ["/page/conversation.js", "/v1/messages"]
    assert unknown("/v1/images/generations", page).endswith("; the API is below /v1")
    assert len(unknown("/" * 5000, known)) < 300


def test_a_page_that_may_ask_passes_every_preflight(server: Served):
    def preflight(origin: str) -> Any:
        return server.client.options(
            CHAT,
            headers={
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
                "Access-Control-Request-Private-Network": "true",
            },
        )

    for origin in ("https://app.example", "http://localhost:3000"):
        answer = preflight(origin)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-private-network"] == "true"
    assert "access-control-allow-origin" not in preflight("https://evil.example").headers


def test_a_number_of_many_digits_is_no_call():
    text = '{"name": "read", "arguments": {"a": ' + "1" * 5000 + "}}"
    assert bare_calls(text, ("read",)) is None
