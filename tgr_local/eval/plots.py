"""The plots of a report, as inline SVG. Needs the extra `plot` (matplotlib).

In: a `Comparison`. Out: plots, each with panels of one width, which the page arranges for its
screen, and with the entries of their legend. The SVG has no colours of its own: text and axes have
the colour of the text around them, and lines the CSS variables ``--s0``, ``--s1`` … of the page.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgr_local.errors import InstallError
from tgr_local.eval import metrics
from tgr_local.eval.comparison import Comparison, Curves
from tgr_local.eval.metrics import Interval
from tgr_local.eval.outcome import Outcome, common_seeds

COLORS = (
    "#1f6fb4", "#c2500a", "#1a7f3c", "#b5282d", "#7a4fb5", "#7f5a45", "#b83a93", "#5f6670",
    "#737000", "#007f95",
)  # fmt: skip
"""Of the systems, in turns, on a light page; matplotlib writes them, and the page replaces them."""
MARKERS = "osD^v"
"""Of the systems, in turns, so that colours are not needed to tell them apart."""
_TERMS = {
    "V": "foresight V",
    "P_bum": "bumpiness P_bum",
    "P_uni": "uniformity P_uni",
    "S": "score S",
}
_WIDTH, _HEIGHT = 5.0, 3.1  # inches of a panel: on a phone its text is about as large as the page's
_LINE, _LETTER = 11, 4.8  # points of a line of text and of a letter in a panel
_PAPER = "#fefefe"  # the colour of the page
_ROW = 0.26  # inches of a row in a panel with one row for each system
_SHOWN = 99.5  # percent of values in a histogram; larger ones are in the last bar


@dataclass(frozen=True)
class Plot:
    """One plot."""

    caption: str
    panels: list[str]
    """SVG."""
    legend: list[tuple[str, int]]
    """Label and number of each line, from which `color` and `marker` follow."""


class _Panels:
    """The panels of the plot that is being drawn."""

    def __init__(self, figure_type: Any) -> None:
        self.figures: list[Any] = []
        self._figure_type = figure_type

    def new(self, height: float = _HEIGHT) -> Any:
        """The axes of one more panel."""
        figure = self._figure_type(figsize=(_WIDTH, height), layout="constrained")
        self.figures.append(figure)
        return figure.subplots()


Legend = list[tuple[str, int]]
DrawFunction = Callable[[_Panels, Comparison], Legend]


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
        "little where they would cover each other": _frontier,
        "Difference to the reference in points, paired by problem, with 95% intervals":
            _differences,
        "Pass@k at equal k, and at equal forward tokens, with 95% intervals; as in the tables, a "
        "budget that buys less than one sample has no point. Points are moved sideways a little "
        "where they would cover each other": _curves,
        "AUC of each system, with 95% intervals": _auc_bars,
        "Cost against quality: forward tokens of a sample, and its seconds in the batch that it "
        "shares, against AUC, with 95% intervals": _cost,
        "AUC of each seed alone, as points: median, quartiles, and whiskers to the last seed "
        "within 1.5 times their distance": _seeds,
        "Gain of each model over its best base system, in points of AUC, paired by problem, with "
        "95% intervals": _scaling,
        "Terms of the score at every boundary, the chosen candidate and the rejected ones: median, "
        "quartiles, and whiskers to the last value within 1.5 times their distance": _terms,
        "Similarity of the candidates of a boundary: APCS and N_eff; the last bar includes larger "
        "values": _spread,
        "Movement of the states: curvature κ and angle θ; the last bar includes larger values":
            _movement,
        "Curvature and effective dimension against AUC; a point is a problem, a cross the medians "
        "of a system, with the quartiles of both": _against_auc,
        "Sensitivity of AUC to the rollout length s and the number of candidates K, with 95% "
        "intervals": _sensitivity,
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
            panels = _Panels(figure_type)
            legend = draw(panels, compared)
            if panels.figures:
                plots.append(Plot(caption, [_svg(figure) for figure in panels.figures], legend))
    return plots


def color(number: int) -> str:
    """The colour of a system, the same in every plot, as CSS."""
    return f"var(--s{number % len(COLORS)})"


def marker(number: int) -> str:
    """The marker of a system; no two of the first 50 share both marker and colour."""
    return MARKERS[(number + number // len(COLORS)) % len(MARKERS)]


def _svg(figure: Any) -> str:
    """The picture without fixed colours, and without ids that nothing refers to, which several
    pictures on one page would share."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace("#000000", "currentColor")
    for i, hex_color in enumerate(COLORS):
        text = text.replace(hex_color, color(i))
    text = text.replace(_PAPER, "var(--page)")
    used = set(re.findall(r"#([\w-]+)", text))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)


# ---- each function draws panels, none where it has no data, and returns the legend ----


def _frontier(panels: _Panels, compared: Comparison) -> Legend:
    if compared.one is None:
        return []
    axes = panels.new(1.3 * _HEIGHT)
    best, x = [], 0.0
    for point in compared.one.points:
        x, accuracy = max(point.tokens, 1.025 * x), _in_percent(point.accuracy)
        number = _number(compared, point.outcome)
        _errorbar(axes, [x], [accuracy.mean], ys_of=[accuracy], number=number)
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
    _name_points(axes, best, [_cut(point.outcome.label) for point in compared.one.best])
    return [
        (point.outcome.label, _number(compared, point.outcome)) for point in compared.one.points
    ]


def _name_points(axes: Any, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Names the points of a frontier, which rises to the right: above each and to its left, where
    no other point is, or below and to its right where the left edge is too near. No name covers
    another one."""
    width, height = (72 * 0.8 * inches for inches in axes.figure.get_size_inches())  # of the axes
    bottom, top = axes.get_ylim()
    line = (top - bottom) * _LINE / height
    low, high = np.log(axes.get_xlim())
    lefts = [(np.log(x) - low) / (high - low) * width for x, _ in points]
    named = list(zip(points, names, lefts, strict=True))
    above = [(x, y, name) for (x, y), name, left in named if left >= _LETTER * len(name)]
    below = [(x, y, name) for (x, y), name, left in named if left < _LETTER * len(name)]
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
        ha=side, fontsize=9, bbox={"fc": _PAPER, "ec": "none", "alpha": 0.8, "pad": 0.3},
    )  # fmt: skip


def _differences(panels: _Panels, compared: Comparison) -> Legend:
    shown = []
    if compared.one:
        ones = [(point.outcome, point.gain) for point in compared.one.points]
        shown.append(("one answer", compared.one.base.outcome, ones))
    for curves, title in ((compared.at_k, "equal k"), (compared.at_tokens, "equal forward tokens")):
        if curves is not None:
            gains = [(curve.outcome, curves.gain(curve.outcome)) for curve in curves.curves]
            shown.append((title, curves.base, gains))
    for title, base, gains in shown:
        rows = [(outcome, gain) for outcome, gain in gains if gain is not None]
        if not rows:
            continue
        axes = panels.new(max(_HEIGHT / 2, 1.0 + _ROW * len(rows)))
        axes.axvline(0, color="black", lw=1)
        for y, (outcome, gain) in enumerate(rows):
            _errorbar(axes, [gain.mean], [y], xs_of=[gain], number=_number(compared, outcome))
        axes.set_yticks(range(len(rows)), [_short(outcome.label) for outcome, _ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"points minus {base.label}")
        axes.set_title(title)
    return []


def _curves(panels: _Panels, compared: Comparison) -> Legend:
    if compared.at_k is None or compared.at_tokens is None:
        return []
    shown = [(compared.at_k, "equal k", "k")]
    shown.append((compared.at_tokens, "equal forward tokens", "forward tokens per problem"))
    if all(len(curves.places) < 2 for curves, *_ in shown):
        return []
    for curves, title, name in shown:
        axes = panels.new()
        _draw_curves(axes, curves, compared)
        axes.set(xscale="log", xlabel=name, ylabel="Pass (%)", title=title)
        names = [f"{place:,.0f}" for place in curves.places]
        axes.set_xticks(curves.places, names, rotation=30 if len("".join(names)) > 32 else 0)
        axes.minorticks_off()
    return [(outcome.label, _number(compared, outcome)) for outcome in compared.graded]


def _draw_curves(axes: Any, curves: Curves, compared: Comparison) -> None:
    """Every interval of the table; lines that would lie on each other are moved sideways."""
    n = len(curves.curves)
    for i, curve in enumerate(curves.curves):
        moved = [place * 1.012 ** (2 * i - n + 1) for place in curves.places]
        points = [(x, found) for x, found in zip(moved, curve.intervals, strict=True) if found]
        found = [_in_percent(one) for _, one in points]
        _errorbar(axes, [x for x, _ in points], [one.mean for one in found], ys_of=found,
                  number=_number(compared, curve.outcome), line="-")  # fmt: skip


def _auc_bars(panels: _Panels, compared: Comparison) -> Legend:
    measured = [outcome for outcome in compared.graded if len(outcome.aucs)]
    if len(measured) < 2:
        return []
    axes = panels.new(max(_HEIGHT / 2, 0.8 + _ROW * len(measured)))
    for y, outcome in enumerate(measured):
        auc, number = metrics.interval(outcome.aucs, top=100), _number(compared, outcome)
        axes.barh(y, auc.mean, 0.6, color=COLORS[number % len(COLORS)])
        axes.errorbar([auc.mean], [y], xerr=_arms([auc]), fmt="none", color="black", lw=1)
    axes.set_yticks(range(len(measured)), [_short(outcome.label) for outcome in measured])
    axes.set(ylim=(len(measured) - 0.5, -0.5), xlim=(0, None), xlabel="AUC")
    return []


def _seeds(panels: _Panels, compared: Comparison) -> Legend:
    """As the table `tables.by_seed`: the same seeds and k."""
    seeds, ks = common_seeds(compared.graded)
    if len(seeds) < 3 or len(ks) < 2:
        return []  # a box of two points shows nothing else
    axes = panels.new(max(_HEIGHT / 2, 0.8 + _ROW * len(compared.graded)))
    rows = [[o.auc_of_seed(seed, ks) for seed in seeds] for o in compared.graded]
    axes.boxplot(rows, orientation="horizontal", showfliers=False, widths=0.6)
    for y, (outcome, row) in enumerate(zip(compared.graded, rows, strict=True), 1):
        number = _number(compared, outcome)
        axes.plot(row, [y] * len(row), marker(number), ms=4, color=COLORS[number % len(COLORS)])
    labels = [_short(outcome.label) for outcome in compared.graded]
    axes.set_yticks(range(1, len(labels) + 1), labels)
    axes.invert_yaxis()
    axes.set(xlabel=f"AUC of a seed, k = {ks[0]} to {ks[-1]}")
    return []


def _scaling(panels: _Panels, compared: Comparison) -> Legend:
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
                best = max(plain, key=lambda one: float(one.aucs.mean()))
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
        _errorbar(axes, [size for size, _ in line], [gain.mean for gain in gains], ys_of=gains,
                  number=number, line="-")  # fmt: skip
    axes.set(xscale="log", xlabel="parameters (billions)", ylabel="points of AUC minus base")
    sizes = sorted({size for line in several.values() for size, _ in line})
    axes.set_xticks(sizes, [f"{size:.3g}" for size in sizes])
    axes.minorticks_off()
    return [(name, number) for number, name in enumerate(several)]


def _cost(panels: _Panels, compared: Comparison) -> Legend:
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
            number = _number(compared, outcome)
            _errorbar(axes, [value], [auc.mean], ys_of=[auc], number=number)
        axes.set(xlabel=name, ylabel="AUC")
    return [(outcome.label, _number(compared, outcome)) for outcome in measured]


def _terms(panels: _Panels, compared: Comparison) -> Legend:
    searching = [o for o in compared.found if any("S" in b for b in o.boundaries)]
    for term, name in _TERMS.items() if searching else ():
        boxes, labels = [], []
        for outcome in searching:
            chosen, rejected = _chosen_and_rejected(outcome, term)
            boxes += [chosen, rejected]
            labels += [f"{_short(outcome.label)}, chosen", "rejected"]
        axes = panels.new(max(_HEIGHT / 2, 0.8 + _ROW * len(boxes)))
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


def _spread(panels: _Panels, compared: Comparison) -> Legend:
    return _histograms(panels, compared, {"apcs": "APCS", "n_eff": "N_eff"})


def _movement(panels: _Panels, compared: Comparison) -> Legend:
    return _histograms(panels, compared, {"curvature": "curvature κ", "angle": "angle θ (radians)"})


def _histograms(panels: _Panels, compared: Comparison, names: dict[str, str]) -> Legend:
    legend = {}
    for name, label in names.items():
        measured = [(outcome, outcome.measure(name)) for outcome in compared.found]
        measured = [(outcome, values) for outcome, values in measured if len(values)]
        if not measured:
            continue
        axes = panels.new()
        everything = np.concatenate([values for _, values in measured])
        high = np.percentile(everything, _SHOWN)  # a few outliers would squeeze the rest
        bins = np.linspace(everything.min(), high + 1e-9, 31)
        for outcome, values in measured:
            number = _number(compared, outcome)
            axes.hist(
                values.clip(max=high), bins, weights=np.full(len(values), 1 / len(values)),
                histtype="step", color=COLORS[number % len(COLORS)],
            )  # fmt: skip
            legend[outcome.label] = number
        axes.set(xlabel=label, ylabel="share of boundaries")
    return list(legend.items())


def _against_auc(panels: _Panels, compared: Comparison) -> Legend:
    legend = {}
    for name, label in {"curvature": "mean curvature κ", "n_eff": "mean N_eff"}.items():
        measured = [(outcome, outcome.against_auc(name)) for outcome in compared.graded]
        measured = [(outcome, points) for outcome, points in measured if len(points)]
        if not measured:
            continue
        axes = panels.new()
        for outcome, points in measured:
            number = _number(compared, outcome)
            own = COLORS[number % len(COLORS)]
            axes.plot(*points.T, ".", ms=4, alpha=0.4, color=own)
            low, middle, high = np.percentile(points, (25, 50, 75), axis=0)
            arms = np.stack([middle - low, high - middle])  # [2, x and y]
            axes.errorbar(*middle, xerr=arms[:, :1], yerr=arms[:, 1:], fmt="X", ms=9, color=own)
            legend[outcome.label] = number
        axes.set(xlabel=label, ylabel="AUC")
    return list(legend.items())


def _sensitivity(panels: _Panels, compared: Comparison) -> Legend:
    legend: dict[str, int] = {}
    names = {"rollout_len": "rollout length s (tokens)", "n_candidates": "candidates K"}
    for name, label in names.items():
        lines = _differing_in(compared.graded, name)
        if not lines:
            continue
        axes, ticks = panels.new(), set()
        for title, line in lines.items():
            xs = [outcome.system["config"][name] for outcome in line]
            found = [metrics.interval(outcome.aucs, top=100) for outcome in line]
            number = legend.setdefault(title, len(legend))
            _errorbar(axes, xs, [one.mean for one in found], ys_of=found, number=number, line="-")
            ticks |= set(xs)
        axes.set_xticks(sorted(ticks), [str(x) for x in sorted(ticks)])
        axes.set(xlabel=label, ylabel="AUC")
    return list(legend.items())


def _differing_in(found: Sequence[Outcome], name: str) -> dict[str, list[Outcome]]:
    """Groups of two or more systems of one method that differ in this option only."""
    alike: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in found:
        if len(outcome.aucs) and any("S" in boundary for boundary in outcome.boundaries):
            rest = {key: v for key, v in outcome.system["config"].items() if key != name}
            model = outcome.run.manifest.model["sha256"]
            alike[json.dumps([model, outcome.system["method"], rest], sort_keys=True)].append(
                outcome
            )
    lines = [sorted(some, key=lambda o: o.system["config"][name]) for some in alike.values()]
    return {line[0].system["method"]: line for line in lines if len(line) > 1}


def _errorbar(
    axes: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    number: int,
    xs_of: Sequence[Interval] = (),
    ys_of: Sequence[Interval] = (),
    line: str = "",
) -> None:
    """Points with the intervals of their x or y; `number` is that of the system."""
    axes.errorbar(
        xs, ys, xerr=_arms(xs_of), yerr=_arms(ys_of), fmt=marker(number) + line,
        ms=5, lw=1.5, elinewidth=1, color=COLORS[number % len(COLORS)],
    )  # fmt: skip


def _arms(found: Sequence[Interval]) -> list[list[float]] | None:
    """[2, n] the distances of the edges of intervals from their means."""
    if not found:
        return None
    return [[one.mean - one.low for one in found], [one.high - one.mean for one in found]]


def _in_percent(share: Interval) -> Interval:
    return Interval(100 * share.mean, 100 * share.low, 100 * share.high)


def _number(compared: Comparison, outcome: Outcome) -> int:
    return compared.found.index(outcome)


def _short(label: str) -> str:
    """A label that leaves room for the data."""
    return "\n".join(textwrap.wrap(_cut(label, 44), 22))


def _cut(label: str, most: int = 28) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
