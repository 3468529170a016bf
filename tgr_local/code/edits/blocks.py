"""A block of an answer: what it changes, and its new lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tgr_local.code.edits.document import EditError, lines_of


@dataclass(frozen=True)
class Block:
    """One edit as the answer has it."""

    head: str
    """What it changes: a path, or for a function its path and name."""
    quoted: list[str]
    new: list[str]


def nth(number: int) -> str:
    """A block in an error, by its number from 1."""
    return f"block {number} of the answer"


def cleaned(line: str) -> str:
    """A line that names a file, without the Markdown that models put around it."""
    return line.strip().strip("*`#:").strip().strip("`*").strip()


def fenced(answer: str, heads: Mapping[str, str], fence: str) -> list[Block]:
    """The blocks of an answer whose new text is fenced: a line of `heads`, which maps what stands
    there to a name, then the fence. Where there is one head alone it may be absent. Raises
    EditError for a block that is not whole or changes something else."""
    lines, _ = lines_of(answer)
    found: list[Block] = []
    at = end = 0
    while at < len(lines):
        if not _opens(lines[at], fence):
            at += 1
            continue
        head = _head(lines[end:at], heads) or _refuse(found, lines[end:at])
        try:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].rstrip(" \t") == fence)
        except StopIteration:
            raise EditError(
                f"{nth(len(found) + 1)} has no line {fence!r} at its end; the answer may be cut off"
            ) from None
        found.append(Block(head, [], lines[at + 1 : end]))
        at = end = end + 1
    return found


def _opens(line: str, fence: str) -> bool:
    """Whether a line is the fence, with a language behind it or none."""
    rest = line.removeprefix(fence)
    return rest != line and "`" not in rest


def _head(before: Sequence[str], heads: Mapping[str, str]) -> str | None:
    named = next((line for line in reversed(before) if line.strip()), "")
    for name in (named, cleaned(named)):
        if name in heads:
            return heads[name]
    return next(iter(heads.values())) if len(heads) == 1 else None


def _refuse(found: Sequence[Block], before: Sequence[str]) -> NoReturn:
    named = next((line.strip() for line in reversed(before) if line.strip()), "")
    what = f"names {named!r:.60}, which is not among what is open" if named else "names nothing"
    raise EditError(f"{nth(len(found) + 1)} {what}")
