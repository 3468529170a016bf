"""The tests of one output: how many passed and failed, and which failed where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A test that failed, or a file whose tests could not be run."""

    name: str
    """Name of the test in the framework, such as ``tests/test_a.py::test_b``."""
    file: str = ""
    """File as the output names it; empty if it does not."""
    line: int = 0
    """Line, from 1; 0 if the output names none."""
    message: str = ""
    """One line."""
    reached: int = 0
    """The line in the test at which it stopped, from 1; 0 where the output names none."""
    reached_in: str = ""
    """The file of that line, as the output names it."""


@dataclass(frozen=True)
class OutputCounts:
    """The tests of one output."""

    framework: str = ""
    """Empty for an output of an unknown form: the counts are 0. "errors" where there are errors of
    compilers and type checkers alone."""
    passed: int = 0
    failed: int = 0
    errors: int = 0
    """Tests or files that could not be run; errors of a compiler or a type checker."""
    skipped: int = 0
    failures: tuple[Failure, ...] = ()
    only_failures: bool = False
    """Whether the output lists failures alone: a failure that is fixed is no longer in it."""

    @property
    def total(self) -> int:
        """The tests that ran or should have."""
        return self.passed + self.failed + self.errors


Found = tuple[int, OutputCounts] | None
"""The end of the last summary of an output, and the counts; None without one."""


def last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match in a text."""
    match = None
    for match in pattern.finditer(text):  # noqa: B007
        pass
    return match


def sections(head: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each head with the text up to the next one."""
    heads = list(head.finditer(text))
    ends = [match.start() for match in heads[1:]] + [len(text)]
    for match, end in zip(heads, ends, strict=False):
        yield match, text[match.end() : end]
