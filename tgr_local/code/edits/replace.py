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

from collections.abc import Sequence
from typing import NoReturn

from tgr_local.code.edits.blocks import Block, cleaned, nth
from tgr_local.code.edits.document import Document, EditError, lines_of
from tgr_local.code.edits.markers import Markers
from tgr_local.engine import Opening


def openings(documents: Sequence[Document], markers: Markers) -> list[Opening]:
    return [
        Opening(f"{document.path}\n{markers.search}\n", i, quotes=True)
        for i, document in enumerate(documents)
    ]


def blocks(answer: str, documents: Sequence[Document], markers: Markers) -> list[Block]:
    """The blocks of an answer. Raises EditError for one that is not whole."""
    lines, _ = lines_of(answer)
    paths = {document.path for document in documents}
    found: list[Block] = []
    path, at, end = "", 0, 0
    while at < len(lines):
        if lines[at].rstrip(" \t") != markers.search:
            at += 1
            continue
        path = _path(lines[end:at], paths, path, documents) or _refuse(found, lines[end:at])
        separator = _find(lines, at + 1, markers.separator, found)
        end = _find(lines, separator + 1, markers.replace, found)
        found.append(Block(path, lines[at + 1 : separator], lines[separator + 1 : end]))
        at = end = end + 1
    return found


def place(block: Block, number: int, document: Document, used: Sequence[range]) -> range:
    """The lines of a file that a block quotes, from 0. Raises EditError where there are none."""
    lines, _ = lines_of(document.text)
    quoted = block.quoted
    n = len(quoted)
    if not n:
        if not lines and not used:
            return range(0, 0)
        what = "quotes no lines" if lines else "begins a file that an earlier block has begun"
        raise EditError(f"{nth(number)} {what} of {document.path}; it must quote whole lines")
    taken = {line for one in used for line in one}
    matches = [i for i in _starts(lines, quoted[0]) if lines[i : i + n] == quoted]
    for i in matches:
        if taken.isdisjoint(range(i, i + n)):
            return range(i, i + n)
    if matches:
        raise EditError(
            f"{nth(number)} quotes lines of {document.path} that an earlier block has replaced"
        )
    raise EditError(
        f"{nth(number)} quotes lines that {document.path} does not have{_hint(lines, quoted)}"
    )


def _starts(lines: Sequence[str], first: str) -> list[int]:
    return [i for i, line in enumerate(lines) if line == first]


def _hint(lines: Sequence[str], quoted: Sequence[str]) -> str:
    """Where the first line that is wrong is."""
    known = set(lines)
    wrong = next((line for line in quoted if line not in known), None)
    if wrong is None:
        return ", not one after another"
    return f": {wrong.strip()!r:.60}"


def _find(lines: Sequence[str], at: int, marker: str, found: Sequence[Block]) -> int:
    for i in range(at, len(lines)):
        if lines[i].rstrip(" \t") == marker:
            return i
    raise EditError(f"{nth(len(found) + 1)} has no line {marker!r}; the answer may be cut off")


def _path(
    before: Sequence[str], paths: set[str], last: str, documents: Sequence[Document]
) -> str | None:
    """The file of a block: named in the nearest line before it, else that of the block before, or
    the only one."""
    for line in reversed(before):
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


def _refuse(found: Sequence[Block], before: Sequence[str]) -> NoReturn:
    named = next((line.strip() for line in reversed(before) if line.strip()), "")
    what = f"names {named!r:.60}, which is not open" if named else "names no file"
    raise EditError(f"{nth(len(found) + 1)} {what}")
