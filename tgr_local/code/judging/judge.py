"""Runs the person's tests in a copy of the project, in the sandbox, and makes a verdict.

In: a place of `copies`, the person's command, limits. Out: a verdict. Without a command the changed
files are parsed, and Python modules imported. Text of the model is never run as a command. But its
code runs with the tests, so the limits apply to them.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tgr_local.code.edits.syntax import language
from tgr_local.code.judging import test_output, test_plain
from tgr_local.code.judging.test_counts import Failure, OutputCounts
from tgr_local.console.render import plural
from tgr_local.system.cancel import Cancel
from tgr_local.system.sandbox import backends, commands
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.commands import CommandLimits, CommandOutcome, Place

Ended = Literal[
    "passed", "failed", "no tests", "fewer tests", "not found", "timed out", "memory", "processes",
    "disk", "output", "killed", "elsewhere", "flaky",
]  # fmt: skip
_CHECK = Path(__file__).with_name("_check.py")
_CHECKS: dict[str, str] = {
    "imported": "parse and import", "parsed": "parse", "unchecked": "not checked",
}  # fmt: skip
"""The summary of a check without tests, by the strongest check that a file had."""
_FAILED = ("parse", "import")  # what `_check` says of a file that fails
_LEAST_PATIENCE, _TIMES_AS_LONG = 15.0, 20  # seconds; times the run without an edit
_MANY_STOPPED, _LESS_PATIENCE = 4, 5.0  # edits whose tests were stopped; seconds for the others
_STOPS_EARLY = re.compile(
    r"(?:^|\s)(?:-[a-zA-Z]*[xf]|-b\b"
    r"|--(?:exitfirst|maxfail|fail-?fast|bail|sw|stepwise|stop-on-failure))"
    r"|[;&|\n]"
)
"""Parts of a command by which it stops at the first failure, or consists of several commands."""
_UNLOADED = re.compile(
    r"\b(?:Syntax|Indentation|Import|Load|ModuleNotFound)Error\b|ERR_MODULE_NOT_FOUND"
    r"|\bCannot find module\b"
)
"""Errors by which a file of Python, JavaScript or Ruby cannot be loaded."""
_UNDEFINED = re.compile(r"\b(?:Name|Reference)Error\b")
"""Errors that may be such."""
_STOPPED = re.compile(r"stopping after \d+ fail")
_LIMITS: dict[str, Ended] = {
    "time": "timed out", "memory": "memory", "processes": "processes", "disk": "disk",
    "output": "output",
}  # fmt: skip
_SAID: dict[Ended, str] = {
    "passed": "passed",
    "failed": "failed",
    "no tests": "no tests ran",
    "fewer tests": "passed, but fewer tests ran than before",
    "not found": "the command was not found",
    "memory": "stopped at the limit of memory",
    "processes": "stopped at the limit of processes",
    "disk": "stopped at the limit of disk space",
    "output": "stopped at the limit of output",
    "killed": "killed by a signal",
    "elsewhere": "passed, but not in the copy",
    "flaky": "passed, but not each time",
}


@dataclass(frozen=True)
class Verdict:
    """Result of the tests for one copy."""

    ran: bool
    """Whether the tests ran to their end: their command was there and stayed within its limits.
    Without a command: whether everything parses and can be imported."""
    passed: int
    failed: int
    errors: int
    """Tests, or files with tests, that could not be run."""
    skipped: int
    seconds: float
    """Wall time of the command."""
    output: str
    """stdout and stderr, without colours; at most 128 KiB, the middle is left out."""
    ended: Ended
    failures: tuple[Failure, ...] = ()
    framework: str = ""
    """Framework that printed the counts; empty if none is known; without a command the check done:
    "imported", "parsed", or "unchecked" where no file has a parser."""

    remark: str = ""
    """Remark on the result, in one sentence."""
    only_failures: bool = False
    """Whether the output lists failures alone, such as the errors of a compiler. A failure of the
    unchanged code that is no longer listed counts as passed."""
    lacks: tuple[tuple[str, str], ...] = ()
    """Modules and the names missing in them, where the tests cannot begin because they import such
    names."""

    @property
    def passes(self) -> bool:
        """Whether all tests pass."""
        return self.ended == "passed"

    @property
    def is_check(self) -> bool:
        """Whether there was no command: files were parsed, and Python modules imported."""
        return self.framework in _CHECKS

    @property
    def counts_tests(self) -> bool:
        """Whether the command runs tests. The result of other commands, such as linters, may depend
        on comments and layout."""
        return bool(self.framework) and self.framework != "errors" and not self.is_check

    @property
    def loads(self) -> bool:
        """Whether the code is compiled and loaded, as far as the output tells. An error in a whole
        file of tests, or where no test ran, may be one of loading."""
        compiles = self.framework not in ("errors", "go test", "cargo test")
        if self.errors and not compiles:
            return False
        as_a_whole = any(
            f.name in (f.file, f.reached_in) or (" " not in f.name and language(f.name))
            for f in self.failures
        )
        if not as_a_whole and (self.ended != "failed" or self.total):
            return True
        has_begun = self.framework == test_plain.STOP and any(f.reached > 0 for f in self.failures)
        is_undefined = not has_begun and _UNDEFINED.search(self.output)
        return not (is_undefined or _UNLOADED.search(self.output))

    @property
    def total(self) -> int:
        """The tests that ran or should have."""
        return self.passed + self.failed + self.errors

    def is_beyond(self, other: Verdict) -> bool:
        """Whether the tests get further here than in the copy of `other`: more tests pass. If as
        many pass: fewer names are missing, or one failing test reaches a later line, none an
        earlier line, and no new test fails. False if code no longer loads that did there."""
        if other.loads and not self.loads:
            return False
        if self.passed != other.passed or not self.ran:
            return self.ran and self.passed > other.passed
        known = {failure.name: failure.reached for failure in other.failures}
        mine, theirs = set(self.lacks), set(other.lacks)
        if mine != theirs:
            if not mine < theirs or self.errors > other.errors:
                return False
            # Node counts a file that cannot begin as a test that fails
            begins = bool(known.keys() - {failure.name for failure in self.failures})
            if mine or begins or self.errors < other.errors:
                return True
        if any(failure.name not in known for failure in self.failures):
            return False
        pairs = [(known[failure.name], failure.reached) for failure in self.failures]
        further = [after - first for first, after in pairs if first and after]
        return all(lines >= 0 for lines in further) and any(further)

    @property
    def summary(self) -> str:
        """One short line for a table, such as "3 of 4 pass"."""
        if self.ended == "timed out":
            return f"stopped after {self.seconds:.0f} s"
        is_whole = self.ended in ("passed", "failed")
        if self.framework == "unchecked" and is_whole:
            return _CHECKS[self.framework]
        if self.framework == "errors" and is_whole and not self.passes:
            return plural(self.errors, "error")
        if self.framework == test_plain.STOP and is_whole and self.failures:
            return f"stops at {self.failures[0].file.rpartition('/')[2]}:{self.failures[0].line}"
        if self.framework and is_whole and self.total:
            more = f", {self.skipped} not checked" if self.skipped and self.is_check else ""
            return f"{self.passed} of {self.total} {_CHECKS.get(self.framework, 'pass')}{more}"
        return _SAID[self.ended]


def judge(
    place: Place,
    command: str,
    limits: CommandLimits | None = None,
    *,
    backend: Backend = backends.DEFAULT,
    baseline: Verdict | None = None,
    cancel: Cancel | None = None,
) -> Verdict:
    """Runs the person's tests in a copy. `baseline` is the verdict for the unchanged project: a
    candidate does not pass if fewer tests run with it.

    Raises InstallError where the backend does not work here, and CancelledError by `cancel`.
    """
    outcome = commands.run(command, place, limits, backend, cancel)
    output = _shorten_paths(test_output.plain(outcome.output), place)
    counts = test_output.read(output, outcome.code)
    ended = _ending(outcome, counts)
    if baseline is not None and baseline.only_failures:
        if ended == "passed" and counts.passed < baseline.passed:
            ended = "fewer tests"
        elif ended == "passed" or (ended == "failed" and not _is_silent(counts, baseline)):
            counts = _beside(counts, baseline)
    elif ended == "passed" and baseline is not None and counts.total < baseline.total:
        ended = "fewer tests"
    return Verdict(
        ended in ("passed", "failed", "no tests", "fewer tests"),
        counts.passed, counts.failed, counts.errors, counts.skipped, outcome.seconds, output, ended,
        counts.failures, counts.framework, only_failures=counts.only_failures,
    )  # fmt: skip


def _is_silent(counts: OutputCounts, baseline: Verdict) -> bool:
    """Whether tests fail without a list of failures, as in a crash, and `baseline` has more than
    errors of a compiler. Then a failure that is not listed need not be fixed."""
    return not counts.failures and baseline.framework != "errors"


def _beside(counts: OutputCounts, baseline: Verdict) -> OutputCounts:
    """The counts of an output that lists only failures: failures of `baseline` that are no longer
    listed count as passed, unless new failures are listed, since a syntax error hides other errors.
    If a compiler's errors prevented the tests before, only the tests count."""
    if counts.framework not in ("", baseline.framework):
        return counts
    known = {failure.name for failure in baseline.failures}
    lists_all = len(baseline.failures) == baseline.failed + baseline.errors
    if lists_all and any(failure.name not in known for failure in counts.failures):
        return counts
    passed = max(counts.passed, baseline.total - counts.failed - counts.errors)
    return replace(counts, framework=baseline.framework, passed=passed)


def check(
    place: Place,
    changed: Sequence[str],
    limits: CommandLimits | None = None,
    *,
    python: str = "python3",
    backend: Backend = backends.DEFAULT,
    cancel: Cancel | None = None,
) -> Verdict:
    """Checks, without tests, that the changed files parse, and that Python modules among them can
    be imported (their code runs). Files of a language without a parser count as skipped. `python`
    is the person's interpreter, as a shell command. Raises as `judge`."""
    root = place.seen_at if backend == "bwrap" else place.folder
    words = [str(_CHECK), str(root), *changed]
    place = replace(place, mounted_read_only=(*place.mounted_read_only, _CHECK))
    outcome = commands.run(f"{python} {shlex.join(words)}", place, limits, backend, cancel)
    said = [line.split("\t") for line in outcome.output.splitlines()]
    said = [parts for parts in said if len(parts) == 3 and parts[0] in (*_CHECKS, *_FAILED)]
    bad = [Failure(path, path, _line(why), f"{kind}: {why}") for kind, path, why in said
           if kind in _FAILED]  # fmt: skip
    kinds = Counter(parts[0] for parts in said)
    n_failed, n_skipped = kinds["import"], kinds["unchecked"]
    n_errors = len(changed) - n_failed - sum(kinds[kind] for kind in _CHECKS)
    step = "imported" if kinds["imported"] or n_failed else "parsed"
    if n_skipped == len(changed):
        step = "unchecked"
    ended = _ending(outcome, OutputCounts(step, passed=len(changed)))
    passes = ended == "passed" and not n_failed and not n_errors
    output = "".join(f"{failure.file}: {failure.message}\n" for failure in bad)
    if len(said) < len(changed):
        output += outcome.output
    return Verdict(
        passes, len(changed) - n_failed - n_errors - n_skipped, n_failed, n_errors, n_skipped,
        outcome.seconds,
        _shorten_paths(output, place), "passed" if passes else "failed" if ended == "passed" else
        ended, tuple(bad), step,
    )  # fmt: skip


def patience(command: str, baseline: Verdict, n_stopped: int = 0) -> float:
    """Seconds after which the tests of an edit are stopped, because the edit probably made an
    endless loop: a multiple of their time without it. Infinite where `baseline` may not have run
    all tests. `n_stopped` is the number of edits whose tests were stopped before: a model that
    makes endless loops makes many."""
    known = baseline.framework not in ("", "cargo test")  # which ends after a program that fails
    ran_all = baseline.ended in ("passed", "failed") and known and not baseline.errors
    if not ran_all or _STOPS_EARLY.search(command) or _STOPPED.search(baseline.output):
        return math.inf
    least = _LEAST_PATIENCE if n_stopped < _MANY_STOPPED else _LESS_PATIENCE
    return max(least, _TIMES_AS_LONG * baseline.seconds)


def warning(backend: Backend) -> str:
    """Returns a warning for a backend that isolates tests less; empty for bubblewrap."""
    if backend == backends.DEFAULT:
        return ""
    return f"the tests, with code of the model, run {backends.where(backend)}"


def _ending(outcome: CommandOutcome, counts: OutputCounts) -> Ended:
    if outcome.stopped:
        return _LIMITS[outcome.stopped]
    if outcome.code == 0:
        if counts.failed or counts.errors:  # a pipe or a later command hides the exit code
            return "failed"
        return "passed" if not counts.framework or counts.total else "no tests"
    if outcome.code in (126, 127):
        return "not found"
    if outcome.code == 128 + 24:  # SIGXCPU
        return "timed out"
    if outcome.code > 128 and not counts.total:
        return "killed"
    if counts.framework and not counts.total and not counts.failures:
        return "no tests"
    return "failed"


def _shorten_paths(output: str, place: Place) -> str:
    """Paths in the copy as relative paths, so that outputs of different copies are equal."""
    for folder in (place.folder, place.seen_at):
        output = re.sub(rf"{re.escape(str(folder))}(/|(?![\w.-]))",
                        lambda match: "" if match[1] else ".", output)  # fmt: skip
    return output


def _line(message: str) -> int:
    match = re.search(r"\(line (\d+)\)$", message)
    return int(match[1]) if match else 0
