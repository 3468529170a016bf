"""Text from files, clients and the network made safe to print on a terminal.

A control character in such a text could move the cursor or retitle the window; each is replaced
with U+FFFD. Strings in, strings out.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_REPLACED = {c: "\ufffd" for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"}
_ESCAPED = {c: f"\\u{c:04x}" for c in range(127, 160)}  # json escapes those below 32


def printable(text: str) -> str:
    """`text` with every control character replaced, except line breaks and tabs."""
    return text.translate(_REPLACED)


def printable_line(text: str, max_length: int = 0) -> str:
    """`text` as one line of printable characters, line breaks shown as ⏎.

    If `max_length` is given, the middle of a text with more characters becomes "…".
    """
    if 0 < max_length < len(text):
        half = max_length // 2
        text = f"{text[:half]}…{text[len(text) - half :]}"
    line = text.replace("\n", "⏎").replace("\t", " ")
    return "".join(letter if _is_printable(letter) else "\ufffd" for letter in line)


def _is_printable(letter: str) -> bool:
    # spaces of other scripts, and the two characters that join or separate letters
    return letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in "\u200c\u200d"


def printable_json(value: Any) -> str:
    """`value` as JSON text: letters of every script as they are, control characters escaped."""
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
