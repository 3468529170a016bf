"""Inputs of a request: messages and tools of a chat, prompts of a completion, the grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tgr_local.apis.bodies import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
)
from tgr_local.apis.other_parts import earlier_thinking, is_unseen, parts_text, without_thinking
from tgr_local.apis.tools import functions, is_other
from tgr_local.apis.validation import RequestError, shown
from tgr_local.engine import Cancel, Engine
from tgr_local.generation.schemas import SchemaError, json_grammar
from tgr_local.system.errors import too_long


def requested_grammar(body: GenerationRequest, cancel: Cancel | None = None) -> str:
    """GBNF of ``grammar`` or ``response_format``; empty = none. Raises RequestError for a
    schema that `json_grammar` refuses, and CancelledError."""
    form: Any = body.response_format or {}
    kind = form.get("type") or "text"
    named = body.json_schema if body.json_schema is not None else body.guided_json
    if kind == "text" and named is not None:
        form, kind = {"schema": named}, "json_object"
    if kind == "text":
        return body.grammar or ""
    if body.grammar:
        raise RequestError("grammar and response_format exclude each other", "grammar")
    schema = form.get("schema")  # llama-cpp-python's way
    if kind == "json_schema":
        named = (form.get("json_schema") or {}).get("schema")
        schema = schema if named is None else named  # llama-server takes it without the wrapper too
        if schema is None:
            raise RequestError(
                "response_format has no json_schema.schema; add one, or use json_object",
                "response_format",
            )
    try:
        return json_grammar(schema, cancel.check if cancel else None)
    except SchemaError as error:
        raise RequestError(str(error), "response_format") from None


_ROLES = ("system", "user", "assistant", "tool", "function")
_TOOLS_MOST = 1 << 20  # characters of all definitions of tools


def template_messages(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages as chat templates read them: the content of each is one text. And the places of what
    cannot be read. Raises RequestError."""
    unseen: list[str] = []
    as_texts = []
    for i, message in enumerate(messages):
        is_asked = i == len(messages) - 1 and message["role"] == "user"
        where, given, thinking = f"messages[{i}]", dict(message), ""
        if message["role"] == "assistant":
            thinking = earlier_thinking(where, message, unseen)
            given = without_thinking(message)
        content: Any = given.get("content")
        if isinstance(content, list):
            content = content_text(f"{where}.content", content, unseen, is_asked=is_asked)
        as_texts.append(_template_message(i, given, content))
        if thinking:
            as_texts[-1]["reasoning_content"] = thinking
    return as_texts, unseen


def content_text(where: str, parts: Any, unseen: list[str], *, is_asked: bool = False) -> str:
    """The text of a content, which may be one, or None; adds the places of what cannot be read.
    RequestError for the question that has nothing else."""
    if parts is None or isinstance(parts, str):
        return parts or ""
    unread = [j for j, part in enumerate(parts) if is_unseen(part)]
    if is_asked and unread and len(unread) == len(parts):
        name = where.partition("[")[0]
        kind = shown(parts[0].get("type"), 40)
        raise RequestError(f"{where}[0] is of type {kind}, but only text is read", name)
    unseen += [f"{where}[{j}]" for j in unread]
    return parts_text(parts)


def needed(where: str, part: Any, key: str) -> Any:
    """The value that a part of a conversation must have. Raises RequestError."""
    if part.get(key) is None:
        raise RequestError(f"{where}.{key} is missing; add it", where.partition("[")[0])
    return part[key]


def _template_message(i: int, message: Mapping[str, Any], content: str | None) -> dict[str, Any]:
    role = "system" if message["role"] == "developer" else message["role"]
    if role not in _ROLES:
        raise RequestError(
            f"messages[{i}].role is {role!r:.40}, but must be one of "
            f"{', '.join((*_ROLES, 'developer'))}",
            "messages",
        )
    if content is None and role not in ("assistant", "tool", "function"):
        raise RequestError(f"messages[{i}].content is None, but must be a text", "messages")
    plain: dict[str, Any] = {**message, "role": role, "content": content or ""}
    if role == "function":  # the older names of a call and of its result
        plain |= {"role": "tool", "tool_call_id": message.get("name")}
    if isinstance(call := plain.pop("function_call", None), dict) and "name" in call:
        plain["tool_calls"] = [{"id": call["name"], "type": "function", "function": call}]
    return plain


def chosen_tools(body: ChatRequest) -> tuple[list[Any], list[str]]:
    """The functions among the tools, and the names of the other tools. Raises RequestError for
    definitions that are too long together, and for a choice of a tool that is not there."""
    tools = body.tools or []
    length = len(json.dumps(tools))
    if length > _TOOLS_MOST:
        raise RequestError(
            f"tools has {length} characters, but may have {_TOOLS_MOST}; leave some out", "tools"
        )
    known, ignored = functions(tools)
    choice = body.tool_choice
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        if name not in [tool["function"]["name"] for tool in known]:
            why = (
                "that tool is no function, and is ignored; leave tool_choice out"
                if is_other(name, tools)
                else "tools has no such function"
            )
            raise RequestError(f"tool_choice names {shown(name)}, but {why}", "tool_choice")
    if choice == "required" and not known:
        missing = "no tools that can be called" if tools else "no tools"
        raise RequestError(f"tool_choice asks for a call, but there are {missing}", "tool_choice")
    return known, ignored


def given_prompts(engine: Engine, prompt: Any) -> list[str | list[int]]:
    """One prompt or several, each a text or token ids. Raises RequestError and ContextError."""
    if isinstance(prompt, str):
        return [prompt]
    several = [prompt] if prompt and isinstance(prompt[0], int) else prompt
    if not all(isinstance(text, str) or text for text in several) or not several:
        raise RequestError(
            f"prompt is {shown(prompt)}, but must be {CompletionRequest.wanted['prompt']}", "prompt"
        )
    return [text if isinstance(text, str) else _checked_tokens(engine, text) for text in several]


def _checked_tokens(engine: Engine, tokens: list[int]) -> list[int]:
    if len(tokens) > engine.n_ctx_train:
        raise too_long("the prompt", len(tokens), engine.n_ctx_train)
    for token in tokens:
        if not 0 <= token < engine.n_vocab:
            raise RequestError(
                f"prompt holds token {shown(token, 40)}, but must hold numbers between 0 and "
                f"{engine.n_vocab - 1}",
                "prompt",
            )
    return tokens


def text_of(engine: Engine, tokens: list[int]) -> str:
    """The text of a prompt that is token ids."""
    return engine.detokenize(tokens, special=True).decode("utf-8", "replace")
