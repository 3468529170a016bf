"""The translations of all APIs: recorded events, checked against the types of the official
packages, and requests, compared with the chat request that asks for the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from method_runs import PAPER
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tgr_local import SearchConfig
from tgr_local.apis.completions import ChatTranslation
from tgr_local.apis.events import (
    ApiEvent,
    CallArguments,
    CallBegun,
    ChoiceEnded,
    NewText,
    Totals,
    Usage,
)
from tgr_local.apis.message_events import MessageTranslation
from tgr_local.apis.messages import messages_request
from tgr_local.apis.native import NativeTranslation, native_request
from tgr_local.apis.requests import PreparedRequest, chat_request, completion_request
from tgr_local.apis.response_events import ResponseTranslation
from tgr_local.apis.response_store import Responses, ResponseStore, UnknownResponse
from tgr_local.apis.responses import responses_request
from tgr_local.apis.validation import RequestError
from tgr_local.apis.writing import Call, Response, Translation, write
from tgr_local.engine import Engine
from tgr_local.engine.templates.messages import one_system

SMALL = SearchConfig(chunk_len=8, max_chunks=3, temperature=0.8, **PAPER)
USER = [{"role": "user", "content": "he said"}]
EVENTS: list[ApiEvent] = [
    NewText(0, "thinking", "let me "),
    NewText(0, "thinking", "see"),
    NewText(0, "answer", "I "),
    NewText(0, "answer", "look"),
    CallBegun(0, 0, "call_a", "find"),
    CallArguments(0, 0, '{"q": '),
    CallArguments(0, 0, '"é"}'),
    CallBegun(0, 1, "call_b", "stop"),
    CallArguments(0, 1, "{}"),
    ChoiceEnded(0, "tool_calls", None),
    Totals(Usage(prompt=9, completion=7, cached=4, reasoning=2), {"method": "base"}),
]
"""A reply that thinks, says something and calls two functions."""
TOOL = {"name": "find", "description": "finds", "parameters": {"type": "object"}}


def store() -> ResponseStore:
    return ResponseStore(Responses(8, 1 << 20))


def streamed(translation: Translation, events: list[ApiEvent] = EVENTS) -> list[Any]:
    opening = translation.opening()
    return opening + [part for event in events for part in translation.parts(event)]


def message(engine: Engine, **body: Any) -> PreparedRequest:
    body = {"messages": USER, "seed": 5, "thinking": {"type": "enabled"}, "max_tokens": 20} | body
    return messages_request(engine, body, config=SMALL, method="base")


def response(engine: Engine, kept: ResponseStore | None = None, **body: Any) -> PreparedRequest:
    body = {"input": "he said", "seed": 5, "max_output_tokens": 20} | body
    return responses_request(engine, body, store=kept or store(), config=SMALL, method="base")


# --- recorded events ---


def test_a_chat_streams_calls_as_openai_does(engine: Engine):
    request = chat_request(engine, {"messages": USER, "stream": True}, config=SMALL)
    chunks = streamed(ChatTranslation(engine, request))
    typed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    calls = [call for one in typed for call in one.choices[0].delta.tool_calls or []]
    assert [(call.index, call.id, call.function.name) for call in calls if call.id] == [
        (0, "call_a", "find"),
        (1, "call_b", "stop"),
    ]
    arguments = ["", ""]
    for call in calls:
        arguments[call.index] += call.function.arguments or ""
    assert arguments == ['{"q": "é"}', "{}"]
    assert typed[-1].choices[0].finish_reason == "tool_calls" and chunks[-1]["tgr"]
    assert "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks) == (
        "let me see"
    )


def test_a_message_streams_blocks_as_anthropic_does(engine: Engine):
    anthropic = pytest.importorskip("anthropic", reason="anthropic is absent")
    adapter = TypeAdapter(anthropic.types.RawMessageStreamEvent)
    parts = streamed(MessageTranslation(engine, message(engine)))
    typed = [adapter.validate_python(part) for part in parts]
    assert all(isinstance(one, anthropic.BaseModel) for one in typed)
    blocks: list[Any] = []
    for part in parts:
        if part["type"] == "content_block_start":
            assert part["index"] == len(blocks)
            blocks.append(dict(part["content_block"]) | {"json": ""})
        elif part["type"] == "content_block_delta":
            assert part["index"] == len(blocks) - 1  # one block after the other
            kind = {"input_json_delta": "partial_json"}.get(part["delta"]["type"])
            kind = kind or part["delta"]["type"].removesuffix("_delta")
            name = "json" if kind == "partial_json" else kind
            blocks[-1][name] += part["delta"][kind]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert (blocks[0]["thinking"], blocks[1]["text"]) == ("let me see", "I look")
    assert json.loads(blocks[2]["json"]) == {"q": "é"} and blocks[2]["id"] == "call_a"
    starts = [part["type"] for part in parts].count("content_block_start")
    assert [part["type"] for part in parts].count("content_block_stop") == starts
    delta, stop = parts[-2:]
    assert delta["delta"]["stop_reason"] == "tool_use" and stop == {"type": "message_stop"}
    assert delta["usage"] == {
        "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
        "output_tokens": 7,
    }  # fmt: skip


def test_thinking_that_nobody_asked_for_is_not_sent(engine: Engine):
    for thinking in (None, {"type": "disabled"}, {"type": "enabled", "display": "omitted"}):
        parts = streamed(MessageTranslation(engine, message(engine, thinking=thinking)))
        starts = [p["content_block"]["type"] for p in parts if p["type"] == "content_block_start"]
        assert starts == ["text", "tool_use", "tool_use"]


def test_a_response_streams_items_as_openai_does(engine: Engine):
    adapter: Any = TypeAdapter(ResponseStreamEvent)
    kept = store()
    request = response(engine, kept)
    parts = streamed(ResponseTranslation(engine, request, kept))
    typed = [adapter.validate_python(part) for part in parts]
    assert [one.type for one in typed] == [part["type"] for part in parts]
    numbers = sorted(part["sequence_number"] for part in parts)
    assert numbers == list(range(len(parts)))
    final = next(part for part in parts if part["type"] == "response.completed")["response"]
    OpenAIResponse.model_validate(final)
    done = [part["item"] for part in parts if part["type"] == "response.output_item.done"]
    assert final["output"] == done
    assert [item["type"] for item in done] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert done[2]["arguments"] == '{"q": "é"}' and done[2]["call_id"] == "call_a"
    assert final["usage"]["input_tokens_details"]["cached_tokens"] == 4
    items = kept.items(final["id"])
    assert items[0]["content"] == "he said" and items[1:] == done
    assert kept.response(final["id"]) == final


def test_a_response_that_is_cut_or_fails_says_so(engine: Engine):
    cut = [*EVENTS[:4], ChoiceEnded(0, "length", None), EVENTS[-1]]
    parts = streamed(ResponseTranslation(engine, response(engine), store()), cut)
    final = next(part for part in parts if part["type"] == "response.incomplete")["response"]
    assert final["incomplete_details"] == {"reason": "max_output_tokens"}
    assert final["output"][-1]["status"] == "incomplete"
    translation = ResponseTranslation(engine, response(engine), store())
    translation.opening()
    error = {"message": "no", "type": "server_error", "param": None, "code": None}
    (failed,) = translation.failed(error)
    assert failed["type"] == "response.failed" and failed["sequence_number"] == 2
    OpenAIResponse.model_validate(failed["response"])


def test_a_whole_reply_with_calls(engine: Engine):
    request = chat_request(engine, {"messages": USER}, config=SMALL)
    whole = Response(engine, request)
    whole.choices[0].calls += [Call("call_a", "find", '{"q": 1}'), Call("call_b", "stop", "{")]
    made = ChatTranslation(engine, request).whole(whole)["choices"][0]["message"]
    assert made["content"] is None
    assert [call["function"]["name"] for call in made["tool_calls"]] == ["find", "stop"]
    blocks = MessageTranslation(engine, message(engine)).whole(whole)["content"]
    assert [block["input"] for block in blocks] == [{"q": 1}, {}]
    request = response(engine)
    output = ResponseTranslation(engine, request, store()).whole(whole)["output"]
    assert [item["arguments"] for item in output] == ['{"q": 1}', "{"]


def test_llama_cpps_own_format(engine: Engine):
    def made(**body: Any) -> PreparedRequest:
        body = {"prompt": "he", "seed": 5, "n_predict": 12, "temperature": 0} | body
        return native_request(engine, body, config=SMALL, method="base")

    request = made()
    whole = NativeTranslation(engine, request).whole(write(engine, request))
    assert whole["stop"] and whole["stop_type"] == "limit" and whole["prompt"] == "he"
    assert whole["tokens_predicted"] == whole["timings"]["predicted_n"] == 12
    assert whole["generation_settings"]["n_predict"] == 12
    events: list[ApiEvent] = []
    write(engine, request, events.append)
    parts = streamed(NativeTranslation(engine, request), events)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]

    stop = whole["content"][3:5]
    request = made(stop=[stop, "never"], n_probs=2, return_tokens=True)
    ended = NativeTranslation(engine, request).whole(write(engine, request))
    assert (ended["stop_type"], ended["stopping_word"]) == ("word", stop)
    assert ended["content"] == whole["content"][: whole["content"].index(stop)]
    assert len(ended["completion_probabilities"][0]["top_logprobs"]) == 2 and ended["tokens"]

    request = made(response_fields=["content", "timings/prompt_n", "no/such"], keep_alive=1)
    few = NativeTranslation(engine, request).whole(write(engine, request))
    assert few.keys() == {"content", "timings/prompt_n", "tgr"}
    assert few["tgr"]["ignored"] == ["keep_alive"]

    request = made(prompt=[[5, "he"], "a", [7]])
    several = NativeTranslation(engine, request).whole(write(engine, request))
    assert [one["index"] for one in several] == [0, 1, 2]
    assert request.prompts[0] == (5, *engine.tokenize("he", add_special=False))
    with pytest.raises(RequestError, match="a list within a mixed prompt"):
        made(prompt=[5, ["he"]])
    assert made(prompt=[5, "he", 6]).prompts == ((*request.prompts[0], 6),)


# --- requests ---


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
HISTORY = [
    {"role": "system", "content": "be\n\nbrief"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two", "reasoning_content": "hm", "tool_calls": [CALL]},
]


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_message_asks_for_what_a_chat_does(engine: Engine, choice: str):
    chat = [*HISTORY, {"role": "tool", "content": "Error: three", "tool_call_id": "c1"},
            {"role": "user", "content": "four\n\nfive"}]  # fmt: skip
    body = {
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                   {"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}},
                   {"type": "text", "text": "brief"}],
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "two"},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": True,
                 "content": [{"type": "text", "text": "three"}]},
                {"type": "text", "text": "four"},
                {"type": "document", "source": {"type": "text", "data": "five"}},
            ]},
        ],
        "tools": [{"name": "find", "description": "finds", "input_schema": {"type": "object"}},
                  {"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": choice}, "stop_sequences": ["x"], "top_k": 3,
        "metadata": {"user_id": "u"}, "betas": ["b"],
    }  # fmt: skip
    made = messages_request(engine, body, config=SMALL)
    tools = [{"type": "function", "function": TOOL}]
    expected = chat_request(
        engine, {"messages": chat, "tools": tools, "tool_choice": choice}, config=SMALL
    )
    assert (made.prompts, made.form) == (expected.prompts, expected.form)
    assert (made.config.stop, made.config.top_k) == (("x",), 3)
    assert made.ignored == ("metadata", "betas", "tools.web_search")


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_response_asks_for_what_a_chat_does(engine: Engine, choice: str):
    kept = store()
    items = [
        {"role": "developer", "content": "brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {"type": "reasoning", "id": "r", "summary": [],
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "m",
         "content": [{"type": "output_text", "text": "two", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "three"},
        {"type": "message", "role": "developer", "content": "four"},
    ]  # fmt: skip
    tools = [{"type": "function", **TOOL, "strict": False}, {"type": "web_search"}]
    body = {"instructions": "be", "input": items, "tools": tools, "tool_choice": choice}
    body |= {"reasoning": {"effort": "none", "summary": "auto"}, "include": ["x"], "store": False}
    made = response(engine, kept, **body)
    chat = [*HISTORY, {"role": "tool", "content": "three", "tool_call_id": "c1"},
            {"role": "user", "content": "four"}]  # fmt: skip
    function = {"type": "function", "function": TOOL | {"strict": False}}
    asked = {"messages": chat, "tools": [function], "tool_choice": choice}
    expected = chat_request(engine, asked | {"reasoning_effort": "none"}, config=SMALL)
    assert (made.prompts, made.form) == (expected.prompts, expected.form)
    assert made.ignored == ("tools.web_search", "include.x") and not made.config.thinking


def test_a_response_continues_another(engine: Engine):
    kept = store()
    first = response(engine, kept, instructions="be brief")
    made = ResponseTranslation(engine, first, kept).whole(write(engine, first))
    OpenAIResponse.model_validate(made)
    text = made["output"][-1]["content"][0]["text"]
    second = response(engine, kept, input="more", previous_response_id=made["id"])
    chat = [*USER, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    assert second.prompts == chat_request(engine, {"messages": chat}, config=SMALL).prompts
    with pytest.raises(UnknownResponse, match="there is no response 'resp_1' here: at most 8"):
        response(engine, kept, previous_response_id="resp_1")


def test_responses_are_kept_within_bounds():
    responses = Responses(2, 1000)
    kept = responses.of(b"mine")
    for name in ("a", "b"):
        kept.keep({"id": name}, [name])
    assert kept.items("a") == ["a"]
    kept.keep({"id": "c"}, [])  # b was not used for longest
    assert len(responses) == 2 and kept.response("a") == {"id": "a"}
    with pytest.raises(UnknownResponse):
        kept.items("b")
    kept.keep({"id": "d"}, ["x" * 970])
    assert len(responses) == 1 and responses.n_bytes <= 1000
    kept.keep({"id": "e"}, ["x" * 2000])  # too large by itself
    assert len(responses) == 0 and responses.n_bytes == 0
    kept.keep({"id": "f"}, [])
    other = responses.of(b"other")
    for use in (other.items, other.response, other.delete):
        with pytest.raises(UnknownResponse):
            use("f")
    kept.delete("f")
    with pytest.raises(UnknownResponse):
        kept.delete("f")


def test_one_system_message_comes_first():
    def said(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": role[0]} for role in roles]

    assert one_system(said("system", "developer", "user", "system", "assistant", "user")) == [
        {"role": "system", "content": "s\n\nd"},
        {"role": "user", "content": "u\n\ns"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "u"},
    ]
    assert one_system(said("user")) == said("user")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "messages is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            r"messages\[0\].content\[0\] is of type 'image', but only text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            r"messages\[0\].content\[0\].tool_use_id is missing",
        ),
        ({"thinking": {"type": "on"}}, "thinking.type is 'on', but must be one of enabled"),
        ({"max_tokens": 0}, "max_tokens is 0, but must be between 1"),
        ({"tool_choice": {"type": "tool"}, "tools": [{"name": "a", "input_schema": {}}]}, "name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, but there are no tools"),
        ({"tool_choice": {"type": "tool", "name": "a"}}, "names 'a', but tools has no such"),
        ({"tool_choice": {"type": "any"}, "tools": [{"type": "web_search_1", "name": "web"}]},
         "tool_choice asks for a call, but there are no tools"),
        ({"tols": []}, "unknown parameter 'tols'; did you mean tools"),
        ({"tgr": {"sigmar": 1}}, "unknown option 'sigmar'; did you mean sigma"),
    ],
)  # fmt: skip
def test_bad_messages_are_refused(engine: Engine, body: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        messages_request(engine, {"messages": USER} | body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": 3}, "input is 3, but must be a text or a list of items"),
        ({"input": []}, "input is empty, but must hold at least one item"),
        ({"input": [{"type": "item_reference"}]}, "input is empty, but must hold"),
        ({"input": [{"call_id": "a"}]}, r"input\[0\].type is missing; add it"),
        ({"input": [{"type": "function_call", "name": "a"}]}, r"input\[0\].arguments is missing"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            r"input\[0\].content\[0\] is of type 'input_image', but only text",
        ),
        ({"background": True}, "background is not supported"),
        ({"tool_choice": {"type": "file_search"}, "tools": [{"type": "function", "name": "a"}]},
         "tool_choice is {'type': 'file_search'}, but must name a function"),
        ({"tool_choice": "required"}, "tool_choice asks for a call, but there are no tools"),
        ({"tool_choice": {"type": "function", "name": "a"}}, "names 'a', but tools has no such"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []},
          "tools": [{"type": "function", "name": "a"}]},
         "tool_choice asks for a call, but there are no tools"),
        ({"top_logprobs": 21}, "top_logprobs is 21, but must be between 0 and 20"),
    ],
)  # fmt: skip
def test_bad_responses_are_refused(engine: Engine, body: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        response(engine, **body)


# --- parameters of other clients ---


def test_known_parameters_of_clients_are_honoured(engine: Engine):
    def config(**body: Any) -> SearchConfig:
        request = chat_request(engine, {"messages": USER, "seed": 1} | body, config=SMALL)
        return request.config

    assert config(repetition_penalty=1.5).repeat_penalty == 1.5
    for off in (
        {"thinking": {"type": "disabled"}}, {"think": False}, {"enable_thinking": False},
        {"thinking_budget": 0}, {"chat_template_kwargs": {"enable_thinking": False}},
    ):  # fmt: skip
        assert not config(**off).thinking and config(think="high").thinking
    schema = {"const": 7}
    assert config(guided_json=schema).grammar == config(json_schema=schema).grammar != ""
    samplers = {
        "dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", "<|im_end|>"], "xtc_probability": 0.5, "xtc_threshold": 0.2,
        "top_n_sigma": 1.5, "typical_p": 0.9, "dynatemp_range": 0.4, "dynatemp_exponent": 2.0,
        "repeat_last_n": -1,
    }  # fmt: skip
    text, ask = {"prompt": "he"} | samplers, {"input": "he"} | samplers
    for request in (
        chat_request(engine, {"messages": USER} | samplers),
        completion_request(engine, text),
        native_request(engine, text),
        messages_request(engine, {"messages": USER} | samplers),
        responses_request(engine, ask, store=store()),
        chat_request(engine, {"messages": USER, "tgr": samplers}),
    ):
        values = {name: getattr(request.config, name) for name in samplers}
        assert values == samplers | {"dry_sequence_breakers": ("\n", "<|im_end|>")}
        assert not request.ignored
    assert config(dry_base=0).dry_base == SearchConfig.dry_base  # as llama-server takes it
    assert config(top_n_sigma=-1).top_n_sigma == 0
    request = chat_request(engine, {"messages": USER, "logit_bias": [[5, 2], ["he", False]]})
    assert request.logit_bias == ((5, 2.0), (engine.tokenize("he")[0], -100.0))
    for bad in ([[5]], [5], [[5, "x"]], [["a" * 300, 1]]):
        with pytest.raises(RequestError, match="logit_bias"):
            chat_request(engine, {"messages": USER, "logit_bias": bad})


def test_harmless_parameters_of_clients_are_listed(engine: Engine):
    sent = {
        "cache_prompt": True, "n_cache_reuse": 256, "skip_special_tokens": True, "keep_alive": "5m",
        "options": {"num_ctx": 4096}, "provider": {"order": []}, "verbose": True,
    }  # fmt: skip
    request = chat_request(engine, {"messages": USER} | sent)
    assert set(request.ignored) == set(sent)
    asks_nothing = {"use_beam_search": False, "min_tokens": 0, "lora": []}
    assert chat_request(engine, {"messages": USER} | asks_nothing).ignored == ()
    with pytest.raises(RequestError, match="use_beam_search is not supported"):
        chat_request(engine, {"messages": USER, "use_beam_search": True})
    with pytest.raises(RequestError, match="unknown parameter 'beam_width'"):
        chat_request(engine, {"messages": USER, "beam_width": 3})


@pytest.mark.parametrize("choice", ["none", "auto", "required"])
def test_null_in_a_tool_means_absent(engine: Engine, choice: str):
    def made(**more: None) -> PreparedRequest:
        function = {"name": "find", "parameters": {"type": "object"}} | more
        tools = [{"type": "function", "function": function}]
        return chat_request(engine, {"messages": USER, "tools": tools, "tool_choice": choice})

    assert made(description=None, strict=None).prompts == made().prompts
    assert made(parameters=None).prompts
