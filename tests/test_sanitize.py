"""Foreign text cannot send control characters to the terminal."""

from __future__ import annotations

import errno
import json
import os
import unicodedata

import pytest

from tgr_local.server.errors import api_error
from tgr_local.system.errors import ModelError, describe
from tgr_local.system.sanitize import printable, printable_json, printable_line, visible

EVERY = "".join(map(chr, range(0x180))) + "\u200b\u2028\u202e\U000e0041"


def test_text_keeps_its_lines_and_letters():
    assert printable("a\tb\nü 漢 👩‍🚀") == "a\tb\nü 漢 👩‍🚀"
    assert printable("\x1b[2J\x9b2J\r\x00\x7f") == "\ufffd[2J\ufffd2J\ufffd\ufffd\ufffd"


def is_harmless(text: str) -> bool:
    """Whether it has only printable characters, spaces, and characters that join letters."""
    return all(
        letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in "\u200c\u200d"
        for letter in text
    )


def test_a_line_is_one_line_of_printable_characters():
    assert printable_line("a\nb\tc  d") == "a⏎b c  d"
    assert is_harmless(printable_line(EVERY)) and len(printable_line(EVERY)) == len(EVERY)
    assert printable_line("11\u00a0% \u3000 👩\u200d🚀") == "11\u00a0% \u3000 👩\u200d🚀"
    assert printable_line("\u202e\u2028\u2029\u200b") == "\ufffd" * 4


def test_what_is_not_seen_is_written_out():
    assert visible("a\tb\nü 漢 👩‍🚀 ❤️ 👩🏽‍🚀") == "a\tb\nü 漢 👩‍🚀 ❤️ 👩🏽‍🚀"
    assert visible("x\u202e y\u2066\u200b") == "x<U+202E> y<U+2066><U+200B>"
    assert visible("a\u200db\u00a0c\ufe0f\U000e0101\u3164") == (
        "a<U+200D>b<U+00A0>c<U+FE0F><U+E0101><U+3164>"
    )
    assert visible("\x1b[2J\u2028\U000e0041\ud800") == "\ufffd[2J<U+2028><U+E0041><U+D800>"
    assert all(letter in "\n\t" or letter.isprintable() for letter in visible(EVERY))


def test_the_middle_of_a_long_line_is_left_out():
    assert printable_line("0123456789", 4) == "01…89" and printable_line("0123456789", 5) == "01…89"
    assert printable_line("0123456789", 10) == printable_line("0123456789") == "0123456789"


def test_json_reads_back_equal_and_has_no_control_characters():
    text = printable_json({EVERY: [EVERY]})
    assert json.loads(text) == {EVERY: [EVERY]} and "Ā" in text
    assert printable(text) == text and "\n" not in text


def test_the_text_of_an_error_is_printable():
    name = f"/tmp/{EVERY}"
    for error in (
        FileNotFoundError(2, "no", name),
        ModelError(name),
        ValueError(name),
        KeyError(name),
    ):
        assert is_harmless(describe(error))
    assert describe(OSError(2, "no", "a  b")) == "a  b: no"
    long = describe(ValueError("begin " + "x" * 10**6 + " end"))
    assert len(long) < 2100 and long.startswith("begin ") and long.endswith(" end")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),  # as of a fork
        RuntimeError("can't start new thread"),
        RuntimeError("Resource temporarily unavailable"),
    ],
)
def test_a_shortage_of_memory_is_no_bug(error: Exception):
    assert "no more memory" in describe(error)
    found = api_error(error)
    assert (found.status, found.code) == (503, "out_of_memory")
    assert "this is a bug" in describe(RuntimeError("else"))


def test_a_pipe_that_is_full_is_no_shortage_of_memory():
    full = BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 4096)
    assert describe(full) == "write could not complete without blocking"
