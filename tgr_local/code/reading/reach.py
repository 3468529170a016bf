"""The functions that failing tests reach, as far as names tell, and where a failing check is.

In: failures, documents. Out: functions that no failing test reaches; words that can be reached from
words; the places of checks of which an output has the name alone. Nothing is run.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tgr_local.code.edits import FileText, syntax
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading import outline
from tgr_local.code.reading.evidence import CodeLine, Lines, words

_CONSTRUCTORS = ("constructor", "init", "initialize")
_SHORTEST_TITLE = 4  # characters
_MOST_LINES = 8  # that have the name of a check
_LONGEST_STATEMENT = 8  # lines
_GOES_ON = re.compile(r"[,(&|+=\\?]\s*$")
_WORD = re.compile(r"[^\W\d]\w*")


def out_of_reach(
    failures: Sequence[Failure], tests: Sequence[FileText], documents: Sequence[FileText]
) -> dict[str, tuple[Lines, ...]]:
    """The functions of each document that no failing test reaches, judged by names; empty if no
    failing test is found among `tests`, or if none of the documents' functions is reached.

    A function counts as reached if a failing test has its name, or a fixture or function that is
    reached. A special method is reached with the name of its class. So more functions count as
    reached than run. A test that is no function of its name is found by the place of its failure,
    else by its name in the text.
    """
    known = {name for document in tests for name, _, _ in functions(document)}
    failing: set[str] = set()
    for failure in failures:
        names = known.intersection(_test_names(failure.name))
        failing |= names or words(_code_of(failure, tests))
    if not failing:
        return {}
    reached = reach(failing, (*tests, *documents))
    unreached = {
        document.path: tuple(lines for name, lines, _ in functions(document) if name not in reached)
        for document in documents
    }
    n_functions = sum(1 for document in documents for _ in functions(document))
    return unreached if sum(map(len, unreached.values())) < n_functions else {}


def _code_of(failure: Failure, tests: Sequence[FileText]) -> str:
    """The code of a failing check: the function around it, or the statement in a function `main` or
    outside of all functions."""
    if failure.name == failure.file and not failure.reached:
        return ""  # a file that could not be run
    parts = []
    for document in tests:
        file, line = failure.reached_in or failure.file, failure.reached or failure.line
        is_there = line and f"/{document.path}".endswith(f"/{file.removeprefix('./')}")
        numbers = [line] if is_there else [] if line else lines_with(failure.name, document)
        for number in numbers:
            around = [
                f.text for f in functions(document)
                if f.lines[0] <= number <= f.lines[1] and f.name.lower() != "main"
            ]  # fmt: skip
            parts.append(around[-1] if around else _statement(document.text.split("\n"), number))
    return "\n".join(parts)


def lines_with(title: str, document: FileText) -> list[int]:
    """The lines of a test that have the name of a check, such as ``check("has no room", …)``."""
    title = re.sub(r" \(\d+\)$", "", re.split(" > | › ", title)[-1])
    if len(title) < _SHORTEST_TITLE:
        return []
    return [n for n, line in enumerate(document.text.split("\n"), 1) if title in line]


def checks(failures: Sequence[Failure], tests: Sequence[FileText]) -> list[CodeLine]:
    """The places in tests of the failing checks of which the output says no place. A name that
    stands in many lines is none of a check."""
    places: list[CodeLine] = []
    for title in dict.fromkeys(failure.name for failure in failures if not failure.file):
        lines = (CodeLine(d.path, n) for d in tests for n in lines_with(title, d))
        some = list(itertools.islice(lines, _MOST_LINES + 1))
        places += some if len(some) <= _MOST_LINES else []
    return places


def _statement(lines: Sequence[str], number: int) -> str:
    """The line of this number, and those that belong to its statement by their last signs."""
    first = last = min(number, len(lines)) - 1
    while first > 0 and last - first < _LONGEST_STATEMENT and _GOES_ON.search(lines[first - 1]):
        first -= 1
    while (
        last + 1 < len(lines) and last - first < _LONGEST_STATEMENT and _GOES_ON.search(lines[last])
    ):
        last += 1
    return "\n".join(lines[first : last + 1])


def _test_names(name: str) -> Iterator[str]:
    """The names that the function of a failing test may have: Python's, and JavaScript's."""
    plain = re.sub(r"[\[( ].*", "", name, flags=re.DOTALL)
    yield re.split(r"::|\.", plain)[-1]
    yield syntax.words_of(re.split(" > | › ", name)[-1])


def reach(words: Iterable[str], documents: Sequence[FileText]) -> frozenset[str]:
    """The words that can be reached from these words: a function with one of these names is
    reached, and so are the words in it. In a file of JavaScript tests, lines outside of all
    functions belong to each test."""
    bodies: dict[str, list[str]] = defaultdict(list)
    for document in documents:
        around = _around_tests(document)
        for name, _, body in functions(document):
            bodies[name] += [body, around]
    reached = set(words)
    new_words = list(reached & bodies.keys())
    while new_words:
        more = {word for body in bodies[new_words.pop()] for word in _WORD.findall(body)}
        new_words += (more & bodies.keys()) - reached
        reached |= more
    return frozenset(reached)


def _around_tests(document: FileText) -> str:
    """The lines of a JavaScript test file outside of its tests and functions, such as code that
    runs before each test; empty for other files."""
    entries = outline.outline(document).definitions
    is_rust = document.path.endswith(".rs")  # whose tests stand beside the code
    if is_rust or not any(entry.is_test for entry in entries):
        return ""
    within = {n for e in entries if e.kind == "function" for n in range(e.first, e.last + 1)}
    return "\n".join(line for n, line in enumerate(document.text.split("\n"), 1) if n not in within)


class Reachable(NamedTuple):
    """A function of a file."""

    name: str
    """Name by which it is reached: that of its class where it is a constructor."""
    lines: Lines
    text: str


def functions(document: FileText) -> Iterator[Reachable]:
    """The functions of a file whose lines are known."""
    lines = document.text.split("\n")
    for entry in outline.outline(document).definitions:
        if entry.kind == "function" and entry.exact:
            *around, name = entry.name.split(".")
            is_special = name.startswith("__") and name.endswith("__")
            if around and (is_special or name in _CONSTRUCTORS):
                name = around[-1]
            text = "\n".join(lines[entry.first - 1 : entry.last])
            yield Reachable(name, (entry.first, entry.last), text)
