"""Replies as they grow: their text, and on a terminal what the search does while it is written."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING

from tgr_local.console.sanitize import printable
from tgr_local.generation import Event, Reply
from tgr_local.generation.text import TextDelta
from tgr_local.search.steps import Progress

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Events = Generator[Event, None, None]

BARS = "▁▂▃▄▅▆▇█"
STAGES = {"rebuild": "reading", "rollouts": "trying candidates"}  # else it is writing
_REFRESH = 12  # per second


def last(events: Events) -> Reply:
    """The reply at the end of the events, which are otherwise ignored."""
    *_, reply = events
    assert isinstance(reply, Reply)
    return reply


def show(events: Events, thinking: bool) -> Reply:
    """Shows a reply as stdout can: live on a terminal that moves its cursor, else plainly."""
    return (show_live if is_live() else show_plain)(events, thinking)


def note(text: str) -> None:
    """Prints a line about a reply, less bright than the reply where the theme allows it."""
    console = _console()
    console.print(_styled(console, text, "dim"), soft_wrap=True)


def show_plain(events: Events, thinking: bool) -> Reply:
    """Prints the answer as it comes, before it the thinking if asked, and a line end."""
    shown = printable if sys.stdout.isatty() else str
    kind = end = ""
    with contextlib.closing(events):  # an exception here must end the work there
        try:
            for event in events:
                if isinstance(event, TextDelta) and (thinking or event.kind == "answer"):
                    if kind and event.kind != kind:
                        print("\n" if end.endswith("\n") else "\n\n", end="")
                    kind, end = event.kind, shown(event.text)
                    print(end, end="", flush=True)
        finally:
            if end and not end.endswith("\n"):
                print(flush=True)
    assert isinstance(event, Reply)
    if not end:
        print(flush=True)  # an empty answer is a line too
    return event


def show_live(events: Events, thinking: bool = True) -> Reply:
    """The same on a terminal: thinking dimmed, and what the search does in two lines below.

    Finished paragraphs are printed for good. The one that is growing is part of the live region,
    so that the text is whole in the scrollback and nothing of the region stays there.
    """
    view = _Growing()
    with contextlib.closing(events), view.live:
        try:
            for event in events:
                if isinstance(event, TextDelta) and (thinking or event.kind == "answer"):
                    view.write(event)
                view.meter.note(event)
        finally:
            view.end()
    assert isinstance(event, Reply)
    return event


def show_many(k: int, work: Callable[[Callable[[int, Event], None]], list[Reply]]) -> list[Reply]:
    """Does `work`, which tells of k replies at a time, and shows how far each of them is."""
    meters = [Meter() for _ in range(k)]

    def tell(rank: int, event: Event) -> None:
        meters[rank].note(event)

    if not is_live():
        return work(tell)
    console = _console()

    def picture() -> RenderableType:
        from rich.console import Group

        room = max(console.height - 2, 1)
        rows = [f"{i:2} {meter.line()}" for i, meter in enumerate(meters[:room], 1)]
        return Group(*(_line(console, row) for row in rows))

    with _Region(console, picture).live:
        return work(tell)


class Meter:
    """How far one reply is, and what its search saw last."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._chunk, self._tokens, self._stage = 0, 0, "starting"
        self.scores = ""
        """The bars and the verdict on the last candidates; empty before any."""

    def note(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._chunk, self._stage = event.chunk, STAGES.get(event.stage, "writing")
            self._tokens += len(event.tokens)
            if event.candidates is not None:
                found = event.candidates.scores
                self.scores = f"{bars(found.total)} {verdict(found.total, found.chosen)}"
        elif isinstance(event, Reply):
            self._stage = "done"

    def line(self) -> str:
        """``chunk 3 · 96 tokens · 812.4 tokens/s · writing``."""
        seconds = time.monotonic() - self._start
        speed = self._tokens / seconds if seconds else 0.0
        status = f"chunk {self._chunk + 1} · {self._tokens} tokens · {speed:.1f} tokens/s"
        return f"{status} · {self._stage}"


class _Region:
    """Rows at the bottom of the screen that are drawn again and again, by another thread.

    When the window gets narrower, most terminals fold the rows that no longer fit; then the new
    ones are drawn over all rows that the old ones take now.
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
        if width < self._width and _folds():
            folded = sum(max(0, cells - 1) // width for cells in self._rows)
            self._console.file.write("\r\x1b[2K\x1b[1A" * folded)
        self._width = width
        picture = self._picture()
        lines = self._console.render_lines(picture, pad=False)
        self._rows = [sum(segment.cell_length for segment in line) for line in lines]
        return picture


class _Growing:
    """The live view of one reply: the growing paragraph, what the search does, and the scores.

    Another thread draws it, so what it draws is replaced and never changed.
    """

    def __init__(self) -> None:
        self._console, self.meter = _console(), Meter()
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
            self.end()
        self._paragraph = self._paragraph + _styled(self._console, rest, style)

    def _picture(self) -> RenderableType:
        from rich.console import Group

        # the top of a paragraph that is taller than the screen is out of sight until it is printed
        rows = self._paragraph.wrap(self._console, self._console.width)
        lines = [self.meter.line(), self.meter.scores][: 2 if self.meter.scores else 1]
        return Group(
            *rows[-max(self._console.height - 3, 1) :],
            *(_line(self._console, line) for line in lines),
        )

    def end(self) -> None:
        """Prints what there is for good, and a line end."""
        paragraph, self._paragraph = self._paragraph, _styled(self._console, "")
        self.live.refresh()  # else it would be seen twice for a moment
        self._console.print(paragraph, soft_wrap=True)


def is_live() -> bool:
    """Whether stdout is a terminal that moves its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _folds() -> bool:
    """Whether the terminal folds what is on its screen when it gets narrower; xterm cuts it."""
    return "TMUX" in os.environ or "XTERM_VERSION" not in os.environ


def _console() -> Console:
    from rich.console import Console

    # these two, exported by some shells, would hide that the window has another size by now
    size = {"COLUMNS", "LINES"} if sys.stdout.isatty() else set()
    environ = {name: value for name, value in os.environ.items() if name not in size}
    return Console(highlight=False, _environ=environ)


def _styled(console: Console, text: str, style: str = "") -> Text:
    """`text` in a style, unless NO_COLOR is set: then there is no theme at all."""
    from rich.text import Text

    return Text(text, "" if console.no_color else style)


def _line(console: Console, text: str) -> Text:
    line = _styled(console, text, "cyan")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def bars(scores: Iterable[float]) -> str:
    """``▃▅█▁``: a column for each candidate, from the lowest score to the highest."""
    scores = list(map(float, scores))
    known = [score for score in scores if math.isfinite(score)] or [0.0]
    low, height = min(known), (len(BARS) - 1) / ((max(known) - min(known)) or 1)
    return "".join(
        BARS[round((score - low) * height)] if math.isfinite(score) else BARS[0] for score in scores
    )


def verdict(scores: Iterable[float], chosen: int) -> str:
    """``best 2: -1.2345, 0.0213 ahead``."""
    scores = list(map(float, scores))
    others = scores[:chosen] + scores[chosen + 1 :]
    ahead = f", {scores[chosen] - max(others):.4f} ahead" if others else ""
    return f"best {chosen}: {scores[chosen]:.4f}{ahead}"
