"""Replies on stdout while they grow: their text, and on a terminal what the search is doing.

Events of a reply come in, the reply goes out. A terminal that can move its cursor gets a live
region of rows that are redrawn; any other stdout gets the text alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from tgr_local.console.sanitize import printable
from tgr_local.generation import Event, Reply, TextDelta
from tgr_local.search.steps import Progress
from tgr_local.trace.render import score_bars, winner

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Events = Generator[Event, None, None]
"""The events of one reply; the last is the `Reply`."""
OnReplyEvent = Callable[[int, Event], None]
"""Called with the index of a reply among several, and one of its events."""

_STAGES = {"rebuild": "reading", "rollouts": "trying candidates"}  # every other one: "writing"
_REFRESH = 12  # per second


def final_reply(events: Events) -> Reply:
    """Consumes the events and returns the reply at their end."""
    *_, reply = events
    assert isinstance(reply, Reply)
    return reply


def show(events: Events, thinking: bool) -> Reply:
    """Prints a reply as it grows: live where stdout can move its cursor, else plainly.

    `thinking` also shows the thinking.
    """
    return (show_live if is_live() else show_plain)(events, thinking)


def show_plain(events: Events, thinking: bool) -> Reply:
    """Prints the answer as it grows, after the thinking if asked for, and ends the line."""
    clean = printable if sys.stdout.isatty() else str
    kind = end = ""
    with contextlib.closing(events):  # an exception here also stops the generation
        try:
            for event in events:
                if isinstance(event, TextDelta) and (thinking or event.kind == "answer"):
                    if kind and event.kind != kind:
                        print("\n" if end.endswith("\n") else "\n\n", end="")
                    kind, end = event.kind, clean(event.text)
                    print(end, end="", flush=True)
        finally:
            if end and not end.endswith("\n"):
                print(flush=True)
    assert isinstance(event, Reply)
    if not end:
        print(flush=True)  # an empty answer is an empty line
    return event


def show_live(events: Events, thinking: bool = True) -> Reply:
    """Prints a reply on a terminal: the thinking dimmed, and two rows below the text for the
    progress and the scores of the last candidates.

    Finished paragraphs are printed above the live region. The growing paragraph is part of the
    region, so that the scrollback holds the whole text and no row of the region.
    """
    view = _ReplyView()
    with contextlib.closing(events), view.live:
        try:
            for event in events:
                if isinstance(event, TextDelta) and (thinking or event.kind == "answer"):
                    view.write(event)
                view.status.update(event)
        finally:
            view.end_paragraph()
    assert isinstance(event, Reply)
    return event


def show_many(k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
    """Calls `work`, which writes k replies and reports their events; shows the progress of each on
    a terminal. Returns the result of `work`."""
    statuses = [ReplyStatus() for _ in range(k)]

    def on_event(index: int, event: Event) -> None:
        statuses[index].update(event)

    if not is_live():
        return work(on_event)
    console = _console()

    def picture() -> RenderableType:
        from rich.console import Group

        n_rows = max(console.height - 2, 1)
        rows = [f"{i:2} {status.line()}" for i, status in enumerate(statuses[:n_rows], 1)]
        return Group(*(_row(console, row) for row in rows))

    with _Region(console, picture).live:
        return work(on_event)


def print_note(text: str) -> None:
    """Prints a line about a reply, dimmed unless NO_COLOR is set."""
    console = _console()
    console.print(_styled(console, text, "dim"), soft_wrap=True)


def is_live() -> bool:
    """Whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class ReplyStatus:
    """The progress of one reply, and the scores of its last candidates, from its events."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._chunk, self._tokens, self._stage = 0, 0, "starting"
        self.scores = ""
        """The scores as bars, and the winner; empty before the first boundary."""

    def update(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._chunk, self._stage = event.chunk, _STAGES.get(event.stage, "writing")
            self._tokens += len(event.tokens)
            if event.candidates is not None:
                scores = event.candidates.scores
                self.scores = f"{score_bars(scores.total)} {winner(scores.total, scores.chosen)}"
        elif isinstance(event, Reply):
            self._stage = "done"

    def line(self) -> str:
        """``chunk 3 · 96 tokens · 812.4 tokens/s · writing``."""
        seconds = time.monotonic() - self._start
        speed = self._tokens / seconds if seconds else 0.0
        progress = f"chunk {self._chunk + 1} · {self._tokens} tokens · {speed:.1f} tokens/s"
        return f"{progress} · {self._stage}"


# ---- drawing ----


class _Region:
    """Rows at the bottom of the screen that another thread redraws.

    When the window gets narrower, most terminals wrap the rows that no longer fit, so that the old
    region takes more rows; the next one is drawn over all of them.
    """

    def __init__(self, console: Console, picture: Callable[[], RenderableType]) -> None:
        from rich.live import Live

        self._console, self._picture = console, picture
        self._width = console.width
        self._rows: list[int] = []  # cells in each row as it was drawn
        self.live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESH,
            transient=True,
        )

    def _draw(self) -> RenderableType:
        width = self._console.width
        if width < self._width and _wraps_on_resize():
            n_wrapped = sum(max(0, cells - 1) // width for cells in self._rows)
            self._console.file.write("\r\x1b[2K\x1b[1A" * n_wrapped)
        self._width = width
        picture = self._picture()
        lines = self._console.render_lines(picture, pad=False)
        self._rows = [sum(segment.cell_length for segment in line) for line in lines]
        return picture


class _ReplyView:
    """The live region of one reply: the growing paragraph, the progress, and the scores.

    Another thread draws it, so a paragraph is replaced and never changed in place.
    """

    def __init__(self) -> None:
        self._console, self.status = _console(), ReplyStatus()
        self._paragraph, self._kind = _styled(self._console, ""), ""
        self.live = _Region(self._console, self._picture).live

    def write(self, delta: TextDelta) -> None:
        text = printable(delta.text)
        if self._kind and delta.kind != self._kind:
            text = f"\n\n{text}" if self._paragraph else f"\n{text}"
        self._kind = delta.kind
        style = "dim" if delta.kind == "thinking" else ""
        finished, newline, rest = text.rpartition("\n")
        if newline:
            self._paragraph = self._paragraph + _styled(self._console, finished, style)
            self.end_paragraph()
        self._paragraph = self._paragraph + _styled(self._console, rest, style)

    def end_paragraph(self) -> None:
        """Prints the growing paragraph above the region, and ends the line."""
        paragraph, self._paragraph = self._paragraph, _styled(self._console, "")
        self.live.refresh()  # else it would be on the screen twice for a moment
        self._console.print(paragraph, soft_wrap=True)

    def _picture(self) -> RenderableType:
        from rich.console import Group

        # of a paragraph taller than the screen only the end is shown until it is printed
        rows = self._paragraph.wrap(self._console, self._console.width)
        lines = [self.status.line(), self.status.scores][: 2 if self.status.scores else 1]
        return Group(
            *rows[-max(self._console.height - 3, 1) :],
            *(_row(self._console, line) for line in lines),
        )


def _wraps_on_resize() -> bool:
    """Whether the terminal wraps long rows when its window gets narrower; xterm cuts them."""
    return "TMUX" in os.environ or "XTERM_VERSION" not in os.environ


def _console() -> Console:
    from rich.console import Console

    # some shells export these two; rich would then not see that the window was resized
    size = {"COLUMNS", "LINES"} if sys.stdout.isatty() else set()
    environ = {name: value for name, value in os.environ.items() if name not in size}
    return Console(highlight=False, _environ=environ)


def _styled(console: Console, text: str, style: str = "") -> Text:
    """`text` in a style, or without any if NO_COLOR is set."""
    from rich.text import Text

    return Text(text, "" if console.no_color else style)


def _row(console: Console, text: str) -> Text:
    row = _styled(console, text, "cyan")
    row.no_wrap, row.overflow = True, "ellipsis"
    return row
