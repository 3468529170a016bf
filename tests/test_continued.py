"""A last message of the assistant is the beginning of the reply, under every API."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from engines import EXACT
from openai_calls import SMALL, chat, complete, joined, streamed
from tool_models import CLOCK, WEATHER, tool, write_tool_model

from tgr_local import SearchConfig, TgrLlama, generate, generate_many, stream
from tgr_local.apis.calls import ReplyReader
from tgr_local.apis.events import NewText
from tgr_local.apis.messages import messages_request
from tgr_local.apis.requests import chat_request
from tgr_local.apis.response_store import Responses
from tgr_local.apis.responses import responses_request
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine
from tgr_local.generation.request import ReplyFormat
from tgr_local.options.config import EngineConfig

ASK = {"role": "user", "content": "Count."}
BEGUN = {"role": "assistant", "content": "1, 2,"}
OPEN = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n"
ANEW = f"{OPEN}1, 2,<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SearchConfig(**vars(SMALL) | {"temperature": 0.0})
THINKER = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)


def prompt(engine: Engine, *messages: dict[str, Any], **body: Any) -> str:
    request = chat_request(engine, {"messages": list(messages), **body}, config=SMALL)
    return engine.detokenize(request.prompts[0], special=True).decode()


def reply(engine: Engine, *messages: dict[str, Any], **body: Any) -> dict[str, Any]:
    (choice,) = chat(engine, messages=list(messages), seed=1, temperature=0, **body)["choices"]
    return dict(choice)


def test_the_message_stays_open(engine: Engine):
    assert prompt(engine, ASK, BEGUN) == f"{OPEN}1, 2,"
    assert prompt(engine, ASK, BEGUN | {"content": " 1,\n "}) == f"{OPEN} 1,\n "
    assert prompt(engine, ASK, BEGUN | {"content": " "}) == f"{OPEN} "
    parts = [{"type": "text", "text": "1,"}, {"type": "text", "text": " 2,"}]
    assert prompt(engine, ASK, BEGUN | {"content": parts}) == f"{OPEN}1, 2,"
    assert prompt(engine, ASK, BEGUN, ASK).endswith("1, 2,<|im_end|>\n" + OPEN)


def test_what_has_nothing_to_go_on_with_is_answered(engine: Engine):
    for empty in ({"content": ""}, {"content": None}, {"content": []}, {}):
        message = {"role": "assistant", **empty}
        assert prompt(engine, ASK, message) == OPEN
        assert prompt(engine, ASK, message, continue_final_message=True) == OPEN
    assert prompt(engine, BEGUN).endswith("1, 2,<|im_end|>\n<|im_start|>assistant\n")


def test_a_call_is_a_whole_message(caller: Engine):
    call = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    message = BEGUN | {"tool_calls": [call]}
    text = prompt(caller, ASK, message, tools=[tool(CLOCK)])
    assert text.endswith("</tool_call><|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(RequestError, match="without tool calls"):
        prompt(caller, ASK, message, continue_final_message=True)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, f"{OPEN}1, 2,"),
        ({"continue_final_message": True}, f"{OPEN}1, 2,"),
        ({"continue_final_message": True, "add_generation_prompt": False}, f"{OPEN}1, 2,"),
        ({"add_generation_prompt": False}, f"{OPEN}1, 2,"),
        ({"continue_final_message": "content"}, f"{OPEN}1, 2,"),
        ({"continue_final_message": False}, ANEW),
        ({"add_generation_prompt": True}, ANEW),
        ({"continue_final_message": False, "add_generation_prompt": True}, ANEW),
    ],
)
def test_the_flags_of_vllm(engine: Engine, flags: dict[str, Any], expected: str):
    assert prompt(engine, ASK, BEGUN, **flags) == expected


@pytest.mark.parametrize(
    ("messages", "flags", "message"),
    [
        ([ASK, BEGUN], {"continue_final_message": True, "add_generation_prompt": True}, "both"),
        ([ASK], {"continue_final_message": True}, "continue_final_message is True, which needs"),
        ([ASK], {"add_generation_prompt": False}, "add_generation_prompt is False, which needs"),
        ([BEGUN], {"continue_final_message": True}, "after another message"),
        ([ASK, BEGUN], {"continue_final_message": "reasoning_content"}, "which needs"),
    ],
)
def test_flags_that_cannot_be_followed(
    engine: Engine, messages: list[Any], flags: dict[str, Any], message: str
):
    with pytest.raises(RequestError, match=message):
        prompt(engine, *messages, **flags)


def test_only_what_is_added_is_the_reply(engine: Engine):
    options = {"max_tokens": 8, "seed": 1, "temperature": 0}
    raw = complete(engine, f"{OPEN}1, 2,", **options)["choices"][0]["text"]
    assert reply(engine, ASK, BEGUN, max_tokens=8)["message"]["content"] == raw
    assert joined(streamed(engine, messages=[ASK, BEGUN], **options))["content"] == raw
    tokens = reply(engine, ASK, BEGUN, max_tokens=8, logprobs=True)["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in tokens).decode("utf-8", "replace") == raw


def test_a_reply_may_add_nothing(engine: Engine):
    """The model may see that the message is complete: no second attempt makes it speak."""
    end = {str(engine.eos): 100}
    ended = reply(engine, ASK, BEGUN, max_tokens=8, logit_bias=end)
    assert (ended["message"]["content"], ended["finish_reason"]) == ("", "stop")
    assert reply(engine, ASK, max_tokens=8, logit_bias=end)["message"]["content"] != ""


def test_a_grammar_holds_for_both_together(engine: Engine, caller: Engine):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"type": "integer"}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    for begun in ("{", '{"city": "Pa', '{ "city":"Rome", "n": 1'):
        for body in ({}, {"logprobs": True}):
            added = reply(
                engine, ASK, BEGUN | {"content": begun},
                response_format=form, max_tokens=200, **body,
            )["message"]["content"]  # fmt: skip
            value = json.loads(begun + added)
            assert value["city"] in ("Paris", "Rome") and isinstance(value["n"], int)
    with pytest.raises(RequestError, match="is not the beginning of a text that the grammar"):
        reply(engine, ASK, BEGUN, response_format=form)
    begun = BEGUN | {"content": "{"}
    options = {"response_format": form, "tools": [tool(CLOCK)], "max_tokens": 200}
    message = reply(caller, ASK, begun, **options)["message"]
    assert json.loads("{" + message["content"])["city"]


def test_a_forced_call_follows_the_text(caller: Engine):
    for begun in ("Let me look.", "<tool_call>\n{", '<tool_call>\n{"name": "weather", "arg'):
        choice = reply(
            caller, ASK, BEGUN | {"content": begun},
            tools=[tool(WEATHER)], tool_choice="required", max_tokens=200,
            parallel_tool_calls=False,
        )  # fmt: skip
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        assert not (choice["message"]["content"] or "").strip()


# ---- models that think ----


@pytest.fixture
def thinker(use_template: Callable[[str], Engine]) -> Engine:
    return use_template(THINKER)


def test_the_thinking_is_over_where_the_answer_has_begun(thinker: Engine):
    closed = f"{OPEN}<think>\n\n</think>\n\n1, 2,"
    for body in ({}, {"enable_thinking": True}, {"thinking_budget": 20}):
        assert prompt(thinker, ASK, BEGUN, **body) == closed
        request = chat_request(thinker, {"messages": [ASK, BEGUN], **body}, config=SMALL)
        assert not request.config.thinking
    text = prompt(thinker, ASK, BEGUN | {"reasoning_content": "Hm."})
    assert text.startswith(f"{OPEN}<think>") and text.endswith("1, 2,")
    assert "Hm.\n</think>" in text


def test_thinking_that_has_begun_goes_on(thinker: Engine):
    message = {"role": "assistant", "reasoning_content": "Hm, one"}
    text = prompt(thinker, ASK, message)
    assert text.startswith(f"{OPEN}<think>") and text.endswith("Hm, one")
    added = reply(thinker, ASK, message, max_tokens=8, logit_bias={"65": 50})["message"]
    assert added["reasoning_content"] and "Hm" not in added["reasoning_content"]


# ---- the other APIs ----


def test_messages_of_anthropic(engine: Engine):
    def open_prompt(content: Any) -> str:
        body = {"messages": [ASK, {"role": "assistant", "content": content}], "max_tokens": 4}
        request = messages_request(engine, body)
        return engine.detokenize(request.prompts[0], special=True).decode()

    assert open_prompt("1, 2,") == f"{OPEN}1, 2,"
    assert open_prompt([{"type": "text", "text": "1,"}]) == f"{OPEN}1,"
    assert open_prompt("") == open_prompt([]) == OPEN
    for bad in ("1, ", " ", "\n", [{"type": "text", "text": "1\n"}]):
        with pytest.raises(RequestError, match="cannot end with trailing whitespace"):
            open_prompt(bad)
    used = [{"type": "tool_use", "id": "a", "name": "clock", "input": {}}]
    assert open_prompt(used).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_response_is_an_item_of_its_own(engine: Engine):
    request = responses_request(engine, {"input": [ASK, BEGUN]}, store=Responses(1, 1 << 20).of(""))
    assert engine.detokenize(request.prompts[0], special=True).decode() == ANEW


def test_python(engine: Engine, model: Any):
    with TgrLlama(model(), n_ctx=512, seed=1) as llama:
        made = llama.create_chat_completion([ASK, BEGUN], max_tokens=4, temperature=0.0)
        assert made["usage"]["prompt_tokens"] == len(engine.tokenize(f"{OPEN}1, 2,"))
    config = dataclasses.replace(GREEDY, max_tokens=8)
    one = generate(engine, [ASK, BEGUN], config, method="base")
    assert one.runs[0].query == engine.tokenize(f"{OPEN}1, 2,")
    assert generate_many(engine, [ASK, BEGUN], config, 2, method="base")[0].tokens == one.tokens
    *_, last = stream(engine, [ASK, BEGUN], config, method="base")
    assert getattr(last, "tokens", None) == one.tokens
    grammar = dataclasses.replace(config, grammar='root ::= "1, 2, 3" [a-z]')
    assert generate(engine, [ASK, BEGUN], grammar, method="base").text.startswith(" 3")
    with pytest.raises(ValueError, match="is not the beginning of a text"):
        generate(engine, [ASK, BEGUN], dataclasses.replace(config, grammar='root ::= "x"'))


@pytest.mark.parametrize(
    ("begun", "added", "answer"),
    [
        ("1, 2,", " 3", " 3"),
        ("1, 2, ", "3", "3"),
        (" 1", "2", "2"),
        ("1 ", " 2", " 2"),
        ("1", "", ""),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_a_parser_reads_the_beginning_and_it_is_not_sent(
    caller: Engine, begun: str, added: str, answer: str, streams: bool
):
    request = chat_request(
        caller, {"messages": [ASK, BEGUN | {"content": begun}], "tools": [tool(CLOCK)]}
    )
    assert isinstance(request.form, ReplyFormat)
    reader = ReplyReader(request.form, 0, streams=streams, least=0.0, share=0.0)
    events = [event for char in added for event in reader.feed(char)]
    events += reader.end(complete=True)
    assert "".join(event.text for event in events if isinstance(event, NewText)) == answer


def test_the_template_of_a_file(tmp_path):
    """One that writes an end token after what it does not continue."""
    template = THINKER + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    with Engine(write_tool_model(tmp_path / "a.gguf", template), EngineConfig(**EXACT)) as engine:
        assert prompt(engine, ASK, BEGUN) == f"{OPEN}<think>\n\n</think>\n\n1, 2,"
