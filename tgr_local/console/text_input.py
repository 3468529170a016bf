"""Input as text: bytes that must be UTF-8, and questions of several lines between two `BLOCK`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable

from tgr_local.system import paths
from tgr_local.system.errors import TgrError
from tgr_local.system.files import utf8_text

MAX_FILE_BYTES = 16 << 20  # of a text before a question
BLOCK = '"""'
"""Begins and ends a question of several lines."""


def decode_utf8(data: bytes, source: str, offset: int = 0) -> str:
    """Bytes as text, without a byte order mark at the beginning of the source. TgrError names
    `source` and the invalid byte, if `data` begins at `offset`."""
    try:
        return data.decode("utf-8") if offset else utf8_text(data)
    except UnicodeDecodeError as error:
        position = offset + error.start
        is_utf16 = not offset and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it is UTF-16 by its first bytes: save it as UTF-8" if is_utf16 else ""
        raise TgrError(
            f"{source} is not UTF-8 text: invalid byte at offset {position}{hint}"
        ) from None


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


def read_file(name: str) -> str:
    """The text in a file. ValueError for a name that is not a file or for one that is too long,
    TgrError for a file that is not text, OSError as `open` raises it."""
    if not name:
        raise ValueError("the name of the file is empty; name a text file")
    path = paths.expanded("the file", name)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    check_size(str(path), path.stat().st_size)
    return decode_utf8(path.read_bytes(), str(path))


def check_size(name: str, n_bytes: int) -> None:
    """Raises ValueError for a text that is too long to be put before a question."""
    if n_bytes > MAX_FILE_BYTES:
        raise ValueError(f"{name} has {n_bytes} bytes, but may have {MAX_FILE_BYTES}; shorten it")


def read_block(line: str, next_line: Callable[[], str]) -> str:
    """The question that begins with `line`.

    If it opens a block, `next_line` is called up to the closing quotes; ValueError if it raises
    EOFError before them, or if text follows them; but a `line` of several lines with text behind
    the quotes was pasted, and is the question as it stands. A TgrError that it raises is raised at
    the end of the block, whose other lines are not commands.
    """
    before, quotes, text = line.partition(BLOCK)
    if not quotes or before.strip():
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
