"""The format ``replace``: lines of a file, quoted, and new lines for them.

    calc.py
    <<<<<<< SEARCH
    whole lines of the file
    =======
    new lines
    >>>>>>> REPLACE

Where the quoted lines are in the file several times, the first place counts that no block before
has quoted. An empty file, or one that does not exist, is quoted by no lines. The path may be absent
where a block follows one of the same file.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NoReturn

from tgr_local.code.edits.blocks import EditBlock, Markers, cleaned, nth
from tgr_local.code.edits.document import EditError, FileText, lines_of


def blocks(answer: str, documents: Sequence[FileText], markers: Markers) -> list[EditBlock]:
    """The blocks of an answer. Raises EditError for one that is not whole."""
    lines = lines_of(answer)
    paths = {document.path for document in documents}
    edits: list[EditBlock] = []
    path, at, end = "", 0, 0
    while at < len(lines):
        if lines[at].rstrip(" \t") != markers.search:
            at += 1
            continue
        path = _path(lines[end:at], paths, path, documents) or _refuse(edits, lines[end:at])
        separator = _find(lines, at + 1, markers.separator, edits)
        end = _find(lines, separator + 1, markers.replace, edits)
        edits.append(EditBlock(path, lines[at + 1 : separator], lines[separator + 1 : end]))
        at = end = end + 1
    return edits


class Places:
    """The lines of a file that blocks quote."""

    def __init__(self, document: FileText) -> None:
        self.path = document.path
        self.used: list[range] = []
        self._lines = lines_of(document.text)
        self._text = _as_text(self._lines)
        lengths = (len(line) + 1 for line in self._lines)
        self._begins = list(itertools.accumulate(lengths, initial=0))

    def take(self, block: EditBlock, number: int) -> range:
        """The lines that the next block quotes, from 0. Raises EditError where there are none."""
        if not block.quoted:
            if not self._lines and not self.used:
                self.used.append(range(0))
                return range(0)
            flaw = "quotes no lines" if self._lines else "begins again the file that another began:"
            raise EditError(f"{nth(number)} {flaw} {self.path}; it must quote whole lines")
        wanted, n = _as_text(block.quoted), len(block.quoted)
        at = matches = 0
        while (at := self._text.find(wanted, at)) >= 0:
            matches += 1
            first = bisect.bisect_left(self._begins, at)
            place = range(first, first + n)
            overlaps = (used for used in self.used if used.start < place.stop and first < used.stop)
            if (overlap := next(overlaps, None)) is None:
                self.used.append(place)
                return place
            at = self._begins[overlap.stop]  # all that begins before meets it, too
        if matches:
            raise EditError(
                f"{nth(number)} quotes lines of {self.path} that an earlier block has replaced"
            )
        hint = _hint(self._lines, block.quoted)
        raise EditError(f"{nth(number)} quotes lines that {self.path} does not have{hint}")


def _as_text(lines: Sequence[str]) -> str:
    """Whole lines, with a line end before and after each: none is found within another."""
    return "".join(f"\n{line}" for line in lines) + "\n"


def _hint(lines: Sequence[str], quoted: Sequence[str]) -> str:
    """Returns a hint at the first wrong line."""
    known = set(lines)
    wrong = next((line for line in quoted if line not in known), None)
    if wrong is None:
        return ", not one after another"
    return f": {wrong.strip()!r:.60}"


def _find(lines: Sequence[str], at: int, marker: str, edits: Sequence[EditBlock]) -> int:
    for i in range(at, len(lines)):
        if lines[i].rstrip(" \t") == marker:
            return i
    raise EditError(f"{nth(len(edits) + 1)} has no line {marker!r}; the answer may be cut off")


def _path(
    preceding: Sequence[str], paths: set[str], last: str, documents: Sequence[FileText]
) -> str | None:
    """The file of a block: the one named in the nearest line before it, else that of the previous
    block, or the only file."""
    for line in reversed(preceding):
        if not line.strip() or line.startswith("```"):
            continue
        if line in paths:
            return line
        if (name := cleaned(line)) in paths:
            return name
        break
    if last:
        return last
    return documents[0].path if len(documents) == 1 else None


def _refuse(edits: Sequence[EditBlock], preceding: Sequence[str]) -> NoReturn:
    last = next((line.strip() for line in reversed(preceding) if line.strip()), "")
    flaw = f"names {last!r:.60}, which is not open" if last else "names no file"
    raise EditError(f"{nth(len(edits) + 1)} {flaw}")
