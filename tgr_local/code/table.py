"""The candidates as a table, and a change as a diff: plain, or in the colours of a terminal.

In: candidates, changes. Out: lines of text. Nothing here prints.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Sequence

from tgr_local.code.edits import Change
from tgr_local.code.edits.document import n_equal
from tgr_local.code.judging.candidate import Candidate
from tgr_local.system.sanitize import printable_line, visible

_COLUMNS = ("", "#", "tests", "lines", "tokens", "seconds", "")
_NOTE = 60  # characters
_NO_LINE_END = "\\ No newline at end of file\n"
_AROUND = 3  # equal lines around a change
_PLACE = re.compile(r"([-+])(\d+)(?=[ ,])")  # where the lines between two @@ begin
_MARK = re.compile(r"<U\+[0-9A-F]{4,6}>")  # as `visible` writes it
_COLOURS = {"+": "32", "-": "31", "@": "36"}
_HEADING = "1"


def table(ranked: Sequence[Candidate]) -> list[str]:
    """A line of headings and one for each candidate, best first; the first one is marked."""
    rows = [_COLUMNS] + [_row(place, candidate) for place, candidate in enumerate(ranked)]
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


def _row(place: int, candidate: Candidate) -> tuple[str, ...]:
    added, removed = n_lines(candidate.changes)
    return (
        ">" if place == 0 and candidate.applies else " ",
        str(candidate.number),
        result(candidate),
        f"+{added} -{removed}" if candidate.applies else "-",
        f"{candidate.n_tokens:,}",
        f"{candidate.seconds:.1f}",
        printable_line(note(candidate), _NOTE),
    )


def result(candidate: Candidate) -> str:
    """Returns the test result of a candidate, in a few words."""
    if candidate.verdict is not None:
        return candidate.verdict.summary
    if candidate.state == "done":
        return "syntax error" if candidate.applies else "no edit"
    return candidate.state


def note(candidate: Candidate) -> str:
    """Returns the fault of a candidate, or its parts; empty if there is nothing."""
    *parts, last = candidate.parts or ("",)
    if parts:
        return f"the edits of {', '.join(map(str, parts))} and {last}"
    return candidate.problem or (candidate.verdict.remark if candidate.verdict else "")


def n_lines(changes: Sequence[Change]) -> tuple[int, int]:
    """The lines that changes add, and those that they remove."""
    body = [line[0] for change in changes for line in _diff(change)[2:]]
    return body.count("+"), body.count("-")


def diff(changes: Sequence[Change]) -> str:
    """The changes as a unified diff, which `patch` and `git apply` read."""
    return "".join(line for change in changes for line in _diff(change))


@functools.lru_cache(maxsize=128)
def _diff(change: Change) -> tuple[str, ...]:
    """The lines of a unified diff. Equal lines at the beginning and the end of the files are not
    compared, because files may be long and edits are short."""
    old, new = _lines(change.before), _lines(change.after)
    first = n_equal(old, new)
    last = n_equal(old[first:][::-1], new[first:][::-1])
    start, end = max(0, first - _AROUND), max(0, last - _AROUND)
    name = change.path + "\t" * (" " in change.path)  # git and patch end a name at a tab
    diff_lines = difflib.unified_diff(
        old[start : len(old) - end], new[start : len(new) - end], f"a/{name}", f"b/{name}",
        n=_AROUND,
    )  # fmt: skip
    lines = []
    for number, line in enumerate(diff_lines):
        moved = line
        if number >= 2 and line.startswith("@@"):
            moved = _PLACE.sub(lambda place: f"{place[1]}{int(place[2]) + start}", line)
        lines.append(moved if moved.endswith("\n") else f"{moved}\n{_NO_LINE_END}")
    return tuple(lines)


def _lines(text: str) -> list[str]:
    """Split at "\\n" alone: other characters that break lines belong to them."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def unseen(changes: Sequence[Change]) -> list[str]:
    """One line for each file to which an edit adds invisible characters, such as those that change
    the direction of writing: the code may differ from what is displayed."""
    lines = []
    for change in changes:
        old_marks, new_marks = (
            set(_MARK.findall(visible(text)))
            for text in (change.before, f"{change.path}\n{change.after}")
        )
        marks = sorted(new_marks - old_marks)
        if marks:
            name = printable_line(change.path)
            lines.append(f"{name}: the edit has characters that are not seen: {', '.join(marks)}")
    return lines


def coloured(changes: Sequence[Change]) -> str:
    """The diff for a terminal with colours."""
    lines = []
    for change in changes:
        for number, line in enumerate(_diff(change)):
            colour = _HEADING if number < 2 else _COLOURS.get(line[0])
            text = visible(line.rstrip("\n"))
            lines.append(f"\x1b[{colour}m{text}\x1b[0m\n" if colour else f"{text}\n")
    return "".join(lines)
