"""A reply on a terminal while it grows."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from fake_engine import FakeEngine, fake_stream
from rich.console import Console

from tgr_local.options.config import SearchConfig
from tgr_local.trace.live import show_live
from tgr_local.trace.render import score_bars, winner


def test_there_is_a_bar_for_each_candidate() -> None:
    assert score_bars([-2.0, -1.0, -1.5]) == "▁█▅"
    assert score_bars([0.5]) == "▁"
    assert score_bars([-np.inf, -2.0, np.nan, -1.0]) == "▁▁▁█"
    assert winner([-2.0, -1.0, -1.5], 1) == "best 1: -1.0000, 0.5000 ahead"
    assert winner([0.5], 0) == "best 0: 0.5000"


def screen_rows(output: str) -> list[str]:
    """The rows above the cursor of a terminal that gets `output`; it supports the escapes of the
    live view only."""
    rows, at = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", output):
        if part == "\n":
            at += 1
            rows += [""] * (at - len(rows) + 1)
        elif part.endswith("A") and part[0] == "\x1b":
            at -= int(part[2:-1])
        elif part == "\x1b[2K":
            rows[at] = ""
        elif part[0] not in "\r\x1b":
            rows[at] += part
    assert not any(rows[at:]), "the cursor is not below the text"
    return rows[:at]


def test_the_live_view_leaves_only_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=20, highlight=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    asked = "a question\nwith an escape: \x1b[2J" + " long" * 20
    show_live(fake_stream(FakeEngine("f"), asked, SearchConfig()))  # type: ignore[arg-type]
    question = ["a question", "with an escape: \ufffd[2J" + " long" * 20]
    thinking, answer = [f"hm, {question[0]}", question[1]], [f"#1 {question[0]}", question[1]]
    assert "best 1" in out.getvalue()
    assert screen_rows(out.getvalue()) == [*thinking, "", *answer]
