"""The thinking of earlier messages of the assistant, in the spellings of every client.

In: a message. Out: its thinking as one text, which chat templates read as ``reasoning_content``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "reasoning_details",
           "thinking_blocks", "thinking")  # fmt: skip
_KINDS = {"thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoning_text",
          "reasoning.text", "reasoning.summary", "reasoning.encrypted"}  # fmt: skip
_TEXTS = ("thinking", "text", "reasoning", "reasoning_content", "reasoning_text", "content",
          "summary")  # fmt: skip
_DEPTH_MOST = 4


def is_thought(part: Any) -> bool:
    """Whether a part of a content is thinking."""
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def thought_text(value: Any, _depth: int = 0) -> str:
    """The thinking that a value holds: a text, a part, or a list of either."""
    if isinstance(value, str):
        return value
    if _depth > _DEPTH_MOST:
        return ""
    if isinstance(value, list):
        return "".join(thought_text(part, _depth + 1) for part in value)
    if not isinstance(value, Mapping):
        return ""
    texts = (thought_text(value.get(key), _depth + 1) for key in _TEXTS)
    return next(filter(None, texts), "")


def earlier_thinking(where: str, message: Mapping[str, Any], unread: list[str]) -> str:
    """The thinking of a message; the same under two names counts once. Where there is some that
    cannot be read, and no other, its places are added to `unread`."""
    fields = {name: message[name] for name in _FIELDS if message.get(name)}
    content = message.get("content")
    parts = {
        f"content[{j}]": part
        for j, part in enumerate(content if isinstance(content, list) else ())
        if is_thought(part)
    }
    named = next(filter(None, map(thought_text, fields.values())), "")
    own = thought_text(list(parts.values()))
    if not named and not own:
        unread += [f"{where}.{name}" for name in (*fields, *parts)]
    return named if own in named else "\n\n".join(filter(None, (named, own)))


def without_thinking(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without its thinking."""
    rest = {key: value for key, value in message.items() if key not in _FIELDS}
    if isinstance(content := rest.get("content"), list):
        rest["content"] = [part for part in content if not is_thought(part)]
    return rest
