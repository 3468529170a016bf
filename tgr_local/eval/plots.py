"""The plots of a report, as inline SVG. Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

import importlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgr_local.errors import InstallError
from tgr_local.eval import metrics
from tgr_local.eval.outcome import Outcome, common_budgets

_TERMS = {
    "V": "foresight V",
    "P_bum": "bumpiness P_bum",
    "P_uni": "uniformity P_uni",
    "S": "score S",
}
_SIZE = (8.0, 3.6)  # inches
_SHOWN = 99.5  # percent of values in a histogram; larger ones are in the last bar


@dataclass(frozen=True)
class Plot:
    """One plot with its caption."""

    caption: str
    svg: str


DrawFunction = Callable[[Any, Sequence[Outcome]], bool]


def of_task(found: Sequence[Outcome]) -> list[Plot]:
    """Every plot for which the outcomes of one task have data. InstallError without matplotlib."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        new_canvas: Any = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise InstallError(
            "the plots need matplotlib; run: pip install 'tgr-local[plot]'"
        ) from None
    drawings: dict[str, DrawFunction] = {
        "Pass@k at equal k, and at equal forward tokens": _curves,
        "Forward tokens of a sample against AUC, with 95% intervals": _cost,
        "Terms of the score at every boundary: the chosen candidate and the rejected ones": _terms,
        "Similarity of the candidates of a boundary: APCS and N_eff": _spread,
        "Movement of the states: curvature κ and angle θ; the last bar includes larger values":
            _movement,
        "Curvature and effective dimension against AUC; a point is a problem, a cross a system":
            _against_auc,
        "Sensitivity of AUC to the rollout length s and the number of candidates K":
            _sensitivity,
    }  # fmt: skip
    plots = []
    colors = matplotlib.colormaps["tab20"].colors
    cycle = matplotlib.cycler(color=colors[::2] + colors[1::2])  # strong colours first
    style = {"svg.hashsalt": "tgr-local", "svg.fonttype": "none", "axes.prop_cycle": cycle,
             "font.size": 9, "axes.titlesize": 9,
             "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    with matplotlib.rc_context(defaults | style):  # not those of a matplotlibrc in this folder
        for caption, draw in drawings.items():
            canvas = new_canvas(figsize=_SIZE, layout="constrained")
            if draw(canvas, found):
                plots.append(Plot(caption, _svg(canvas)))
    return plots


def _svg(canvas: Any) -> str:
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


# ---- each function draws on a canvas, and returns False where it has no data ----


def _curves(canvas: Any, found: Sequence[Outcome]) -> bool:
    graded = [outcome for outcome in found if outcome.graded]
    if not graded or len(graded[0].ks) < 2:
        return False
    left, right = canvas.subplots(1, 2, sharey=True)
    budgets = common_budgets(graded, n=10)
    means = [budget.mean for budget in budgets]
    for outcome in graded:
        curve = [metrics.interval(outcome.passed(k)) for k in outcome.ks]
        color = _color(found, outcome)
        left.plot(outcome.ks, [100 * c.mean for c in curve], "o-", ms=3, color=color)
        left.fill_between(
            outcome.ks, [100 * c.low for c in curve], [100 * c.high for c in curve],
            color=color, alpha=0.12, lw=0,
        )  # fmt: skip
        passed, _ = outcome.at_budgets(budgets)
        right.plot(means, 100 * passed.mean(axis=1), "o-", ms=3, color=color, label=outcome.label)
    left.set(xscale="log", xlabel="k", ylabel="Pass (%)", title="equal k")
    left.set_xticks(graded[0].ks, [str(k) for k in graded[0].ks])
    left.minorticks_off()
    right.set(xscale="log", xlabel="forward tokens per problem", title="equal forward tokens")
    right.set_xticks(means, [f"{mean:,.0f}" for mean in means])
    right.minorticks_off()
    _legend(canvas)
    return True


def _cost(canvas: Any, found: Sequence[Outcome]) -> bool:
    graded = [outcome for outcome in found if len(outcome.aucs)]
    axes = canvas.subplots()
    for outcome in graded:
        auc = metrics.interval(outcome.aucs)
        error = [[auc.mean - auc.low], [auc.high - auc.mean]]
        axes.errorbar(
            outcome.cost,
            auc.mean,
            yerr=error,
            fmt="o",
            capsize=2,
            color=_color(found, outcome),
            label=outcome.label,
        )
    axes.set(xlabel="forward tokens per sample", ylabel="AUC")
    _legend(canvas)
    return bool(graded)


def _terms(canvas: Any, found: Sequence[Outcome]) -> bool:
    searching = [o for o in found if any("S" in b for b in o.boundaries)][:6]
    if not searching:
        return False
    for axes, (term, name) in zip(canvas.subplots(1, len(_TERMS)), _TERMS.items(), strict=True):
        boxes, labels = [], []
        for outcome in searching:
            chosen, rejected = _chosen_and_rejected(outcome, term)
            boxes += [chosen, rejected]
            labels += [f"{outcome.label}, chosen", "rejected"]
        axes.boxplot(boxes, orientation="horizontal", showfliers=False, widths=0.6)
        axes.set_title(name)
        axes.set_yticks(range(1, len(labels) + 1), labels if term == "V" else [""] * len(labels))
        axes.invert_yaxis()
    return True


def _chosen_and_rejected(outcome: Outcome, term: str) -> tuple[list[float], list[float]]:
    chosen, rejected = [], []
    for boundary in outcome.boundaries:
        if term in boundary:
            values = list(boundary[term])
            chosen.append(values.pop(boundary["chosen"]))
            rejected += values
    return chosen, rejected


def _spread(canvas: Any, found: Sequence[Outcome]) -> bool:
    return _histograms(canvas, found, {"apcs": "APCS", "n_eff": "N_eff"})


def _movement(canvas: Any, found: Sequence[Outcome]) -> bool:
    return _histograms(canvas, found, {"curvature": "curvature κ", "angle": "angle θ (radians)"})


def _histograms(canvas: Any, found: Sequence[Outcome], names: dict[str, str]) -> bool:
    some = False
    for axes, (name, label) in zip(canvas.subplots(1, len(names)), names.items(), strict=True):
        measured = [(outcome, outcome.measure(name)) for outcome in found]
        everything = np.concatenate([values for _, values in measured])
        for outcome, values in measured:
            if len(values):
                high = np.percentile(everything, _SHOWN)  # a few outliers would squeeze the rest
                bins = np.linspace(everything.min(), high + 1e-9, 31)
                axes.hist(
                    values.clip(max=high), bins, weights=np.full(len(values), 1 / len(values)),
                    histtype="step", color=_color(found, outcome), label=outcome.label,
                )  # fmt: skip
                some = True
        axes.set(xlabel=label, ylabel="share of boundaries")
    _legend(canvas)
    return some


def _against_auc(canvas: Any, found: Sequence[Outcome]) -> bool:
    some = False
    names = {"curvature": "mean curvature κ", "n_eff": "mean N_eff"}
    for axes, (name, label) in zip(canvas.subplots(1, 2, sharey=True), names.items(), strict=True):
        for outcome in found:
            points = outcome.against_auc(name)
            if len(points):
                color = _color(found, outcome)
                axes.plot(*points.T, ".", ms=4, alpha=0.4, color=color)
                axes.plot(*points.mean(axis=0), "X", ms=9, color=color, label=outcome.label)
                some = True
        axes.set(xlabel=label, ylabel="AUC")
    _legend(canvas)
    return some


def _sensitivity(canvas: Any, found: Sequence[Outcome]) -> bool:
    some = False
    names = {"rollout_len": "rollout length s (tokens)", "n_candidates": "candidates K"}
    for axes, (name, label) in zip(canvas.subplots(1, 2, sharey=True), names.items(), strict=True):
        for title, line in _differing_in(found, name).items():
            bars = [metrics.interval(outcome.aucs) for outcome in line]
            xs = [outcome.system["config"][name] for outcome in line]
            errors = [[b.mean - b.low for b in bars], [b.high - b.mean for b in bars]]
            axes.errorbar(
                xs, [b.mean for b in bars], errors, fmt="o-", ms=3, capsize=2, label=title
            )
            axes.set_xticks(xs, [str(x) for x in xs])
            axes.legend(frameon=False)
            some = True
        axes.set(xlabel=label, ylabel="AUC")
    return some


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


def _color(found: Sequence[Outcome], outcome: Outcome) -> str:
    """The colour of a system, the same in every plot."""
    return f"C{found.index(outcome) % 20}"


def _legend(canvas: Any) -> None:
    """One legend beside all axes."""
    entries: dict[str, Any] = {}
    for axes in canvas.axes:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        canvas.legend(
            entries.values(), entries.keys(), loc="outside right upper", frameon=False, fontsize=8
        )
