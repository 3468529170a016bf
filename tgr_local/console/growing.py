"""Text that grows, as a terminal shows it: what is finished, and what may still change.

Text comes in as it is written; out come pieces that never change again, to be printed once, and the
part that is still growing, to be drawn again and again. Nothing here prints.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from markdown_it.token import Token
from rich.console import Group, RenderableType
from rich.text import Text

from tgr_local.console.markdown import CodeHighlighter, blocks, fence, parse, rendered
from tgr_local.system.sanitize import printable

_MOST = 16384  # characters of a block; a longer one is cut at the end of a line
_SHOWN = 4096  # newest characters that are shown of a growing line
_SLOW = 0.5  # seconds for one piece, after which texts are no longer formatted
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# The end of a line that may still become the beginning of something else.
_UNCLEAR = re.compile(
    r"[ \t]*(?:(?:>|(?:[-+*]|\d{1,9}[.)])[ \t])[ \t]*)*"  # of quotes and lists
    r"(?:[-+*_=|:~` \t]*|#{1,6}[ \t]*|\d{1,9}[.)]?|```[^\n`]*|~~~[^\n~]*)"
)


class Piece(NamedTuple):
    """Finished text."""

    content: RenderableType
    wraps: bool = False
    """Whether the terminal breaks its long lines, so that they can be copied in one piece."""


class PlainText:
    """Text as it is, in one style; a line is finished when the next one begins, so that blank lines
    at the end are dropped.

    Long lines are broken between words. Those of code are left to the terminal, so that they can be
    copied in one piece.
    """

    def __init__(self, style: str = "") -> None:
        self._style, self._text, self._fence = style, "", ""

    def feed(self, text: str) -> None:
        """Adds what was written."""
        self._text += printable(text)

    def take(self) -> list[Piece]:
        """The pieces that are finished now, each returned once."""
        end = self._text.rstrip("\n").rfind("\n")
        if end < 0:
            return []
        finished, self._text = self._text[:end], self._text[end + 1 :]
        return self._pieces(finished)

    def growing(self) -> RenderableType | None:
        """The part after the finished pieces, if there is any."""
        line = self._text.rstrip("\n")
        return Text(line[-_SHOWN:], self._style) if line else None

    def end(self) -> list[Piece]:
        """The remaining pieces; the text is complete."""
        text, self._text = self._text.rstrip("\n"), ""
        return self._pieces(text) if text else []

    def _pieces(self, text: str) -> list[Piece]:
        lines = text.split("\n")
        groups = itertools.groupby(lines, self._is_wrapped_by_terminal)
        return [Piece(Text("\n".join(group), self._style), wraps) for wraps, group in groups]

    def _is_wrapped_by_terminal(self, line: str) -> bool:
        """Whether a line is code, or too long to be broken between words."""
        mark = _FENCE.match(line)
        was_code = bool(self._fence)
        if mark and not was_code:
            self._fence = mark[1]
        elif mark and mark[1].startswith(self._fence) and not line.strip("`~ "):
            self._fence = ""
        return was_code or bool(self._fence) or len(line) > _MOST


class MarkdownText:
    """Markdown, finished block by block; lists item by item, and code line by line. Its methods are
    those of `PlainText`."""

    def __init__(self) -> None:
        self._source = ""  # what no piece has yet
        self._begun = False  # whether there was a piece
        self._continues = False  # whether the next piece belongs to the block of the last one
        self._code: _OpenCode | None = None
        self._plain = False  # after a text that took long
        self._taken_from = ""  # the text in which nothing more is finished
        self._growing: Sequence[Token] = ()

    def feed(self, text: str) -> None:
        self._source += printable(text)

    def take(self) -> list[Piece]:
        return self._finished(_clear(self._source))

    def end(self) -> list[Piece]:
        self._source += "" if self._source.endswith("\n") else "\n"
        pieces = self._finished(self._source)
        last, self._source = self._source.rstrip(), ""
        return pieces + (self._piece(last) if last else [])

    def growing(self) -> RenderableType | None:
        if self._code is not None or self._plain or len(self._source) > _MOST:
            line = self._source[-_SHOWN:]
            return Text(line) if line.strip("`~ \n") else None  # they may end the code
        if not self._growing:
            return None
        content = rendered(self._growing)
        return Group(Text(), content) if self._separate() else content

    def _separate(self) -> bool:
        return self._begun and not self._continues

    # ---- finished pieces ----

    def _finished(self, text: str) -> list[Piece]:
        """The finished pieces in `text`, which the source begins with."""
        if text == self._taken_from:
            return []
        start, pieces = time.monotonic(), []
        while (n := len(self._source)) and text:
            end = text.rfind("\n", 0, _MOST) + 1
            part = text[:end] if end and len(text) > _MOST else text
            pieces += self._take_code(part) if self._code is not None else self._take_blocks(part)
            if len(self._source) == n and part != text:  # one block is longer than that
                pieces += self._cut(text)
            if len(self._source) == n:
                break
            text = text[n - len(self._source) :]
        self._taken_from = text
        self._plain |= time.monotonic() - start > _SLOW * max(len(pieces), 1)
        return pieces

    def _take_code(self, text: str) -> list[Piece]:
        assert self._code is not None
        finished, newline, _ = text.rpartition("\n")
        if not newline:
            return []
        lines = finished.split("\n")
        closing = next((i for i, line in enumerate(lines) if self._code.is_end(line)), None)
        if closing is None:
            self._source = self._source[len(finished) + 1 :]
            return self._code.lines(finished)
        code = "\n".join(lines[:closing])
        pieces = self._code.lines(code) if closing else []
        pieces.append(self._code.end())
        self._source = self._source[len("\n".join(lines[: closing + 1])) + 1 :]
        self._code, self._continues = None, False
        return pieces

    def _take_blocks(self, text: str) -> list[Piece]:
        self._growing = ()
        if self._plain or len(text) > _MOST:
            return self._cut(text)
        complete = blocks(parse(text))
        if not complete:
            return []
        lines = _LINE.findall(text)
        *whole, last = complete
        pieces = [piece for block in whole for piece in self._block(block)]
        start = last[0].map[0] if last[0].map else 0
        if last[0].type == "fence" and not _is_closed(last[0], lines):
            if lines[start].endswith("\n"):
                pieces += self._begin_code(last[0])
                start += 1
        elif _is_complete(last[0], lines):
            pieces += self._block(last)
            start = len(lines)
        else:
            n_items, start = _finished_items(last, start)
            if n_items:
                pieces += self._block([*last[:n_items], last[-1]])
                last = [last[0], *last[n_items:]]
                self._continues = True
            self._growing = last
        self._source = self._source[sum(map(len, lines[:start])) :]
        return pieces

    def _cut(self, text: str) -> list[Piece]:
        """The complete lines of a text that is too long to be formatted as one block."""
        finished, newline, _ = text[:_MOST].rpartition("\n")
        if not newline:
            finished, newline, _ = text.partition("\n")
        if not newline:
            return []
        self._source = self._source[len(finished) + 1 :]
        pieces = self._piece(finished)
        self._continues = True
        return pieces

    def _begin_code(self, token: Token) -> list[Piece]:
        self._code = _OpenCode(token)
        pieces = self._with_blank_line(Piece(self._code.begin, wraps=True))
        self._continues = True
        return pieces

    def _piece(self, source: str) -> list[Piece]:
        """A text as one piece, whatever is in it."""
        if self._plain or len(source) > _MOST:
            return self._with_blank_line(Piece(Text(source), wraps=True))
        return [piece for block in blocks(parse(source)) for piece in self._block(block)]

    def _block(self, tokens: Sequence[Token]) -> list[Piece]:
        if tokens[0].type != "fence":
            return self._with_blank_line(Piece(rendered(tokens)))
        code = _OpenCode(tokens[0])
        pieces = self._with_blank_line(Piece(code.begin, wraps=True))
        text = tokens[0].content.removesuffix("\n")
        return [*pieces, *(code.lines(text) if text else []), code.end()]

    def _with_blank_line(self, piece: Piece) -> list[Piece]:
        """The piece, after a blank line if it begins a block."""
        blank = [Piece(Text())] if self._separate() else []
        self._begun, self._continues = True, False
        return [*blank, piece]


GrowingText = PlainText | MarkdownText


class _OpenCode:
    """A code block that has not ended; its lines are highlighted with those before them."""

    def __init__(self, token: Token) -> None:
        self._markup, self._code = token.markup, ""
        self._highlight = CodeHighlighter(token.info)
        self.begin = fence(self._markup + printable(token.info))

    def is_end(self, line: str) -> bool:
        mark, n = re.escape(self._markup[0]), len(self._markup)
        return re.fullmatch(rf" {{0,3}}{mark}{{{n},}}[ \t]*", line) is not None

    def end(self) -> Piece:
        return Piece(fence(self._markup), wraps=True)

    def lines(self, text: str) -> list[Piece]:
        n_before = self._code.count("\n")
        self._code += f"{text}\n"
        lines = self._highlight.highlighted(self._code).split("\n", allow_blank=True)
        new_lines = Text("\n").join(list(lines)[n_before : self._code.count("\n")])
        return [Piece(new_lines, wraps=True)]


def _clear(source: str) -> str:
    """`source` without an end that may still become the beginning of something else."""
    head, newline, line = source.rpartition("\n")
    return head + newline if _UNCLEAR.fullmatch(line) else source


def _is_closed(token: Token, lines: Sequence[str]) -> bool:
    start, end = token.map or (0, 0)
    return (
        end - start > 1
        and lines[end - 1].endswith("\n")
        and _OpenCode(token).is_end(lines[end - 1].rstrip("\n"))
    )


def _is_complete(token: Token, lines: Sequence[str]) -> bool:
    """Whether further text cannot change the block, the last one of the text."""
    end = token.map[1] if token.map else 0
    if token.type in ("fence", "heading_open", "hr"):
        return lines[end - 1].endswith("\n")
    followed = end < len(lines) and lines[end].endswith("\n")
    return followed and token.type in ("paragraph_open", "table_open", "blockquote_open")


def _finished_items(tokens: Sequence[Token], start: int) -> tuple[int, int]:
    """The number of tokens up to the last item of a list, and the line of that item."""
    items = [i for i, t in enumerate(tokens) if t.type == "list_item_open" and t.level == 1]
    if len(items) < 2:
        return 0, start
    line = tokens[items[-1]].map
    return items[-1], line[0] if line else start
