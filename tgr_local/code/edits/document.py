"""A file's text, and a change of it. Neither knows bytes, encodings or the disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.system.errors import TgrError


@dataclass(frozen=True)
class FileText:
    """The text of a file."""

    path: str
    """Relative to the project's folder, with "/" between its parts."""
    text: str
    """Text with "\\n" at the end of each line; the last line may lack it."""


@dataclass(frozen=True)
class Change:
    """The new text of a file."""

    path: str
    """Path of the file, as in `FileText`."""
    before: str
    """The text that the change was made for; empty for a new file."""
    after: str
    """The text that replaces it."""


Patch = tuple[range, list[str]]
"""A range of lines of a file, from 0, and the lines that replace it. An empty range inserts the new
lines before it."""


class EditError(TgrError):
    """The reason, in one sentence, why an answer has no edits or its edits do not apply."""


def lines_of(text: str) -> list[str]:
    """The lines of a text; an empty text has none."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def n_equal(first: Sequence[object], second: Sequence[object]) -> int:
    """The length of the common beginning of two sequences."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def joined(lines: Sequence[str], document: FileText) -> str:
    """Lines as the new text of a file, whose last line has a line end if it had one before."""
    if not document.text or document.text.endswith("\n"):
        return "".join(f"{line}\n" for line in lines)
    return "\n".join(lines).rstrip("\n")


def patched(document: FileText, patches: Sequence[Patch]) -> str:
    """The text of a file with patches; those at one place keep their order."""
    lines = lines_of(document.text)
    places = sorted(reversed(patches), key=lambda p: (p[0].start, p[0].stop), reverse=True)
    for place, new in places:
        lines[place.start : place.stop] = new
    return joined(lines, document)


def indented_as(old: str, new: str) -> str:
    """Code with tabs in the place of the spaces that indent it, where a file has tabs."""
    if old.count("\n\t") <= old.count("\n ") or "\n\t" in new:
        return new
    # the lines of a comment of C begin with " *"
    unit = min((len(indent) for indent in re.findall(r"^ +(?![ *])", new, re.MULTILINE)), default=4)

    def tabs(match: re.Match[str]) -> str:
        n_tabs, n_spaces = divmod(len(match[0]), unit)
        return "\t" * n_tabs + " " * n_spaces

    return re.sub(r"^ +(?![ *])", tabs, new, flags=re.MULTILINE)
