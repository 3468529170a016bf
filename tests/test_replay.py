"""Long histories of agents, sent again with every turn as agents do: 90 requests over HTTP, every
block, item and message that the official packages know among them, and no error."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import typing_extensions
from serving import Served, served
from tool_models import write_tool_model

pytest.importorskip("fastapi")

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
OUTPUT = "return x  # é <|im_end|>"
FUNCTION = {"name": "look", "description": "Reads a file.", "parameters": SCHEMA}
MESSAGES, ITEMS, CHAT = 30, 36, 24  # turns of each API


def example(kind: Any) -> Any:
    """A value of a type of the official packages with what it requires, and nothing more."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if typing_extensions.is_typeddict(kind):
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        required = [
            name
            for name, hint in hints.items()
            if typing.get_origin(hint) is typing_extensions.Required
            or (kind.__total__ and typing.get_origin(hint) is not typing_extensions.NotRequired)
        ]
        return {name: example(hints[name]) for name in required}
    if origin in (typing.Literal, typing_extensions.Literal):
        return args[0]
    if origin in (typing.Union, typing.Annotated, typing_extensions.Required):
        return example(args[0])
    if kind in (str, int, float, bool):
        return {str: "x", int: 1, float: 1.0, bool: True}[kind]
    if kind is type(None):
        return None
    if origin is not None and issubclass(origin, Mapping):
        return {}
    if origin is not None and issubclass(origin, Iterable):
        return [example(args[0])]
    return {}


def members(union: Any) -> list[Any]:
    found = [one for one in typing.get_args(union) if typing_extensions.is_typeddict(one)]
    assert found
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("replay")
    fast = {"method": "base", "prefix_cells": 32768, "flash_attn": "on", "n_threads": 2}
    with served(write_tool_model(folder / "caller.gguf"), folder, **fast) as running:
        yield running
        running.until(running.is_free)
        assert not any("Traceback" in line for line in running.lines)


def sent(server: Served, path: str, body: dict[str, Any]) -> Any:
    response = server.client.post(path, json=body)
    assert response.status_code == 200, (response.text, str(body)[-400:])
    return response.json()


def cycled(examples: list[Any], turns: int) -> list[Any]:
    """One for each turn, all at least once."""
    assert len(examples) <= turns
    return [examples[turn % len(examples)] for turn in range(turns)]


def test_blocks_of_anthropics_package(server: Served):
    import anthropic.types.beta  # here: 3,000 modules, which other processes need not load

    hints = typing_extensions.get_type_hints(anthropic.types.beta.BetaToolResultBlockParam)
    parts = members(typing.get_args(typing.get_args(hints["content"])[1])[0])
    blocks = [example(kind) for kind in members(anthropic.types.beta.BetaContentBlockParam)]
    calls = ("tool_use", "tool_result")
    shown = [block for block in blocks if block["type"] not in calls]
    results = cycled([example(part) for part in parts], MESSAGES)
    tools = [{"name": "look", "description": "Reads a file.", "input_schema": SCHEMA}]
    history: list[dict[str, Any]] = [{"role": "user", "content": "Mend the test."}]
    for turn, block in enumerate(cycled(shown, MESSAGES)):
        asked = {"messages": history, "system": "You mend code.", "tools": tools, "max_tokens": 2}
        thinking = {"type": "enabled", "budget_tokens": 1} if turn % 2 else {"type": "disabled"}
        answer = sent(server, "/v1/messages", asked | {"thinking": thinking, "stream": False})
        use = {"type": "tool_use", "id": f"toolu_{turn}", "name": "look", "input": {"path": "a"}}
        said = [*answer["content"], block, {"type": "text", "text": "I look."}, use]
        history.append({"role": "assistant", "content": [one for one in said if one]})
        result = {"type": "tool_result", "tool_use_id": use["id"],
                  "content": [{"type": "text", "text": OUTPUT}, results[turn]],
                  "is_error": turn % 5 == 0}  # fmt: skip
        if turn % 9 == 0:  # a tool that says nothing
            del result["content"]
        history.append({"role": "user", "content": [result, block]})
    usage = answer["usage"]  # what was read of the history is remembered
    assert usage["cache_read_input_tokens"] > usage["input_tokens"] > 0
    counted = sent(server, "/v1/messages/count_tokens", {"messages": history, "tools": tools})
    assert counted["input_tokens"] > 60 * MESSAGES


def test_items_of_openais_package(server: Served):
    from openai.types.responses import response_input_item_param

    items = [example(kind) for kind in members(response_input_item_param.ResponseInputItemParam)]
    tools = [{"type": "function", **FUNCTION}]
    history: list[Any] = [{"role": "user", "content": "Mend the test."}]
    for turn, item in enumerate(cycled(items, ITEMS)):
        body = {"input": history, "instructions": "You mend code.", "tools": tools,
                "max_output_tokens": 2, "store": False, "reasoning": {"effort": "max"}}  # fmt: skip
        answer = sent(server, "/v1/responses", body)
        call = {"type": "function_call", "call_id": f"call_{turn}", "name": "look",
                "arguments": '{"path": "a"}'}  # fmt: skip
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": OUTPUT}
        history += [*answer["output"], item, call, output]
        if turn % 7 == 0:
            history.append({"role": "user", "content": [{"type": "input_text", "text": "Go on."}]})


def test_messages_of_openais_package(server: Served):
    from openai.types import chat

    kinds = members(chat.chat_completion_message_param.ChatCompletionMessageParam)
    messages = cycled([example(kind) for kind in kinds], CHAT)
    parts = chat.chat_completion_content_part_param.ChatCompletionContentPartParam
    seen = cycled([example(part) for part in members(parts)], CHAT)
    tools = [{"type": "function", "function": FUNCTION}]
    history: list[dict[str, Any]] = [{"role": "user", "content": "Mend the test."}]
    for turn, message in enumerate(messages):
        body = {"messages": history, "tools": tools, "max_completion_tokens": 2}
        more = {"reasoning_effort": "max"} if turn % 2 else {"parallel_tool_calls": True}
        answer = sent(server, "/v1/chat/completions", body | more)["choices"][0]["message"]
        function = {"name": "look", "arguments": '{"path": "a"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        history += [
            answer | {"tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": OUTPUT},
            message,
            {"role": "user", "content": [{"type": "text", "text": "See."}, seen[turn]]},
        ]
