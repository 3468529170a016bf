"""Anthropic's /v1/messages: a body becomes a chat request, events become its content blocks.

Thinking is reported only where the request asks for it with ``thinking``: a client that does not
reads the first block as the answer. A model thinks all the same if it is configured so.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from tgr_local.engine import Engine
from tgr_local.openai.bodies import (
    CALLS_MAX,
    NAME_MAX,
    TOOLS_MAX,
    ChatTemplateOptions,
    ThinkingMode,
    ToolName,
)
from tgr_local.openai.client_parameters import ClientParameters, Ignored
from tgr_local.openai.inputs import one_system
from tgr_local.openai.requests import PreparedRequest, chat_request
from tgr_local.openai.search_options import (
    INT_MAX,
    TgrOptions,
    as_list,
    list_bounds,
    option_field,
    text_bounds,
)
from tgr_local.openai.validation import AT_FAULT, RequestError, shown

_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document")
_ANY: Any = ConfigDict(extra="allow", strict=True)


def _check_block(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if isinstance(block, dict) and kind not in _BLOCKS:
        raise PydanticCustomError(
            AT_FAULT,
            "is of type {kind}, but only text, thinking, tool_use and tool_result are read",
            {"kind": shown(kind)},
        )
    return block


class _Block(TypedDict):
    """A content block. Which keys it needs depends on its type."""

    __pydantic_config__ = _ANY  # type: ignore[misc]
    type: str
    text: NotRequired[str]
    thinking: NotRequired[str]
    id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)]]
    name: NotRequired[ToolName]
    input: NotRequired[dict[str, Any]]
    tool_use_id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)]]
    content: NotRequired[str | list[dict[str, Any]] | None]
    is_error: NotRequired[bool | None]
    source: NotRequired[dict[str, Any]]


Block = Annotated[_Block, BeforeValidator(_check_block)]
Blocks = Annotated[list[Block], Field(fail_fast=True)]


class AnthropicMessage(TypedDict):
    """A message of a conversation."""

    __pydantic_config__ = _ANY  # type: ignore[misc]
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class AnthropicTool(TypedDict):
    """A tool; one without an input_schema runs on Anthropic's servers, and is ignored."""

    __pydantic_config__ = _ANY  # type: ignore[misc]
    name: ToolName
    type: NotRequired[str | None]
    description: NotRequired[str | None]
    input_schema: NotRequired[dict[str, Any] | None]


class AnthropicToolChoice(TypedDict):
    """Whether a tool is called, and which."""

    __pydantic_config__ = _ANY  # type: ignore[misc]
    type: Literal["auto", "any", "tool", "none"]
    name: NotRequired[ToolName | None]
    disable_parallel_tool_use: NotRequired[bool | None]


class OutputConfig(TypedDict):
    """The form of the answer."""

    __pydantic_config__ = _ANY  # type: ignore[misc]
    format: NotRequired[dict[str, Any] | None]


class CountTokensRequest(ClientParameters):
    """The body of /v1/messages/count_tokens."""

    noun: ClassVar[str] = "parameter"
    model: str | None = Field(
        None, max_length=NAME_MAX, description="any name; after a colon, the method"
    )
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, fail_fast=True)]
    system: str | Blocks | None = Field(None, description="what the model is to be")
    thinking: ThinkingMode | None = Field(
        None, description="whether the model thinks first, and how many tokens at most"
    )
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=TOOLS_MAX)] | None = (
        Field(None, description="functions that the model may call")
    )
    tool_choice: AnthropicToolChoice | None = Field(
        None, description="auto, any, none, or the tool that must be called"
    )
    output_config: OutputConfig | None = Field(None, description="the JSON schema of the answer")
    output_format: dict[str, Any] | None = Field(None, description="an older name for its format")
    chat_template_kwargs: ChatTemplateOptions | None = None
    tgr: TgrOptions | None = None
    container: Ignored = None
    context_management: Ignored = None
    inference_geo: Ignored = None
    mcp_servers: Ignored = None
    betas: Ignored = None
    speed: Ignored = None


class MessagesRequest(CountTokensRequest):
    """The body of /v1/messages."""

    max_tokens: int | None = Field(
        None, ge=1, le=INT_MAX, description="new tokens at most; as the config allows if absent"
    )
    stop_sequences: (
        Annotated[
            list[Annotated[str, text_bounds("stop")]],
            list_bounds("stop"),
            as_list,
        ]
        | None
    ) = Field(None, description="texts that end the reply")
    temperature: float | None = option_field("temperature")
    top_p: float | None = option_field("top_p")
    top_k: int | None = option_field("top_k", ge=-INT_MAX, le=INT_MAX)
    min_p: float | None = option_field("min_p")
    seed: int | None = option_field("seed", ge=-1)
    method: str | None = Field(None, description="name of the method, as in tgr")
    stream: bool | None = None


_SAME = (
    "model", "tgr", "method", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
    "stream", "chat_template_kwargs", "thinking",
)  # fmt: skip


def messages_request(
    engine: Engine, body: Mapping[str, Any] | CountTokensRequest, **options: Any
) -> PreparedRequest:
    """The body of a /v1/messages request, checked, as `chat_request` does. Raises RequestError."""
    if not isinstance(body, CountTokensRequest):
        body = MessagesRequest.parse(body)
    chat, ignored = _chat_body(body)
    request = chat_request(engine, chat, **options)
    mode: Any = body.thinking or {"type": "disabled"}
    shows = mode["type"] != "disabled" and mode.get("display") != "omitted"
    return dataclasses.replace(
        request, ignored=(*body.ignored(), *ignored, *request.ignored), extra={"thinking": shows}
    )


def _chat_body(body: CountTokensRequest) -> tuple[dict[str, Any], list[str]]:
    """The body of a chat request that asks for the same, and the names of ignored tools."""
    given = {name: getattr(body, name, None) for name in _SAME}
    chat: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    messages = [{"role": "system", "content": _system(body.system)}] if body.system else []
    for i, message in enumerate(body.messages):
        messages += _chat_messages(i, message)
    chat["messages"] = one_system(messages)
    if stops := getattr(body, "stop_sequences", None):
        chat["stop"] = stops
    config: Any = body.output_config or {}
    form = config.get("format") or body.output_format
    if form:
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {"schema": form.get("schema")},
        }
    tools, ignored = _chat_tools(body.tools or [])
    choice: Any = body.tool_choice or {"type": "auto"}
    if tools:
        chat["tools"] = tools
        chat["tool_choice"] = _chat_choice(choice)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return chat, ignored


def _chat_tools(tools: list[AnthropicTool]) -> tuple[list[dict[str, Any]], list[str]]:
    found, ignored = [], []
    for tool in tools:
        schema, name = tool.get("input_schema"), tool["name"]
        if schema is None:
            ignored.append(f"tools.{name}")
            continue
        function = {"name": name, "description": tool.get("description"), "parameters": schema}
        found.append({"type": "function", "function": function})
    return found, ignored


def _chat_choice(choice: Any) -> Any:
    kind = choice["type"]
    if kind != "tool":
        return {"any": "required"}.get(kind, kind)
    if not choice.get("name"):
        raise RequestError("tool_choice.name is missing; add it", "tool_choice")
    return {"type": "function", "function": {"name": choice["name"]}}


def _system(system: str | list[Any]) -> str:
    """The text of the system prompt. Claude Code begins it with a line of accounting that is
    another one in each request, which would keep prompts from beginning alike."""
    texts = [system] if isinstance(system, str) else [block.get("text", "") for block in system]
    return "\n\n".join(text for text in texts if text and not _ACCOUNTING.match(text))


_ACCOUNTING = re.compile(r"x-anthropic-billing-header:[^\n]*\Z")


def _chat_messages(i: int, message: AnthropicMessage) -> list[dict[str, Any]]:
    """One message as those of a chat: every tool result is one of its own."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant_message(i, content)]
    made: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            made.append({"role": role, "content": "\n\n".join(texts)})
            texts.clear()

    for j, block in enumerate(content):
        if block["type"] == "tool_result":
            flush()
            where = f"messages[{i}].content[{j}]"
            result = {"role": "tool", "content": _result_text(where, block)}
            made.append(result | {"tool_call_id": _needed(where, block, "tool_use_id")})
        else:
            texts.append(_text(f"messages[{i}].content[{j}]", block))
    flush()
    return made or [{"role": role, "content": ""}]


def _assistant_message(i: int, content: list[Any]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for j, block in enumerate(content):
        where, kind = f"messages[{i}].content[{j}]", block["type"]
        if kind == "thinking":
            thoughts.append(_needed(where, block, "thinking"))
        elif kind == "tool_use":
            function = {
                "name": _needed(where, block, "name"),
                "arguments": json.dumps(block.get("input") or {}, ensure_ascii=False),
            }
            call_id = _needed(where, block, "id")
            calls.append({"id": call_id, "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(_text(where, block))
    if len(calls) > CALLS_MAX:
        raise RequestError(
            f"messages[{i}] has {len(calls)} calls, but may have {CALLS_MAX}", "messages"
        )
    made: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        made["reasoning_content"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _text(where: str, block: Any) -> str:
    """The text of a block or of a document that is one."""
    if block["type"] == "document":
        source = block.get("source") or {}
        if source.get("type") != "text" or not isinstance(source.get("data"), str):
            raise RequestError(f"{where} is no document of plain text; send its text", "messages")
        return str(source["data"])
    if block["type"] != "text":
        raise RequestError(f"{where} is of type {block['type']}, which is out of place", "messages")
    return str(_needed(where, block, "text"))


def _result_text(where: str, block: Any) -> str:
    content = block.get("content")
    if content is None or isinstance(content, str):
        text = content or ""
    else:
        parts = []
        for k, part in enumerate(content):
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                kind = shown(part.get("type"), 40)
                raise RequestError(
                    f"{where}.content[{k}] is of type {kind}, but only text is read", "messages"
                )
            parts.append(part["text"])
        text = "\n".join(parts)
    return f"Error: {text}" if block.get("is_error") else text


def _needed(where: str, block: Any, key: str) -> Any:
    if key not in block:
        raise RequestError(f"{where}.{key} is missing; add it", "messages")
    return block[key]
