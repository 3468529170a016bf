"""Which functions failing tests cannot reach, as far as names tell.

In: failures, the files of the tests, the files that an edit may change. Out: lines. A function is
reached if its name stands in a failing test, in a fixture or function that is reached, or if it is
a special method of a class whose name does. This is more than what runs: nothing is run here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tgr_local.code import outline
from tgr_local.code.edits import Document
from tgr_local.code.test_output import Failure

Lines = tuple[int, int]
"""The first and the last one, counted from 1."""
_NAME = re.compile(r"[^\W\d]\w*")


def out_of_reach(
    failures: Sequence[Failure], tests: Sequence[Document], documents: Sequence[Document]
) -> dict[str, tuple[Lines, ...]]:
    """The functions of each document that no failing test reaches; empty where no failing test is
    found among `tests`, or none of the documents' functions is reached."""
    names = [re.sub(r"[\[( ].*", "", one.name, flags=re.DOTALL) for one in failures]
    failing = {re.split(r"::|\.", name)[-1] for name in names}
    reached = failing & {name for document in tests for name, _, _ in _functions(document)}
    if not reached:
        return {}
    bodies: dict[str, list[str]] = defaultdict(list)
    for document in (*tests, *documents):
        for name, _, body in _functions(document):
            bodies[name].append(body)
    new = list(reached)
    while new:
        words = {word for body in bodies[new.pop()] for word in _NAME.findall(body)}
        new += (words & bodies.keys()) - reached
        reached |= words
    found = {
        document.path: tuple(
            lines for name, lines, _ in _functions(document) if name not in reached
        )
        for document in documents
    }
    n_functions = sum(1 for document in documents for _ in _functions(document))
    return found if sum(map(len, found.values())) < n_functions else {}


def _functions(document: Document) -> Iterator[tuple[str, Lines, str]]:
    """The name by which each function is reached, its lines, and their text."""
    lines = document.text.split("\n")
    for one in outline.outline(document).definitions:
        if one.kind == "function" and one.exact:
            *around, name = one.name.split(".")
            if around and name.startswith("__") and name.endswith("__"):
                name = around[-1]
            yield name, (one.first, one.last), "\n".join(lines[one.first - 1 : one.last])
