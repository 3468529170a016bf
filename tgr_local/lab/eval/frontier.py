"""One answer: the accuracy of every system against the forward tokens of its answer.

A user gets one answer, so every sample counts as one use of its system. In: outcomes. Out: a
`Frontier`, which the table, the picture and the verdict share. All systems have the same problems;
several samples of a problem are averaged first, and intervals are over problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome, reference
from tgr_local.lab.eval.table_cells import Table, percent, signed

MARGIN = 1.0
"""Points that a system may lose to the reference and still replace it."""


_EQUAL = 1e-9  # means of the same samples in another order differ by less


@dataclass(frozen=True, eq=False)
class Point:
    """One system."""

    outcome: Outcome
    tokens: float
    """Mean forward tokens of one answer, of every kind."""
    accuracy: Interval
    """Share of right answers, 0 … 1."""
    gain: Interval | None
    """Accuracy minus that of the reference in points, paired by problem; None for itself."""
    share: float
    """Tokens of the system / those of the reference."""
    is_on_frontier: bool


@dataclass(frozen=True, eq=False)
class Frontier:
    """The systems of one task."""

    points: list[Point]
    """Fewest tokens first; the more accurate one first among equals."""
    base: Point
    """The system that the others are compared with."""

    @property
    def best(self) -> list[Point]:
        """The systems on the frontier."""
        return [point for point in self.points if point.is_on_frontier]

    @property
    def n_problems(self) -> int:
        return len(self.base.outcome.graded)

    def keeps_up(self, point: Point) -> bool:
        """Whether the interval of the difference to the reference stays above −`MARGIN`."""
        return point.gain is None or point.gain.low > -MARGIN

    @property
    def cheapest(self) -> Point:
        """The cheapest system that keeps up with the reference; at worst the reference itself."""
        return next(point for point in self.points if self.keeps_up(point))


def of(graded: Sequence[Outcome]) -> Frontier:
    """The frontier of these outcomes, one or more with the same compared problems. The reference is
    the system that the manifest names, else the most accurate `base`, else the first."""
    right = {outcome: outcome.passed(1) for outcome in graded}
    tokens = {outcome: float(outcome.costs.mean()) for outcome in graded}
    base = reference(graded, lambda outcome: float(right[outcome].mean()))
    on_frontier = undominated(
        [tokens[outcome] for outcome in graded], [float(right[o].mean()) for o in graded]
    )
    points = [
        Point(
            outcome,
            tokens[outcome],
            metrics.interval(right[outcome]),
            None
            if outcome is base
            else metrics.paired(100 * right[outcome], 100 * right[base], top=100),
            tokens[outcome] / tokens[base],
            is_on_frontier,
        )
        for outcome, is_on_frontier in zip(graded, on_frontier, strict=True)
    ]
    points.sort(key=lambda point: (point.tokens, -point.accuracy.mean))
    return Frontier(points, next(point for point in points if point.outcome is base))


def undominated(tokens: Sequence[float], accuracies: Sequence[float]) -> list[bool]:
    """Tells for each system whether no other one is at least as accurate for fewer tokens, or more
    accurate for as many. Systems that are equal in both are on the frontier together."""
    systems = list(zip(tokens, accuracies, strict=True))

    def beats(other: tuple[float, float], own: tuple[float, float]) -> bool:
        saved, gained = own[0] - other[0], other[1] - own[1]
        return min(saved, gained) >= -_EQUAL and max(saved, gained) > _EQUAL

    return [not any(beats(other, own) for other in systems) for own in systems]


def table(frontier: Frontier) -> Table:
    """The systems with tokens, accuracy, and the difference to the reference."""
    base = frontier.base
    rows = [
        [
            point.outcome.label,
            f"{point.tokens:,.0f}",
            percent(point.accuracy),
            signed(point.gain),
            f"{100 * point.share:.0f}%",
            "✓" if point.is_on_frontier else "",
        ]
        for point in frontier.points
    ]
    label = base.outcome.label
    return Table(
        "One answer",
        ["system", "forward tokens", "accuracy (%)", f"minus {label}", f"tokens / {label}",
         "frontier"],
        rows,
        f"A user gets one answer; every sample is one. Means over {frontier.n_problems:,} "
        "problems, the samples of a problem averaged first, with 95% intervals over "
        "problems in brackets. Forward tokens are all decoded positions of a reply; differences "
        "are in points, paired by problem. A system is on the frontier (✓) where no other one is "
        "at least as accurate for fewer tokens; this looks at the means alone.",
    )  # fmt: skip
