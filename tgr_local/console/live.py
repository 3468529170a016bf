"""Replies on stdout while they grow: their text, and on a terminal what the search is doing.

Events of a reply come in, the reply goes out. A terminal that can move its cursor gets a live
region of rows that are redrawn; any other stdout gets the text alone.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from tgr_local.console.dialog import is_live
from tgr_local.console.pace import Pace
from tgr_local.console.render import fitted, score_bars, winner
from tgr_local.generation import Event, Reply, Scores, TextDelta
from tgr_local.system.sanitize import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from tgr_local.console.growing import GrowingText, Piece

Events = Generator[Event, None, None]
"""The events of one reply; the last is the `Reply`."""
OnReplyEvent = Callable[[int, Event], None]
"""Called with the index of a reply among several, and one of its events."""


def final_reply(events: Events) -> Reply:
    """Consumes the events and returns the reply at their end."""
    *_, reply = events
    assert isinstance(reply, Reply)
    return reply


def show(events: Events, thinking: bool, markdown: bool = True) -> Reply:
    """Prints a reply as it grows: live where stdout can move its cursor, else plainly.

    `thinking` also shows the thinking; `markdown` formats the answer in a live view with colours.
    """
    return show_live(events, thinking, markdown) if is_live() else show_plain(events, thinking)


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


def show_live(events: Events, thinking: bool = True, markdown: bool = True) -> Reply:
    """Prints a reply on a terminal: the thinking dimmed, and two rows below the text for the
    progress and the scores of the last candidates.

    Finished blocks are printed above the live region. The growing block is part of the region, so
    that the scrollback holds the whole text and no row of the region.
    """
    view = _ReplyView(markdown)
    with contextlib.closing(events), view.shown():
        for event in events:
            if isinstance(event, TextDelta) and (thinking or event.kind == "answer"):
                view.write(event)
            view.pace.update(event)
    assert isinstance(event, Reply)
    return event


def show_many(k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
    """Calls `work`, which writes k replies and reports their events; shows the progress of each on
    a terminal. Returns the result of `work`."""
    paces = [Pace() for _ in range(k)]

    def on_event(index: int, event: Event) -> None:
        paces[index].update(event)

    if not is_live():
        return work(on_event)
    from tgr_local.console import region

    console = region.make_console()

    def picture() -> tuple[list[Piece], list[RenderableType]]:
        # a region may take half of the screen; its first rows would be left out
        visible = list(enumerate(paces, 1))[: max(console.height // 2, 1)]
        rows = (f"{i:2} {status_line(pace, console.width - 3)}" for i, pace in visible)
        return [], [_row(console, row) for row in rows]

    with region.Region(console, picture):
        return work(on_event)


def print_reply(text: str, thinking: str = "", markdown: bool = True) -> None:
    """Prints a finished reply as `show_live` leaves it on the screen."""
    view = _ReplyView(markdown)
    for delta in (TextDelta(thinking, "thinking"), TextDelta(text, "answer")):
        if delta.text:
            view.write(delta)
    view.print()


def print_note(text: str) -> None:
    """Prints a line about a reply, dimmed unless NO_COLOR is set."""
    from rich.text import Text

    from tgr_local.console import region

    console = region.make_console()
    console.print(Text(text, "" if console.no_color else "dim"))


def status_line(pace: Pace, width: int) -> str:
    """``writing · chunk 3 · 96 tokens · 12 tokens/s``, or fewer facts where it is narrow."""
    return fitted(pace.facts(), width)


def scores_line(scores: Scores | None, width: int) -> str:
    """``▃▅█▁ best 2: -1.2345, 0.0213 ahead``, or less; empty before the first boundary."""
    if scores is None:
        return ""
    best, _, ahead = winner(scores.total, scores.chosen).partition(", ")
    bars = f"{score_bars(scores.total)} {best}"
    return f"{bars}, {ahead}" if ahead and len(f"{bars}, {ahead}") <= width else bars


# ---- drawing ----


class _ReplyView:
    """The text of one reply, the progress, and the scores."""

    def __init__(self, markdown: bool) -> None:
        from tgr_local.console import region

        self.pace = Pace()
        self._console = region.make_console()
        self._region = region.Region(self._console, self._picture)
        self._markdown = markdown
        self._deltas: list[TextDelta] = []  # written since the last picture
        self._text: GrowingText | None = None
        self._kind, self._ended = "", False

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draws the reply until the block is left; then all of its text is printed."""
        with self._region:
            try:
                yield
            finally:
                with self._region.lock:
                    self._ended = True

    def write(self, delta: TextDelta) -> None:
        with self._region.lock:
            self._deltas.append(delta)

    def print(self) -> None:
        """Prints the whole text at once."""
        self._ended = True
        for piece in self._picture()[0]:
            self._console.print(piece.content, soft_wrap=piece.wraps)

    def _picture(self) -> tuple[list[Piece], list[RenderableType]]:
        pieces: list[Piece] = []
        deltas, self._deltas = self._deltas, []
        for kind, group in itertools.groupby(deltas, lambda delta: delta.kind):
            if kind != self._kind or self._text is None:
                pieces += self._begin(kind)
            assert self._text is not None
            self._text.feed("".join(delta.text for delta in group))
        if self._text is None:
            return pieces, self._status_rows()
        pieces += self._text.end() if self._ended else self._text.take()
        growing = self._text.growing()
        return pieces, [*([growing] if growing else []), *self._status_rows()]

    def _begin(self, kind: str) -> list[Piece]:
        """Ends the text of one kind and begins the next."""
        from tgr_local.console.growing import Piece

        pieces = [*self._text.end(), Piece("")] if self._text is not None else []
        self._kind, self._text = kind, _growing_text(kind, self._markdown, self._console)
        return pieces

    def _status_rows(self) -> list[RenderableType]:
        width = self._console.width
        lines = [status_line(self.pace, width), scores_line(self.pace.scores, width)]
        return [_row(self._console, line) for line in lines if line]


def _growing_text(kind: str, markdown: bool, console: Console) -> GrowingText:
    from tgr_local.console.growing import MarkdownText, PlainText

    if kind == "thinking":
        return PlainText("" if console.no_color else "dim")
    return MarkdownText() if markdown and not console.no_color else PlainText()


def _row(console: Console, text: str) -> Text:
    from rich.text import Text

    style = "" if console.no_color else "cyan"
    return Text(text, style, no_wrap=True, overflow="crop")
