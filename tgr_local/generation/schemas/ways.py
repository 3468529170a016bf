"""Results for the schemas of a document, and the way to the one that is being read: each is read
once, unless what is found depends on the schemas that lead to it, for it leads back to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local.generation.schemas.alternatives import Alternative

NOWHERE = 1 << 30
"""A depth below every other one."""


@dataclass(frozen=True)
class SchemaResult:
    """The result for some schemas: it is found once, however many lead to them."""

    alternatives: Sequence[Alternative] = ()
    is_narrower: bool = False
    """Whether less is allowed than by the schemas."""
    failure: str = ""
    """Reason why they cannot be followed."""


@dataclass
class Way:
    """The schemas that lead to the one being expanded, all about the same value."""

    depths: dict[int, int] = field(default_factory=dict)
    """Depth of each schema by its `id`, from the outermost one on."""
    lowest: int = NOWHERE
    """Depth of the outermost one that the schema led back to, so far."""
    results: dict[int, tuple[SchemaResult, int]] = field(default_factory=dict)
    """Results for schemas that led back to one of these, and its depth."""

    def leave(self, schema: Any, result: SchemaResult, outer_lowest: int) -> bool:
        """Ends the expansion of the innermost one; `outer_lowest` was the lowest depth.
        Returns whether the result depends on nothing that led to it."""
        depth, lowest = self.depths.pop(id(schema)), self.lowest
        if lowest <= depth:  # what led back to it, or further, may do so no more
            self.results = {key: known for key, known in self.results.items() if known[1] < depth}
        if lowest < depth:
            self.results[id(schema)] = result, lowest
        self.lowest = min(outer_lowest, lowest if lowest < depth else NOWHERE)
        return lowest >= depth
