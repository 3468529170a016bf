"""Plots of the boundaries: terms of the score, likeness of the candidates, movement of the states.

Each function draws panels, none where it has no data, and returns the legend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tgr_local.lab.eval import metrics
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.plot_panels import COLORS, HEIGHT, ROW, Legend, Panels, number_of, short
from tgr_local.lab.eval.table_geometry import MEASURES

_TERMS = {
    "V": "foresight V",
    "P_bum": "bumpiness P_bum",
    "P_uni": "uniformity P_uni",
    "S": "score S",
}
_SHOWN = 99.5  # percent of values in a histogram; larger ones are in the last bar


def terms(panels: Panels, compared: Comparison) -> Legend:
    searching = [o for o in compared.outcomes if any("S" in b for b in o.boundaries)]
    for term, name in _TERMS.items() if searching else ():
        boxes, labels = [], []
        for outcome in searching:
            chosen, rejected = _chosen_and_rejected(outcome, term)
            boxes += [chosen, rejected]
            labels += [f"{short(outcome.label)}, chosen", "rejected"]
        axes = panels.new(max(HEIGHT / 2, 0.8 + ROW * len(boxes)))
        axes.boxplot(boxes, orientation="horizontal", showfliers=False, widths=0.6)
        axes.set_title(name)
        axes.set_yticks(range(1, len(labels) + 1), labels)
        axes.invert_yaxis()
    return []


def _chosen_and_rejected(outcome: Outcome, term: str) -> tuple[list[float], list[float]]:
    chosen, rejected = [], []
    for boundary in outcome.boundaries:
        if term in boundary:
            values = list(boundary[term])
            chosen.append(values.pop(boundary["chosen"]))
            rejected += values
    return chosen, rejected


def spread(panels: Panels, compared: Comparison) -> Legend:
    return _histograms(panels, compared, {"apcs": "APCS", "n_eff": "N_eff"})


def density(panels: Panels, compared: Comparison) -> Legend:
    """The table `table_geometry.density` as histograms: the same cosines."""
    legend = {}
    for axes, label, measured in _panels(panels, compared.outcomes, MEASURES, Outcome.several):
        everything = np.concatenate([values for some in measured.values() for values in some])
        low = np.percentile(everything, 100 - _SHOWN)
        bins = np.linspace(low, everything.max() + 1e-9, 31)
        for outcome, some in measured.items():
            shares = [np.histogram(values.clip(min=low), bins)[0] / len(values) for values in some]
            mean, *edges = metrics.bootstrap_mean(np.array(shares))
            number = number_of(compared, outcome)
            own = COLORS[number % len(COLORS)]
            axes.stairs(mean, bins, color=own, lw=1.5)
            axes.stairs(edges[1], bins, baseline=edges[0], fill=True, color=own, alpha=0.2, lw=0)
            legend[outcome.label] = number
        axes.set(xlabel=f"cosine {label}", ylabel="share of cosines")
    return list(legend.items())


def movement(panels: Panels, compared: Comparison) -> Legend:
    return _histograms(panels, compared, {"curvature": "curvature κ", "angle": "angle θ (radians)"})


def _histograms(panels: Panels, compared: Comparison, names: dict[str, str]) -> Legend:
    legend = {}
    for axes, label, measured in _panels(panels, compared.outcomes, names, Outcome.measure):
        everything = np.concatenate(list(measured.values()))
        high = np.percentile(everything, _SHOWN)  # a few outliers would squeeze the rest
        bins = np.linspace(everything.min(), high + 1e-9, 31)
        for outcome, values in measured.items():
            number = number_of(compared, outcome)
            axes.hist(
                values.clip(max=high), bins, weights=np.full(len(values), 1 / len(values)),
                histtype="step", color=COLORS[number % len(COLORS)],
            )  # fmt: skip
            legend[outcome.label] = number
        axes.set(xlabel=label, ylabel="share of boundaries")
    return list(legend.items())


def against_auc(panels: Panels, compared: Comparison) -> Legend:
    legend = {}
    names = {"curvature": "mean curvature κ", "n_eff": "mean N_eff"}
    for axes, label, measured in _panels(panels, compared.graded, names, Outcome.against_auc):
        for outcome, points in measured.items():
            number = number_of(compared, outcome)
            own = COLORS[number % len(COLORS)]
            axes.plot(*points.T, ".", ms=4, alpha=0.4, color=own)
            low, middle, high = np.percentile(points, (25, 50, 75), axis=0)
            arms = np.stack([middle - low, high - middle])  # [2, x and y]
            axes.errorbar(*middle, xerr=arms[:, :1], yerr=arms[:, 1:], fmt="X", ms=9, color=own)
            legend[outcome.label] = number
        axes.set(xlabel=label, ylabel="AUC")
    return list(legend.items())


def _panels(
    panels: Panels,
    outcomes: Sequence[Outcome],
    names: Mapping[str, str],
    measure: Callable[[Outcome, str], Any],
) -> Iterator[tuple[Any, str, dict[Outcome, Any]]]:
    """The axes of a panel for each measure that some outcomes have, its label, and their values."""
    for name, label in names.items():
        values = {outcome: own for outcome in outcomes if len(own := measure(outcome, name))}
        if values:
            yield panels.new(), label, values
