"""Replies worth reading: single boundaries, and the replies of several systems to the same problem.

Every case has the same fields: the prompt; the boundary; each candidate's rollout with its score;
where the chosen rollout and the best different one diverge; the text of the chunk; the outcome of
the reply, and that of the reference on the same problem. The rule that chooses the replies to show
side by side looks at grades and order alone, not at the texts: see `RULE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.samples import Sample

_SHOWN = 400  # characters of a prompt or an answer


@dataclass(frozen=True)
class Case:
    """One boundary."""

    title: str
    prompt: str
    boundary: str
    candidates: list[list[str]]
    """Mark, V, P_bum, P_uni, S, rollout; best first."""
    divergence: str
    text: str
    """Text of the chunk that followed."""
    result: str
    """Outcome of the reply, and of the reference on the same problem."""


def of_task(outcomes: Sequence[Outcome], base: Outcome) -> list[Case]:
    """Returns at most one case of each kind: the search is correct and the reference wrong, the
    other way round, and the boundary with the clearest choice."""
    searching = [o for o in outcomes if any("rollouts" in b for b in o.boundaries)]
    if not searching:
        return []
    outcome = max(searching, key=lambda o: o.label == "tgr-latent")
    pairs = [
        (drawn[0], theirs[0])
        for problem, drawn in outcome.by_problem.items()
        if any("rollouts" in boundary for boundary in drawn[0].boundaries)
        and (theirs := base.by_problem.get(problem))
    ]
    pairs.sort(key=lambda pair: not _differ(_clearest(pair[0])))  # different rollouts first
    wanted = {
        f"{outcome.label} correct, {base.label} wrong": [
            p for p in pairs if p[0].correct and p[1].correct is False
        ],
        f"{base.label} correct, {outcome.label} wrong": [
            p for p in pairs if p[1].correct and p[0].correct is False
        ],
        "the clearest choice": sorted(pairs, key=lambda p: -_margin(_clearest(p[0]))),
    }
    return [_case(title, outcome, *some[0]) for title, some in wanted.items() if some]


def _case(title: str, outcome: Outcome, sample: Sample, reference: Sample) -> Case:
    boundary = _clearest(sample)
    order = np.argsort(-np.array(boundary["S"]), kind="stable").tolist()
    order.remove(boundary["chosen"])
    order.insert(0, boundary["chosen"])
    rows = [
        [
            "chosen" if k == boundary["chosen"] else "",
            *(f"{boundary[term][k]:.4f}" for term in ("V", "P_bum", "P_uni", "S")),
            boundary["rollouts"][k],
        ]
        for k in order
    ]
    prompt = outcome.run.problems.get((sample.task, sample.problem), "")
    return Case(
        title,
        prompt[:_SHOWN],
        f"problem {sample.problem}, chunk {boundary['chunk'] + 1} of "
        f"{sample.boundaries[-1]['chunk'] + 1}, margin {_margin(boundary):.4f}",
        rows,
        _divergence([boundary["rollouts"][k] for k in order]),
        boundary["text"],
        f"{result(sample)}; {reference.system}: {result(reference)}",
    )


def _divergence(rollouts: Sequence[str]) -> str:
    """Describes the place where the first rollout and the next different one diverge."""
    chosen, *unchosen = rollouts
    rejected = next((text for text in unchosen if text != chosen), None)
    if rejected is None:
        return "all rollouts are equal"
    pairs = zip(chosen, rejected, strict=False)
    n = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
    return (
        f"after {chosen[max(0, n - 40) : n]!r} the chosen one continues with "
        f"{chosen[n : n + 40]!r}, the best different one with {rejected[n : n + 40]!r}"
    )


def _clearest(sample: Sample) -> dict[str, Any]:
    """The boundary with the largest margin, among those whose rollouts differ if there are any."""
    recorded = [b for b in sample.boundaries if "rollouts" in b]
    return max(recorded, key=lambda b: (_differ(b), _margin(b)))


def _differ(boundary: dict[str, Any]) -> bool:
    return len(set(boundary["rollouts"])) > 1


def _margin(boundary: dict[str, Any]) -> float:
    """Score of the chosen candidate minus that of the best other one."""
    scores = list(boundary["S"])
    best = scores.pop(boundary["chosen"])
    return float(best - max(scores)) if scores else 0.0


def result(sample: Sample) -> str:
    """The grade, the answer and the cost of a sample in words."""
    verdict = {True: "correct", False: "wrong", None: "not graded"}[sample.correct]
    answer = f" with {sample.answer}" if sample.answer is not None else ""
    return f"{verdict}{answer[:_SHOWN]} after {sample.cost} forward tokens ({sample.finish})"


# ---- side by side ----

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
    """Outcome and cost of the reply in words."""
    text: str
    """Text of the reply with its thinking; without the middle where it is long."""


@dataclass(frozen=True)
class SideBySide:
    """One problem."""

    problem: str
    prompt: str
    replies: list[ShownReply]


def side_by_side(graded: Sequence[Outcome], base: Outcome) -> list[SideBySide]:
    """The problems that `RULE` chooses for the compared outcomes of one task; `base` is the
    reference. None where fewer than two systems are compared or they never disagree."""
    systems = _systems(graded, base)
    chosen = []
    for (task, problem), prompt in base.run.problems.items():
        if task != base.task or not all(problem in outcome.graded for outcome in systems):
            continue
        first = [outcome.graded[problem][0] for outcome in systems]
        if len({bool(sample.correct) for sample in first}) > 1:
            replies = [
                _system_reply(o.label, sample) for o, sample in zip(systems, first, strict=True)
            ]
            chosen.append(SideBySide(problem, _cut(prompt, _PROMPT_SHOWN), replies))
        if len(chosen) == N_PROBLEMS:
            break
    return chosen


def _systems(graded: Sequence[Outcome], base: Outcome) -> list[Outcome]:
    first: dict[str, Outcome] = {base.system["method"]: base}
    for outcome in graded:
        first.setdefault(outcome.system["method"], outcome)
    ranked = [base, *first.values(), *graded]
    return [outcome for outcome in dict.fromkeys(ranked) if outcome in graded][:N_SYSTEMS]


def _system_reply(label: str, sample: Sample) -> ShownReply:
    parts = [part.strip() for part in (sample.thinking, sample.text) if part.strip()]
    text = _cut("\n\n".join(parts), _REPLY_SHOWN)
    return ShownReply(label, bool(sample.correct), result(sample), text)


def _cut(text: str, most: int) -> str:
    """The text, or its beginning and its end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half:,} characters…] {text[-half:]}"
