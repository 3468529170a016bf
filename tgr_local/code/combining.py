"""Edits of several candidates in one: where each mends another test, together they may mend all.

In: the judged candidates of a round, which were written for the same files. Out: candidates that
have the edits of several, judged. No token passes through the model for them. A small model mends
one defect in an answer, and a folder may have several.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tgr_local.code.candidate import Candidate, syntax_error
from tgr_local.code.edits import Change
from tgr_local.code.judge import Verdict
from tgr_local.code.ranking import ranked

_SECONDS = 60.0
"""Of tests, after which no further edit is tried."""
_Hunk = tuple[int, int, tuple[str, ...]]
"""First line and end of what is replaced, and the new lines."""


def combine(
    candidates: Sequence[Candidate],
    base: Sequence[Change],
    before: Verdict,
    judge: Callable[[Sequence[Change]], Verdict],
    first: int,
) -> Iterator[Candidate]:
    """Candidates with the edits of several, each better than the one before; the last may pass all
    tests. `base` is what all candidates have of the project's files already, `before` what the
    tests say with it, and `first` the number of the first of them.

    An edit that shows no gain alone may show one with another: a test that fails at one line may
    fail at the next. At most as many as there are candidates are judged, and none after a minute.
    """
    pairs = ((one, one.verdict) for one in ranked(candidates))
    left = [
        (one, said) for one, said in pairs if said and said.passed >= before.passed and said.ran
    ]
    left.sort(key=lambda pair: not pair[1].is_beyond(before))
    if not left or left[0][1].passes or not left[0][1].is_beyond(before):
        return
    (best, reached), *left = left
    waiting, n_tries, seconds = left, len(candidates), 0.0
    while waiting and n_tries and seconds < _SECONDS:
        (other, said), *waiting = waiting
        if said.is_beyond(before) and not _adds(said, reached):
            continue
        changes = both(base, best.changes, other.changes)
        if changes is None or changes == best.changes or syntax_error(changes):
            continue
        verdict = judge(changes)
        n_tries, seconds = n_tries - 1, seconds + verdict.seconds
        if not verdict.is_beyond(reached):
            continue
        parts = tuple(sorted({*(best.parts or (best.number,)), other.number}))
        best, reached = Candidate(
            first, best.seed, "done", parts=parts, changes=changes, parses=True, verdict=verdict,
            logprob=best.logprob,
        ), verdict  # fmt: skip
        yield best
        if verdict.passes:
            return
        first += 1
        left = [(one, said) for one, said in left if one is not other]
        waiting = left  # what showed nothing before may do so now


def _adds(verdict: Verdict, reached: Verdict) -> bool:
    """Whether a test that fails in what is reached passes, or gets further."""
    mine = {failure.name: failure.reached for failure in verdict.failures}
    known = reached.failures
    return not known or any(mine.get(its.name, its.reached + 1) > its.reached for its in known)


def both(
    base: Sequence[Change], one: Sequence[Change], other: Sequence[Change]
) -> tuple[Change, ...] | None:
    """What two edits do of the files as `base` leaves them, in one; None where they change the same
    lines."""
    before = {change.path: change.before for change in (*base, *one, *other)}
    texts = [{change.path: change.after for change in some} for some in (base, one, other)]
    changes = []
    for path, text in before.items():
        after = _merged(*(some.get(path, text) for some in texts))
        if after is None:
            return None
        if after != text:
            changes.append(Change(path, text, after))
    return tuple(changes)


def _merged(base: str, one: str, other: str) -> str | None:
    lines = base.split("\n")
    hunks = sorted({*_hunks(lines, one), *_hunks(lines, other)})
    for (start, end, _), (then, last, _) in pairwise(hunks):
        if then < end or (then == end and (start == end or then == last)):
            return None
    for start, end, new in reversed(hunks):
        lines[start:end] = new
    return "\n".join(lines)


def _hunks(lines: list[str], text: str) -> Iterator[_Hunk]:
    new = text.split("\n")
    for tag, i, j, k, m in difflib.SequenceMatcher(None, lines, new).get_opcodes():
        if tag != "equal":
            yield i, j, tuple(new[k:m])
