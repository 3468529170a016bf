"""Combines the edits of several candidates: if each fixes another test, together they may fix all.

In: the judged candidates of a round, which began with the same files. Out: judged candidates that
combine the edits of several. They cost no tokens. An answer of a small model repairs one defect,
and a folder may have several.
"""

from __future__ import annotations

import ast
import difflib
import re
import time
from collections.abc import Callable, Iterator, Sequence

from tgr_local.code.edits import Change
from tgr_local.code.edits.function import parsed
from tgr_local.code.judging.candidate import Candidate, syntax_error
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.losses import loss
from tgr_local.code.judging.ranking import ranked

_SECONDS = 60.0
"""Time of tests in seconds, after which no further edit is tried."""
_IMPORT = re.compile(r"(?:import|from)\b")
"""Lines that two edits may both add at one place."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_Hunk = tuple[int, int, tuple[str, ...]]
"""First line and end of what is replaced, and the new lines."""


def combine(
    candidates: Sequence[Candidate],
    base: Sequence[Change],
    base_verdict: Verdict,
    judge: Callable[[Candidate], Verdict],
    first: int,
    task: str = "",
) -> Iterator[Candidate]:
    """Candidates that combine edits, each better than the one before; the last may pass all tests.
    `base` are the changes with which all candidates began, `base_verdict` the verdict of the tests
    with them, `first` the number of the first new candidate. Empty if a candidate passes alone.

    An edit that shows no gain alone may show one with another: a test that fails at one line may
    fail at the next. At most as many as there are candidates are judged, and none after a minute.
    """
    pairs = [(c, c.verdict) for c in ranked(candidates) if c.verdict is not None]
    partners = [(c, said) for c, said in pairs if said.ran and said.passed >= base_verdict.passed]
    partners.sort(key=lambda pair: not pair[1].is_beyond(base_verdict))
    passes = any(said.passes for _, said in pairs)
    if passes or not partners or not partners[0][1].is_beyond(base_verdict):
        return
    (best, reached), *partners = partners
    candidates_left, tried = partners, {c.changes for c, _ in pairs}
    n_most, start = len(tried) + len(candidates), time.monotonic()
    while candidates_left and len(tried) < n_most and time.monotonic() - start < _SECONDS:
        (partner, said), *candidates_left = candidates_left
        if said.is_beyond(base_verdict) and not _adds(said, reached):
            continue
        changes = merge_edits(base, best.changes, partner.changes)
        if changes is None or changes in tried or syntax_error(changes) or loss(changes, task):
            continue
        tried.add(changes)
        parts = tuple(sorted({*(best.parts or (best.number,)), partner.number}))
        combination = Candidate(
            first, best.seed, "testing", parts=parts, changes=changes, parses=True,
            logprob=best.logprob,
        )  # fmt: skip
        verdict = judge(combination)
        if not verdict.is_beyond(reached):
            continue
        seconds = max(c.seconds for c in candidates) + time.monotonic() - start
        best, reached = combination.but(state="done", verdict=verdict, seconds=seconds), verdict
        yield best
        if verdict.passes:
            return
        first += 1
        partners = [(c, said) for c, said in partners if c is not partner]
        candidates_left = partners  # an edit without a gain before may have one now


def _adds(verdict: Verdict, reached: Verdict) -> bool:
    """Whether an edit gains something over the verdict `reached`: a failing test passes or reaches
    a later line, or a missing name is there."""
    if set(reached.lacks) - set(verdict.lacks):
        return True
    mine = {failure.name: failure.reached for failure in verdict.failures}
    known = reached.failures
    return not known or any(
        its.name not in mine or mine[its.name] > its.reached > 0 for its in known
    )


def merge_edits(
    base: Sequence[Change], mine: Sequence[Change], theirs: Sequence[Change]
) -> tuple[Change, ...] | None:
    """Merges two edits of the files as `base` leaves them into one; None if they change the same
    lines."""
    originals = {change.path: change.before for change in (*base, *mine, *theirs)}
    texts = [{change.path: change.after for change in some} for some in (base, mine, theirs)]
    changes = []
    for path, text in originals.items():
        base_text, my_text, their_text = (some.get(path, text) for some in texts)
        after = _merge(base_text, my_text, their_text, path.endswith(".py"))
        if after is None:
            return None
        if after != text:
            changes.append(Change(path, text, after))
    return tuple(changes)


def _merge(base: str, mine: str, theirs: str, is_python: bool = False) -> str | None:
    """A text with the changes of two others; None if both change the same lines, or both add lines
    at one place. But imports that both add there are all kept, each once, and so are Python
    functions and classes with different names. Lines that one adds next to a line that the other
    changes stay on their side of it."""
    lines = base.split("\n")
    hunks: list[_Hunk] = []
    for start, end, new in sorted({*_hunks(lines, mine), *_hunks(lines, theirs)}):
        first, last, added = hunks[-1] if hunks else (-1, -1, ())
        if first == last == start == end and all(map(_IMPORT.match, (*added, *new))):
            hunks[-1] = (start, end, tuple(dict.fromkeys((*added, *new))))
            continue
        if first == last == start == end and is_python and _are_apart(added, new):
            hunks[-1] = (start, end, (*added, *new))
            continue
        if start < last or first == last == start == end:
            return None
        hunks.append((start, end, new))
    for start, end, new in reversed(hunks):
        lines[start:end] = new
    return "\n".join(lines)


def _are_apart(added: Sequence[str], new: Sequence[str]) -> bool:
    """Whether both are functions and classes at the margin, and no name is in both."""
    mine, theirs = _defined(added), _defined(new)
    return bool(mine and theirs) and mine.isdisjoint(theirs)


def _defined(lines: Sequence[str]) -> frozenset[str]:
    """The names of functions and classes; empty where there is something else."""
    tree = parsed("\n".join(lines))
    body = tree.body if tree is not None else []
    names = {node.name for node in body if isinstance(node, _DEFINITIONS)}
    return frozenset(names) if len(names) == len(body) else frozenset()


def _hunks(lines: list[str], text: str) -> Iterator[_Hunk]:
    new = text.split("\n")
    for tag, i, j, k, m in difflib.SequenceMatcher(None, lines, new).get_opcodes():
        if tag != "equal":
            yield i, j, tuple(new[k:m])
