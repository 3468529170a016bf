"""Texts of commands: numbers that a user typed, and one-line extracts of questions."""

from __future__ import annotations


def whole_number(text: str, name: str, low: int, high: int) -> int:
    """The number that `text` is. ValueError, with `name`, if it is not between the bounds."""
    if not text.isdecimal() or not low <= int(text[:9]) <= high:
        raise ValueError(f"{name} is {text!r:.40}, but must be between {low} and {high}")
    return int(text)


def shortened(text: str, most: int = 60) -> str:
    """`text` in one line of at most that many characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
