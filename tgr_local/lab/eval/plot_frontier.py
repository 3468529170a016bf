"""The plot of one answer: accuracy against forward tokens, with the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.plot_panels import (
    HEIGHT,
    PAPER,
    Legend,
    Panels,
    cut,
    errorbar,
    in_percent,
    number_of,
)

LINE, LETTER = 11, 4.8  # points of a line of text and of a letter in a panel


def one_answer(panels: Panels, compared: Comparison) -> Legend:
    if compared.one is None:
        return []
    axes = panels.new(1.3 * HEIGHT)
    best, x = [], 0.0
    for point in compared.one.points:
        x, accuracy = max(point.tokens, 1.025 * x), in_percent(point.accuracy)
        number = number_of(compared, point.outcome)
        errorbar(axes, [x], [accuracy.mean], ys_of=[accuracy], number=number)
        if point.is_on_frontier:
            best.append((x, accuracy.mean))
    axes.plot(*zip(*best, strict=True), color="black", lw=1, alpha=0.6, zorder=1)
    axes.set(xscale="log", xlabel="forward tokens per answer", ylabel="right answers (%)")
    axes.minorticks_off()
    low, high = axes.get_xlim()
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
    ticks = [x for x in np.outer(decades, (1, 2, 5)).ravel() if low <= x <= high]
    axes.set_xticks(ticks, [f"{x:,.0f}" for x in ticks])
    axes.margins(y=0.1)
    _name_points(axes, best, [cut(point.outcome.label) for point in compared.one.best])
    return [
        (point.outcome.label, number_of(compared, point.outcome)) for point in compared.one.points
    ]


def _name_points(axes: Any, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Names the points of a frontier, which rises to the right: above each and to its left, where
    no other point is, or below and to its right where the left edge is too near. No name covers
    another one."""
    width, height = (72 * 0.8 * inches for inches in axes.figure.get_size_inches())  # of the axes
    bottom, top = axes.get_ylim()
    line = (top - bottom) * LINE / height
    low, high = np.log(axes.get_xlim())
    lefts = [(np.log(x) - low) / (high - low) * width for x, _ in points]
    named = list(zip(points, names, lefts, strict=True))
    above = [(x, y, name) for (x, y), name, left in named if left >= LETTER * len(name)]
    below = [(x, y, name) for (x, y), name, left in named if left < LETTER * len(name)]
    edge = -np.inf
    for x, y, name in above:
        edge = max(y + line / 3, edge + line)
        _name(axes, x, edge, name, "right")
    axes.set_ylim(top=max(top, edge + 1.5 * line))
    edge = np.inf
    for x, y, name in reversed(below):
        edge = min(y + line / 4, edge) - line
        _name(axes, x, edge, name, "left")
    axes.set_ylim(bottom=min(bottom, edge - line / 2))


def _name(axes: Any, x: float, y: float, name: str, side: str) -> None:
    """A name whose lower right or left corner is at x, y, on a ground that covers lines."""
    axes.annotate(
        name, (x, y), xytext=(5 if side == "left" else -5, 0), textcoords="offset points",
        ha=side, fontsize=9, bbox={"fc": PAPER, "ec": "none", "alpha": 0.8, "pad": 0.3},
    )  # fmt: skip
