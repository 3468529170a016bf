"""The work that schemas take: counted, bounded, and ended from outside."""

from __future__ import annotations

from collections.abc import Callable

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
