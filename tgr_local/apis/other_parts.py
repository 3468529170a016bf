"""Parts of a conversation that are not text, as text: images, files, tools of other servers; and
the thinking of earlier messages, in the spellings of every client.

A client sends its whole history with every request, so that one part which is refused would end
the conversation forever. What can be read becomes text; in the place of what cannot, a line says
so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_TEXT_MOST, _DEPTH_MOST = 20_000, 6
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "summary_text": "text",
          "reasoning_text": "text", "refusal": "refusal", "compaction": "content"}  # fmt: skip
_UNSEEN = {
    "image": "an image that this model cannot see",
    "image_url": "an image that this model cannot see",
    "input_image": "an image that this model cannot see",
    "computer_screenshot": "a screenshot that this model cannot see",
    "input_audio": "a recording that this model cannot hear",
    "audio": "a recording that this model cannot hear",
    "document": "a document that cannot be read here",
    "input_file": "a file that cannot be read here",
    "file": "a file that cannot be read here",
    "container_upload": "a file that cannot be read here",
}
# what no reader needs: data, what only another server can read, notes
_DROPPED = {"type", "id", "call_id", "status", "data", "signature", "encrypted_content",
            "file_data", "encrypted_stdout", "encrypted_index", "image_url", "b64_json",
            "cache_control", "citations", "annotations", "tool_use_id", "caller", "server_name",
            "result", "fingerprint", "created_by"}  # fmt: skip


def part_text(part: Any, _depth: int = 0) -> str:
    """A part of a message, or of a result, as text."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or _depth > _DEPTH_MOST:
        return ""
    kind = str(part.get("type") or "text")[:60]
    if isinstance(text := part.get(_TEXTS.get(kind, "")), str):
        return text
    if kind in ("text", "compaction"):
        return ""
    if kind == "document" and (text := _document(part, _depth)):
        return text
    if is_unseen(part):
        named = next((part[key] for key in ("title", "filename", "name", "file_id")
                      if isinstance(part.get(key), str)), "")  # fmt: skip
        return f"[{_UNSEEN[kind]}{f': {named[:200]}' if named else ''}]"
    if kind == "tool_reference":
        return f"[the tool {str(part.get('tool_name'))[:200]}]"
    content = part.get("content")
    if kind in ("search_result", "mcp_tool_result") or kind.endswith("_tool_result"):
        inner = parts_text(content if isinstance(content, list) else [content], _depth + 1)
        about = (part.get("title"), part.get("source"))
        head = " · ".join(text for text in about if isinstance(text, str))
        return "\n".join(filter(None, (head, inner))) or f"[{kind}]"
    name = part.get("name") if isinstance(part.get("name"), str) else kind
    rest = {key: value for key, value in _without_data(part).items() if key != "name"}
    if kind in ("server_tool_use", "mcp_tool_use"):
        rest = rest.get("input") or {}
    shown = json.dumps(rest, ensure_ascii=False)[:_TEXT_MOST] if rest else ""
    return f"[{name}{f' {shown}' if shown else ''}]"


def parts_text(parts: Iterable[Any], _depth: int = 0) -> str:
    """Parts together: plain texts as they are, others on lines of their own."""
    joined = ""
    was_line = False
    for part in parts:
        text = part_text(part, _depth)
        is_line = isinstance(part, Mapping) and part.get("type") not in (None, *_TEXTS)
        if text:
            joined += ("\n" if joined and (is_line or was_line) else "") + text
            was_line = is_line
    return joined


def is_unseen(part: Any) -> bool:
    """Whether a part is something that the model cannot read at all."""
    if not isinstance(part, Mapping) or part.get("type") not in _UNSEEN:
        return False
    return part["type"] != "document" or not _document(part, 0)


def _document(part: Mapping[str, Any], depth: int) -> str:
    """The text of a document that is one, or consists of some."""
    source = part.get("source")
    if not isinstance(source, Mapping):
        return ""
    if source.get("type") == "text":
        return str(source.get("data") or "")
    if source.get("type") == "content":
        content = source.get("content")
        return parts_text([content] if isinstance(content, str) else content or (), depth + 1)
    return ""


def _without_data(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Mapping) and depth <= _DEPTH_MOST:
        return {
            str(key): _without_data(inner, depth + 1)
            for key, inner in value.items()
            if inner not in (None, "", [], {})
            and (key not in _DROPPED or (depth and key == "type"))
        }
    if isinstance(value, list) and depth <= _DEPTH_MOST:
        return [_without_data(inner, depth + 1) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else None


# ---- thinking ----

_FIELDS = ("reasoning_content", "reasoning", "reasoning_text", "reasoning_details",
           "thinking_blocks", "thinking")  # fmt: skip
_KINDS = {"thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoning_text",
          "reasoning.text", "reasoning.summary", "reasoning.encrypted"}  # fmt: skip
_THOUGHT_TEXTS = ("thinking", "text", "reasoning", "reasoning_content", "reasoning_text", "content",
          "summary")  # fmt: skip
_THOUGHT_LEVELS = 4


def is_thought(part: Any) -> bool:
    """Whether a part of a content is thinking."""
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def thought_text(value: Any, _depth: int = 0) -> str:
    """The thinking that a value holds: a text, a part, or a list of either."""
    if isinstance(value, str):
        return value
    if _depth > _THOUGHT_LEVELS:
        return ""
    if isinstance(value, list):
        return "".join(thought_text(part, _depth + 1) for part in value)
    if not isinstance(value, Mapping):
        return ""
    texts = (thought_text(value.get(key), _depth + 1) for key in _THOUGHT_TEXTS)
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
