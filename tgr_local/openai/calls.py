"""A reply in the format of a template, as text, thinking and calls of tools.

In: the text of a reply while it is written. Out: events, which together are what the whole text
means. llama.cpp's parser reads all of the text again each time, in a process with limits, so it
does so seldom enough to cost little. A reply that is only JSON, ``{"name": ..., "arguments":
{...}}`` or a list of such, bare or in a fence, is calls too, without the tags of its format.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Collection
from typing import Any, Literal

from tgr_local.engine import Cancel
from tgr_local.openai.events import ApiEvent, CallArguments, CallBegun, TextPart
from tgr_local.search.reply_format import ReplyFormat
from tgr_local.system import confined

_FENCE = re.compile(r"\A```(?:json|tool_call|tool_code)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_FENCES = ("```json\n", "```tool_call\n", "```tool_code\n", "```\n")
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "id", "type")


class ReplyReader:
    """Reads one reply, number `index` of a response; one that `streams` is read while it is
    written, others at their end. Between two readings are `least` seconds, or `share` times what
    the last one took, if that is longer."""

    def __init__(
        self,
        form: ReplyFormat,
        index: int,
        *,
        streams: bool,
        least: float = 0.03,
        share: float = 10.0,
        cancel: Cancel | None = None,
    ) -> None:
        self._parser = (form.kind, form.parser, form.prefix)
        self._index, self._streams, self._cancel = index, streams, cancel
        self._least, self._share = least, share
        self._names = form.names
        self._texts: list[str] = []
        self._last: dict[str, Any] | None = None  # what was read last
        self._due = 0.0  # when it is read next, by time.monotonic
        self._sent = {"thinking": "", "answer": ""}
        self._begun = {"thinking": form.begun[0], "answer": form.begun[1]}  # in the prompt
        self._calls: list[str] = []  # the arguments of each that were sent

    def feed(self, text: str) -> list[ApiEvent]:
        """Takes more of the text. The events may come later."""
        self._texts.append(text)
        start = time.monotonic()
        if not self._streams or start < self._due:
            return []
        message = self._last = self._read(partial=True) or self._last
        now = time.monotonic()
        self._due = now + max(self._least, self._share * (now - start))
        return self._news(message, final=False) if message else []

    def end(self, *, complete: bool) -> list[ApiEvent]:
        """The events that are missing. `complete` = the model ended the reply itself."""
        message = self._read(partial=not complete)
        if message is None and complete:
            message = self._read(partial=True)
        if message is None:  # not in its format: as it is, unless other parts of it were sent
            text = "".join(self._texts)
            parts = self._calls or self._sent["thinking"]
            if parts or not text.startswith(self._sent["answer"]):
                message = self._last
            if message is None:
                message = {"thinking": "", "content": text, "calls": []}
                self._begun = {}
        return self._news(message, final=True, complete=complete)

    def _read(self, *, partial: bool) -> dict[str, Any] | None:
        text = "".join(self._texts)
        self._texts = [text]
        try:
            return confined.parse(self._parser, text, partial=partial, cancel=self._cancel)
        except confined.ConfinedError:
            return None

    def _news(
        self, message: dict[str, Any], *, final: bool, complete: bool = False
    ) -> list[ApiEvent]:
        """What a message has more than was sent. White space at its end may turn out to be none,
        and an answer that begins as a call without its tags may turn out to be one."""
        events: list[ApiEvent] = []
        if self._names and not (message["calls"] or self._sent["answer"]):
            message = self._with_bare_calls(message, final=final, complete=complete)
        kinds: tuple[tuple[Literal["thinking", "answer"], str], ...] = (
            ("thinking", message["thinking"]),
            ("answer", message["content"]),
        )
        for kind, text in kinds:
            if begun := self._begun.get(kind):
                known = _shared(begun, text)
                self._sent[kind] = max(self._sent[kind], known, key=len)
            more = _more(self._sent[kind], text if final else text.rstrip())
            if more:
                self._sent[kind] += more
                events.append(TextPart(self._index, kind, more))
        calls = message["calls"]
        for number, call in enumerate(calls):
            # a name is whole when something follows it
            named = call["name"] and (final or call["arguments"] or number + 1 < len(calls))
            if number == len(self._calls):
                if not named:
                    break
                self._calls.append("")
                id = call["id"] or f"call_{uuid.uuid4().hex[:24]}"
                events.append(CallBegun(self._index, number, id, call["name"]))
            ended = number + 1 < len(calls) or (final and complete)
            arguments = call["arguments"] or ("{}" if ended else "")
            more = _more(self._calls[number], arguments)
            if more:
                self._calls[number] += more
                events.append(CallArguments(self._index, number, more))
        return events

    def _with_bare_calls(
        self, message: dict[str, Any], *, final: bool, complete: bool
    ) -> dict[str, Any]:
        """The message whose answer is calls without tags, or is kept back while it may be."""
        if final and complete and (calls := _bare_calls(message["content"], self._names)):
            return {**message, "content": "", "calls": calls}
        is_open = not final and _may_become_calls(message["content"])
        return {**message, "content": ""} if is_open else message


def _more(sent: str, text: str) -> str:
    """What a text has after the part that was sent; nothing where it has changed since."""
    return text[len(sent) :] if text.startswith(sent) else ""


def _shared(begun: str, text: str) -> str:
    """What a text has of its beginning, which may have lost the white space around it."""
    begun = begun if text[:1] == begun[:1] else begun.lstrip()
    n = next((i for i, (a, b) in enumerate(zip(begun, text, strict=False)) if a != b), None)
    return text[: len(begun) if n is None else n]


def _bare_calls(text: str, names: Collection[str]) -> list[dict[str, str]]:
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


def _may_become_calls(text: str) -> bool:
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
