"""A reply on a terminal while it grows."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, fake_stream
from rich.console import Console
from threads import wait_until

from tgr_local.console import region
from tgr_local.console.live import print_reply, scores_line, show_live, status_line
from tgr_local.console.markdown import THEME
from tgr_local.console.pace import Pace
from tgr_local.console.render import cost_line, score_bars, winner
from tgr_local.generation import TextDelta
from tgr_local.options.config import SearchConfig
from tgr_local.search.steps import Progress


def test_there_is_a_bar_for_each_candidate():
    assert score_bars([-2.0, -1.0, -1.5]) == "▁█▅"
    assert score_bars([0.5]) == "▁"
    assert score_bars([-np.inf, -2.0, np.nan, -1.0]) == "▁▁▁█"
    assert winner([-2.0, -1.0, -1.5], 1) == "best 1: -1.0000, 0.5000 ahead"
    assert winner([0.5], 0) == "best 0: 0.5000"


def screen_rows(output: str, height: int = 1000) -> list[str]:
    """The rows of a terminal that gets `output`, with its scrollback; the cursor is below them.

    It knows the escapes of the live view only, never wraps, and cannot go above its screen.
    """
    rows, at, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", output):
        if part == "\n":
            at, column = at + 1, 0
            rows += [""] * (at - len(rows) + 1)
        elif part == "\r":
            column = 0
        elif part == "\x1b[A":
            at = max(at - 1, len(rows) - height, 0)
        elif part == "\x1b[K":
            rows[at] = rows[at][:column]
        elif part == "\x1b[J":
            rows[at:] = [rows[at][:column]]
        elif part[0] != "\x1b":
            rows[at] = rows[at][:column].ljust(column) + part + rows[at][column + len(part) :]
            column += len(part)
        else:
            assert re.fullmatch(r"\x1b\[(\?(7|25)[hl]|[0-9;]*m)", part), part
    assert not any(rows[at:]), "the cursor is not below the text"
    return rows[:at]


@pytest.fixture
def out(monkeypatch) -> io.StringIO:
    """What a terminal of 60 columns and 20 rows gets."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=60, height=20, highlight=False, theme=THEME
    )
    monkeypatch.setattr(region, "make_console", lambda: console)
    return out


def test_the_live_view_leaves_only_the_text(out: io.StringIO):
    asked = "a question\nwith an escape: \x1b[2J" + " long" * 20

    def paused() -> Iterator[Any]:
        for event in fake_stream(FakeEngine("f"), asked, SearchConfig()):
            yield event
            if isinstance(event, Progress) and event.stage == "scored":
                wait_until(lambda: "best 1" in out.getvalue())

    show_live(paused())  # type: ignore[arg-type]
    longs = ["with an escape: \ufffd[2J" + " long" * 8, "long" + " long" * 11]
    thinking, answer = ["hm, a question", *longs], ["#1 a question", *longs]
    assert [row.rstrip() for row in screen_rows(out.getvalue(), 20)] == [*thinking, "", *answer]


def pieces_of(answer: str, pause: float) -> Iterator[Any]:
    """A reply whose answer comes letter by letter."""
    *before, reply = fake_stream(FakeEngine("f"), "x", SearchConfig(), method="base")
    yield before[0]
    for letter in answer:
        time.sleep(pause)
        yield TextDelta(letter, "answer")
    yield dataclasses.replace(reply, text=answer)


LONG = "# Title\n\n" + "".join(f"{i}. item **{i}**\n" for i in range(1, 61)) + "\nend 2*3*4"


@pytest.mark.parametrize("pause", [0.0, 0.001])
def test_an_answer_higher_than_the_screen_is_in_the_scrollback_once(out: io.StringIO, pause: float):
    show_live(pieces_of(LONG, pause))  # type: ignore[arg-type]
    items = [f"{i}. item {i}" for i in range(1, 61)]
    rows = [row.rstrip() for row in screen_rows(out.getvalue(), 20)]
    assert rows == ["Title", "", *items, "", "end 2*3*4"]


def test_rows_that_are_above_the_region_are_counted(out: io.StringIO):
    """A table of 16 rows on a screen of 20: the region has ten, and the table is printed whole."""
    rows = [f"| {i} | row {i} |" for i in range(16)]
    table = "\n".join(["| n | name |", "|---|---|", *rows, ""])

    def paused() -> Iterator[Any]:
        *events, reply = pieces_of(table, 0.0)
        yield from events
        wait_until(lambda: "rows above" in out.getvalue() and "row 15" in out.getvalue())
        yield reply

    show_live(paused())  # type: ignore[arg-type]
    told = [int(n) for n in re.findall(r"… (\d+) rows above", out.getvalue())]
    # of the table with its head, and the row of the progress, nine are shown
    assert told and max(told) == told[-1] == 16 + 2 + 1 - 9
    final = "\n".join(screen_rows(out.getvalue(), 20))
    assert "rows above" not in final and all(f"row {i}" in final for i in range(16))


def test_an_interrupted_answer_is_printed_as_far_as_it_came(out: io.StringIO):
    def stopped() -> Iterator[Any]:
        events = pieces_of("**one** and\n\n- two\n- thr", 0.0)
        yield from itertools.islice(events, 20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show_live(stopped())  # type: ignore[arg-type]
    assert screen_rows(out.getvalue(), 20) == ["one and", "", "- two"]


def test_without_markdown_the_answer_is_as_it_was_written(out: io.StringIO):
    show_live(pieces_of("**one**\n# two\n", 0.0), markdown=False)  # type: ignore[arg-type]
    assert screen_rows(out.getvalue(), 20) == ["**one**", "# two"]


def test_a_finished_reply_looks_as_it_did(out: io.StringIO):
    print_reply("**two**", thinking="one\n")
    assert screen_rows(out.getvalue(), 20) == ["one", "", "two"]


# ---- one line ----


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (100, "9 tokens, 0.5 s, 18 tokens/s, seed 42"),
        (36, "9 tokens, 0.5 s, 18 tokens/s"),
        (20, "9 tokens, 0.5 s"),
        (10, "0.5 s"),
        (1, "0.5 s"),
    ],
)
def test_the_cost_of_a_reply_fits_the_width(width: int, line: str):
    reply = list(fake_stream(FakeEngine("f"), "x", SearchConfig(), method="tgr-latent"))[-1]
    assert cost_line([reply], width) == line


def test_the_time_of_reading_is_told_apart():
    reply = list(fake_stream(FakeEngine("f"), "x", SearchConfig()))[-1]
    first, *rest = reply.steps
    slow = dataclasses.replace(first, seconds=dataclasses.replace(first.seconds, rebuild=0.6))
    reply = dataclasses.replace(reply, seconds=1.9, steps=[slow, *rest])
    assert cost_line([reply]) == "9 tokens, 1.9 s (0.6 s reading), 6.9 tokens/s, seed 42"


def test_the_cost_says_what_went_wrong():
    reply = list(fake_stream(FakeEngine("f"), "x", SearchConfig()))[-1]
    cut = dataclasses.replace(reply, finish="length", text=" ", limit="max_tokens")
    assert cost_line([cut], 40) == "0.5 s, cut by max_tokens, no answer"
    full = dataclasses.replace(cut, limit="n_ctx")
    assert "cut, since the context is full" in cost_line([full])
    loop = dataclasses.replace(cut, finish="loop", limit="loop_guard")
    ended = "0.5 s, ended, since it repeated itself, "
    assert ended + "dry_multiplier 0.8 makes that rarer, no answer" in cost_line([loop], 90)
    assert "dry_multiplier" not in cost_line([cut]) + cost_line([full])
    assert "2 replies" in cost_line([cut, reply]) and "1 cut by" in cost_line([cut, reply])


def test_the_progress_fits_the_width():
    pace = Pace()
    for event in itertools.islice(fake_stream(FakeEngine("f"), "x", SearchConfig()), 2):
        pace.update(event)
    assert scores_line(pace.scores, 80) == "▁█ best 1: -1.1750, 0.5750 ahead"
    assert scores_line(pace.scores, 30) == "▁█ best 1: -1.1750"
    assert status_line(pace, 80) == "writing · 0 tokens" and status_line(pace, 3) == "writing"
