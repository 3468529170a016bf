"""The replies of several systems to the same problem, side by side.

The rule that chooses them looks at grades and order alone, not at the texts: see `RULE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.lab.eval.cases import result
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.samples import Sample

N_SYSTEMS, N_PROBLEMS = 4, 2
RULE = (
    f"The first {N_PROBLEMS} problems, in the order of the run, that some of these systems answer "
    "right and some wrong with their first graded sample, which is shown. The systems are the "
    f"reference, the first one of each other method, and then the rest, at most {N_SYSTEMS}."
)
_PROMPT_SHOWN = 1000  # characters
_REPLY_SHOWN = 1400  # half of them from the beginning, half from the end


@dataclass(frozen=True)
class ShownReply:
    """The reply of one system."""

    system: str
    correct: bool
    result: str
    """Its outcome and cost in words."""
    text: str
    """With its thinking; without the middle where it is long."""


@dataclass(frozen=True)
class SideBySide:
    """One problem."""

    problem: str
    prompt: str
    replies: list[ShownReply]


def of_task(graded: Sequence[Outcome], base: Outcome) -> list[SideBySide]:
    """The problems that `RULE` chooses for the compared outcomes of one task; `base` is the
    reference. None where fewer than two systems are compared or they never disagree."""
    shown = _systems(graded, base)
    found = []
    for (task, problem), prompt in base.run.problems.items():
        if task != base.task or not all(problem in outcome.graded for outcome in shown):
            continue
        first = [outcome.graded[problem][0] for outcome in shown]
        if len({bool(sample.correct) for sample in first}) > 1:
            replies = [_shown(o.label, sample) for o, sample in zip(shown, first, strict=True)]
            found.append(SideBySide(problem, _cut(prompt, _PROMPT_SHOWN), replies))
        if len(found) == N_PROBLEMS:
            break
    return found


def _systems(graded: Sequence[Outcome], base: Outcome) -> list[Outcome]:
    first: dict[str, Outcome] = {base.system["method"]: base}
    for outcome in graded:
        first.setdefault(outcome.system["method"], outcome)
    ranked = [base, *first.values(), *graded]
    return [outcome for outcome in dict.fromkeys(ranked) if outcome in graded][:N_SYSTEMS]


def _shown(label: str, sample: Sample) -> ShownReply:
    parts = [part.strip() for part in (sample.thinking, sample.text) if part.strip()]
    text = _cut("\n\n".join(parts), _REPLY_SHOWN)
    return ShownReply(label, bool(sample.correct), result(sample), text)


def _cut(text: str, most: int) -> str:
    """The text, or its beginning and its end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters…] {text[-half:]}"
