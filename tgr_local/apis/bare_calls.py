"""Calls of functions that a model writes as JSON, without the tags of its template.

A call is ``{"name": ..., "arguments": {...}}``, alone or as a "function". One or several end an
answer: in a row or a list, bare, in fences or in other tags, from the beginning of a line on; a
text may come before them. A text that goes on after a call, or calls a function that is not given,
quotes it, and stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type", "function")
_FENCES = [f"```{label}" for label in ("jsonl", "json", "tool_call", "tool_code", "")]
_TAGS = [f"<{tag}>" for tag in ("tools", "tool_call", "tool_calls", "function_call")]
_LINE = re.compile(r"^[ \t]*(?=[\[{`<])", re.MULTILINE)
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,;]*")
_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)("?)')
_TAIL = 8  # characters at the end that may be wrong only because the rest is missing
_READ_MOST = 64  # values that are read and no calls, before the rest of a text is text
_decoder = json.JSONDecoder()


@dataclass(frozen=True)
class BareCalls:
    """Calls at the end of a text."""

    start: int
    """Index at which they begin."""
    calls: tuple[dict[str, str], ...] = ()
    """Each with its ``id``, ``name`` and ``arguments``; empty = the text may become some."""


class _UnfinishedCall(Exception):
    """The text ends within what may become a call."""


class _NoCall(Exception):
    """Signals that the text here is no call."""


class _NoCallRead(_NoCall):
    """Signals that the text here was read as JSON, and is no call."""


class _Quoted(Exception):
    """Signals a call of another function, or one with other text around it."""


def bare_calls(text: str, names: Collection[str]) -> BareCalls | None:
    """The calls that a text ends with, or may end with when it goes on; None = it has none."""
    n_read = 0
    for line in _LINE.finditer(text):
        calls: list[dict[str, str]] = []
        at = line.end()
        try:
            while at < len(text):
                at = _group(text, at, names, calls)
                at = _after(_BETWEEN, text, at)
            return BareCalls(line.start(), tuple(calls))
        except _UnfinishedCall:
            return BareCalls(line.start())
        except _Quoted:
            return None
        except _NoCall as error:
            n_read += isinstance(error, _NoCallRead)
            if calls or n_read > _READ_MOST:
                return None
    return None


def _group(text: str, at: int, names: Collection[str], calls: list[dict[str, str]]) -> int:
    """Adds the calls of a value, a fence or a pair of tags; returns where it ends."""
    if text[at] in "[{":
        return _value(text, at, names, calls)
    at, closing = _opening(text, at)
    inner: list[dict[str, str]] = []
    at = _after(_SPACE, text, at)
    try:
        while at < len(text) and not (inner and text[at] == closing[0]):
            at = _value(text, at, names, inner)
            at = _after(_BETWEEN, text, at)
    except _NoCall:
        if inner:
            raise _Quoted from None
        raise
    rest = text[at : at + len(closing)]
    if not inner or (rest != closing and closing.startswith(rest) and rest):
        raise _UnfinishedCall
    if rest not in (closing, ""):  # at the end of a text it may be missing
        raise _Quoted
    calls += inner
    return at + len(rest)


def _opening(text: str, at: int) -> tuple[int, str]:
    """Returns the end of a fence or a tag, and the text that closes it."""
    for tag in _TAGS:
        if text.startswith(tag, at):
            return at + len(tag), f"</{tag[1:]}"
    for fence in _FENCES:
        end = _after(_SPACE, text, at + len(fence))
        if text.startswith(fence, at) and "\n" in text[at + len(fence) : end]:
            return end, "```"
    rest = text[at : at + 2 * _TAIL + 1].rstrip(" \t")
    is_end = len(text) <= at + 2 * _TAIL
    if is_end and any(mark.startswith(rest) for mark in (*_TAGS, *_FENCES)):
        raise _UnfinishedCall
    raise _NoCall


def _value(text: str, at: int, names: Collection[str], calls: list[dict[str, str]]) -> int:
    """Adds the calls of one JSON value; returns where it ends."""
    first = _after(_SPACE, text, at + 1) if text[at] == "[" else at
    if first == len(text):
        raise _UnfinishedCall
    if text[first] != "{":
        raise _NoCall
    is_other = _is_other(text, first, names)
    try:
        value, end = _decoder.raw_decode(text, at)
    except RecursionError:
        raise _NoCallRead from None
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text) - _TAIL or error.msg.startswith("Unterminated string")
        raise (_UnfinishedCall if is_cut and not is_other else _NoCallRead) from None
    except ValueError:  # a number of more digits than Python reads
        raise _NoCallRead from None
    calls += [_call(call, names) for call in (value if isinstance(value, list) else [value])]
    return end


def _is_other(text: str, at: int, names: Collection[str]) -> bool:
    """Whether an object begins as a call of a function that is not given. Raises _NoCall for one
    that begins as no call."""
    if named := _NAME.match(text, at):
        if named[2]:
            return named[1] not in names
        if named.end() == len(text) and any(known.startswith(named[1]) for known in names):
            return False
        raise _NoCall
    start = _after(_SPACE, text, at + 1)
    rest = text[start : start + len("parameters") + 2]
    if any(f'"{key}"'.startswith(rest) or rest.startswith(f'"{key}"') for key in _KEYS):
        return False
    raise _NoCall


def _call(value: Any, names: Collection[str]) -> dict[str, str]:
    if isinstance(value, dict) and isinstance(inner := value.get("function"), dict):
        value = {**value, **inner}  # as in the responses of chats
        del value["function"]
    if not isinstance(value, dict) or not value.keys() <= set(_KEYS):
        raise _NoCallRead
    given = [value[key] for key in _ARGUMENTS if key in value]
    if not isinstance(name := value.get("name"), str) or len(given) != 1:
        raise _NoCallRead
    arguments = given[0]
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise _NoCallRead from None
    if not isinstance(arguments, dict):
        raise _NoCallRead
    if name not in names:
        raise _Quoted
    return {
        "id": value["id"] if isinstance(value.get("id"), str) else "",
        "name": name,
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Returns the end of a pattern's match at an index, or the index if it does not match."""
    match = pattern.match(text, at)
    return match.end() if match else at
