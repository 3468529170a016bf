"""Lines of stdin as text, and questions of several lines between two `BLOCK`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tgr_local.system.errors import TgrError
from tgr_local.system.text_files import decode_utf8

BLOCK = '"""'
"""Begins and ends a question of several lines."""


def stdin_lines() -> Callable[[], str]:
    """A function that reads the next line of stdin. It raises EOFError at the end, and TgrError for
    a line that is not UTF-8."""
    offset = 0

    def next_line() -> str:
        nonlocal offset
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        offset += len(data)
        return decode_utf8(data, "stdin", offset - len(data)).rstrip("\r\n")

    return next_line


def read_block(line: str, next_line: Callable[[], str]) -> str:
    """The question that begins with `line`.

    If it opens a block, `next_line` is called up to the closing quotes; ValueError if it raises
    EOFError before them, or if text follows them; but a `line` of several lines with text behind
    the quotes was pasted, and is the question as it stands. A TgrError that it raises is raised at
    the end of the block, whose other lines are not commands.
    """
    head, quotes, text = line.partition(BLOCK)
    if not quotes or head.strip():
        return line
    lines = [text]
    failure: TgrError | None = None
    while BLOCK not in lines[-1]:
        try:
            lines.append(next_line())
        except EOFError:
            raise failure or ValueError(
                f"a block that begins with {BLOCK} must end with {BLOCK}"
            ) from None
        except TgrError as error:
            failure = failure or error
            lines.append("")
    if failure:
        raise failure
    text, _, after = "\n".join(lines).partition(BLOCK)
    if after.strip():
        if "\n" in line:  # pasted: source code, say, that begins with its docstring
            return line
        raise ValueError(f"text after the closing {BLOCK} is not allowed: {after!r:.40}")
    return text.strip("\n")
