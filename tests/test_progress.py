"""The sign of life: a redrawn line on a terminal, plain lines elsewhere, and nothing at first."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from surroundings import HANG

from tgr_local.console import progress
from tgr_local.console.progress import ReplyStatus, Status
from tgr_local.generation.text import TextDelta
from tgr_local.search.steps import Progress


class Stream(io.StringIO):
    """A stream that says whether it is a terminal, and when something was written."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.written = terminal, threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        finally:
            self.written.set()


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, after: float) -> str:
    """What stderr got of a status that lasted until its first line, if it comes `after` no time."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "AFTER", after)
    monkeypatch.setattr(progress, "PLAIN_EVERY", HANG)
    with Status("loading"):
        assert after or stream.written.wait(HANG)
    return stream.getvalue()


def test_what_is_quick_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, terminal=True, after=HANG) == ""


def test_a_terminal_has_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, after=0.0)
    assert re.fullmatch(r"(\r\x1b\[Kloading, \d+ s)+\r\x1b\[K", text)


def test_a_log_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=False, after=0.0)
    assert re.fullmatch(r"loading, \d+ s\n", text)


def test_a_reply_is_followed_until_its_answer() -> None:
    status = ReplyStatus(shown=False, until_answer=True)
    events = [Progress(2, "tokens", tokens=(5, 6)), TextDelta("hm", "thinking")]
    assert list(status.watch(events)) == events
    assert status.line == "chunk 3, 2 tokens" and not status._done.is_set()
    status.note(TextDelta("4", "answer"))
    assert status._done.is_set()
