"""Calls of tools: forced by a grammar under every method, the same streamed, from any template."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import Mock

import pytest
from openai_calls import SMALL
from tool_models import CLOCK, WEATHER, tool

from tgr_local import SearchConfig, methods
from tgr_local.apis.calls import ReplyReader
from tgr_local.apis.completions import chunks, respond
from tgr_local.apis.events import CallArguments, CallBegun, NewText
from tgr_local.apis.requests import chat_request
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine, GrammarTrigger
from tgr_local.generation import Tools, chat_query, write_each
from tgr_local.generation.request import ReplyFormat, ReplyRequest
from tgr_local.system import confined

ASK = [{"role": "user", "content": "What is the weather?"}]
TOOLS = [tool(WEATHER), tool(CLOCK)]
WARM = SearchConfig(**vars(SMALL) | {"temperature": 1.0, "max_chunks": 100})


def made(engine: Engine, **body: Any) -> dict[str, Any]:
    """The only choice of a whole response."""
    request = chat_request(engine, {"messages": ASK, "seed": 1, **body}, config=WARM)
    (choice,) = respond(engine, request)["choices"]
    return dict(choice)


def joined_calls(engine: Engine, **body: Any) -> tuple[list[list[str]], str]:
    """The calls of a stream, each a name and arguments, and why it ended."""
    asked = {"messages": ASK, "seed": 1, "stream": True, **body}
    calls: list[list[str]] = []
    finish = ""
    for chunk in chunks(engine, chat_request(engine, asked, config=WARM)):
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            for call in choice["delta"].get("tool_calls", []):
                if call["index"] == len(calls):
                    assert call["id"] and call["type"] == "function"
                    calls.append([call["function"]["name"], ""])
                calls[call["index"]][1] += call["function"]["arguments"]
    return calls, finish


@pytest.mark.parametrize(
    "method", ["base", "markov", "tgr-latent", "tgr-token", "best-of-n", "tot"]
)
def test_a_forced_call_is_whole_under_every_method(caller: Engine, method: str):
    body = {
        "tools": TOOLS,
        "tool_choice": "required",
        "method": method,
        "parallel_tool_calls": False,
    }
    choice = made(caller, **body)
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 99
    else:
        assert call["function"]["name"] == "clock" and isinstance(arguments, dict)
    streamed = [[call["function"]["name"], call["function"]["arguments"]]]
    assert joined_calls(caller, **body) == (streamed, "tool_calls")


def test_the_named_function_is_called(caller: Engine):
    for function in (WEATHER, CLOCK):
        choice = {"type": "function", "function": {"name": function["name"]}}
        message = made(caller, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)[
            "message"
        ]
        assert [call["function"]["name"] for call in message["tool_calls"]] == [function["name"]]


@pytest.mark.parametrize("name", ["call", "calls", "a_b", "a-b"])
def test_functions_with_names_alike_have_their_own_rules(caller: Engine, name: str):
    """``_`` and ``-`` are one letter in the names of a grammar's rules, which also has rules of its
    own for calls; each property here tells which function the arguments are of."""
    tools = [
        tool(
            {
                "name": other,
                "parameters": {
                    "type": "object",
                    "properties": {
                        other: {"const": 1},
                        "город": {"const": 2},
                        "улица": {"const": 3},
                    },
                    "required": [other, "город", "улица"],
                },
            }
        )
        for other in ("call", "calls", "a_b", "a-b")
    ]
    form = chat_request(caller, {"messages": ASK, "tools": tools, "tool_choice": "required"}).form
    assert form and re.search(
        rf"[^\w-]{name}[^\w-]", re.sub(r"^\S+ ::=", "", form.grammar, flags=re.M)
    )
    for parallel in (False, True):
        for choice in ({"type": "function", "function": {"name": name}}, "required"):
            body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
            calls = made(caller, **body, max_tokens=400)["message"]["tool_calls"]
            assert choice == "required" or calls[0]["function"]["name"] == name
            for call in calls[: None if parallel is False else 1]:
                arguments = json.loads(call["function"]["arguments"])
                assert arguments == {call["function"]["name"]: 1, "город": 2, "улица": 3}


def test_none_describes_the_tools_and_calls_none(caller: Engine):
    request = chat_request(caller, {"messages": ASK, "tools": TOOLS, "tool_choice": "none"})
    prompt = caller.detokenize(request.prompts[0], special=True).decode()
    assert '"weather"' in prompt and not request.config.grammar and not request.form
    auto = chat_request(caller, {"messages": ASK, "tools": TOOLS})
    assert auto.prompts == request.prompts and auto.form and auto.form.trigger
    choice = made(caller, tools=TOOLS, tool_choice="none", max_tokens=8)
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]


def test_a_text_without_a_call_is_the_answer(caller: Engine):
    plain = made(caller, max_tokens=40)
    choice = made(caller, tools=TOOLS, max_tokens=40)
    assert choice["message"]["content"] and "tool_calls" not in choice["message"]
    assert plain["finish_reason"] == choice["finish_reason"] == "length"


def test_calls_and_results_of_earlier_turns_are_in_the_prompt(caller: Engine):
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"days": 3}'},
    }
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42 degrees"},
    ]
    request = chat_request(caller, {"messages": turns, "tools": TOOLS})
    prompt = caller.detokenize(request.prompts[0], special=True).decode()
    assert re.search(r'"name": "weather", "arguments": \{"days": ?3\}', prompt), prompt
    assert "<tool_response>\n42 degrees\n</tool_response>" in prompt
    # arguments that are no JSON do not end a conversation
    call["function"]["arguments"] = '{"days": '  # type: ignore[index]
    assert chat_request(caller, {"messages": turns, "tools": TOOLS}).prompts


def test_thinking_comes_before_a_forced_call_and_is_free(caller: Engine, monkeypatch):
    thought = "<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    shown = "{% if message.reasoning_content %}" + thought + "{% endif %}"
    template = caller.chat_template.replace(
        "{{ message.content }}{% for", f"{shown}{{{{ message.content }}}}{{% for"
    )
    template = template.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    assert template != caller.chat_template
    monkeypatch.setattr(caller, "chat_template", template)
    body = {"tools": [tool(WEATHER)], "tool_choice": "required", "parallel_tool_calls": False}
    body["tgr"] = {"thinking_budget": 12}
    message = made(caller, **body)["message"]
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"])["days"] >= 1
    assert message["reasoning_content"]


def test_a_template_without_tools_gets_them(engine: Engine):
    body = {"messages": ASK, "tools": [tool(WEATHER)], "tool_choice": "required", "seed": 1}
    request = chat_request(engine, body | {"parallel_tool_calls": False}, config=WARM)
    prompt = engine.detokenize(request.prompts[0], special=True).decode()
    assert '"weather"' in prompt and prompt.count("<|im_start|>") == 2
    (choice,) = respond(engine, request)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather" and json.loads(call["function"]["arguments"])


def test_an_answer_is_a_call_or_follows_the_schema(caller: Engine):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    (tag,) = caller.tokenize("<", parse_special=False)
    for bias in (-50, 50):  # which of them the model begins
        choice = made(
            caller, tools=[tool(WEATHER)], response_format=form, logit_bias={str(tag): bias}
        )
        if bias > 0:
            (call, *_) = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        else:
            assert json.loads(choice["message"]["content"])["n"] in (1, 2)


def test_what_does_not_go_with_tools_is_refused(caller: Engine):
    huge = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(99)}}
    many = [tool({"name": f"f{i}", "parameters": huge}) for i in range(60)]
    for body, why in [
        ({"tools": TOOLS, "grammar": 'root ::= "a"'}, "grammar does not go with tools"),
        ({"tools": TOOLS, "logprobs": True}, "logprobs does not go with tools"),
        ({"tools": many, "tool_choice": "required"}, "the tools cannot be called"),
        ({"chat_template_kwargs": {"x": "y" * 70000}}, "chat_template_kwargs has 7"),
    ]:
        with pytest.raises((RequestError, ValueError), match=why):
            chat_request(caller, {"messages": ASK, **body})


def test_any_variables_reach_the_template(engine: Engine, monkeypatch):
    template = "{{ flavour.kind }} {{ reasoning_effort }}" + engine.chat_template
    monkeypatch.setattr(engine, "chat_template", template)
    variables = {"flavour": {"kind": "é"}}
    body = {"messages": ASK, "chat_template_kwargs": variables, "reasoning_effort": "low"}
    request = chat_request(engine, body)
    prompt = engine.detokenize(request.prompts[0], special=True).decode()
    assert prompt.startswith("é low<|im_start|>")


# --- grammars that begin at a trigger, under the methods ---


@pytest.mark.parametrize("method", ["base", "markov", "tgr-latent", "power", "got"])
def test_a_grammar_that_began_holds_to_the_end(engine: Engine, method: str):
    (at,) = engine.tokenize("@")
    form = ReplyFormat(
        "",
        "",
        0,
        grammar='root ::= "@" [0-9]{3} ";" [a-c]{20,40} "."',
        trigger=GrammarTrigger(("@",)),
    )
    config = SearchConfig(**vars(WARM) | {"max_chunks": 12, "power_steps": 2})
    begun = 0
    for seed in range(3):
        request = ReplyRequest(
            [1, 2, 3], config, methods.get(method), verbatim=True, form=form,
            logit_bias=((at, 4.0),),
        ).with_options(seed=seed)  # fmt: skip
        (reply,) = write_each(engine, [request])
        text = engine.detokenize(reply.tokens).decode("utf-8", "replace")
        _, found, after = text.partition("@")
        begun += bool(found)
        if found and reply.finish == "stop":
            assert re.fullmatch(r"[0-9]{3};[a-c]{20,40}\.", after), text
        elif found:
            assert re.fullmatch(r"[0-9]{0,3}(;[a-c]{0,40})?", after), text
    assert begun


# --- a reply as it is read ---

CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}'
TEXT = f"I look.\n<tool_call>\n{CALL}\n</tool_call>"


def reader_of(engine: Engine, streams: bool, index: int = 0) -> ReplyReader:
    """A reader of the reply to a request with a tool, which waits for nothing."""
    query = chat_query(engine, ASK, WARM, tools=Tools([WEATHER]))
    assert query.form and query.form.trigger
    return ReplyReader(query.form, index, streams=streams, least=0.0, share=0.0)


def test_a_reply_is_read_in_pieces_as_it_is_at_once(caller: Engine):
    for streams in (False, True):
        reader = reader_of(caller, streams)
        events = [event for char in TEXT for event in reader.feed(char)]
        assert bool(events) == streams
        events += reader.end(complete=True)
        texts = [event.text for event in events if isinstance(event, NewText)]
        (begun,) = [event for event in events if isinstance(event, CallBegun)]
        arguments = [event.text for event in events if isinstance(event, CallArguments)]
        assert "".join(texts).strip() == "I look." and begun.name == "weather" and begun.id
        assert json.loads("".join(arguments)) == {"city": "Rome", "days": 2}
        assert (len(arguments) > 5) == streams


def test_a_reply_that_ends_within_a_call_has_the_beginning_of_it(caller: Engine):
    reader = reader_of(caller, False, 3)
    reader.feed(TEXT[:-25])
    events = reader.end(complete=False)
    arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert '{"city": "Rome", "days": 2}'.startswith(arguments) and "Rome" in arguments
    assert {event.index for event in events} == {3}  # type: ignore[union-attr]


def test_what_was_sent_is_not_sent_again_when_the_last_reading_fails(caller: Engine, monkeypatch):
    reader = reader_of(caller, True)
    events = [event for char in TEXT[:-25] for event in reader.feed(char)]

    monkeypatch.setattr(
        confined, "parse", Mock(side_effect=confined.ConfinedError("takes too long"))
    )
    events += reader.end(complete=False)
    texts = [event.text for event in events if isinstance(event, NewText)]
    assert "".join(texts).strip() == "I look."


def test_an_answer_that_leaves_its_format_is_whole(caller: Engine, monkeypatch):
    text = "I look. Then I write something else."
    reader = reader_of(caller, True)
    events = [event for char in text[:10] for event in reader.feed(char)]
    assert events

    monkeypatch.setattr(
        confined, "parse", Mock(side_effect=confined.FailedError("not in its format"))
    )
    events += [event for char in text[10:] for event in reader.feed(char)]
    events += reader.end(complete=True)
    assert "".join(event.text for event in events if isinstance(event, NewText)) == text


FENCED = f"```json\n{CALL}\n```"


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        CALL, FENCED, f"\n ```\n{CALL}```\n", f"[{CALL}]", f"```tool_call\n{CALL}\n```",
        CALL.replace("arguments", "parameters"),
        '{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\", \\"days\\": 2}"}',
    ],
)  # fmt: skip
def test_a_reply_that_is_only_a_call_is_one(caller: Engine, text: str, streams: bool):
    texts, calls = read_whole(caller, text, streams)
    assert not texts and [name for name, _ in calls] == ["weather"]
    assert json.loads(calls[0][1]) == {"city": "Rome", "days": 2}


LATER = CALL.replace("Rome", "Paris")


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    "calls",
    [
        f"{CALL}\n{LATER}", f"{CALL}\n\n{LATER}\n", f"{CALL},\n{LATER}", f"[{CALL}, {LATER}]",
        f"{FENCED}\n\n```json\n{LATER}\n```", f"```json\n{CALL}\n{LATER}\n```",
        f"<tools>\n{CALL}\n{LATER}\n</tools>", f"<tools>\n{CALL}\n{LATER}",
        f"<tools>{CALL}</tools>\n<tools>{LATER}</tools>",
        f"{CALL}\n{FENCED.replace('Rome', 'Paris')}",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "before", ["", "I look.", "```python\nprint(1)\n```\n[1]\n- <b> `x`", '{"name": "weather"}']
)
def test_an_answer_may_end_with_several_calls(
    caller: Engine, before: str, calls: str, streams: bool
):
    texts, made = read_whole(caller, f"{before}\n\n{calls}" if before else calls, streams)
    assert texts == before and [name for name, _ in made] == ["weather"] * 2
    cities = [json.loads(arguments)["city"] for _, arguments in made]
    assert cities == ["Rome", "Paris"]


def test_one_call_is_allowed_where_calls_in_parallel_are_not(caller: Engine):
    for parallel, n in ((None, 2), (True, 2), (False, 1)):
        query = chat_query(caller, ASK, WARM, tools=Tools([WEATHER], parallel=parallel))
        assert query.form
        reader = ReplyReader(query.form, 0, streams=False)
        events = [*reader.feed(f"{CALL}\n{LATER}"), *reader.end(complete=True)]
        assert sum(isinstance(event, CallBegun) for event in events) == n


def test_what_begins_like_a_call_is_kept_back_only_while_it_may_be_one(caller: Engine):
    for text in ('See:\n{"name": "weath', 'See:\n```json\n{"name": "weather", "arg', "See:\n<too"):
        assert read_whole(caller, text, True, ends=False) == ("See:", [])
    for text in ('See:\n{"name": "pack', "See:\n```jsonc\n{ x", "See:\n<table", 'A\n{"b": 1'):
        assert read_whole(caller, text, True, ends=False) == (text, [])


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        f"{CALL}\nand\n{CALL}", f"{FENCED}\nor\n{FENCED}", f"{CALL}\n{CALL[:-2]}",
        f"{CALL}\n{CALL.replace('weather', 'clock')}",
        f"{CALL.replace('weather', 'clock')}\n{CALL}",
        f"<tools>{CALL}\nso\n{CALL}", f"```python\n{CALL}\n```", f'{{"calls": [\n{CALL}\n]}}',
        CALL.replace("weather", "clock"), f"Like so: {CALL}", f"{CALL} or not", CALL[:-1],
        '{"city": "Rome"}', '{"name": "weather"}', '{"name": "weather", "arguments": [1]}', "[1]",
        '{"name": "weather", "arguments": {}, "answer": 42}', "```python\nprint(1)\n```", "[]",
        '{"name": ["weather"], "arguments": {}}', "{", "```", f"{FENCED}\nThat is how.",
    ],
)  # fmt: skip
def test_other_replies_stay_text(caller: Engine, text: str, streams: bool):
    texts, calls = read_whole(caller, text, streams)
    assert texts == text and not calls


def test_text_that_cannot_become_a_call_is_not_kept_back(caller: Engine):
    for text in ("```python\nprint(1)", '{"city": "Rome"', "[1, 2", "Rome"):
        texts, _ = read_whole(caller, text, True, ends=False)
        assert texts == text
    assert read_whole(caller, FENCED[:-4], True, ends=False) == ("", [])


def test_a_schema_keeps_its_answer(caller: Engine):
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    body = {"messages": ASK, "tools": [tool(WEATHER)], "response_format": form}
    made = chat_request(caller, body).form
    assert made and not made.names


def read_whole(
    engine: Engine, text: str, streams: bool, ends: bool = True
) -> tuple[str, list[list[str]]]:
    """The text of a reply, and its calls."""
    reader = reader_of(engine, streams)
    events = [event for char in text for event in reader.feed(char)]
    events += reader.end(complete=True) if ends else []
    calls = [[event.name, ""] for event in events if isinstance(event, CallBegun)]
    for event in events:
        if isinstance(event, CallArguments):
            calls[event.call][1] += event.text
    return "".join(event.text for event in events if isinstance(event, NewText)), calls
