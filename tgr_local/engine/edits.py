"""A constraint on an answer's text: only edits of given files, which always apply.

csrc/edit_rules.h says what such an answer is; `tgr_local.code.edits` makes constraints and reads
answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tgr_local.engine.native import native


@dataclass(frozen=True)
class Opening:
    """What a block of an answer may begin with."""

    text: str
    """With the end of its last line; no other one begins with it."""
    file: int
    """The number of its file."""
    first: int = 0
    end: int = 1
    """The lines that the new text stands for, where it quotes none: no two blocks have the same."""
    quotes: bool = False
    """Whole lines of the file and the separator come before the new text."""


@dataclass(frozen=True, eq=False)
class EditConstraint:
    """What an answer may be: blocks of an opening, perhaps quoted lines, new text and its closing
    line. Its texts are those of a request, its bounds are in csrc/edit_rules.h.

    The new text has no characters of `banned`. `again` opens another block of the same file. Raises
    ValueError for texts that are too long, or do not fit together.
    """

    files: tuple[str, ...]
    """What may be quoted, with "\\n" as line ends; empty for a file that nothing is quoted from."""
    openings: tuple[Opening, ...]
    closing: str
    """The new text ends before the first line that begins so."""
    separator: str = "\n"
    """A line, with its end, that none of the files has."""
    again: str = ""
    banned: str = ""
    params: native.EditParams = field(init=False, repr=False)

    def __post_init__(self) -> None:
        openings = [
            (one.text.encode(), one.file, one.first, one.end, one.quotes) for one in self.openings
        ]
        object.__setattr__(
            self,
            "params",
            native.EditParams(
                [text.encode() for text in self.files],
                openings,
                self.again.encode(),
                self.separator.encode(),
                self.closing.encode(),
                self.banned.encode(),
            ),
        )
