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
    all_tables = [ours(compared)]
    if len(compared) > 1:
        tasks = [c.outcomes[0].task for c in compared]
        model = compared[0].outcomes[0].run.manifest.model["name"]
        all_tables += [theirs(recipe, tasks, model) for recipe in recipes]
    return [table for table in all_tables if table.rows]


def ours(compared: Sequence[Comparison]) -> Table:
    """AUC of every system on every task that compares it; the mean of those that are on all."""
    with_auc = [c for c in compared if any(len(o.aucs) for o in c.graded)]
    of_task = [{o.label: o for o in c.graded} for c in with_auc]
    labels = dict.fromkeys(label for some in of_task for label in some)
    complete = {
        label: [some[label] for some in of_task]
        for label in labels
        if all(label in some for some in of_task)
    }
    if len(of_task) < 2 or not complete:
        return Table("All tasks", [], [])
    first = [outcomes[0] for outcomes in complete.values()]
    base = reference(first, lambda o: _average(complete[o.label])).label
    rows = []
    for label in labels:
        cells = [mean(some[label].aucs, scale=1) if label in some else "-" for some in of_task]
        cells += _summary(complete[label], complete[base]) if label in complete else ["-"] * 4
        rows.append([label, *cells])
    tasks = [c.outcomes[0].task for c in with_auc]
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
        metrics.paired(own.aucs, theirs.aucs, top=100)
        for own, theirs in zip(outcomes, base, strict=True)
    ]
    return [
        points(average), _change(average.mean, _average(base)), signed(over_tasks(gains)), tokens,
    ]  # fmt: skip


def _average(outcomes: Sequence[Outcome]) -> float:
    """Avg AUC."""
    return float(np.mean([o.aucs.mean() for o in outcomes]))


def over_tasks(intervals: Sequence[Interval]) -> Interval:
    """The mean of independent means; the distances of its edges add as standard errors do."""
    middle = float(np.mean([i.mean for i in intervals]))
    below = math.hypot(*(i.mean - i.low for i in intervals)) / len(intervals)
    above = math.hypot(*(i.high - i.mean for i in intervals)) / len(intervals)
    return Interval(middle, middle - below, middle + above)


def _change(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.1f}" if reference else "-"


def theirs(recipe: str, tasks: Sequence[str], model: str) -> Table:
    """The paper's AUC on the given tasks that its table has, for its model of that name, or else
    the model that `paper.reported` shows; no rows for fewer than two such tasks."""
    reported = paper.aucs(recipe, tasks, model)
    columns = list(dict.fromkeys(task for values in reported.values() for task in values))
    complete = {name: values for name, values in reported.items() if len(values) == len(columns)}
    if len(columns) < 2 or not complete:
        return Table("Reported by the paper", [], [])
    base = "base" if "base" in complete else next(iter(complete))
    reference = float(np.mean(list(complete[base].values())))
    rows = []
    for name, values in complete.items():
        average = float(np.mean(list(values.values())))
        change = "-" if name == base else _change(average, reference)
        rows.append([name, *(f"{values[task]:.1f}" for task in columns), f"{average:.1f}", change])
    return Table(
        "All tasks, reported by the paper",
        ["system", *columns, "Avg AUC", "Δ%"],
        rows,
        f"For full-precision models; not measured here. {_NOTE} The reference is {base}; both "
        "columns are computed here from the paper's AUC.",
    )
