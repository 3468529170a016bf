"""Markdown in a terminal: what is shown, how it grows, and what hostile text cannot do."""

from __future__ import annotations

import random
import re

import pytest
from rich.console import Console

from tgr_local.console.growing import GrowingText, MarkdownText, Piece, PlainText
from tgr_local.console.markdown import THEME
from tgr_local.console.region import as_printed
from tgr_local.console.wrap import wrapped

WIDE = 100


def terminal(width: int = WIDE) -> Console:
    return Console(theme=THEME, force_terminal=True, width=width, color_system="standard")


def written(
    text: str, n_letters: int, width: int = WIDE, growing: GrowingText | None = None
) -> str:
    """What the terminal gets for a text that comes in parts of so many letters."""
    growing, console = growing or MarkdownText(), terminal(width)
    pieces: list[Piece] = []
    for start in range(0, len(text), n_letters):
        growing.feed(text[start : start + n_letters])
        pieces += growing.take()
        if (rest := growing.growing()) is not None:
            as_printed(console, Piece(rest))
    return "".join(as_printed(console, piece) for piece in [*pieces, *growing.end()])


def plain(shown: str) -> list[str]:
    """The rows without styles, and without spaces at their ends."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    return [row.rstrip() for row in text.rstrip("\n").split("\n")]


def rows(text: str, width: int = WIDE) -> list[str]:
    return plain(written(text, len(text), width))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("# Title\ntext", ["Title", "", "text"]),
        ("a **bold** and *slanted* `code`", ["a bold and slanted code"]),
        ("one\ntwo\n  three", ["one", "two", "  three"]),
        ("- one\n- two\n  - deep\n* three", ["- one", "- two", "  - deep", "", "• three"]),
        ("7. seven\n8) eight", ["7. seven", "", "8) eight"]),
        ("> said\n> so", ["▌ said", "▌ so"]),
        ("```py\nx = 1\n```\nend", ["```py", "x = 1", "```", "", "end"]),
        ("```\nopen", ["```", "open"]),
        ("[name](http://a.b) <http://c.d>", ["name (http://a.b) http://c.d"]),
        ("![cat](http://a.b/c.png)", ["cat (http://a.b/c.png)"]),
        ("<b>5</b> < 6 &amp; 7", ["<b>5</b> < 6 & 7"]),
        ("| a | b |\n|---|--:|\n| 1 | 23 |", ["a    b", "──────", "1   23"]),
        (
            "| a | b |\n|---|---|\n| 1 | 2 | **3** | 4 |\n5|6|7\n| 8 |",
            ["a   b", "─────────────", "1   2 | 3 | 4", "5   6 | 7", "8"],
        ),
        ("text\n---\nmore", ["text", "", "─" * WIDE, "", "more"]),
    ],
)
def test_every_element_has_its_form(source: str, shown: list[str]):
    assert rows(source) == shown


@pytest.mark.parametrize(
    "text",
    [
        "2*3*4 = 24, (2*3)*4*(5) and 2**3**2",
        "\\boxed{2*(3+4)*5} \\(x\\) \\[y\\] \\{z\\} a\\\\b",
        "x_1 + y_1 = _z",
        "$a_{1}*b_{2}*c$ and $2^{3}$",
        "5 * 3 * 2, 5 *3 * 2",
        "+ 7",
        "- 25",
        "= 22",
        "1986. A year",
        "[x]: y",
        "f[x](5",
    ],
)
def test_mathematics_stays_as_it_was_written(text: str):
    assert rows(text) == [text]


def test_bold_beside_other_scripts_and_punctuation():
    shown = written("这是**重点**内容。**Note:** ok, (**x**)", 1)
    assert plain(shown) == ["这是重点内容。Note: ok, (x)"]
    assert re.findall(r"\x1b\[1m(.*?)\x1b\[0m", shown) == ["重点", "Note:", "x"]


DOCUMENT = """\
# A *title*
An answer: **2*3*4**, with `code`
and a second line.

1. one
2. two
   - deep
   ```py
   x = 1
   ```
3. three

| a | b |
|---|---|
| 1 | 2*3*4 |

> a quote
> of two lines
***
```python
def f(x):
    return "**no bold**"

print(f(1))
```
The end: \\boxed{5}
"""


@pytest.mark.parametrize("n_letters", [1, 7])
@pytest.mark.parametrize("width", [20, 80])
def test_it_ends_the_same_however_it_grows(n_letters: int, width: int):
    assert written(DOCUMENT, n_letters, width) == written(DOCUMENT, len(DOCUMENT), width)


def test_finished_parts_are_printed_at_once():
    growing = MarkdownText()
    growing.feed("first\n\n- one\n- two\n")
    shown = "".join(as_printed(terminal(), piece) for piece in growing.take())
    assert plain(shown) == ["first", "", "- one"]
    growing.feed("\nafter\n\n```py\nx = 1\ny =")
    shown = "".join(as_printed(terminal(), piece) for piece in growing.take())
    assert plain(shown) == ["- two", "", "after", "", "```py", "x = 1"]


@pytest.mark.parametrize("end", ["*", "**", "#", "```", "```py", "|--", "1.", "-", "> "])
def test_what_may_become_something_else_is_not_shown_yet(end: str):
    growing = MarkdownText()
    growing.feed(f"text\n{end}")
    growing.take()
    content = growing.growing()
    assert content is not None and plain(as_printed(terminal(), Piece(content))) == ["text"]
    shown = "".join(as_printed(terminal(), piece) for piece in growing.end())
    assert plain(shown)[0] == "text"


@pytest.mark.parametrize("text", ["#1", "a", "-1", "\\boxed", "1.5", "> a", "- a", "(", "$"])
def test_what_is_clear_is_shown_at_once(text: str):
    growing = MarkdownText()
    growing.feed(text)
    growing.take()
    content = growing.growing()
    assert content is not None and plain(as_printed(terminal(), Piece(content)))[0]


WORDS = (
    "a1", "b2", "**", "*", "_", "`", "\n", "\n\n", "- ", "1. ", "> ", "# ", "```", "    ", "|", "(",
    ")", "[", "](", "\\", "~~", "<x>", "&lt;", "2*3", "重点", "\t", "---", "|---|---|\n",
)  # fmt: skip


def test_no_word_is_lost_or_doubled():
    rng = random.Random(0)
    for _ in range(60):
        text = "".join(rng.choice(WORDS) for _ in range(rng.randrange(30)))
        kept = [word for word in re.findall("a1|b2|2\\*3|重点", text)]
        shown = written(text, rng.randrange(1, 6), width=1000)
        found = re.findall("a1|b2|2\\*3|重点", "\n".join(plain(shown)))
        # the language of a code block and an address may be left out or moved
        assert sorted(found) == sorted(kept) or "```" in text or "](" in text, text


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J \x07 \x9b5A",
        "&#27;[2J &#x1b;]0;title&#7; &#13;over &#12;",
        "[a](http://x/\x1b]8;;) ![\x1b[A](b)",
        "```\x1b[31m\n\x1b[2J\n```",
        "| \x1b[A |\n|---|\n| &#13; |",
        "<http://a/\x1b[2J>",
    ],
)
@pytest.mark.parametrize("n_letters", [1, 1000])
def test_no_control_character_reaches_the_terminal(text: str, n_letters: int):
    shown = re.sub(r"\x1b\[[0-9;]*m", "", written(text, n_letters))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@pytest.mark.parametrize(
    "text",
    [
        ">" * 5000,
        "[" * 5000 + "x",
        "*a **b " * 1000,
        "- " * 3000 + "x",
        "`" * 5001,
        "| a " * 700 + "\n" + "|---" * 700 + "\n",
        "x" * 100_000,
        "line\n" * 4000,
        "```\n" + "x = '''\n" * 2000,
        "\n" * 20_000,
    ],
)
def test_a_hostile_text_is_shown(text: str):
    written(text, len(text))
    growing = MarkdownText()
    for start in range(0, len(text), 20_000):
        growing.feed(text[start : start + 20_000])
        growing.take()
        growing.growing()


def test_a_long_text_without_blocks_is_complete():
    lines = [f"line {i}" for i in range(4000)]
    assert rows("\n".join(lines)) == lines
    assert len("".join(rows("x" * 100_000, width=80))) == 100_000


def test_a_long_code_block_is_one_block():
    code = [f"x{i} = {i} * 2 * 3" for i in range(1200)]
    text = "\n".join(["before", "```py", *code, "```", "after"])
    assert rows(text) == ["before", "", "```py", *code, "```", "", "after"]


@pytest.mark.parametrize("n_letters", [3, 1000])
def test_code_with_tabs_is_whole(n_letters: int):
    code = 'int main() {\n\tif (x) {\n\t\tputs("x");\n\t}\n\treturn 0;\n}'
    shown = plain(written(f"```c\n{code}\n```\n", n_letters))
    assert shown == ["```c", *code.expandtabs(4).split("\n"), "```"]


def test_wide_characters_fit_the_width():
    assert rows("重" * 25, width=20) == ["重" * 10, "重" * 10, "重" * 5]


def test_plain_text_is_not_formatted():
    shown = written("**a**\n- b\n\n", 1, growing=PlainText())
    assert shown == "**a**\n- b\n"
    assert plain(written("some words here", 3, 10, PlainText("dim"))) == ["some words", "here"]
    text = "some words here\n```sh\nsome words here\n```\nsome words here"
    growing = PlainText()
    growing.feed(text)
    pieces = [*growing.take(), *growing.end()]
    assert [(str(piece.content), piece.wraps) for piece in pieces] == [
        ("some words here", False),
        ("```sh\nsome words here\n```", True),
        ("some words here", False),
    ]


def test_long_lines_are_broken_between_words():
    assert (
        wrapped("/name N     what it does with N", 24)
        == "/name N     what it does\n            with N"
    )
    assert wrapped("tgr-local: one two three", 14) == "tgr-local: one\n  two three"
    assert wrapped("short", 10) == "short" and wrapped("x" * 3000, 10) == "x" * 3000
