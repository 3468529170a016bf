"""Sentences after a task: what it cost and how sure a pass is; else what was tried and may help.

In: the outcome of a task. Out: lines. Nothing here prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import failing
from tgr_local.code.judging.test_plain import STOP
from tgr_local.code.reading.context import NO_ROOM
from tgr_local.code.rounds import TaskOutcome
from tgr_local.console.render import plural
from tgr_local.options.config import CodeConfig
from tgr_local.system.sanitize import printable_line

_MANY = 8
"""Number of tested edits from which on a single one that passes may pass by chance."""
_EDITS, _NAMES, _LONGEST = 3, 3, 80
"""Edits that are told of, tests that a line names, and characters of a name."""


def cost_line(outcome: TaskOutcome) -> str:
    """``8 candidates in 1 round, 4,120 forward tokens, 12.3 s; 1 of them passes 3 of 3 tests``."""
    candidates = [
        candidate for candidates_of_round in outcome.rounds for candidate in candidates_of_round
    ]
    rounds = plural(len(outcome.rounds), "round")
    n_pass = sum(candidate.passes for candidate in candidates)
    ended = f"; {outcome.ended}" if outcome.ended else ""
    verdict = outcome.best.verdict if outcome.best and outcome.best.passes else None
    tests = ""
    if verdict and verdict.total and not verdict.is_check:
        tests = f" {verdict.passed} of {plural(verdict.total, 'test')}"
    return (
        f"{plural(len(candidates), 'candidate')} in {rounds}, "
        f"{outcome.forward_tokens:,} forward tokens, "
        f"{outcome.seconds:.1f} s; {n_pass} of them pass{'es' if n_pass == 1 else ''}{tests}{ended}"
    )


def doubt_line(outcome: TaskOutcome) -> str:
    """A warning where only few of many tested edits pass; else empty. The more edits are tested,
    the likelier one passes by chance."""
    tested = [c for c in outcome.ranked if c.verdict is not None and not c.verdict.is_check]
    n_pass = sum(c.passes for c in tested)
    if not n_pass or len(tested) < _MANY * n_pass:
        return ""
    passes = "passes" if n_pass == 1 else "pass"
    return f"only {n_pass} of {len(tested)} tested edits {passes}, perhaps by chance: read the diff"


def second_line(outcome: TaskOutcome) -> str:
    """A warning where a small edit passes and a different one passes too; else empty."""
    if not outcome.second or not outcome.best:
        return ""
    return (
        f"candidate {outcome.best.number} changes little, and candidate {outcome.second.number}, "
        "another edit, passes too: the tests allow both, so choose by what the program should do"
    )


def failure_lines(outcome: TaskOutcome, code: CodeConfig, *, flags: bool) -> Iterator[str]:
    """Lines for a task that no edit passes: what was tried, the tests that the best edits fix,
    those that no edit fixes, and what may help. With `flags` options are named as on the command
    line, else as in a session."""
    baseline = outcome.baseline
    if not outcome.ranked or (outcome.best and outcome.best.passes):
        return
    if baseline is not None:
        yield from _tried(outcome, baseline)
    more = min(2 * code.rounds, 100)
    rounds = f"--rounds {more}" if flags else f"/set rounds {more}"
    name = "the faulty file, named after the task" if flags else "/add FAULTY_FILE"
    again = "another --seed" if flags else "/again"
    left_out = outcome.context.left_out if outcome.context else ()
    unseen = [printable_line(path, _LONGEST) for path, why in left_out if why == NO_ROOM][:_NAMES]
    name += f" (the model does not see {', '.join(unseen)})" if unseen else ""
    yield f"what may help: {again}, {rounds}, a larger model (--model), or {name}"


def _tried(outcome: TaskOutcome, baseline: Verdict) -> Iterator[str]:
    verdicts = [c.verdict for c in outcome.ranked if c.verdict is not None]
    known_names = failing(baseline)
    gains = [
        (c, c.verdict) for c in outcome.ranked
        if c.verdict is not None and c.verdict.passed > baseline.passed
    ]  # fmt: skip
    told: list[tuple[Candidate, Verdict]] = []
    for candidate, verdict in gains:
        if failing(verdict) not in [failing(other) for _, other in told]:
            told.append((candidate, verdict))
    if not verdicts:
        yield "no edit could be tested; the last column of the table has the reasons"
        return
    n = plural(len(verdicts), "tested edit")
    yield f"{n}: none passes; with {len(gains) or 'none'} of them more tests pass than before"
    for candidate, verdict in told[:_EDITS]:
        parts = [verdict.summary]
        fixed, broken = known_names - failing(verdict), failing(verdict) - known_names
        parts += [f"fixed: {_names(fixed)}"] if fixed else []
        parts += [f"broken: {_names(broken)}"] if broken else []
        yield f"candidate {candidate.number}: {'; '.join(parts)}"
    # a test that did not run is not fixed
    ran = [verdict for verdict in verdicts if verdict.ran and (verdict.loads or not baseline.loads)]
    stays = known_names.intersection(*(failing(verdict) for verdict in ran))
    if stays and baseline.framework == STOP:  # of a program that ends at an assert
        stops = [failure for verdict in (baseline, *ran) for failure in verdict.failures]
        line = max((stop.reached for stop in stops if stop.name in stays), default=0)
        yield f"no edit gets beyond {_names(stays)}" + f":{line}" * bool(line)
    elif stays:
        yield f"no edit fixes {_names(stays)}"


def _names(names: Iterable[str]) -> str:
    sorted_names = sorted(names)
    more = f" and {len(sorted_names) - _NAMES} more" if len(sorted_names) > _NAMES else ""
    return ", ".join(printable_line(name, _LONGEST) for name in sorted_names[:_NAMES]) + more
