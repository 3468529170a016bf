"""Bytes of files ↔ texts: untouched lines keep their bytes exactly."""

from __future__ import annotations

import random

import pytest

from tgr_local.code.folder.byte_style import StyleError, decode, encode

FILES = [
    b"",
    b"\n",
    b"a",
    b"a\n",
    b"a\r\nb\r\n",
    b"a\r\nb\nc\r\n\r\nd",
    b"a\rb\r",
    "é→\n".encode(),
    b"\xef\xbb\xbfa\r\nb",
    "\ufeffa\r\nß".encode("utf-16-le"),
    "\ufeffa\nß\n".encode("utf-16-be"),
    b"# coding: latin-1\ns = '\xe9'\n",
    b"#!/bin/x\n# -*- coding: cp1251 -*-\r\ns = '\xe9'\n",
    "# vim: set fileencoding=shift_jis :\ns = 'ソ'\n".encode("shift_jis"),
    b"caf\xe9\n",
    b"\x80\x81\xfe\xff\n\x0b\x0c\x1c\x85\n",
    b"# coding: rot13\nnyy\n",
    b"# coding: no-such-thing\n\xff\n",
    b"# coding: ascii\n\xe9\n",
    "one\u2028line\n".encode(),
]


@pytest.mark.parametrize("data", FILES)
def test_a_text_becomes_its_bytes_again(data: bytes):
    text, style = decode(data)
    assert "\r" not in text and encode(text, text, style) == data


def test_random_bytes_come_back():
    rng = random.Random(0)
    parts = [b"\r\n", b"\n", b"\r", b"ab", b"\xe9", b"\xc3\xa9", b"x = 1", b"# coding: latin-1"]
    for _ in range(500):
        data = b"".join(rng.choices(parts, k=rng.randrange(12)))
        text, style = decode(data)
        assert encode(text, text, style) == data


def test_untouched_lines_keep_their_line_ends():
    data = b"one\r\ntwo\nthree\r\nfour\nfive"
    text, style = decode(data)
    after = text.replace("two\n", "2\n").replace("four\n", "four\nand\n")
    assert encode(text, after, style) == b"one\r\n2\nthree\r\nfour\nand\nfive"
    assert encode(text, text.replace("three\n", ""), style) == b"one\r\ntwo\nfour\nfive"
    assert encode(text, "zero\n" + text + "\n", style) == b"zero\r\n" + data + b"\r\n"
    assert encode(text, "", style) == b""


def test_random_changes_keep_the_other_lines():
    rng = random.Random(1)
    for _ in range(300):
        lines = [f"line {i}" for i in range(rng.randrange(1, 12))]  # each line once
        ends = rng.choices(["\r\n", "\n"], k=len(lines))
        data = "".join(map("".join, zip(lines, ends, strict=True))).encode()
        text, style = decode(data)
        keep = [rng.random() < 0.7 for _ in lines]
        new = [line if kept else "new" for line, kept in zip(lines, keep, strict=True)]
        after = "\n".join([*new, ""])
        found = encode(text, after, style)
        for line, end, kept in zip(lines, ends, keep, strict=True):
            assert ((line + end).encode() in found) == kept or not kept
        assert decode(found)[0] == after


def test_the_style_of_a_file_holds_for_new_lines():
    text, style = decode(b"\xef\xbb\xbfa\r\n")
    assert encode(text, text + "b\nc\n", style) == b"\xef\xbb\xbfa\r\nb\r\nc\r\n"
    text, style = decode("\ufeffa\n".encode("utf-16-le"))
    assert encode(text, "→\n", style) == "\ufeff→\n".encode("utf-16-le")


def test_another_declaration_is_another_encoding():
    text, style = decode(b"# coding: latin-1\n'\xe9'\n")
    assert encode(text, "# coding: utf-8\n'é→'\n", style) == "# coding: utf-8\n'é→'\n".encode()
    assert encode(text, "'é'\n", style) == "'é'\n".encode()
    text, style = decode("'é'\n".encode())
    assert encode(text, "# coding: latin-1\n'é'\n", style) == b"# coding: latin-1\n'\xe9'\n"


def test_what_a_file_cannot_hold_is_refused():
    text, style = decode(b"# coding: latin-1\n\xe9\n")
    with pytest.raises(StyleError, match=r"holds '\\u2192', which iso8859-1.*save .* as UTF-8"):
        encode(text, text + "→\n", style)
    with pytest.raises(StyleError, match="NUL"):
        encode("", "a\0b", decode(b"")[1])
    with pytest.raises(StyleError, match=r"'\\ud800'"):
        encode("", "\ud800", decode(b"")[1])


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe\0\0a\0\0\0", b"\xff\xfea"])
def test_binary_files_are_refused(data: bytes):
    with pytest.raises(StyleError):
        decode(data)
