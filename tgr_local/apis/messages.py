"""Anthropic's /v1/messages: a body becomes a chat request, events become its content blocks.

Thinking is reported only where the request asks for it with ``thinking``: a client that does not
reads the first block as the answer. A model thinks all the same if it is configured so.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import NotRequired

from tgr_local.apis.bodies import (
    CALLS_MAX,
    NAME_MAX,
    TOOLS_MAX,
    ChatTemplateOptions,
    CommonRequest,
    SampledRequest,
    StopTexts,
    ThinkingMode,
    ToolName,
)
from tgr_local.apis.client_parameters import ignoring
from tgr_local.apis.inputs import content_text, needed
from tgr_local.apis.other_parts import earlier_thinking, is_thought, part_text
from tgr_local.apis.requests import PreparedRequest, chat_request
from tgr_local.apis.search_options import optional, whole_field
from tgr_local.apis.tools import chat_tools, function_call
from tgr_local.apis.validation import OpenObject, RequestError, shown
from tgr_local.engine import Engine
from tgr_local.engine.templates.messages import one_system


class Block(OpenObject):
    """A content block. Which keys it needs depends on its type."""

    type: str
    text: NotRequired[str]
    thinking: NotRequired[str]
    id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)]]
    name: NotRequired[ToolName]
    input: NotRequired[dict[str, Any]]
    tool_use_id: NotRequired[Annotated[str, Field(max_length=NAME_MAX)]]
    content: NotRequired[Any]
    is_error: NotRequired[bool | None]


Blocks = Annotated[list[Block], Field(fail_fast=True)]


class AnthropicMessage(OpenObject):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class AnthropicTool(OpenObject):
    """A tool; one without an input_schema runs on Anthropic's servers, and is ignored."""

    name: NotRequired[ToolName]
    type: NotRequired[str | None]
    description: NotRequired[str | None]
    input_schema: NotRequired[dict[str, Any] | None]


class AnthropicToolChoice(OpenObject):
    """Whether a tool is called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: NotRequired[ToolName | None]
    disable_parallel_tool_use: NotRequired[bool | None]


class OutputConfig(OpenObject):
    """The form of the answer."""

    format: NotRequired[dict[str, Any] | None]


@ignoring(
    "cache_control", "container", "context_management", "inference_geo", "mcp_servers", "betas",
    "speed", "billing_policy", "compaction", "diagnostics", "fallback_credit_token", "fallbacks",
    "thread", "user_profile_id", "workspace_id",
)  # fmt: skip
class CountTokensRequest(CommonRequest):
    """The body of /v1/messages/count_tokens."""

    resent: ClassVar[Sequence[str]] = ("messages", "system", "tools")
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, fail_fast=True)]
    system: str | Blocks | None = optional("what the model is to be")
    thinking: ThinkingMode | None = optional(
        "whether the model thinks first, and how many tokens at most"
    )
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True, max_length=TOOLS_MAX)] | None = (
        optional("functions that the model may call")
    )
    tool_choice: AnthropicToolChoice | None = optional(
        "auto, any, none, or the tool that must be called"
    )
    output_config: OutputConfig | None = optional("the JSON schema of the answer")
    output_format: dict[str, Any] | None = optional("an older name for its format")
    chat_template_kwargs: ChatTemplateOptions | None = None


class MessagesRequest(CountTokensRequest, SampledRequest):
    """The body of /v1/messages."""

    max_tokens: int | None = whole_field(
        "new tokens at most; as the config allows if absent", least=1
    )
    stop_sequences: StopTexts | None = optional("texts that end the reply")


def messages_request(
    engine: Engine, body: Mapping[str, Any] | CountTokensRequest, **options: Any
) -> PreparedRequest:
    """The body of a /v1/messages request, checked, as `chat_request` does. Raises RequestError."""
    if not isinstance(body, CountTokensRequest):
        body = MessagesRequest.parse(body)
    chat, unseen = _chat_body(body)
    _check_end(body)
    request = chat_request(engine, chat, **options)
    mode: Any = body.thinking or {"type": "disabled"}
    shows = mode["type"] != "disabled" and mode.get("display") != "omitted"
    return dataclasses.replace(
        request, ignored=(*body.ignored(), *unseen, *request.ignored), extra={"thinking": shows}
    )


def _chat_body(body: CountTokensRequest) -> tuple[dict[str, Any], list[str]]:
    """The body of a chat request that asks for the same, and the places of what cannot be read."""
    chat = body.for_chat("max_tokens", "thinking")
    messages = [{"role": "system", "content": _system(body.system)}] if body.system else []
    unseen: list[str] = []
    for i, message in enumerate(body.messages):
        is_asked = i == len(body.messages) - 1
        messages += _chat_messages(i, message, unseen, is_asked=is_asked)
    chat["messages"] = one_system(messages)
    if stops := getattr(body, "stop_sequences", None):
        chat["stop"] = stops
    config: Any = body.output_config or {}
    if form := config.get("format") or body.output_format:
        chat["response_format"] = {"type": "json_schema", "schema": form.get("schema")}
    choice: Any = body.tool_choice or {"type": "auto"}
    if choice["type"] == "tool":
        needed("tool_choice", choice, "name")
    chat["tool_choice"] = choice
    if tools := chat_tools(body.tools or []):
        chat["tools"] = tools
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return chat, unseen


def _check_end(body: CountTokensRequest) -> None:
    """Refuses white space at the end of a reply's beginning, as Anthropic does, in its words."""
    i, last = len(body.messages) - 1, body.messages[-1]
    content = last["content"]
    if isinstance(content, list):
        content = content[-1].get("text", "") if content else ""
    if last["role"] == "assistant" and content and content[-1].isspace():
        raise RequestError(
            "final assistant content cannot end with trailing whitespace: the text of "
            f"messages[{i}] ends with {content[-1]!r}; remove it",
            "messages",
        )


def _system(system: str | list[Any]) -> str:
    """The text of the system prompt. Claude Code begins it with a line of accounting that is
    another one in each request, which would keep prompts from beginning alike."""
    texts = [system] if isinstance(system, str) else [block.get("text", "") for block in system]
    return "\n\n".join(text for text in texts if text and not _ACCOUNTING.match(text))


_ACCOUNTING = re.compile(r"x-anthropic-billing-header:[^\n]*\Z")


def _chat_messages(
    i: int, message: AnthropicMessage, unseen: list[str], *, is_asked: bool
) -> list[dict[str, Any]]:
    """One message as those of a chat: every tool result is one of its own. Adds the places of what
    cannot be read to `unseen`; `is_asked` = it is the last one."""
    role, content = message["role"], message["content"]
    if role == "assistant":
        reply = {"role": role, "content": content}
        if isinstance(content, list):
            reply = _assistant_message(i, content)
        if thinking := earlier_thinking(f"messages[{i}]", message, unseen):
            reply["reasoning_content"] = thinking
        return [reply]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    content_text(f"messages[{i}].content", content, unseen, is_asked=is_asked)
    messages: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            messages.append({"role": role, "content": "\n\n".join(texts)})
            texts.clear()

    for j, block in enumerate(content):
        if block["type"] == "tool_result":
            flush()
            where = f"messages[{i}].content[{j}]"
            result = {"role": "tool", "content": _result_text(where, block, unseen)}
            messages.append(result | {"tool_call_id": needed(where, block, "tool_use_id")})
        else:
            texts.append(_text(f"messages[{i}].content[{j}]", block))
    flush()
    return messages or [{"role": role, "content": ""}]


def _assistant_message(i: int, content: list[Any]) -> dict[str, Any]:
    texts, calls = [], []
    for j, block in enumerate(content):
        where, kind = f"messages[{i}].content[{j}]", block["type"]
        if is_thought(block):
            if kind == "thinking":
                needed(where, block, kind)
        elif kind == "tool_use":
            name, call_id = needed(where, block, "name"), needed(where, block, "id")
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(function_call(call_id, name, arguments))
        elif kind == "text":
            texts.append(_text(where, block))
        else:
            texts.append(f"\n{_text(where, block)}\n")
    if len(calls) > CALLS_MAX:
        raise RequestError(
            f"messages[{i}] has {len(calls)} calls, but may have {CALLS_MAX}", "messages"
        )
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return message


def _text(where: str, block: Any) -> str:
    """A block as text."""
    if block["type"] in ("tool_use", "tool_result"):
        raise RequestError(f"{where} is of type {block['type']}, which is out of place", "messages")
    return str(needed(where, block, "text")) if block["type"] == "text" else part_text(block)


def _result_text(where: str, block: Any, unseen: list[str]) -> str:
    content = block.get("content")
    if content is None or isinstance(content, str):
        text = content or ""
    elif isinstance(content, list):
        content_text(f"{where}.content", content, unseen, is_asked=False)
        text = "\n".join(filter(None, map(part_text, content)))
    else:
        raise RequestError(
            f"{where}.content is {shown(content)}, but must be a text or a list of blocks",
            "messages",
        )
    return f"Error: {text}" if block.get("is_error") else text
