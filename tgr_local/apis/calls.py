"""A reply in the format of a template, as text, thinking and calls of tools.

In: the text of a reply while it is written. Out: events, which together are what the whole text
means. llama.cpp's parser reads all of the text again each time, in a process with limits, so it
does so seldom enough to cost little. JSON at the end of an answer may be calls too, without the
tags of its format (`bare_calls`).
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from tgr_local.apis.bare_calls import bare_calls
from tgr_local.apis.events import ApiEvent, CallArguments, CallBegun, NewText
from tgr_local.engine import Cancel
from tgr_local.generation.request import ReplyFormat
from tgr_local.system import confined


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
        self._names, self._calls_most = form.names, None if form.parallel else 1
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
        """Events for the part of a message that was not sent yet. White space at its end may
        turn out to be none, and what begins as a call without its tags may turn out to be one."""
        events: list[ApiEvent] = []
        if self._names and not message["calls"]:
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
                events.append(NewText(self._index, kind, more))
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
        """The message without the calls without tags at its end, or without what may become one."""
        bare = bare_calls(text := message["content"], self._names)
        if bare is None or (final and not (complete and bare.calls)):
            return message
        calls = bare.calls[: self._calls_most] if final else ()
        return {**message, "content": text[: bare.start].rstrip(), "calls": list(calls)}


def _more(sent: str, text: str) -> str:
    """Rest of a text after the part that was sent; empty where it has changed since."""
    return text[len(sent) :] if text.startswith(sent) else ""


def _shared(begun: str, text: str) -> str:
    """Part of a text that agrees with its beginning, which may have lost white space around it."""
    begun = begun if text[:1] == begun[:1] else begun.lstrip()
    n = next((i for i, (a, b) in enumerate(zip(begun, text, strict=False)) if a != b), None)
    return text[: len(begun) if n is None else n]
