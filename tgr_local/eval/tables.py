"""The tables of a report, as text: what stands in them is `summary`'s."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tgr_local.eval import metrics, summary
from tgr_local.eval.metrics import Interval
from tgr_local.eval.summary import Outcome
from tgr_local.search.diagnostics import CYCLING

PAPER = Path(__file__).parent / "paper.csv"
_PAPER_MODEL = "Qwen3-8B"  # shown where the run's own model is not one of the paper's


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def of_task(found: Sequence[Outcome], recipes: Sequence[str]) -> list[Table]:
    """Every table that the outcomes of one task fill, and the paper's for these recipes."""
    graded = [outcome for outcome in found if outcome.graded]
    tables = [equal_k(graded), equal_tokens(graded)] if graded else []
    tables += [votes(graded), came_out(graded)] if graded else []
    if found[0].metric != "pass" or "open-ended" in recipes:
        tables.append(open_ended(graded or found))
    tables += [cost(found), overhead(found), latent(found), against_auc(graded)]
    tables.append(own_figures(found))
    for recipe in recipes:
        tables += reported(recipe, found[0].task, found[0].run.manifest.model["name"])
    return [table for table in tables if table.rows]


def equal_k(graded: Sequence[Outcome]) -> Table:
    """Pass@k, AUC, and the difference to the reference."""
    ks, base = graded[0].ks, summary.reference(graded)
    measure, name = _headline(ks)
    columns = ["system", *(f"Pass@{k}" for k in ks), *(["AUC"] if len(ks) > 1 else [])]
    rows = []
    for outcome in graded:
        edges = (ks[0], ks[-1])
        cells = [_mean(outcome.passed(k), with_interval=k in edges) for k in ks]
        cells += [_mean(outcome.aucs, scale=1)] if len(ks) > 1 else []
        scale = 1 if len(ks) > 1 else 100
        against = "-" if outcome is base else _signed(
            summary.difference(outcome, base, measure), scale
        )  # fmt: skip
        n_samples = sum(map(len, outcome.graded.values()))
        rows.append([outcome.label, *cells, against, f"{len(outcome.graded):,}", f"{n_samples:,}"])
    return Table(
        "At equal k",
        [*columns, f"{name}, minus {base.label}", "problems", "samples"],
        rows,
        "Percent; in brackets 95% bootstrap intervals over problems. Pass@k is unbiased, AUC is "
        "the area under it over log2 k, differences are paired by problem."
        + _chosen_base(graded, base, name),
    )


def equal_tokens(graded: Sequence[Outcome]) -> Table:
    """Pass@budget at budgets that every system's samples fill; nothing where one does not fit."""
    budgets = summary.common_budgets(graded)
    largest = budgets[-1]
    bought = {outcome: outcome.at_budgets(budgets) for outcome in graded}
    at_largest = {outcome: passed[-1] for outcome, (passed, _) in bought.items()}
    base = summary.reference(graded, lambda outcome: float(at_largest[outcome].mean()))
    rows = []
    for outcome, (passed, fitting) in bought.items():
        cells = [
            _mean(row, with_interval=budget is largest) if n.mean() >= 1 else "-"
            for budget, row, n in zip(budgets, passed, fitting, strict=True)
        ]
        against = "-" if outcome is base or fitting[-1].mean() < 1 else _signed(
            summary.difference(outcome, base, at_largest.__getitem__), 100
        )  # fmt: skip
        rows.append([outcome.label, *cells, against, f"{fitting[-1].mean():.1f}"])
    columns = [f"{budget.mean:,.0f} tokens" for budget in budgets]
    return Table(
        "At equal forward tokens",
        ["system", *columns, f"{largest.mean:,.0f}, minus {base.label}", "samples bought"],
        rows,
        "Percent of problems with a right sample among those that so many forward tokens buy, over "
        "random orders of the samples; the last sample counts with the share of its cost that was "
        "left, and - stands where less than one is bought. "
        + (
            "Every problem has the same budget."
            if len(set(largest.of.values())) == 1
            else "A problem's budget is what all samples of the cheapest system took on it, or a "
            "half, a quarter and so on; means over problems head the columns."
        )
        + _chosen_base(graded, base, f"the share at {largest.mean:,.0f} tokens"),
    )


def votes(graded: Sequence[Outcome]) -> Table:
    """One answer out of k: the most frequent, or the likeliest text."""
    ks = [k for k in graded[0].ks if k > 1]
    rows = []
    for outcome in graded if ks else ():
        if any(sample.answer is not None for sample in outcome.all_samples):
            rows.append([f"{outcome.label}, majority", *(_mean(outcome.majority(k)) for k in ks)])
        rows.append([f"{outcome.label}, likeliest", *(_mean(outcome.best_of(k)) for k in ks)])
    return Table(
        "One answer from k",
        ["system", *(f"k={k}" for k in ks)],
        rows,
        "Percent right of the most frequent extracted answer, and of the text with the highest "
        "mean log-likelihood, taken from the same samples.",
    )


def came_out(graded: Sequence[Outcome]) -> Table:
    """Pass@k without an estimator."""
    rows = []
    ks = [k for k in graded[0].ks if not any(np.isnan(o.passed_first(k)).any() for o in graded)]
    for outcome in graded if ks else ():
        rows.append([outcome.label, *(_mean(outcome.passed_first(k)) for k in ks)])
    return Table(
        "Any of the first k",
        ["system", *(f"k={k}" for k in ks)],
        rows,
        "Percent of problems with a right sample among the first k of a seed, averaged over seeds: "
        "Pass@k as it came out, with more noise than the estimate above.",
    )


def open_ended(found: Sequence[Outcome]) -> Table:
    """Scores from 0 to 1, and how alike the texts of a problem are."""
    ks = found[0].ks
    scored = found[0].metric == "score"
    n, problems = summary.equal_texts(found)
    rows = []
    for outcome in found:
        cells = [_mean(outcome.top_score(k)) for k in ks] if scored else []
        rows.append([outcome.label, *cells, _mean(outcome.self_bleu(n, problems), scale=1)])
    columns = [f"best score of {k}" for k in ks] if scored else []
    return Table(
        "Open answers",
        ["system", *columns, f"Self-BLEU@{n}"],
        rows if scored or n else [],
        f"{'Scores in percent. ' if scored else ''}Self-BLEU compares the first {n} texts of each "
        f"of {len(problems)} problems, the same number in every system; low is diverse.",
    )


def cost(found: Sequence[Outcome]) -> Table:
    """What a sample takes."""
    made = [outcome for outcome in found if outcome.all_samples]
    kinds = [
        kind
        for kind in dict.fromkeys(kind for outcome in made for kind in outcome.counts)
        if any(outcome.counts.get(kind) for outcome in made)
    ]
    rows = [
        [
            outcome.label,
            *(f"{outcome.counts.get(kind, 0):.0f}" for kind in kinds),
            f"{outcome.cost:.0f}",
            f"{outcome.kept:.0f}",
            f"{outcome.seconds:.2f}",
            _number(outcome.rate, "{:,.0f}"),
            ", ".join(f"{name} {n}" for name, n in outcome.finishes.most_common()),
        ]
        for outcome in made
    ]
    return Table(
        "Cost of a sample",
        ["system", *kinds, "forward tokens", "tokens kept", "seconds", "tokens/s", "ends"],
        rows,
        "Means over all samples. Seconds are those of a sample in the batch that it shared; "
        "tokens/s are forward tokens of the whole batch.",
    )


def overhead(found: Sequence[Outcome]) -> Table:
    """Where the seconds go, relative to the writing of the text itself. In a batch they say nothing
    of one reply, so only what was made one at a time is shown."""
    made = [o for o in found if o.parts.get("chunk") and o.was_alone]
    if not made:
        return Table("Overhead", [], [])
    base = summary.reference(made)
    parts = [p for p in dict.fromkeys(p for o in made for p in o.parts) if p != "chunk"]

    def per_token(outcome: Outcome) -> float:
        return sum(outcome.parts.values()) / max(outcome.kept, 1)

    rows = []
    for outcome in made:
        chunk = outcome.parts["chunk"]
        shares = (f"{outcome.parts.get(part, 0) / chunk:.2f}" for part in parts)
        ratio = per_token(outcome) / per_token(base)
        tokens = outcome.cost / max(outcome.kept, 1)
        rows.append([outcome.label, "1.00", *shares, f"{ratio:.2f}", f"{tokens:.2f}"])
    return Table(
        "Overhead",
        ["system", "chunk", *parts, f"seconds a token / {base.label}", "forward tokens a token"],
        rows,
        "Seconds by part, the writing of the chunks being 1, and all seconds for a token kept, "
        "relative to the reference; one sample at a time.",
    )


def latent(found: Sequence[Outcome]) -> Table:
    """Means of the measures of method.md over boundaries."""
    names = {
        "apcs": "APCS",
        "min_cosine": "min cosine",
        "n_eff": "N_eff",
        "similarity": "cos(z_t, z_t-1)",
        "angle": "angle",
        "curvature": "curvature",
    }
    rows = []
    for outcome in found:
        if not any(len(outcome.measure(name)) for name in names):
            continue
        cells = [_plain_mean(outcome.measure(name)) for name in names]
        cycling = _plain_mean((outcome.measure("similarity") > CYCLING).astype(float))
        rows.append([outcome.label, *cells, cycling, str(len(outcome.boundaries))])
    return Table(
        "Latent statistics",
        ["system", *names.values(), "cycling", "boundaries"],
        rows,
        "Means over boundaries: how alike the candidates are, how far the chain moves, how it "
        f"turns; cycling is the share of steps with a cosine over {CYCLING}. Angles in radians.",
    )


def against_auc(graded: Sequence[Outcome]) -> Table:
    """Whether problems on which the chain turns more, or candidates differ more, are solved more
    often."""
    names = {"curvature": "curvature", "n_eff": "N_eff", "apcs": "APCS"}
    rows = []
    for outcome in graded:
        points = {name: outcome.against_auc(name) for name in names}
        if any(len(some) for some in points.values()):
            cells = [
                cell
                for some in points.values()
                for cell in (_plain_mean(some[:, 0]), _correlation(some))
            ]
            rows.append([outcome.label, _mean(outcome.aucs, scale=1), *cells])
    columns = [column for name in names.values() for column in (name, f"{name} ~ AUC")]
    return Table(
        "Geometry against AUC",
        ["system", "AUC", *columns],
        rows,
        "Means over problems, and Spearman's rank correlation over problems of the measure's mean "
        "with AUC; in brackets 95% bootstrap intervals.",
    )


def own_figures(found: Sequence[Outcome]) -> Table:
    """What methods report of themselves, such as an acceptance rate."""
    seen = (b.get("figures", {}) for outcome in found for b in outcome.boundaries)
    names = sorted({name for figures in seen for name in figures})
    with_rate = {"accepted", "proposals"} <= set(names)
    rows = []
    for outcome in found:
        counts = {name: outcome.figure(name) for name in names}
        if any(map(len, counts.values())):
            cells = [_plain_mean(values) for values in counts.values()]
            rows.append([outcome.label, *cells, *(_acceptance(counts) if with_rate else [])])
    return Table(
        "What the methods report",
        ["system", *names, *(["α", "1/α"] if with_rate else [])],
        rows,
        "Means over samples of what each counted."
        + (" α is all that was accepted over all that was proposed." if with_rate else ""),
    )


def _acceptance(counts: Mapping[str, Floats]) -> list[str]:
    proposed, accepted = counts["proposals"].sum(), counts["accepted"].sum()
    if not proposed:
        return ["-", "-"]
    return [f"{accepted / proposed:.3g}", f"{proposed / accepted:.3g}" if accepted else "-"]


def reported(recipe: str, task: str, model: str) -> list[Table]:
    """The paper's own figures for a recipe's table and task; none where it has no such table."""
    with PAPER.open(encoding="utf-8", newline="") as file:
        lines = [
            line
            for line in csv.DictReader(file)
            if line["table"] == recipe and (task in line["task"] or line["task"] == "all")
        ]
    models = {line["model"] for line in lines}
    own = [name for name in models if model.lower().startswith(name.lower())]
    other = "" if own else f", and {model} is another model"
    own = own or sorted(models & {_PAPER_MODEL})
    if recipe == "hard-filter":
        own = sorted(models, key=lambda name: float(name.removeprefix("Qwen3-").rstrip("B")))
    tables = []
    for name in own:
        some = [line for line in lines if line["model"] == name]
        columns = list(dict.fromkeys(line["measure"] for line in some))
        cells = {(line["system"], line["measure"]): line["value"] for line in some}
        rows = [
            [system, *(cells.get((system, column), "-") for column in columns)]
            for system in dict.fromkeys(line["system"] for line in some)
        ]
        note = f"Reported by the paper for the full-precision {name}; not measured here{other}."
        tables.append(Table(f"As the paper reports it: {name}", ["system", *columns], rows, note))
    return tables


# ---- cells ----

Floats = NDArray[np.float64]


def _headline(ks: Sequence[int]) -> tuple[Callable[[Outcome], Floats], str]:
    if len(ks) > 1:
        return (lambda outcome: outcome.aucs), "AUC"
    return (lambda outcome: outcome.passed(ks[0])), f"Pass@{ks[0]}"


def _mean(values: Floats, *, scale: float = 100, with_interval: bool = True) -> str:
    if not len(values):
        return "-"
    if not with_interval:
        return f"{scale * values.mean():.1f}"
    return _with_interval(metrics.interval(values), scale, ".1f")


def _signed(found: Interval, scale: float) -> str:
    return _with_interval(found, scale, "+.1f")


def _with_interval(found: Interval, scale: float, shape: str) -> str:
    """Without one where the values do not differ: resamples of them say nothing."""
    low, high = format(scale * found.low, shape), format(scale * found.high, shape)
    mean = format(scale * found.mean, shape)
    return f"{mean} [{low}, {high}]" if low != high else mean


def _plain_mean(values: Floats) -> str:
    return f"{values.mean():.3g}" if len(values) else "-"


def _number(value: float, shape: str) -> str:
    return "-" if math.isnan(value) else shape.format(value)


def _correlation(points: Floats) -> str:
    found = metrics.rank_correlation(*points.T)
    if math.isnan(found.mean):
        return "-"
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _chosen_base(graded: Sequence[Outcome], base: Outcome, measure: str) -> str:
    """How the reference came to be, where it could have been another."""
    n = sum(outcome.system["method"] == "base" for outcome in graded)
    named = base.system["name"] == base.run.manifest.reference
    return "" if named or n < 2 else f" {base.label} is the best of {n} base systems by {measure}."
