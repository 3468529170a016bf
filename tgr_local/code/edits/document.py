"""A file's text, and a change of it. Neither knows bytes, encodings or the disk."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """The text of a file."""

    path: str
    """Relative to the project's folder, with "/" between its parts."""
    text: str
    """With "\\n" at the end of each line; the last line may lack it."""


@dataclass(frozen=True)
class Change:
    """The new text of a file."""

    path: str
    """As in `Document`."""
    before: str
    """The text that the change was made for; empty for a new file."""
    after: str
    """The text that replaces it."""
