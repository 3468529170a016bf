"""The numbers that the paper reports, from `paper.csv`, as tables of a report."""

from __future__ import annotations

import csv
from collections.abc import Sequence, Set
from pathlib import Path

from tgr_local.lab.eval.table_cells import Table

PAPER = Path(__file__).parent / "paper.csv"
_PAPER_MODEL = "Qwen3-8B"  # shown where the paper has no numbers for the run's model


def reported(recipe: str, task: str, model: str) -> list[Table]:
    """The paper's numbers for a recipe's table and a task; none where it has no such table."""
    lines = [line for line in _lines(recipe) if task in line["task"] or line["task"] == "all"]
    models = {line["model"] for line in lines}
    own = _own(models, model)
    remark = "" if own else f", and {model} is another model"
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
        note = f"From the paper, for the full-precision {name}; not measured here{remark}."
        tables.append(Table(f"Reported by the paper: {name}", ["system", *columns], rows, note))
    return tables


def aucs(recipe: str, tasks: Sequence[str], model: str) -> dict[str, dict[str, float]]:
    """System → task → AUC in the paper's table of a recipe, for the model that `reported` shows."""
    lines = [line for line in _lines(recipe) if line["measure"] == "AUC" and line["task"] in tasks]
    models = {line["model"] for line in lines}
    own = _own(models, model) or sorted(models & {_PAPER_MODEL})
    by_system: dict[str, dict[str, float]] = {}
    for line in lines:
        if line["model"] in own[:1]:
            by_system.setdefault(line["system"], {})[line["task"]] = float(line["value"])
    return by_system


def _lines(recipe: str) -> list[dict[str, str]]:
    with PAPER.open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if line["table"] == recipe]


def _own(models: Set[str], model: str) -> list[str]:
    """Returns the models of the paper that `model` is a file of."""
    return [name for name in models if model.lower().startswith(name.lower())]
