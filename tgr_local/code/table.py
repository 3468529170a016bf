"""The candidates as a table, and a change as a diff: plain, or in the colours of a terminal.

In: candidates, changes. Out: lines of text. Nothing here prints.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from tgr_local.code.candidate import Candidate
from tgr_local.code.edits import Change
from tgr_local.console.sanitize import printable, printable_line

_COLUMNS = ("", "#", "tests", "lines", "tokens", "seconds", "")
_NOTE = 60  # characters
_NO_LINE_END = "\\ No newline at end of file\n"
_COLOURS = {"+": "32", "-": "31", "@": "36"}
_HEADING = "1"


def table(ranked: Sequence[Candidate]) -> list[str]:
    """A line of headings and one for each candidate, best first; the first one is marked."""
    rows = [_COLUMNS] + [_row(place, one) for place, one in enumerate(ranked)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    right = {1, 3, 4, 5}
    lines = []
    for row in rows:
        cells = (
            f"{cell:>{width}}" if i in right else f"{cell:{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines


def _row(place: int, one: Candidate) -> tuple[str, ...]:
    added, removed = n_lines(one.changes)
    return (
        ">" if place == 0 and one.applies else " ",
        str(one.number),
        result(one),
        f"+{added} -{removed}" if one.applies else "-",
        f"{one.n_tokens:,}",
        f"{one.seconds:.1f}",
        printable_line(_note(one), _NOTE),
    )


def result(one: Candidate) -> str:
    """What the tests say of a candidate, in a few words."""
    if one.verdict is not None:
        return one.verdict.summary
    if one.state == "done":
        return "syntax error" if one.applies else "no edit"
    return one.state


def _note(one: Candidate) -> str:
    return one.problem


def n_lines(changes: Sequence[Change]) -> tuple[int, int]:
    """The lines that changes add, and those that they remove."""
    body = [line[0] for change in changes for line in list(_diff(change))[2:]]
    return body.count("+"), body.count("-")


def diff(changes: Sequence[Change]) -> str:
    """The changes as a unified diff, which `patch` and `git apply` read."""
    return "".join(line for change in changes for line in _diff(change))


def _diff(change: Change) -> Iterator[str]:
    old, new = _lines(change.before), _lines(change.after)
    paths = (f"a/{change.path}" if change.before else "/dev/null", f"b/{change.path}")
    for line in difflib.unified_diff(old, new, *paths):
        yield line if line.endswith("\n") else f"{line}\n{_NO_LINE_END}"


def _lines(text: str) -> list[str]:
    """Split at "\\n" alone: other characters that break lines belong to them."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def coloured(changes: Sequence[Change]) -> str:
    """The diff for a terminal with colours."""
    lines = []
    for change in changes:
        for number, line in enumerate(_diff(change)):
            colour = _HEADING if number < 2 else _COLOURS.get(line[0])
            text = printable(line.rstrip("\n"))
            lines.append(f"\x1b[{colour}m{text}\x1b[0m\n" if colour else f"{text}\n")
    return "".join(lines)
