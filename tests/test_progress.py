"""The progress line: redrawn on a terminal, lines in a log, and nothing for a quick operation."""

from __future__ import annotations

import io
import re
import sys
import threading
from typing import Any

import pytest
from surroundings import HANG

from tgr_local.console import pace
from tgr_local.console.pace import Pace, ReplyProgress
from tgr_local.generation import TextDelta
from tgr_local.search.steps import Progress
from tgr_local.system import progress
from tgr_local.system.progress import ProgressLine


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


def printed(monkeypatch, *, terminal: bool, delay: float) -> str:
    """The text on stderr of an operation that lasts until its first line; with a delay, of one that
    ends at once."""
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", delay)
    monkeypatch.setattr(progress, "LOG_INTERVAL", delay)
    with ProgressLine("loading"):
        assert delay or stream.written.wait(HANG)
    return stream.getvalue()


def test_a_quick_operation_prints_nothing(monkeypatch):
    assert printed(monkeypatch, terminal=True, delay=HANG) == ""


def test_a_terminal_gets_one_line_that_is_erased(monkeypatch):
    text = printed(monkeypatch, terminal=True, delay=0.0)
    assert re.fullmatch(r"(\r\x1b\[Kloading, \d+ s)+\r\x1b\[K", text)


def test_a_log_gets_plain_lines(monkeypatch):
    text = printed(monkeypatch, terminal=False, delay=0.0)
    assert re.fullmatch(r"(loading, \d+ s\n)+", text)


def test_a_log_waits_longer_than_a_terminal(monkeypatch):
    """A quick reply leaves no line in a file."""
    stream = Stream(terminal=False)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "LOG_INTERVAL", HANG)
    with ProgressLine("loading"):
        assert not stream.written.wait(0.05)


def test_a_reply_is_counted_until_its_answer_begins():
    line = ReplyProgress(is_shown=False, until_answer=True)
    events = [Progress(2, "tokens", tokens=(5, 6)), TextDelta("hm", "thinking")]
    assert list(line.watch(events)) == events
    assert line.line == "writing · chunk 3 · 2 tokens" and not line.closed
    line.update(TextDelta("4", "answer"))
    assert line.closed


def test_reading_and_writing_have_speeds_of_their_own(monkeypatch):
    now = 0.0
    monkeypatch.setattr(pace.time, "monotonic", lambda: now)
    line = Pace()

    def shown(seconds: float, event: Any) -> str:
        nonlocal now
        now = seconds
        line.update(event)
        return " · ".join(text for _, text in line.facts())

    assert shown(0, Progress(0, "rebuild", n_query=3984)) == "reading"
    first = shown(1, Progress(0, "rebuild", n_read=400, n_query=3984))
    assert first == "reading 400 of 3,984 tokens"
    second = shown(11, Progress(0, "rebuild", n_read=1400, n_query=3984))
    assert second == "reading 1,400 of 3,984 tokens · 100 tokens/s"
    # what was read counts nothing in the speed of writing
    assert shown(60, Progress(0, "tokens", tokens=(1,))) == "writing · 1 token"
    assert shown(62, Progress(0, "tokens", tokens=(1,) * 9)) == "writing · 10 tokens · 4.5 tokens/s"
    assert shown(63, Progress(1, "rollouts")).startswith("trying candidates · chunk 2 · 10 tokens")
    line = Pace()
    assert shown(64, Progress(0, "texts")) == "writing texts to compare"


@pytest.mark.parametrize(("n", "seconds", "text"), [(9, 2, "4.5"), (24, 2, "12"), (5, 0, "0.0")])
def test_a_speed_has_the_digits_that_it_deserves(n: int, seconds: float, text: str):
    assert pace.per_second(n, seconds) == text
