"""The lines between the parts of an answer: none of the files has one of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tgr_local.code.edits.document import Document

_FENCE = re.compile(r"`{3,}")
_MARKER = re.compile(r"^(?:(<{7,}) SEARCH|(={7,})|(>{7,}) REPLACE)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Markers:
    """The marker lines of an answer, each without its line end."""

    fence: str
    search: str
    separator: str
    replace: str

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Markers:
        """Those for an answer about these files."""
        texts = [document.text for document in documents]
        found = (match for text in texts for match in _MARKER.finditer(text))
        taken = {len(match[match.lastindex or 0]) for match in found}
        width = next(n for n in itertools.count(7) if n not in taken)
        return cls(fence_for(texts), f"{'<' * width} SEARCH", "=" * width, f"{'>' * width} REPLACE")


def fence_for(texts: Iterable[str]) -> str:
    """Backticks that fence any of these texts: more than they have in a row, and at least 3."""
    longest = max((len(found[0]) for text in texts for found in _FENCE.finditer(text)), default=2)
    return "`" * (longest + 1)
