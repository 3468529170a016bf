"""The progress line: redrawn on a terminal, lines in a log, and nothing for a quick operation."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
from surroundings import HANG

from tgr_local.console import progress
from tgr_local.console.progress import ProgressLine
from tgr_local.generation import TextDelta
from tgr_local.search.steps import Progress
from tgr_local.trace.progress import ReplyProgress


class Stream(io.StringIO):
    """A stream that is a terminal or not, and sets `written` when something was written."""

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


def printed(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, delay: float) -> str:
    """The text on stderr of an operation that lasts until its first line; with a delay, of one that
    ends at once."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(progress, "LOG_INTERVAL", HANG)
    with ProgressLine("loading"):
        assert delay or stream.written.wait(HANG)
    return stream.getvalue()


def test_a_quick_operation_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, terminal=True, delay=HANG) == ""


def test_a_terminal_gets_one_line_that_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, terminal=True, delay=0.0)
    assert re.fullmatch(r"(\r\x1b\[Kloading, \d+ s)+\r\x1b\[K", text)


def test_a_log_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, terminal=False, delay=0.0)
    assert re.fullmatch(r"loading, \d+ s\n", text)


def test_a_reply_is_counted_until_its_answer_begins() -> None:
    line = ReplyProgress(shown=False, until_answer=True)
    events = [Progress(2, "tokens", tokens=(5, 6)), TextDelta("hm", "thinking")]
    assert list(line.watch(events)) == events
    assert line.line == "chunk 3, 2 tokens" and not line.closed
    line.update(TextDelta("4", "answer"))
    assert line.closed
