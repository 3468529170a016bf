"""Ranks candidates: by the tests first, then agreement, then likelihood.

In: candidates with their verdicts. Out: the same, best first. Pure functions; nothing is run here.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tgr_local.code.edits import Change, syntax
from tgr_local.code.edits.document import n_equal
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.test_plain import STOP
from tgr_local.system.python_source import syntax_tree

_NOISE = re.compile(
    r"0x[0-9a-fA-F]{4,}|\b\d+(?:\.\d+)?\s?(?:s|ms|µs|seconds?|secs?)\b|/[\w./-]*/|={3,}[^\n]*"
)
"""Parts of an output that differ from run to run: addresses, durations, folders, lines of a
summary."""
_WORD = re.compile(r"\w+|[^\w\s()\[\]{}]+|[()\[\]{}]")
_TO_TOOLS = re.compile(r"#[ \t]*(?:type:|noqa|mypy:|pyright:|pylint:|pragma:)[^\n]*")
_SMALL = 3  # words and signs
_MANY = 1 << 20  # names
_QUOTES = str.maketrans("'`", '""')
_MOST_LINES = 10_000  # of a file whose layout is compared
_MOST = 1 << 16  # characters of an output that are compared


Failing = frozenset[str]
"""The names of tests that fail."""


class Standing(NamedTuple):
    """Rank of a candidate by the tests; a greater one is better."""

    passes_all: bool
    n_passed: int
    runs: bool
    parses: bool
    applies: bool
    how_far: int
    """How far tests came that could not run to their end. Minus the number of names that they lack;
    else the line of an assert that ended them; far below if there are errors, or the code cannot be
    loaded."""


def standing(candidate: Candidate) -> Standing:
    """The rank of a candidate by its verdict alone."""
    verdict = candidate.verdict
    passed, ran = (verdict.passed, verdict.ran) if verdict else (0, False)
    how_far = -len(verdict.lacks) if verdict else 0
    if verdict and not verdict.lacks:
        stop = verdict.failures[0] if verdict.framework == STOP and verdict.failures else None
        n_faults = bool(verdict.errors) + (not verdict.loads)
        how_far = (stop.reached if stop else 0) - _MANY * n_faults
    return Standing(candidate.passes, passed, ran, candidate.parses, candidate.applies, how_far)


def ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, best first: by `standing`, then by the number of candidates that behave
    alike, then by the number that make the same change. Candidates that reformat a file come after
    the others; then likelihood decides."""
    behaviours = Counter(behaviour(candidate) for candidate in candidates)
    same = Counter(meaning(candidate.changes) for candidate in candidates)

    def key(candidate: Candidate) -> tuple[object, ...]:
        agree = behaviours[behaviour(candidate)], same[meaning(candidate.changes)]
        layout = -any(map(_lays_out, candidate.changes))
        return (*standing(candidate), *agree, layout, candidate.logprob, -candidate.number)

    return sorted(candidates, key=key, reverse=True)


def furthest(candidates: Sequence[Candidate], baseline: Verdict | None) -> Candidate | None:
    """The best candidate whose tests get further than `baseline`, the verdict with which all
    candidates began; None without one."""
    best, reached = None, baseline
    for candidate in ranked(candidates):
        if reached and candidate.verdict and candidate.verdict.is_beyond(reached):
            best, reached = candidate, candidate.verdict
    return best


def sideways(
    candidates: Sequence[Candidate], baseline: Verdict | None, known: Collection[Failing]
) -> Candidate | None:
    """Returns the candidate that fixes most failures, among those with as many passing tests as
    `baseline` but other failures; None without one. It may help if one defect hides another and no
    edit gets further. `known` has the sets of failures of earlier stages."""
    if baseline is None or not _names_all(baseline):
        return None
    reached = {failure.name: failure.reached for failure in baseline.failures}
    scored = []
    for candidate in candidates:
        verdict = candidate.verdict
        if verdict is None or verdict.passed != baseline.passed or not _names_all(verdict):
            continue
        if verdict.total < baseline.total or verdict.errors > baseline.errors:
            continue  # tests that no longer run are not fixed
        if baseline.loads and not verdict.loads:
            continue
        remaining = {failure.name: failure.reached for failure in verdict.failures}
        fixed = reached.keys() - remaining.keys()
        if fixed and failing(verdict) not in known:
            pairs = [(reached[name], remaining[name]) for name in remaining.keys() & reached.keys()]
            lines = sum(after - first for first, after in pairs if first and after)
            scored.append((len(fixed), lines, candidate.logprob, -candidate.number, candidate))
    return max(scored)[-1] if scored else None


def _names_all(verdict: Verdict) -> bool:
    """Whether tests ran, some failed, and all that failed are known by name."""
    n_failed = verdict.failed + verdict.errors
    return verdict.ran and 0 < n_failed == len(verdict.failures)


def failing(verdict: Verdict | None) -> Failing:
    """The tests that fail."""
    return frozenset(failure.name for failure in verdict.failures) if verdict else frozenset()


def behaviour(candidate: Candidate) -> tuple[object, ...]:
    """Returns a key that is equal for candidates that behave alike under the tests: how they end,
    and their output apart from times and addresses."""
    verdict = candidate.verdict
    output = _NOISE.sub("", verdict.output[-_MOST:]) if verdict else ""
    return (standing(candidate), output)


def meaning(changes: Sequence[Change]) -> tuple[tuple[str, str], ...]:
    """Returns a key that is equal for changes that differ in layout or comments only."""
    return tuple(
        sorted((c.path, _normal(c.path, c.after) or " ".join(c.after.split())) for c in changes)
    )


def effect(changes: Sequence[Change]) -> tuple[tuple[str, str], ...]:
    """Returns a key that is equal for changes with the same effect on tests: it contains the files
    that change in more than layout and comments. A file that cannot be parsed counts with its
    text."""
    pairs = (
        (c.path, *(_normal(c.path, text) or text for text in (c.before, c.after))) for c in changes
    )
    return tuple(sorted((path, after) for path, before, after in pairs if before != after))


@functools.lru_cache(256)
def _lays_out(change: Change) -> bool:
    """Whether a change reformats the file: at least four lines, and a quarter of all, are old lines
    with other spaces, quotes or signs at their end."""
    old, new = (
        [line for line in text.split("\n") if line.strip()]
        for text in (change.before, change.after)
    )
    if len(old) > _MOST_LINES:
        return False
    verbatim, bare = set(old), {_bare(line) for line in old}
    n = sum(line not in verbatim and _bare(line) in bare for line in new)
    return n >= max(4, len(new) / 4)


def _bare(line: str) -> str:
    return "".join(line.split()).translate(_QUOTES).rstrip(";,")


def is_small(changes: Sequence[Change]) -> bool:
    """Whether an edit changes at most three words or signs of one place: it may pass by chance."""
    n = 0
    for change in changes:
        old, new = (_WORD.findall(text) for text in (change.before, change.after))
        first = n_equal(old, new)
        last = n_equal(old[first:][::-1], new[first:][::-1])
        n += max(len(old), len(new)) - first - last
    return 0 < n <= _SMALL


@functools.lru_cache(maxsize=256)
def _normal(path: str, text: str) -> str:
    """A text without layout and comments, except comments for tools; empty if it cannot be
    parsed."""
    name = syntax.language(path)
    if name == "python":
        try:
            return "\n".join([ast.dump(syntax_tree(text)), *_TO_TOOLS.findall(text)])
        except (SyntaxError, RecursionError):
            return ""
    return syntax.skeleton(text, name) if name else ""
