"""Cases worth reading: one boundary of one reply, with what was tried and what became of it.

Every case answers the same list: the prompt; the boundary; each candidate's rollout with its score;
where the chosen rollout and the best that reads otherwise part; what was written; how it ended, and
how the reference ended on the same problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgr_local.eval.samples import Sample
from tgr_local.eval.summary import Outcome

_SHOWN = 400  # characters of a prompt or an answer


@dataclass(frozen=True)
class Case:
    """One boundary."""

    title: str
    prompt: str
    boundary: str
    candidates: list[list[str]]
    """Marked, V, P_bum, P_uni, S, rollout; best first."""
    divergence: str
    written: str
    end: str
    """Of the reply, and of the reference on the same problem."""


def of_task(found: Sequence[Outcome], base: Outcome) -> list[Case]:
    """Up to one case of each kind: where the search was right and the reference wrong, the other
    way round, and where the choice was clearest."""
    searching = [o for o in found if any("rollouts" in b for b in o.boundaries)]
    if not searching:
        return []
    outcome = max(searching, key=lambda o: o.label == "tgr-latent")
    pairs = [
        (ours, theirs)
        for problem, drawn in outcome.by_problem.items()
        if _shown(ours := drawn[0]) and (theirs := _first(base, problem)) is not None
    ]
    pairs.sort(key=lambda pair: not _differ(_clearest(pair[0])))  # those that show something first
    wanted = {
        f"{outcome.label} right, {base.label} wrong": [
            p for p in pairs if p[0].correct and p[1].correct is False
        ],
        f"{base.label} right, {outcome.label} wrong": [
            p for p in pairs if p[1].correct and p[0].correct is False
        ],
        "the clearest choice": sorted(pairs, key=lambda p: -_lead(_clearest(p[0]))),
    }
    return [_case(title, outcome, *some[0]) for title, some in wanted.items() if some]


def _case(title: str, outcome: Outcome, ours: Sample, theirs: Sample) -> Case:
    found = _clearest(ours)
    order = np.argsort(-np.array(found["S"]), kind="stable").tolist()
    order.remove(found["chosen"])
    order.insert(0, found["chosen"])
    rows = [
        [
            "chosen" if k == found["chosen"] else "",
            *(f"{found[term][k]:.4f}" for term in ("V", "P_bum", "P_uni", "S")),
            found["rollouts"][k],
        ]
        for k in order
    ]
    prompt = outcome.run.problems.get((ours.task, ours.problem), "")
    return Case(
        title,
        prompt[:_SHOWN],
        f"problem {ours.problem}, chunk {found['chunk'] + 1} of {ours.boundaries[-1]['chunk'] + 1}"
        f", won by {_lead(found):.4f}",
        rows,
        _divergence([found["rollouts"][k] for k in order]),
        found["text"],
        f"{_ended(ours)}; {theirs.system}: {_ended(theirs)}",
    )


def _divergence(rollouts: Sequence[str]) -> str:
    """Where the first one and the next that reads otherwise part."""
    chosen, *others = rollouts
    rejected = next((text for text in others if text != chosen), None)
    if rejected is None:
        return "all rollouts read the same"
    pairs = zip(chosen, rejected, strict=False)
    n = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))
    return (
        f"after {chosen[max(0, n - 40) : n]!r} the chosen one goes on {chosen[n : n + 40]!r}, "
        f"the best that reads otherwise {rejected[n : n + 40]!r}"
    )


def _shown(sample: Sample) -> bool:
    return any("rollouts" in boundary for boundary in sample.boundaries)


def _first(outcome: Outcome, problem: str) -> Sample | None:
    drawn = outcome.by_problem.get(problem)
    return drawn[0] if drawn else None


def _clearest(sample: Sample) -> dict[str, Any]:
    """The boundary with the largest lead, of those where the rollouts differ, if there is one."""
    shown = [b for b in sample.boundaries if "rollouts" in b]
    return max(shown, key=lambda b: (_differ(b), _lead(b)))


def _differ(boundary: dict[str, Any]) -> bool:
    return len(set(boundary["rollouts"])) > 1


def _lead(boundary: dict[str, Any]) -> float:
    """How far the chosen candidate is ahead of the best other one."""
    scores = list(boundary["S"])
    best = scores.pop(boundary["chosen"])
    return float(best - max(scores)) if scores else 0.0


def _ended(sample: Sample) -> str:
    verdict = {True: "right", False: "wrong", None: "not graded"}[sample.correct]
    answer = f" with {sample.answer}" if sample.answer is not None else ""
    return f"{verdict}{answer[:_SHOWN]} after {sample.cost} forward tokens ({sample.finish})"
