"""Text from files, clients and the network made safe to print on a terminal.

A control character in such a text could move the cursor or retitle the window; each is replaced
with U+FFFD. In a diff, characters that are not seen are written out. Strings in, strings out.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_REPLACED = {c: "\ufffd" for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"}
_ESCAPED = {c: f"\\u{c:04x}" for c in range(127, 160)}  # json escapes those below 32
_UNSEEN = frozenset(  # though they count as printable: fillers, and what chooses a variant
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, 0xFFA0,
              *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)))
)  # fmt: skip


def printable(text: str) -> str:
    """`text` with every control character replaced, except line breaks and tabs."""
    return text.translate(_REPLACED)


def visible(text: str) -> str:
    """`text` with every character visible: an invisible one, or one that only changes how others
    are displayed, becomes <U+202E>. Line breaks, tabs and the parts of an emoji stay."""
    if text.isascii():
        return printable(text)
    letters = []
    for place, letter in enumerate(text):
        is_seen = letter.isprintable() and letter not in _UNSEEN
        if ord(letter) in _REPLACED:
            letters.append("\ufffd")
        elif is_seen or letter in "\n\t" or _is_in_emoji(text, place):
            letters.append(letter)
        else:
            letters.append(f"<U+{ord(letter):04X}>")
    return "".join(letters)


def _is_in_emoji(text: str, place: int) -> bool:
    prior = text[place - 1 : place]
    if text[place] == "\ufe0f":
        return unicodedata.category(prior or " ") == "So"
    later = text[place + 1 : place + 2] or " "
    is_joined = text[place] == "\u200d" and unicodedata.category(later) == "So"
    return is_joined and (prior == "\ufe0f" or unicodedata.category(prior or " ") in ("So", "Sk"))


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
