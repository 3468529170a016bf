"""The work that schemas take: counted, bounded, ended from outside, and done once.

Each schema is read once, unless what is found depends on the schemas that lead to it, for it leads
back to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local.generation.schemas.alternatives import Alternative

WORK_MOST = 100_000
"""Steps. One looks at some eight parts of a schema, or writes 64 characters of a grammar."""
_LOOK_AT = 256  # steps between two looks at what may end the work


class WorkError(Exception):
    """A schema takes too much work. No part of it goes on without another one because of that, so
    this is no SchemaError: whoever was given the schema makes one of it."""


class StepBudget:
    """The steps that the schemas of one request may take together."""

    def __init__(self, check: Callable[[], object] | None = None, most: int = WORK_MOST) -> None:
        """`check` is called again and again, and ends the work by an error."""
        self.done = 0
        self._most, self._check, self._next = most, check, 0

    def count(self, n: int = 1) -> None:
        """Takes `n` steps more. Raises WorkError where they are too many, or as `check` does."""
        self.done += n
        if self.done > self._most:
            raise WorkError(f"it takes more than {self._most} steps to read; simplify it")
        if self._check and self.done >= self._next:
            self._next = self.done + _LOOK_AT
            self._check()


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
