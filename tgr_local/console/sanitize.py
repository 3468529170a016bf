"""Text from a file, a client or the hub on its way to a terminal, which control characters in it
could otherwise rule."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_CONTROL = {c: "\ufffd" for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"}
_ESCAPED = {c: f"\\u{c:04x}" for c in range(127, 160)}  # json escapes those below


def visible(text: str) -> str:
    """`text` without control characters but for line breaks and tabs."""
    return text.translate(_CONTROL)


def one_line(text: str, most: int = 0) -> str:
    """`text` as one line of printable characters; of more than `most`, if given, the middle is
    left out."""
    if 0 < most < len(text):
        text = f"{text[: most // 2]}…{text[len(text) - most // 2 :]}"
    line = text.replace("\n", "⏎").replace("\t", " ")
    return "".join(letter if _is_shown(letter) else "\ufffd" for letter in line)


def _is_shown(letter: str) -> bool:
    # spaces of other scripts, and what joins letters or keeps them apart
    return letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in "\u200c\u200d"


def as_json(value: Any) -> str:
    """`value` as JSON with its letters as they are, but each control character escaped."""
    return json.dumps(value, ensure_ascii=False).translate(_ESCAPED)
