"""OpenAI's /v1/responses: its body becomes a chat request.

A conversation is a list of items: messages, reasoning, calls of functions and their outputs. One
that continues an earlier response begins with that one's items, which a `Responses` keeps.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import NotRequired

from tgr_local.apis.bodies import (
    CALLS_MAX,
    NAME_MAX,
    TOOLS_MAX,
    ChatTemplateOptions,
    SampledRequest,
    ToolName,
)
from tgr_local.apis.client_parameters import Only, ignoring
from tgr_local.apis.inputs import content_text, needed
from tgr_local.apis.other_parts import earlier_thinking, part_text, thought_text, without_thinking
from tgr_local.apis.requests import PreparedRequest, chat_request
from tgr_local.apis.response_store import ResponseStore
from tgr_local.apis.search_options import optional, whole_field
from tgr_local.apis.tools import chat_tools, function_call
from tgr_local.apis.validation import OpenObject, RequestError, shown
from tgr_local.engine import Engine
from tgr_local.engine.templates.messages import one_system

ITEMS_MAX = 8192
_DEPTH_MOST = 200  # levels of nesting


class Item(OpenObject):
    """A part of a conversation. Which keys it needs depends on its type."""

    type: NotRequired[str | None]
    role: NotRequired[Literal["user", "assistant", "system", "developer"]]
    content: NotRequired[str | list[dict[str, Any]] | None]
    call_id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)] | None]
    name: NotRequired[ToolName | None]
    arguments: NotRequired[Any]
    output: NotRequired[Any]
    summary: NotRequired[list[dict[str, Any]] | None]


class Reasoning(OpenObject):
    """How the model thinks."""

    effort: NotRequired[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None]
    summary: NotRequired[str | None]


class TextOptions(OpenObject):
    """The form of the answer."""

    format: NotRequired[dict[str, Any] | None]
    verbosity: NotRequired[str | None]


@ignoring(
    "stream_options", "truncation", "max_tool_calls", "client_metadata", "context_management",
    "access_programs", "background_options", "image",
)  # fmt: skip
class ResponsesRequest(SampledRequest):
    """The body of /v1/responses."""

    resent: ClassVar[Sequence[str]] = ("input", "instructions", "tools")
    wanted: ClassVar[Mapping[str, str]] = {
        "input": "a text or a list of items",
        "tool_choice": "none, auto, required, or an object",
    }
    input: str | Annotated[list[Item], Field(fail_fast=True, max_length=ITEMS_MAX)] = Field(
        union_mode="left_to_right"
    )
    instructions: str | None = optional("instructions for the model, for this response alone")
    previous_response_id: str | None = optional(
        "the response that this one continues", max_length=NAME_MAX
    )
    store: bool | None = optional("whether it can be continued; true if absent")
    max_output_tokens: int | None = whole_field(
        "new tokens at most; as the config allows if absent", least=1
    )
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=TOOLS_MAX)] | None = (
        optional("functions that the model may call; other tools are ignored")
    )
    tool_choice: str | dict[str, Any] | None = optional(
        "none, auto, required, or the function that must be called"
    )
    parallel_tool_calls: bool | None = optional(
        "whether one response may have several calls; true if absent"
    )
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Annotated[list[str], Field(fail_fast=True, max_length=64)] | None = optional(
        "message.output_text.logprobs; the others are ignored"
    )
    metadata: dict[str, Any] | None = optional("given back in the response")
    chat_template_kwargs: ChatTemplateOptions | None = None
    background: Annotated[Any, Only(False)] = None
    conversation: Annotated[Any, Only()] = None
    prompt: Annotated[Any, Only()] = None


_LOGPROBS = "message.output_text.logprobs"


def responses_request(
    engine: Engine,
    body: Mapping[str, Any] | ResponsesRequest,
    *,
    store: ResponseStore,
    **options: Any,
) -> PreparedRequest:
    """The body of a /v1/responses request, checked, as `chat_request` does. Raises RequestError,
    and UnknownResponse for a `previous_response_id` that `store` does not have."""
    body = ResponsesRequest.parse(body)
    earlier = store.items(body.previous_response_id) if body.previous_response_id else []
    given: Any = body.input
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    items = [*earlier, *given]
    for name in ("input", "tools", "tool_choice", "text", "metadata"):
        _check_depth(name, getattr(body, name))
    chat, unread = _chat_body(body, items, len(earlier))
    request = chat_request(engine, chat, **options)
    unread += [f"include.{name}" for name in body.include or () if name != _LOGPROBS]
    extra = {"items": items, "stores": body.store is not False, "echo": _echo(body, request)}
    ignored = (*body.ignored(), *request.ignored, *unread)
    return dataclasses.replace(request, ignored=ignored, extra=extra)


def _chat_body(
    body: ResponsesRequest, items: list[Item], n_before: int
) -> tuple[dict[str, Any], list[str]]:
    """The body of a chat request that asks for the same, and the places of what cannot be read."""
    chat = body.for_chat()
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    unread: list[str] = []
    for i, item in enumerate(items):
        _add(messages, item, f"input[{i - n_before}]", unread, is_asked=i == len(items) - 1)
    chat["messages"] = one_system(messages)
    chat["continue_final_message"] = False  # a response is an item of its own
    if not chat["messages"]:
        raise RequestError("input is empty, but must hold at least one item", "input")
    if body.max_output_tokens:
        chat["max_tokens"] = body.max_output_tokens
    reasoning: Any = body.reasoning or {}
    effort = reasoning.get("effort")
    if effort:
        chat["reasoning_effort"] = "xhigh" if effort == "max" else effort
    if body.top_logprobs is not None or _LOGPROBS in (body.include or ()):
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    text: Any = body.text or {}
    if form := text.get("format"):
        schema = {"schema": form.get("schema")} if form.get("type") == "json_schema" else {}
        chat["response_format"] = {"type": form.get("type")} | schema
    chat["tool_choice"] = _chat_choice(body.tool_choice)
    if tools := _chat_tools(body):
        chat["tools"] = tools
        chat["parallel_tool_calls"] = body.parallel_tool_calls
    return chat, unread


def _chat_tools(body: ResponsesRequest) -> list[Any]:
    """The tools as a chat has them, without functions that the choice does not allow."""
    choice, tools = body.tool_choice, chat_tools(body.tools or [])
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools
    allowed = [tool.get("name") for tool in choice.get("tools") or [] if isinstance(tool, dict)]
    inner = [tool.get("function", {}) for tool in tools]
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in inner]
    return [tool for tool, name in zip(tools, names, strict=True) if name in (None, *allowed)]


def _chat_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice or "auto"
    kind = choice.get("type")
    if kind == "allowed_tools":
        return choice.get("mode") or "auto"
    if kind != "function" or not isinstance(choice.get("name"), str):
        raise RequestError(
            f"tool_choice is {shown(choice)}, but must name a function", "tool_choice"
        )
    return {"type": kind, "name": choice["name"]}


def _check_depth(name: str, value: Any) -> None:
    """Refuses a value that is nested so deeply that it could not be written as JSON again."""
    level = [value]
    for _ in range(_DEPTH_MOST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise RequestError(f"{name} is nested more than {_DEPTH_MOST} deep; flatten it", name)


# --- items ---


# calls whose output the client sends, and what they say of themselves
_CLIENT_CALLS = {
    "custom_tool_call": "input", "local_shell_call": "action", "shell_call": "action",
    "apply_patch_call": "operation", "computer_call": "action", "tool_search_call": "arguments",
}  # fmt: skip
# what only OpenAI's servers can read
_UNREAD = ("item_reference", "compaction", "compaction_trigger", "mcp_list_tools",
           "additional_tools", "configuration_update")  # fmt: skip


def _add(
    messages: list[dict[str, Any]], item: Item, where: str, unread: list[str], *, is_asked: bool
) -> None:
    """Adds an item: those that the model wrote in a row are one message. Adds the places of what
    cannot be read to `unread`; `is_asked` = it is the last one."""
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind is None and item.keys() <= {"id", "type"} and item.get("id"):
        kind = "item_reference"
    if kind is None:
        raise RequestError(f"{where}.type is missing; add it", "input")
    if kind == "message":
        role = str(needed(where, item, "role"))
        is_asked = is_asked and role == "user"
        content: Any = item.get("content")
        if role == "assistant":
            _think(messages, earlier_thinking(where, item, unread))
            content = without_thinking(item).get("content")
        text = content_text(f"{where}.content", content, unread, is_asked=is_asked)
        if role == "assistant":
            _assistant(messages)["content"] += text
        else:
            messages.append({"role": role, "content": text})
    elif kind == "reasoning":
        _think(messages, thinking := thought_text(item))
        if not thinking and item.get("encrypted_content"):
            unread.append(where)
    elif kind == "function_call":
        arguments = needed(where, item, "arguments")
        if not isinstance(arguments, str):
            raise RequestError(
                f"{where}.arguments is {shown(arguments)}, but must be a text", "input"
            )
        _add_call(messages, where, item, str(needed(where, item, "name")), arguments)
    elif kind in _CLIENT_CALLS:
        action = {_CLIENT_CALLS[kind]: item.get(_CLIENT_CALLS[kind])}
        name = item.get("name") or kind.removesuffix("_call")
        _add_call(messages, where, item, name, json.dumps(action, ensure_ascii=False))
    elif kind.endswith("_output") and "output" in item:
        output = item["output"]
        parts = output if isinstance(output, str | list) else [output]
        text = content_text(f"{where}.output", parts, unread)
        call_id = _call_id(where, item)
        messages.append({"role": "tool", "content": text, "tool_call_id": call_id})
    elif kind in _UNREAD:
        unread.append(where)
    else:  # a call that OpenAI's servers ran, with what came of it
        message = _assistant(messages)
        message["content"] += f"\n{part_text(item)}\n"


def _think(messages: list[dict[str, Any]], thinking: str) -> None:
    """Adds to the thinking of the model's message at the end."""
    if thinking:
        message = _assistant(messages)
        message["reasoning_content"] = message.get("reasoning_content", "") + thinking


def _add_call(
    messages: list[dict[str, Any]], where: str, item: Item, name: str, arguments: str
) -> None:
    calls = _assistant(messages).setdefault("tool_calls", [])
    calls.append(function_call(_call_id(where, item), name, arguments))
    if len(calls) > CALLS_MAX:
        raise RequestError(f"{where} is one of more than {CALLS_MAX} calls in a row", "input")


def _call_id(where: str, item: Any) -> str:
    """The id of a call, which some old items have as their own, and some results have not."""
    if item.get("call_id") is None and isinstance(item.get("id"), str):
        return str(item["id"])[:NAME_MAX]
    may_lack = "output" in item or item["type"] == "tool_search_call"
    return str(item.get("call_id") or "" if may_lack else needed(where, item, "call_id"))


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's message at the end."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


# --- the response ---


def _echo(body: ResponsesRequest, request: PreparedRequest) -> dict[str, Any]:
    """Parts of its request that a response repeats."""
    config = request.config
    reasoning: Any = body.reasoning or {}
    text: Any = body.text or {}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "store": body.store is not False,
        "temperature": config.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [tool for tool in body.tools or [] if tool.get("type") == "function"],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": config.top_p,
        "truncation": "disabled",
    }
