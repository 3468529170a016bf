"""Rows at the bottom of the screen that are drawn again and again, below text that is printed once.

What is printed and the new rows go to the terminal in one write, so that no text is on the screen
twice or missing for a moment, and the scrollback gets the printed text alone. Rows are drawn over
the old ones, and only if they have changed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.segment import Segments
from rich.text import Text

from tgr_local.console.growing import Piece
from tgr_local.console.markdown import THEME
from tgr_local.system.progress import Pause

if TYPE_CHECKING:
    from typing_extensions import Self

Picture = Callable[[], tuple[list[Piece], list[RenderableType]]]
"""Returns the pieces to print now, and the rows below them."""

_INTERVAL = 1 / 12  # seconds between two drawings
_SHARE = 0.1  # of the time that drawing may take
_FEW_ROWS = 5  # which a region may have on a low screen
_LEAST_MARKED = 4  # rows of a region in which one may tell of those above it
_ERASE_LINE, _ERASE_BELOW, _UP = "\x1b[K", "\x1b[J", "\x1b[A"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def make_console() -> Console:
    """The terminal as rich sees it."""
    # some shells export these two; rich would then not see that the window was resized
    size = {"COLUMNS", "LINES"} if sys.stdout.isatty() else set()
    environ = {name: value for name, value in os.environ.items() if name not in size}
    return Console(highlight=False, theme=THEME, _environ=environ)


class Region:
    """Draws a picture at intervals in a thread of its own, while it is entered.

    `picture` is called under `lock`, which protects what it reads. When the region is left, the
    last picture is drawn and its rows are erased.
    """

    def __init__(self, console: Console, picture: Picture) -> None:
        self.lock = threading.RLock()
        self._console, self._picture = console, picture
        self._rows: list[str] = []  # as they were drawn
        self._cells: list[int] = []  # width of each row
        self._width = console.width
        self._pause = Pause()
        self._thread = threading.Thread(target=self._redraw, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._write(_HIDE_CURSOR)
            self._thread.start()
        except BaseException:  # Ctrl-C while the thread begins
            self._pause.end()
            self._write(_SHOW_CURSOR)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._pause.end()
            self._thread.join()
            with self.lock:
                pieces, _ = self._picture()
                self._draw(pieces, [])
        finally:
            self._write(_SHOW_CURSOR)

    def _redraw(self) -> None:
        wait = 0.0
        while not self._pause.wait(wait):
            start = time.monotonic()
            try:
                with self.lock:
                    self._draw(*self._picture())
            except OSError:  # the terminal is gone; printing the reply fails too, and reports it
                return
            wait = max(_INTERVAL, (time.monotonic() - start) / _SHARE)

    def _draw(self, pieces: Sequence[Piece], picture: Sequence[RenderableType]) -> None:
        n_above = self._n_above()
        rows, cells = self._rendered(picture)
        if not pieces and n_above == max(len(self._rows) - 1, 0) and rows == self._rows:
            return
        text = _HIDE_CURSOR + "\r" + _UP * n_above  # the shell shows it, after Ctrl-Z
        if pieces:
            text += _ERASE_BELOW + "".join(as_printed(self._console, piece) for piece in pieces)
        text += _NO_WRAP + "\n".join(row + _ERASE_LINE for row in rows) + _ERASE_BELOW + _WRAP
        self._rows, self._cells = rows, cells
        self._write(text)

    def _n_above(self) -> int:
        """Rows from the top of the region to the cursor, which is in its last row.

        When the window gets narrower, most terminals wrap the rows that no longer fit, so that the
        old region takes more rows; the next one is drawn over all of them.
        """
        width, n_rows = self._console.width, max(len(self._rows) - 1, 0)
        if width < self._width and _wraps_on_resize():
            n_rows += sum(max(0, cells - 1) // width for cells in self._cells)
        self._width = width
        return n_rows

    def _rendered(self, picture: Sequence[RenderableType]) -> tuple[list[str], list[int]]:
        """The rows as the terminal gets them, and the cells that each takes. A picture that is
        higher than half of the screen loses its first rows, which would leave the screen and stay
        in the scrollback; a row in their place says how many there are."""
        height = self._console.height
        most = max(height // 2, min(height - 1, _FEW_ROWS), 1)
        lines = [
            line for content in picture for line in self._console.render_lines(content, pad=False)
        ]
        if (n_above := len(lines) - most + 1) > 1:
            mark = Text(f"… {n_above} rows above", "" if self._console.no_color else "dim")
            head = self._console.render_lines(mark, pad=False)[:1] if most >= _LEAST_MARKED else []
            lines = [*head, *lines[len(lines) - most + len(head) :]]
        rows = []
        for line in lines:
            with self._console.capture() as capture:
                self._console.print(Segments(line), end="", soft_wrap=True)
            rows.append(capture.get())
        return rows, [sum(part.cell_length for part in line) for line in lines]

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


def as_printed(console: Console, piece: Piece) -> str:
    """Returns the terminal output of a piece, with its line end."""
    with console.capture() as capture:
        console.print(piece.content, soft_wrap=piece.wraps)
    return capture.get()


def _wraps_on_resize() -> bool:
    """Whether the terminal wraps long rows when its window gets narrower; xterm cuts them."""
    return "TMUX" in os.environ or "XTERM_VERSION" not in os.environ
