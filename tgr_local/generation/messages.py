"""The messages of a chat, as templates want them, and the one that a reply goes on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tgr_local.search.reply_format import Kind

_SYSTEM = ("system", "developer")
Part = Literal["content", "reasoning_content"]
KINDS: dict[Part, Kind] = {"content": "answer", "reasoning_content": "thinking"}


def continued_part(messages: Sequence[Mapping[str, Any]]) -> Part | None:
    """The part of the last message that a reply goes on with: of the assistant's own, which has
    text and calls nothing, after another message. None = the reply is a message of its own."""
    last = messages[-1] if len(messages) > 1 else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    if last.get("content"):
        return "content"
    return "reasoning_content" if last.get("reasoning_content") else None


def without_empty_end(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages without a last one of the assistant that has nothing, which a reply goes on
    with as if it were not there."""
    last = messages[-1] if len(messages) > 1 else {}
    parts = ("content", "reasoning_content", "tool_calls")
    is_empty = last.get("role") == "assistant" and not any(last.get(part) for part in parts)
    return messages[:-1] if is_empty else messages


def one_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation as many templates want it: one system message at most, the first, and
    no two messages of the user in a row. Later system messages are read as the user's."""
    first = 0
    while first < len(messages) and messages[first]["role"] in _SYSTEM:
        first += 1
    texts = [message["content"] for message in messages[:first] if message["content"]]
    rest: list[dict[str, Any]] = []
    parts: list[list[str]] = []  # of the content of each
    for message in messages[first:]:
        role = "user" if message["role"] in _SYSTEM else message["role"]
        if role == "user" and rest and rest[-1]["role"] == "user":
            parts[-1].append(message["content"])
        else:
            rest.append({**message, "role": role})
            parts.append([message["content"]])
    for message, texts_of_one in zip(rest, parts, strict=True):
        if len(texts_of_one) > 1:
            message["content"] = "\n\n".join(texts_of_one)
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest
