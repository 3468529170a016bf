"""Plots of accuracy: of one answer, over k and budgets, by system, by group, by seed, by cost, by
model, by option.

Each function draws panels, none where it has no data, and returns the legend.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.comparison import Comparison, Curves
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome, common_seeds
from tgr_local.lab.eval.plot_panels import (
    COLORS,
    HEIGHT,
    PAPER,
    ROW,
    Legend,
    Panels,
    arms,
    cut,
    errorbar,
    in_percent,
    marker,
    number_of,
    short,
)

LINE, LETTER = 11, 4.8  # points of a line of text and of a letter in a panel
_GAP, _STEP = 0.16, 0.11  # inches between two groups, and between the systems of one


def one_answer(panels: Panels, compared: Comparison) -> Legend:
    if compared.frontier is None:
        return []
    axes = panels.new(1.3 * HEIGHT)
    best, x = [], 0.0
    for point in compared.frontier.points:
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
    _name_points(axes, best, [cut(point.outcome.label) for point in compared.frontier.best])
    return [
        (point.outcome.label, number_of(compared, point.outcome))
        for point in compared.frontier.points
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
    placed = list(zip(points, names, lefts, strict=True))
    above = [(x, y, name) for (x, y), name, left in placed if left >= LETTER * len(name)]
    below = [(x, y, name) for (x, y), name, left in placed if left < LETTER * len(name)]
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


def differences(panels: Panels, compared: Comparison) -> Legend:
    groups = []
    if compared.frontier:
        ones = [(point.outcome, point.gain) for point in compared.frontier.points]
        groups.append(("one answer", compared.frontier.base.outcome, ones))
    for curves, title in ((compared.at_k, "equal k"), (compared.at_tokens, "equal forward tokens")):
        if curves is not None:
            gains = [(curve.outcome, curves.gain(curve.outcome)) for curve in curves.curves]
            groups.append((title, curves.base, gains))
    for title, base, gains in groups:
        rows = [(outcome, gain) for outcome, gain in gains if gain is not None]
        if not rows:
            continue
        axes = panels.new(max(HEIGHT / 2, 1.0 + ROW * len(rows)))
        axes.axvline(0, color="black", lw=1)
        for y, (outcome, gain) in enumerate(rows):
            errorbar(axes, [gain.mean], [y], xs_of=[gain], number=number_of(compared, outcome))
        axes.set_yticks(range(len(rows)), [short(outcome.label) for outcome, _ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"points minus {base.label}")
        axes.set_title(title)
    return []


def curves(panels: Panels, compared: Comparison) -> Legend:
    if compared.at_k is None or compared.at_tokens is None:
        return []
    drawn = [(compared.at_k, "equal k", "k")]
    drawn.append((compared.at_tokens, "equal forward tokens", "forward tokens per problem"))
    if all(len(curves.places) < 2 for curves, *_ in drawn):
        return []
    for curves, title, name in drawn:
        axes = panels.new()
        _draw_curves(axes, curves, compared)
        axes.set(xscale="log", xlabel=name, ylabel="Pass (%)", title=title)
        names = [f"{place:,.0f}" for place in curves.places]
        axes.set_xticks(curves.places, names, rotation=30 if len("".join(names)) > 32 else 0)
        axes.minorticks_off()
    return [(outcome.label, number_of(compared, outcome)) for outcome in compared.graded]


def _draw_curves(axes: Any, curves: Curves, compared: Comparison) -> None:
    """Every interval of the table; lines that would lie on each other are moved sideways."""
    n = len(curves.curves)
    for i, curve in enumerate(curves.curves):
        moved = [place * 1.012 ** (2 * i - n + 1) for place in curves.places]
        points = [(x, span) for x, span in zip(moved, curve.intervals, strict=True) if span]
        percent = [in_percent(interval) for _, interval in points]
        errorbar(axes, [x for x, _ in points], [p.mean for p in percent], ys_of=percent,
                  number=number_of(compared, curve.outcome), line="-")  # fmt: skip


def auc_bars(panels: Panels, compared: Comparison) -> Legend:
    measured = [outcome for outcome in compared.graded if len(outcome.aucs)]
    if len(measured) < 2:
        return []
    axes = panels.new(max(HEIGHT / 2, 0.8 + ROW * len(measured)))
    for y, outcome in enumerate(measured):
        auc, number = metrics.interval(outcome.aucs, top=100), number_of(compared, outcome)
        axes.barh(y, auc.mean, 0.6, color=COLORS[number % len(COLORS)])
        axes.errorbar([auc.mean], [y], xerr=arms([auc]), fmt="none", color="black", lw=1)
    axes.set_yticks(range(len(measured)), [short(outcome.label) for outcome in measured])
    axes.set(ylim=(len(measured) - 0.5, -0.5), xlim=(0, None), xlabel="AUC")
    return []


def by_group(panels: Panels, compared: Comparison) -> Legend:
    """A panel for each property of the problems, a row for each group, a point for each system."""
    legend: Legend = []
    for profile in compared.profiles:
        n, n_groups = len(profile.rows), len(profile.groups)
        row = _GAP + _STEP * n  # inches
        axes = panels.new(max(HEIGHT / 2, 0.8 + row * n_groups))
        for i, (outcome, cells) in enumerate(profile.rows):
            percent = [in_percent(cell) for cell in cells]
            ys = [y + (i - (n - 1) / 2) * _STEP / row for y in range(n_groups)]
            number = number_of(compared, outcome)
            errorbar(axes, [p.mean for p in percent], ys, xs_of=percent, number=number)
        heads = [
            f"{short(group)} ({size})"
            for group, size in zip(profile.groups, profile.sizes, strict=True)
        ]
        axes.set_yticks(range(n_groups), heads)
        axes.set(ylim=(n_groups - 0.5, -0.5), xlabel="Pass@1 (%)", title=profile.name)
        legend = [(outcome.label, number_of(compared, outcome)) for outcome, _ in profile.rows]
    return legend


def seeds(panels: Panels, compared: Comparison) -> Legend:
    """Draws the table `table_accuracy.by_seed`: the same seeds and k."""
    seeds, ks = common_seeds(compared.graded)
    if len(seeds) < 3 or len(ks) < 2:
        return []  # a box of two points shows nothing else
    axes = panels.new(max(HEIGHT / 2, 0.8 + ROW * len(compared.graded)))
    rows = [[o.auc_of_seed(seed, ks) for seed in seeds] for o in compared.graded]
    axes.boxplot(rows, orientation="horizontal", showfliers=False, widths=0.6)
    for y, (outcome, row) in enumerate(zip(compared.graded, rows, strict=True), 1):
        number = number_of(compared, outcome)
        axes.plot(row, [y] * len(row), marker(number), ms=4, color=COLORS[number % len(COLORS)])
    labels = [short(outcome.label) for outcome in compared.graded]
    axes.set_yticks(range(1, len(labels) + 1), labels)
    axes.invert_yaxis()
    axes.set(xlabel=f"AUC of a seed, k = {ks[0]} to {ks[-1]}")
    return []


def scaling(panels: Panels, compared: Comparison) -> Legend:
    """A line for each system that several models have, over their parameters."""
    of_model: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in compared.graded:
        if len(outcome.aucs):
            of_model[outcome.run.manifest.model["sha256"]].append(outcome)
    lines: dict[str, list[tuple[float, Interval]]] = defaultdict(list)
    for some in of_model.values():
        plain = [outcome for outcome in some if outcome.system["method"] == "base"]
        for outcome in some if plain else ():
            if outcome.system["method"] != "base":
                best = max(plain, key=lambda o: float(o.aucs.mean()))
                size = outcome.run.manifest.model["parameters"] / 1e9
                gain = metrics.paired(outcome.aucs, best.aucs, top=100)
                lines[outcome.system["name"]].append((size, gain))
    several = {name: sorted(line, key=lambda p: p[0]) for name, line in lines.items() if line[1:]}
    if not several:
        return []
    axes = panels.new()
    axes.axhline(0, color="black", lw=1)
    for number, line in enumerate(several.values()):
        gains = [gain for _, gain in line]
        errorbar(axes, [size for size, _ in line], [gain.mean for gain in gains], ys_of=gains,
                  number=number, line="-")  # fmt: skip
    axes.set(xscale="log", xlabel="parameters (billions)", ylabel="points of AUC minus base")
    sizes = sorted({size for line in several.values() for size, _ in line})
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.minorticks_off()
    return [(name, number) for number, name in enumerate(several)]


def cost(panels: Panels, compared: Comparison) -> Legend:
    measured = [outcome for outcome in compared.graded if len(outcome.aucs)]
    if not measured:
        return []
    aucs = [metrics.interval(outcome.aucs, top=100) for outcome in measured]
    for name, values in (
        ("forward tokens per sample", [outcome.cost for outcome in measured]),
        ("seconds per sample", [outcome.seconds for outcome in measured]),
    ):
        axes = panels.new()
        for outcome, value, auc in zip(measured, values, aucs, strict=True):
            number = number_of(compared, outcome)
            errorbar(axes, [value], [auc.mean], ys_of=[auc], number=number)
        axes.set(xlabel=name, ylabel="AUC")
    return [(outcome.label, number_of(compared, outcome)) for outcome in measured]


def sensitivity(panels: Panels, compared: Comparison) -> Legend:
    legend: dict[str, int] = {}
    names = {"rollout_len": "rollout length s (tokens)", "n_candidates": "candidates K"}
    for name, label in names.items():
        lines = _differing_in(compared.graded, name)
        if not lines:
            continue
        axes, ticks = panels.new(), set()
        for title, line in lines.items():
            xs = [outcome.system["config"][name] for outcome in line]
            aucs = [metrics.interval(outcome.aucs, top=100) for outcome in line]
            number = legend.setdefault(title, len(legend))
            errorbar(axes, xs, [a.mean for a in aucs], ys_of=aucs, number=number, line="-")
            ticks |= set(xs)
        axes.set_xticks(sorted(ticks), [str(x) for x in sorted(ticks)])
        axes.set(xlabel=label, ylabel="AUC")
    return list(legend.items())


def _differing_in(outcomes: Sequence[Outcome], name: str) -> dict[str, list[Outcome]]:
    """Groups of two or more systems of one method that differ in this option only."""
    alike: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if len(outcome.aucs) and any("S" in boundary for boundary in outcome.boundaries):
            other_options = {key: v for key, v in outcome.system["config"].items() if key != name}
            model = outcome.run.manifest.model["sha256"]
            alike[
                json.dumps([model, outcome.system["method"], other_options], sort_keys=True)
            ].append(outcome)
    lines = [sorted(some, key=lambda o: o.system["config"][name]) for some in alike.values()]
    return {line[0].system["method"]: line for line in lines if len(line) > 1}
