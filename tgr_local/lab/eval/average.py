"""Several tasks in one table, as in the paper: AUC on each task, their mean, and its change.

In: the comparisons of the tasks. Out: tables; none for a single task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tgr_local.lab.eval import metrics, paper
from tgr_local.lab.eval.comparison import Comparison
from tgr_local.lab.eval.metrics import Interval
from tgr_local.lab.eval.outcome import Outcome, reference
from tgr_local.lab.eval.table_cells import Table, mean, points, signed

_NOTE = (
    "Avg AUC is the mean over tasks, each counting the same. Δ% is its change relative to the "
    "reference's, 100 · (Avg AUC / that of the reference − 1)."
)


def tables(compared: Sequence[Comparison], recipes: Sequence[str]) -> list[Table]:
    """The table of these tasks, and the paper's for the same tasks and model."""
    found = [ours(compared)]
    if len(compared) > 1:
        tasks = [one.found[0].task for one in compared]
        model = compared[0].found[0].run.manifest.model["name"]
        found += [theirs(recipe, tasks, model) for recipe in recipes]
    return [table for table in found if table.rows]


def ours(compared: Sequence[Comparison]) -> Table:
    """AUC of every system on every task that compares it; the mean of those that are on all."""
    with_auc = [one for one in compared if any(len(o.aucs) for o in one.graded)]
    of_task = [{o.label: o for o in one.graded} for one in with_auc]
    labels = dict.fromkeys(label for some in of_task for label in some)
    whole = {
        label: [some[label] for some in of_task]
        for label in labels
        if all(label in some for some in of_task)
    }
    if len(of_task) < 2 or not whole:
        return Table("All tasks", [], [])
    first = [outcomes[0] for outcomes in whole.values()]
    base = reference(first, lambda o: _average(whole[o.label])).label
    rows = []
    for label in labels:
        cells = [mean(some[label].aucs, scale=1) if label in some else "-" for some in of_task]
        cells += _summary(whole[label], whole[base]) if label in whole else ["-"] * 4
        rows.append([label, *cells])
    tasks = [one.found[0].task for one in with_auc]
    return Table(
        "All tasks",
        ["system", *tasks, "Avg AUC", "Δ%", f"Avg AUC, minus {base}", "forward tokens"],
        rows,
        f"AUC, with 95% intervals over problems. {_NOTE} The reference is {base}. Forward tokens "
        "are those of a sample, a mean over tasks.",
    )


def _summary(outcomes: Sequence[Outcome], base: Sequence[Outcome]) -> list[str]:
    """Avg AUC, Δ%, the difference to the reference, forward tokens."""
    average = over_tasks([metrics.interval(o.aucs, top=100) for o in outcomes])
    tokens = f"{np.mean([o.cost for o in outcomes]):,.0f}"
    if outcomes[0].label == base[0].label:
        return [points(average), "-", "-", tokens]
    gains = [
        metrics.paired(own.aucs, other.aucs, top=100)
        for own, other in zip(outcomes, base, strict=True)
    ]
    return [
        points(average), _change(average.mean, _average(base)), signed(over_tasks(gains)), tokens,
    ]  # fmt: skip


def _average(outcomes: Sequence[Outcome]) -> float:
    """Avg AUC."""
    return float(np.mean([o.aucs.mean() for o in outcomes]))


def over_tasks(found: Sequence[Interval]) -> Interval:
    """The mean of independent means; the distances of its edges add as standard errors do."""
    middle = float(np.mean([one.mean for one in found]))
    below = math.hypot(*(one.mean - one.low for one in found)) / len(found)
    above = math.hypot(*(one.high - one.mean for one in found)) / len(found)
    return Interval(middle, middle - below, middle + above)


def _change(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.1f}" if reference else "-"


def theirs(recipe: str, tasks: Sequence[str], model: str) -> Table:
    """The paper's AUC on those of these tasks that its table has, for its model of that name or
    the one that `paper.reported` shows; without rows for fewer than two such tasks."""
    found = paper.aucs(recipe, tasks, model)
    shown = list(dict.fromkeys(task for values in found.values() for task in values))
    whole = {name: values for name, values in found.items() if len(values) == len(shown)}
    if len(shown) < 2 or not whole:
        return Table("Reported by the paper", [], [])
    base = "base" if "base" in whole else next(iter(whole))
    reference = float(np.mean(list(whole[base].values())))
    rows = []
    for name, values in whole.items():
        average = float(np.mean(list(values.values())))
        change = "-" if name == base else _change(average, reference)
        rows.append([name, *(f"{values[task]:.1f}" for task in shown), f"{average:.1f}", change])
    return Table(
        "All tasks, reported by the paper",
        ["system", *shown, "Avg AUC", "Δ%"],
        rows,
        f"For full-precision models; not measured here. {_NOTE} The reference is {base}; both "
        "columns are computed here from the paper's AUC.",
    )
