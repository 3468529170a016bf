"""Reads the output of tests: how many passed and failed, and which failed where.

In: the end of an output and the exit code. Out: counts and failures. `test_python`, `test_formats`,
`test_streams` and `test_plain` have the forms that are known; of other programs only the exit code
counts. It is text that a candidate's code can print, so nobody may trust it more than the exit
code, unless it counts failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tgr_local.code.judging.test_counts import Failure, Found, OutputCounts
from tgr_local.code.judging.test_formats import FORMATS
from tgr_local.code.judging.test_plain import marked, unmarked
from tgr_local.code.judging.test_python import pytest_counts, unittest_counts
from tgr_local.code.judging.test_streams import cargo, errors, go, gtest, tap

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_TOO_LONG = re.compile(r"\d{1000,}")  # for a number that Python reads
_SUM = re.compile(r"^Found \d+ errors? in ", re.MULTILINE)  # of mypy and tsc
_MOST_FAILURES = 50
_LONGEST = 300  # characters of a name or a message
_READERS: tuple[Callable[[str], Found], ...] = (
    pytest_counts, unittest_counts, go, cargo, gtest, tap, *(form.read for form in FORMATS),
)  # fmt: skip


def read(output: str, code: int = 1) -> OutputCounts:
    """The counts of an output; of several frameworks, those of the last summary, and without one
    those of tests without a framework. Where no test fails, errors of compilers and type checkers
    count, if the output has their sum or the exit code is another than 0."""
    text = _TOO_LONG.sub("…", plain(output))
    summaries = [summary for reader in _READERS if (summary := reader(text))]
    if summaries:
        counts = max(summaries, key=lambda summary: summary[0])[1]
    else:
        counts = marked(text, code) or OutputCounts()
    are_errors = not counts.failed and not counts.errors and (code or _SUM.search(text))
    if are_errors and (printed := errors(text)):
        counts = replace(
            counts, framework=counts.framework or "errors", errors=len(printed), failures=printed,
            only_failures=True,
        )  # fmt: skip
    elif are_errors and code and (more := unmarked(text)):
        counts = replace(more, framework=counts.framework or more.framework, passed=counts.passed)
    return replace(counts, failures=tuple(_each_once(counts.failures))[:_MOST_FAILURES])


def plain(output: str) -> str:
    """An output without colours, and of lines that were written over, the last version."""
    lines = _ESCAPES.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _each_once(failures: tuple[Failure, ...]) -> Iterator[Failure]:
    names = set()
    for failure in failures:
        if failure.name not in names:
            names.add(failure.name)
            yield replace(failure, name=failure.name[:_LONGEST], message=failure.message[:_LONGEST])
