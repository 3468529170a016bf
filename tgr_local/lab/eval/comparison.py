"""The systems of one task side by side: at equal k, at equal forward tokens, and with one answer.

In: outcomes. Out: a `Comparison`, which the tables, the plots and the verdict share, so that all of
them show the same systems at the same k and budgets with the same intervals.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.eval import frontier, metrics, profiles
from tgr_local.lab.eval.frontier import Frontier
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Budget, Outcome, common_budgets, reference
from tgr_local.lab.eval.profiles import Profile

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """One system at every place."""

    outcome: Outcome
    values: list[Floats | None]
    """Shares of each place: one number, 0 … 1, for each compared problem, in the order of
    `Outcome.graded`; None where the budget buys less than one sample."""
    bought: float
    """Samples that the last place has, as a mean over problems."""

    @functools.cached_property
    def intervals(self) -> list[Interval | None]:
        """Mean and 95% interval at every place, 0 … 1."""
        return [None if row is None else metrics.interval(row) for row in self.values]


@dataclass(frozen=True, eq=False)
class Curves:
    """All compared systems at the same places: numbers of samples, or budgets."""

    places: list[float]
    """k, or the mean budget in forward tokens; increasing."""
    curves: list[Curve]
    base: Outcome
    """The system that the others are compared with."""
    budgets: list[Budget]
    """The budgets themselves; empty at equal k."""

    def gain(self, outcome: Outcome) -> Interval | None:
        """Returns the system's gain over `base` in points, paired by problem: of the area under the
        curve at equal k, and at the largest budget. None where there is no comparison."""
        own, theirs = self._headline(outcome), self._headline(self.base)
        if outcome is self.base or own is None or theirs is None:
            return None
        return metrics.paired(own, theirs, top=100)

    def n_differing(self, outcome: Outcome) -> int:
        """The number of problems that separate the system from `base`."""
        own, theirs = self._headline(outcome), self._headline(self.base)
        return 0 if own is None or theirs is None else int((np.abs(own - theirs) > 1e-9).sum())

    def _headline(self, outcome: Outcome) -> Floats | None:
        """0 … 100 for each problem; `summary` gives every outcome the same problems in the same
        order."""
        if not self.budgets and len(self.places) > 1:
            return outcome.aucs
        last = next(curve.values[-1] for curve in self.curves if curve.outcome is outcome)
        return None if last is None else 100 * last


@dataclass(frozen=True, eq=False)
class Comparison:
    """The outcomes of one task."""

    outcomes: list[Outcome]
    """Every system."""
    graded: list[Outcome]
    """Compared systems."""
    at_k: Curves | None
    at_tokens: Curves | None
    """None where nothing is graded, and where `frontier` says all that there is at k = 1."""
    frontier: Frontier | None = None
    """None unless the runs ask for the metric "one", and where nothing is graded."""

    @functools.cached_property
    def profiles(self) -> list[Profile]:
        """Accuracy by group of problems; none where the problems have no groups."""
        return profiles.of_task(self.graded)


def of(outcomes: Sequence[Outcome]) -> Comparison:
    """The comparison of all outcomes of a task."""
    graded = [outcome for outcome in outcomes if outcome.graded]
    if not graded:
        return Comparison(list(outcomes), [], None, None)
    is_one = all(outcome.run.manifest.metric == "one" for outcome in outcomes)
    of_one = frontier.of(graded) if is_one and outcomes[0].metric != "diversity" else None
    if of_one and graded[0].ks == (1,):
        return Comparison(list(outcomes), graded, None, None, of_one)
    return Comparison(list(outcomes), graded, _at_k(graded), _at_tokens(graded), of_one)


def _at_k(graded: Sequence[Outcome]) -> Curves:
    ks = graded[0].ks
    curves = [Curve(o, [o.passed(k) for k in ks], float(ks[-1])) for o in graded]
    return Curves([float(k) for k in ks], curves, reference(graded), [])


def _at_tokens(graded: Sequence[Outcome]) -> Curves:
    budgets = common_budgets(graded)
    bought = {outcome: outcome.at_budgets(budgets) for outcome in graded}
    curves = [
        Curve(
            outcome,
            [row if n.mean() >= 1 else None for row, n in zip(passed, fitting, strict=True)],
            float(fitting[-1].mean()),
        )
        for outcome, (passed, fitting) in bought.items()
    ]
    base = reference(graded, lambda outcome: float(bought[outcome][0][-1].mean()))
    return Curves([budget.mean for budget in budgets], curves, base, budgets)
