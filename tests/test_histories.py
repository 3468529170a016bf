"""Histories of agents: what is no text is read or becomes a line, since a client sends it again
with every request."""

from __future__ import annotations

from typing import Any

import pytest
from method_runs import PAPER

from tgr_local import SearchConfig, TgrLlama
from tgr_local.apis.messages import messages_request
from tgr_local.apis.other_parts import part_text, parts_text
from tgr_local.apis.requests import chat_request
from tgr_local.apis.response_store import Responses
from tgr_local.apis.responses import responses_request
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine

SMALL = SearchConfig(chunk_len=8, max_chunks=3, temperature=0.8, **PAPER)
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE = "[an image that this model cannot see]"
USE = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}],
    },
]


def tool_message(text: str) -> list[dict[str, Any]]:
    """What a chat has for `USE`, and a result."""
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "t1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": text},
    ]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "tool_reference", "tool_name": "write"}, "[the tool write]"),
        ({"type": "image", "source": PNG}, IMAGE),
        ({"type": "search_result", "source": "a", "title": "b",
          "content": [{"type": "text", "text": "c"}]}, "b · a\nc"),
        ({"type": "document", "source": {"type": "text", "data": "abc"}}, "abc"),
        ({"type": "document", "title": "T", "source": PNG},
         "[a document that cannot be read here: T]"),
        ({"type": "document", "source": {"type": "content", "content": [
            {"type": "text", "text": "one"}, {"type": "image", "source": PNG}]}}, f"one\n{IMAGE}"),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "é"}},
         '[web_search {"query": "é"}]'),
        ({"type": "web_search_tool_result", "tool_use_id": "s", "content": [
            {"type": "web_search_result", "title": "T", "url": "http://x", "encrypted_content": "…"}
        ]}, '[web_search_result {"title": "T", "url": "http://x"}]'),
        ({"type": "bash_code_execution_tool_result", "content": {
            "type": "bash_code_execution_result", "stdout": "7", "return_code": 0}},
         '[bash_code_execution_result {"stdout": "7", "return_code": 0}]'),
        ({"type": "code_interpreter_call", "id": "c", "code": "1+1", "status": "completed"},
         '[code_interpreter_call {"code": "1+1"}]'),
        ({"type": "refusal", "refusal": "no"}, "no"),
        ({"type": "thing of tomorrow", "text": 3}, '[thing of tomorrow {"text": 3}]'),
    ],
)  # fmt: skip
def test_a_part_is_read_or_named(part: dict[str, Any], text: str):
    assert part_text(part) == text


def test_lines_stand_apart_from_texts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"},
             {"type": "image", "source": PNG}, {"type": "text", "text": "c"}]  # fmt: skip
    assert parts_text(parts) == f"ab\n{IMAGE}\nc"


def test_a_result_with_an_image_is_read_alike_in_every_api(engine: Engine):
    text = f"see\n{IMAGE}"
    expected = chat_request(engine, {"messages": tool_message(text)}, config=SMALL).prompts
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    chat = tool_message("")
    chat[2]["content"] = [{"type": "text", "text": "see"}, image]
    from_chat = chat_request(engine, {"messages": chat}, config=SMALL)
    blocks = [{"type": "text", "text": "see"}, {"type": "image", "source": PNG}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": blocks}
    body = {"messages": [*USE, {"role": "user", "content": [result]}]}
    from_messages = messages_request(engine, body, config=SMALL)
    output = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:,"}]
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "t1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t1", "output": output},
    ]
    store = Responses(2, 1000).of(b"")
    from_responses = responses_request(engine, {"input": items}, config=SMALL, store=store)
    for made, place in (
        (from_chat, "messages[2].content[1]"),
        (from_messages, "messages[2].content[0].content[1]"),
        (from_responses, "input[2].output[1]"),
    ):
        assert made.prompts == expected and made.ignored == (place,)


def test_items_of_other_tools_are_calls_and_results(engine: Engine):
    items = [
        {"role": "user", "content": "Look."},
        {"type": "custom_tool_call", "call_id": "t1", "name": "apply_patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "t1", "output": "ok"},
        {"type": "item_reference", "id": "msg_1"},
        {"role": "user", "content": "and?"},
    ]
    store = Responses(2, 1000).of(b"")
    made = responses_request(engine, {"input": items}, config=SMALL, store=store)
    custom = {"id": "t1", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}}
    function = {"name": "apply_patch", "arguments": '{"input": "x"}'}
    for call in (custom, {"id": "t1", "type": "function", "function": function}):
        chat = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t1", "content": "ok"},
            {"role": "user", "content": "and?"},
        ]
        assert chat_request(engine, {"messages": chat}, config=SMALL).prompts == made.prompts
    assert made.ignored == ("input[3]",)


def test_a_question_that_is_an_image_is_refused_once(engine: Engine):
    """The next question may follow it; one with words is answered, and its image named."""
    image = {"role": "user", "content": [{"type": "image", "source": PNG}]}
    with pytest.raises(RequestError, match="is of type 'image', but only text is read"):
        messages_request(engine, {"messages": [image]})
    later = [image, {"role": "user", "content": "go on"}]
    assert messages_request(engine, {"messages": later}).ignored == ("messages[0].content[0]",)
    image["content"].append({"type": "text", "text": "What is it?"})
    assert messages_request(engine, {"messages": [image]}).ignored == ("messages[0].content[0]",)


HALF = "a\ud83d b"


def test_half_a_character_in_a_history_is_replaced(engine: Engine, tmp_path: Any):
    whole = [{"role": "user", "content": "a\ufffd b"}]
    half = [{"role": "user", "content": HALF}]
    expected = chat_request(engine, {"messages": whole}, config=SMALL).prompts
    store = Responses(2, 1000).of(b"")
    blocks = [{"role": "user", "content": [{"type": "text", "text": HALF}]}]
    for made in (
        chat_request(engine, {"messages": half}, config=SMALL),
        messages_request(engine, {"messages": blocks}, config=SMALL),
        responses_request(engine, {"input": half}, config=SMALL, store=store),
        responses_request(engine, {"input": HALF}, config=SMALL, store=store),
    ):
        assert made.prompts == expected
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {HALF: [HALF]}}
    body = {"messages": [USE[0], {"role": "assistant", "content": [use]}, half[0]], "system": HALF}
    assert messages_request(engine, body, config=SMALL).prompts[0]


def test_a_result_may_be_null(engine: Engine):
    for role in ("tool", "function"):
        messages = [*tool_message("")[:2], {"role": role, "name": "look", "content": None}]
        made = chat_request(engine, {"messages": messages}, config=SMALL)
        messages[2]["content"] = ""
        assert made.prompts == chat_request(engine, {"messages": messages}, config=SMALL).prompts


def test_an_agents_body_is_accepted(engine: Engine):
    body = {"messages": USE[:1], "cache_control": {"type": "ephemeral"}, "fallbacks": None}
    assert messages_request(engine, body).ignored == ("cache_control",)


def test_tgr_llama_reads_a_history(model: Any):
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [*tool_message(HALF)[:2], tool_message("")[2] | {"content": [image]}]
    with TgrLlama(str(model()), method="base", verbose=False) as llama:
        reply = llama.create_chat_completion(messages, max_tokens=2)
    assert reply["tgr"]["ignored"] == ["messages[2].content[0]"]
