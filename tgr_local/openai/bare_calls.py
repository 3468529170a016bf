"""Calls that a model writes without the tags of its format: a reply that is only JSON.

In: the answer of a reply, the names of the functions that may be called. Out: the calls, if the
whole answer is ``{"name": ..., "arguments": {...}}`` or a list of such, bare or in a fence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

_FENCE = re.compile(r"\A```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_FENCES = ("```json\n", "```tool_call\n", "```tool_code\n", "```\n")
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type")


def bare_calls(text: str, names: Collection[str]) -> list[dict[str, str]]:
    """The calls that a text consists of, each with its ``id``, ``name`` and ``arguments``; empty if
    it is anything else."""
    text = text.strip()
    if fenced := _FENCE.match(text):
        text = fenced[1].strip()
    if text[:1] not in ("{", "["):
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(one, names) for one in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def _call(value: Any, names: Collection[str]) -> dict[str, str] | None:
    if not isinstance(value, dict) or not value.keys() <= set(_KEYS):
        return None
    given = [value[key] for key in _ARGUMENTS if key in value]
    if not isinstance(value.get("name"), str) or value["name"] not in names or len(given) != 1:
        return None
    arguments = given[0]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return {
        "id": value["id"] if isinstance(value.get("id"), str) else "",
        "name": value["name"],
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }


def may_become_calls(text: str) -> bool:
    """Whether a text may be the beginning of such an answer."""
    text = text.lstrip()
    for fence in _FENCES:
        if fence.startswith(text):
            return True
        if text.startswith(fence):
            text = text.removeprefix(fence).lstrip()
            break
    text = text.lstrip("[ \t\r\n")
    if not text or text == "{":
        return True
    if text[0] != "{":
        return False
    rest = text[1:].lstrip()
    return any(f'"{key}"'.startswith(rest) or rest.startswith(f'"{key}"') for key in _KEYS)
