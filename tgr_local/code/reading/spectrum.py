"""Scores of lines by the tests that run them (spectrum-based fault localisation).

In: what `_trace` wrote while the tests ran, documents. Out: for each document the lines that no
failing test ran, and a score of the others: Ochiai of the tests that fail there, √(f / (f + p)) of
a line that f failing and p passing tests ran. A folder may have several defects, so a line is not
less suspicious because other failing tests do not run it. It is text that a candidate's code can
write: it decides an order, and nothing else.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tgr_local.code.edits import FileText
from tgr_local.code.edits.function import parsed
from tgr_local.code.reading.evidence import Lines

TRACER = Path(__file__).with_name("_trace.py")
"""The program that traces the tests, to be put into a copy as its ``sitecustomize.py``."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Reach:
    """The lines of a document that failing tests run."""

    away: tuple[Lines, ...] = ()
    """Lines that none of them runs, nor the line before."""
    scores: Mapping[int, float] = field(default_factory=dict)
    """Score of each of the other lines, from 1, in (0, 1]; empty where no test was traced."""
    tests: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Numbers of the failing tests that run each of these lines."""

    def is_away(self, line: int) -> bool:
        """Whether a line is among those that are away."""
        return any(first <= line <= last for first, last in self.away)

    def score(self, line: int) -> float:
        """The score of a line; 1 where no test was traced."""
        return self.scores.get(line, 1.0)

    def highest(self, first: int, last: int) -> float:
        """The highest score of some lines; 0 where all of them are away."""
        lines = (line for line in range(first, last + 1) if not self.is_away(line))
        return max(map(self.score, lines), default=0.0)

    def running(self, first: int, last: int) -> frozenset[int]:
        """The failing tests that run one of some lines."""
        return frozenset().union(*(self.tests.get(n, ()) for n in range(first, last + 1)))


@dataclass(frozen=True)
class Spectrum:
    """The lines that each test ran, by file."""

    failing: tuple[Mapping[str, frozenset[int]], ...]
    passing: tuple[Mapping[str, frozenset[int]], ...]

    @functools.cached_property
    def _scores(self) -> dict[str, dict[int, float]]:
        """The score of each line that a failing test ran, by file."""
        counts: list[dict[str, Counter[int]]] = []
        for tests in (self.failing, self.passing):
            counts.append(defaultdict(Counter))
            for path, lines in (pair for test in tests for pair in test.items()):
                counts[-1][path].update(lines)
        failing, passing = counts
        return {
            path: {line: math.sqrt(n / (n + passing[path][line])) for line, n in some.items()}
            for path, some in failing.items()
        }  # fmt: skip

    def files(self) -> dict[str, float]:
        """The files that failing tests run, each with the highest score of a line."""
        return {path: max(some.values()) for path, some in self._scores.items() if some}

    def reach(self, document: FileText) -> Reach:
        """The lines of a Python document's functions that failing tests run; nothing of another
        document."""
        tree = parsed(document.text) if document.path.endswith(".py") else None
        if tree is None:
            return Reach()
        ran = self._scores.get(document.path, {})

        def score(lines: Iterable[int]) -> float:
            return max((ran.get(line, 0.0) for line in lines), default=0.0)

        def running(lines: Iterable[int]) -> frozenset[int]:
            mine = frozenset(lines)
            tests = (test.get(document.path, frozenset()) for test in self.failing)
            return frozenset(n for n, some in enumerate(tests) if not mine.isdisjoint(some))

        everywhere = math.sqrt(len(self.failing) / (len(self.failing) + len(self.passing)))
        every = range(1, document.text.count("\n") + 2)
        scores = dict.fromkeys(every, everywhere)
        tests = dict.fromkeys(every, frozenset(range(len(self.failing))))
        away: list[Lines] = []
        for function in _functions(tree.body):
            first, last = _first(function), function.end_lineno or function.lineno
            body = range(function.body[0].lineno, last + 1)
            if not score(body):
                away.append((first, last))
                tests.update(dict.fromkeys(range(first, last + 1), frozenset[int]()))
                continue
            tests.update(dict.fromkeys(range(first, last + 1), running(body)))
            spans = _statements(function)
            before = next(filter(None, (score(range(a, b + 1)) for a, b in spans)), everywhere)
            scores.update(dict.fromkeys(range(first, last + 1), before))
            for start, end in spans:
                own = score(range(start, end + 1))
                if not own and not before:
                    away.append((start, end))
                    tests.update(dict.fromkeys(range(start, end + 1), frozenset[int]()))
                else:
                    scores.update(dict.fromkeys(range(start, last + 1), own or before))
                    if own:
                        mine = running(range(start, end + 1))
                        tests.update(dict.fromkeys(range(start, end + 1), mine))
                before = own
        return Reach(tuple(away), scores, tests)


def read(texts: Iterable[str], n_failures: int) -> Spectrum | None:
    """The spectrum of what the processes of a run wrote; None where fewer than `n_failures` tests
    are known to fail. A run without any test that is known by name is one test, which fails."""
    tests: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    failed: set[str] = set()
    for text in texts:
        for name, has_failed, lines in _records(text):
            if has_failed:
                failed.add(name)
            for path, numbers in lines.items():
                tests[name][path] |= numbers
    outside = tests.pop("", {})
    if not tests:
        tests[""], failed, n_failures = outside, {""}, 1
    if not failed or len(failed) < n_failures or not any(tests[name] for name in failed):
        return None
    plain = {
        name: {path: frozenset(numbers) for path, numbers in ran.items()}
        for name, ran in tests.items()
    }
    return Spectrum(
        tuple(ran for name, ran in plain.items() if name in failed),
        tuple(ran for name, ran in plain.items() if name not in failed),
    )


def _records(text: str) -> Iterator[tuple[str, bool, dict[str, set[int]]]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
            name, has_failed = str(record["test"]), bool(record["failed"])
            lines = {
                path: {number for number in numbers if isinstance(number, int)}
                for path, numbers in record["lines"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # the program under test wrote it, or was killed
        yield name, has_failed, lines


def _first(node: _Function) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _functions(body: Sequence[ast.stmt]) -> Iterator[_Function]:
    """The outermost functions, and the methods of classes."""
    for node in body:
        if isinstance(node, _Function):
            yield node
        else:
            yield from _functions(
                [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
            )


def _statements(function: _Function) -> list[Lines]:
    """The lines of each statement of a function, of a compound one those before its body; but for
    its docstring."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    spans = []
    for top in function.body[has_docstring:]:
        for node in ast.walk(top):
            if isinstance(node, ast.stmt):
                first, last = node.lineno, node.end_lineno or node.lineno
                if isinstance(inner := getattr(node, "body", None), list):
                    last = max(first, inner[0].lineno - 1)
                spans.append((first, last))
    return sorted(spans)
