"""The plots of a report, as inline SVG. Needs the extra `plot` (matplotlib).

In: a `Comparison`. Out: plots, each with panels of one width, which the page arranges for its
screen, and with the entries of their legend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tgr_local.lab.eval import plot_accuracy, plot_geometry
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.plot_panels import COLORS, Legend, Panels, svg
from tgr_local.system.errors import InstallError


@dataclass(frozen=True)
class Plot:
    """One plot."""

    caption: str
    panels: list[str]
    """SVG."""
    legend: list[tuple[str, int]]
    """Label and number of each line, from which `color` and `marker` follow."""


DrawFunction = Callable[[Panels, Comparison], Legend]


def of_task(compared: Comparison) -> list[Plot]:
    """Every plot for which the outcomes of one task have data. InstallError without matplotlib."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        figure_type: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise InstallError(
            "the plots need matplotlib; run: pip install 'tgr-local[plot]'"
        ) from None
    drawings: dict[str, DrawFunction] = {
        "One answer: accuracy against the forward tokens of an answer, with 95% intervals; the "
        "line joins the systems on the frontier, which have names. Points are moved to the right a "
        "little where they would cover each other": plot_accuracy.one_answer,
        "Difference to the reference in points, paired by problem, with 95% intervals":
            plot_accuracy.differences,
        "Pass@k at equal k, and at equal forward tokens, with 95% intervals; as in the tables, a "
        "budget that buys less than one sample has no point. Points are moved sideways a little "
        "where they would cover each other": plot_accuracy.curves,
        "AUC of each system, with 95% intervals": plot_accuracy.auc_bars,
        "Accuracy by group of problems, whose number is in brackets, with 95% intervals over the "
        "problems of a group": plot_accuracy.by_group,
        "Cost against quality: forward tokens of a sample, and its seconds in the batch that it "
        "shares, against AUC, with 95% intervals": plot_accuracy.cost,
        "AUC of each seed alone, as points: median, quartiles, and whiskers to the last seed "
        "within 1.5 times their distance": plot_accuracy.seeds,
        "Gain of each model over its best base system, in points of AUC, paired by problem, with "
        "95% intervals": plot_accuracy.scaling,
        "Terms of the score at every boundary, the chosen candidate and the rejected ones: median, "
        "quartiles, and whiskers to the last value within 1.5 times their distance":
            plot_geometry.terms,
        "Similarity of the candidates of a boundary: APCS and N_eff; the last bar includes larger "
        "values": plot_geometry.spread,
        "Anchor density: cosines between every two candidates of a boundary, and of every "
        "candidate with the anchor that they are drawn around; shares are means over problems, "
        "with 95% bootstrap intervals; the first bar includes smaller values":
            plot_geometry.density,
        "Movement of the states: curvature κ and angle θ; the last bar includes larger values":
            plot_geometry.movement,
        "Curvature and effective dimension against AUC; a point is a problem, a cross the medians "
        "of a system, with the quartiles of both": plot_geometry.against_auc,
        "Sensitivity of AUC to the rollout length s and the number of candidates K, with 95% "
        "intervals": plot_accuracy.sensitivity,
    }  # fmt: skip
    style = {
        "svg.hashsalt": "tgr-local", "svg.fonttype": "none", "font.size": 10,
        "axes.titlesize": 10, "axes.prop_cycle": matplotlib.cycler(color=COLORS),
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "black", "grid.alpha": 0.12, "grid.linewidth": 0.7, "axes.axisbelow": True,
        "boxplot.medianprops.color": COLORS[0], "savefig.transparent": True,
    }  # fmt: skip
    defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    plots = []
    with matplotlib.rc_context(defaults | style):  # not those of a matplotlibrc in this folder
        for caption, draw in drawings.items():
            panels = Panels(figure_type)
            legend = draw(panels, compared)
            if panels.figures:
                plots.append(Plot(caption, [svg(figure) for figure in panels.figures], legend))
    return plots
