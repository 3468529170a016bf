"""Markdown as a terminal shows it: source in, rich's renderables out.

The dialect is CommonMark with tables, changed where it would alter what a model wrote: line breaks
stay, an asterisk between numbers, letters or brackets is an asterisk (``2*3*4``), a backslash stays
unless it escapes an asterisk or the like (``\\boxed``, ``\\(``), HTML is text, list markers are
shown as they were written, a table's row keeps the cells beyond its header, and a link shows its
address. No control character passes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.emphasis import tokenize as emphasis
from markdown_it.token import Token
from rich import box, markdown
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from tgr_local.system.sanitize import printable

THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        **{f"markdown.h{level}": "bold" for level in range(2, 7)},
        "markdown.item": "none",
        "markdown.mark": "bold",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
        "markdown.fence": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
HIGHLIGHTED_MOST = 16384  # characters of a code block; pygments needs quadratic time for some
_BEFORE_TEXT = re.compile(r"[0-9A-Za-z)\]}]")  # an asterisk after it opens nothing
_AFTER_TEXT = re.compile(r"[0-9A-Za-z(\[{\\]")  # an asterisk before it closes nothing
_ESCAPABLE = "*_`#~"


def parse(source: str) -> list[Token]:
    """The tokens of a text. Those of a block have in `map` its first line and the one after it."""
    return _PARSER.parse(source)


def rendered(tokens: Sequence[Token]) -> RenderableType:
    """Returns what a terminal shows for the tokens of whole blocks."""
    return _Blocks(blocks(_as_printed(tokens)))


def blocks(tokens: Sequence[Token]) -> list[Sequence[Token]]:
    """The tokens of each block of the text."""
    ends = [i + 1 for i, token in enumerate(tokens) if token.level == 0 and token.nesting < 1]
    return [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# ---- the dialect ----


def _emphasis(state: StateInline, silent: bool) -> bool:
    start, n_before = state.pos, len(state.delimiters)
    if not emphasis(state, silent):
        return False
    if state.src[start] == "*":
        opens = not (start and _BEFORE_TEXT.match(state.src[start - 1]))
        closes = not _AFTER_TEXT.match(state.src, state.pos)
        for delimiter in state.delimiters[n_before:]:
            delimiter.open &= opens
            delimiter.close &= closes
    return True


def _escape(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "\\":
        return False
    letter = state.src[state.pos + 1 : state.pos + 2]
    escapes = letter != "" and letter in _ESCAPABLE
    text = letter if escapes else "\\\\" if letter == "\\" else "\\"
    if not silent:
        token = state.push("text_special", "", 0)
        token.content = token.markup = text
        token.info = "escape"
    state.pos += 2 if escapes else len(text)
    return True


def _newline(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "\n":
        return False
    if not silent:
        state.push("hardbreak", "br", 0)
    state.pos += 1
    return True


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    n_before = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    n_columns, cell, line = 0, None, 0
    for token in state.tokens[n_before:]:
        n_columns += token.type == "th_open"
        line = token.map[0] if token.type == "tr_open" and token.map else line
        cell = token if token.type == "inline" else cell
        if token.type == "tr_close" and line > start and cell is not None:
            # cells beyond the header's are the end of the last one
            more = escapedSplit(getLine(state, line).strip().removeprefix("|"))[n_columns:]
            cell.content += "".join(f" | {part.strip()}" for part in more if part.strip())
    return True


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    parser.enable(["table", "strikethrough"])
    parser.disable(["lheading", "reference", "html_block", "html_inline"])
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.inline.ruler.at("emphasis", _emphasis)
    parser.inline.ruler.at("escape", _escape)
    parser.inline.ruler.at("newline", _newline)
    return parser


_PARSER = _parser()


def _as_printed(tokens: Iterable[Token]) -> list[Token]:
    """The tokens with printable texts, and with links and images as texts."""
    printed = []
    for token in tokens:
        token = token.copy(content=printable(token.content), info=printable(token.info))
        if token.children:
            token.children = _inline(token.children)
        printed.append(token)
    return printed


def _inline(tokens: Sequence[Token]) -> list[Token]:
    parts: list[Token] = []
    links: list[tuple[str, int]] = []  # address, place of the text
    for token in tokens:
        if token.type == "link_open":
            links.append((str(token.attrs.get("href", "")), len(parts)))
        elif token.type == "link_close":
            href, start = links.pop()
            text = "".join(part.content for part in parts[start:])
            if href not in (text, f"mailto:{text}"):
                parts.append(_text(f" ({href})"))
        elif token.type == "image":
            parts.append(_text(f"{token.content} ({token.attrs.get('src', '')})"))
        else:
            parts.append(token.copy(content=printable(token.content)))
    return parts


def _text(text: str) -> Token:
    return Token("text", "", 0, content=printable(text))


# ---- the elements ----


class _Heading(markdown.Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _FencedCode(markdown.CodeBlock):
    """Code with its fences as they were written, so that its language and its end are seen; code
    without fences stays indented."""

    def __init__(self, token: Token) -> None:
        super().__init__(token.info, "")
        self._fence = token.markup

    @classmethod
    def create(cls, markdown: markdown.Markdown, token: Token) -> _FencedCode:
        return cls(token)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = self.text.plain.removesuffix("\n")
        if not self._fence:
            yield Text("\n".join(f"    {line}" for line in code.split("\n")))
            return
        yield fence(self._fence + self.lexer_name)
        text = CodeHighlighter(self.lexer_name).highlighted(code)
        text.no_wrap, text.overflow = False, "fold"
        yield text
        yield fence(self._fence)


class _List(markdown.ListElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.items


class _ListItem(markdown.ListItem):
    """An item with its marker as it was written; only an asterisk becomes a bullet."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark

    @classmethod
    def create(cls, markdown: markdown.Markdown, token: Token) -> _ListItem:
        return cls(token.info + token.markup.replace("*", "•"))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = Segment(f"{self._mark} ", console.get_style("markdown.mark"))
        indent = Segment(" " * cell_len(mark.text))
        width = max(options.max_width - cell_len(mark.text), 1)
        lines = console.render_lines(self.elements, options.update(width=width), pad=False)
        for number, line in enumerate(lines or [[]]):
            yield indent if number else mark
            yield from line
            yield Segment.line()


class _Quote(markdown.BlockQuote):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        narrower = options.update(width=max(options.max_width - 2, 1))
        for line in console.render_lines(self.elements, narrower, style=self.style, pad=False):
            yield Segment("▌ ", console.get_style("markdown.hr"))
            yield from line
            yield Segment.line()


class _HorizontalRule(markdown.HorizontalRule):
    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _MarkdownTable(markdown.TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = "markdown.table.border"
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, border_style=style)
        for cell in self.header.row.cells if self.header and self.header.row else ():
            table.add_column(
                cell.content, justify=cell.justify, header_style="bold", overflow="fold"
            )
        for row in self.body.rows if self.body else ():
            table.add_row(*(cell.content for cell in row.cells))
        yield table


class _Blocks(markdown.Markdown):
    """Blocks with a blank line between them."""

    elements: ClassVar[dict[str, type[markdown.MarkdownElement]]] = {
        **markdown.Markdown.elements,
        "heading_open": _Heading,
        "fence": _FencedCode,
        "code_block": _FencedCode,
        "blockquote_open": _Quote,
        "hr": _HorizontalRule,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "list_item_open": _ListItem,
        "table_open": _MarkdownTable,
    }

    def __init__(self, blocks: list[Sequence[Token]]) -> None:
        super().__init__("", justify="default")  # "left" would pad every line
        self._blocks = blocks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for number, tokens in enumerate(self._blocks):
            self.parsed = list(tokens)
            if number:
                yield Segment.line()
            # rich puts a blank line before a block that has others in it
            parts = super().__rich_console__(console, options)
            yield from itertools.dropwhile(lambda part: part == Segment.line(), parts)


# ---- code ----


def fence(line: str) -> Text:
    """The line that begins or ends a code block."""
    return Text(line, "markdown.fence")


class CodeHighlighter:
    """Highlights code in a language that pygments knows; other code stays plain."""

    def __init__(self, info: str) -> None:
        language = info.split()[0][:40] if info.split() else "text"
        lexer = Syntax("", language).lexer
        self._syntax = lexer and Syntax("", lexer, theme="ansi_dark", background_color="default")

    def highlighted(self, code: str) -> Text:
        """The code in the colours of the terminal."""
        if self._syntax is None or len(code) > HIGHLIGHTED_MOST:
            return Text(code)
        code = code.expandtabs(4)  # as the lexer does
        text = self._syntax.highlight(code)
        if not text.plain.startswith(code):
            return Text(code)
        return text[: len(code)]  # it may have got a line end
