"""The parts of an answer: blocks, each with the name of what it changes and its new lines. The
lines between blocks belong to no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tgr_local.code.edits.document import EditError, lines_of

_FENCE = re.compile(r"`{3,}")


def fence_for(texts: Iterable[str]) -> str:
    """A fence for these texts: at least 3 backticks, and more than any of them has in a row."""
    longest = max((len(match[0]) for text in texts for match in _FENCE.finditer(text)), default=2)
    return "`" * (longest + 1)


@dataclass(frozen=True)
class EditBlock:
    """One edit as the answer has it."""

    head: str
    """Target of the change: a path, or for a function its path and name."""
    new: list[str]


def nth(number: int) -> str:
    """A block in an error, by its number from 1."""
    return f"block {number} of the answer"


def cleaned(line: str) -> str:
    """A line that names a file, without the Markdown that models put around it."""
    return line.strip().strip("*`#:").strip().strip("`*").strip()


def fenced(answer: str, heads: Mapping[str, str], fence: str) -> list[EditBlock]:
    """The fenced blocks of an answer. Before each fence stands a head, a line that names what the
    block changes; it may be absent where only one head is possible. `heads` maps these lines to
    names. Raises EditError for a block that has no end or whose head is not among them."""
    lines = lines_of(answer)
    edits: list[EditBlock] = []
    at = end = 0
    while at < len(lines):
        if not _opens(lines[at], fence):
            at += 1
            continue
        head = _head(lines[end:at], heads) or _refuse(edits, lines[end:at])
        try:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].rstrip(" \t") == fence)
        except StopIteration:
            raise EditError(
                f"{nth(len(edits) + 1)} has no line {fence!r} at its end; the answer may be cut off"
            ) from None
        edits.append(EditBlock(head, lines[at + 1 : end]))
        at = end = end + 1
    return edits


def _opens(line: str, fence: str) -> bool:
    """Whether a line is the fence, with a language behind it or none."""
    behind = line.removeprefix(fence)
    return behind != line and "`" not in behind


def _head(preceding: Sequence[str], heads: Mapping[str, str]) -> str | None:
    last = next((line for line in reversed(preceding) if line.strip()), "")
    for name in (last, cleaned(last)):
        if name in heads:
            return heads[name]
    return next(iter(heads.values())) if len(heads) == 1 else None


def _refuse(edits: Sequence[EditBlock], preceding: Sequence[str]) -> NoReturn:
    last = next((line.strip() for line in reversed(preceding) if line.strip()), "")
    flaw = f"names {last!r:.60}, which is not among what is open" if last else "names nothing"
    raise EditError(f"{nth(len(edits) + 1)} {flaw}")
