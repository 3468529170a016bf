"""Long lines broken between words, for a terminal, or cut; how wide it is."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from typing import TextIO

_COLUMN = re.compile(r" *(?:\S+ )*\S+ {2,}|\s*")
_LONGEST = 2000  # characters; a longer line is left to the terminal


def terminal_width(file: TextIO | None = None, default: int = 80) -> int:
    """The columns of the terminal that `file` is, by default stdout. Without one, COLUMNS counts,
    which some shells export and which is not true after the window was resized."""
    file = file or sys.stdout
    if file.isatty():
        try:
            return os.get_terminal_size(file.fileno()).columns or default
        except (OSError, ValueError):  # a double of a terminal
            return default
    return shutil.get_terminal_size((default, 24)).columns


def wrapped(text: str, width: int) -> str:
    """`text` with lines of at most `width` characters, as far as words allow. What follows two
    spaces, such as the help after a name, stays in its column."""
    return "\n".join(_wrapped_line(line, width) for line in text.split("\n"))


def shortened(text: str, most: int = 60) -> str:
    """`text` in one line of at most that many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _wrapped_line(line: str, width: int) -> str:
    if not width < len(line) <= _LONGEST:
        return line
    match = _COLUMN.match(line)
    column = len(match[0]) if match else 0
    indent = " " * (column if 0 < column <= width // 2 else 2)
    lines = textwrap.wrap(
        line, max(width, 1), subsequent_indent=indent, drop_whitespace=True,
        replace_whitespace=False, break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines)
