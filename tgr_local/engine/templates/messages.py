"""The messages of a chat, as templates want them, and the one that a reply goes on with."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

_SYSTEM = ("system", "developer")
Part = Literal["content", "reasoning_content"]
"""The parts of a message that a reply may go on with."""


def continued_part(messages: Sequence[Mapping[str, Any]]) -> Part | None:
    """The part of the last message that the reply continues. That message is the assistant's, has
    text, calls no function and is not the first one. None = the reply is a new message."""
    last = messages[-1] if len(messages) > 1 else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    if last.get("content"):
        return "content"
    return "reasoning_content" if last.get("reasoning_content") else None


def begun_parts(messages: Sequence[Mapping[str, Any]], part: Part | None) -> tuple[str, str]:
    """The thinking and the answer in the last message, where the reply continues this part of
    it."""
    if not part:
        return "", ""
    thinking = str(messages[-1].get("reasoning_content") or "")
    return thinking, "" if part == "reasoning_content" else str(messages[-1]["content"])


def without_empty_end(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages without an empty last message of the assistant, which changes nothing."""
    last = messages[-1] if len(messages) > 1 else {}
    parts = ("content", "reasoning_content", "tool_calls")
    is_empty = last.get("role") == "assistant" and not any(last.get(part) for part in parts)
    return messages[:-1] if is_empty else messages


def one_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a conversation in the form that many templates want: one system message at most, the
    first, and no two messages of the user in a row. Later system messages are read as the
    user's."""
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


def plainer(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields a conversation in forms that more and more templates take. Raises KeyError and
    TypeError for messages whose content is not text."""
    conversation = one_system(messages)
    yield conversation
    yield (turns := _in_turn(conversation))
    yield _one_call_each(turns)
    first = conversation[0] if conversation else {}
    if first.get("role") in _SYSTEM:
        yield _in_turn(
            one_system([{"role": "user", "content": first["content"]}, *conversation[1:]])
        )


def _in_turn(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages in a form for strict templates: the user's come first, the assistant never has
    two in a row, and has one between a result and the user. Ids of calls have nine letters and
    digits, as Mistral's template wants."""
    turns: list[dict[str, Any]] = []
    for i, message in enumerate(map(dict, messages)):
        role, last = message["role"], turns[-1] if turns else {}
        follows = last.get("role") or "system"
        if role == "tool":
            message["tool_call_id"] = _short_id(message.get("tool_call_id"))
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{**call, "id": _short_id(call.get("id"))} for call in calls]
        two_replies = role == follows == "assistant"
        is_open = two_replies and i == len(messages) - 1  # the reply may go on with it
        if is_open or (role in ("assistant", "tool") and follows in _SYSTEM):
            turns.append({"role": "user", "content": ""})
        elif role == "user" and (follows == "tool" or last.get("tool_calls")):
            turns.append({"role": "assistant", "content": ""})
        if two_replies and not is_open:
            turns[-1] = _joined(last, message)
        else:
            turns.append(message)
    if turns and all(message["role"] in _SYSTEM for message in turns):
        turns[-1]["role"] = "user"
    return turns


def _short_id(name: Any) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()[:9]


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two messages of the assistant as one."""
    joined = {**first, **second}
    for part in ("content", "reasoning_content"):
        if texts := [text for text in (first.get(part), second.get(part)) if text]:
            joined[part] = "\n\n".join(texts)
    if calls := [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]:
        joined["tool_calls"] = calls
    return joined


def _one_call_each(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of `_in_turn`, split so that each has one call, followed by its results."""
    divided: list[dict[str, Any]] = []
    rest = deque(map(dict, messages))
    while rest:
        message = rest.popleft()
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            divided.append(message)
            continue
        results = []
        while rest and rest[0]["role"] == "tool":
            results.append(rest.popleft())
        for call in calls:
            divided.append({**message, "tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            own_results = [result for result in results if result["tool_call_id"] == call["id"]]
            divided += own_results
            results = [result for result in results if result not in own_results]
        divided += results
    return divided
