"""Reads a run folder, of a finished or unfinished evaluation run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tgr_local.lab.eval import manifest, samples
from tgr_local.lab.eval.manifest import Manifest
from tgr_local.lab.eval.samples import Sample
from tgr_local.system import json_checks
from tgr_local.system.errors import TgrError
from tgr_local.system.json_checks import Count


@dataclass(frozen=True)
class EvaluationRun:
    """The contents of a run folder."""

    folder: Path
    manifest: Manifest
    samples: list[Sample]
    phases: list[dict[str, Any]]
    """The cost of each phase; see `phases.run_phase`."""
    problems: dict[tuple[str, str], str]
    """(task, problem) -> the prompt."""
    groups: dict[tuple[str, str], dict[str, str]]
    """(task, problem) -> `Problem.groups`; only of problems that have some."""


_PHASE = {
    "task": str, "system": str, "samples": Count, "counted": Count, "positions": Count,
    "seconds": Annotated[float, 0], "parallel?": Count,
}  # fmt: skip
_PROBLEM = {"task": str, "id": str, "prompt": str, "groups?": dict[str, str]}


def read(folder: Path) -> EvaluationRun:
    """The run of a folder. TgrError for a folder that is not a run folder, or a damaged file."""
    its_manifest = manifest.read(folder)
    problems = {
        (line["task"], line["id"]): line for line in _lines(folder / "problems.jsonl", _PROBLEM)
    }
    return EvaluationRun(
        folder,
        its_manifest,
        list(samples.read(folder / "samples.jsonl")),
        _lines(folder / "phases.jsonl", _PHASE),
        {place: line["prompt"] for place, line in problems.items()},
        {place: line["groups"] for place, line in problems.items() if "groups" in line},
    )


def limited(runs: Sequence[EvaluationRun], systems: Sequence[str]) -> list[EvaluationRun]:
    """The runs with these systems only, without runs that have none of them. ValueError for a
    system that no run has."""
    known = list(dict.fromkeys(s["name"] for run in runs for s in run.manifest.systems))
    for name in systems:
        if name not in known:
            raise ValueError(f"system is {name!r}, but must be one of {', '.join(known)}")
    return [
        dataclasses.replace(
            run,
            manifest=dataclasses.replace(run.manifest, systems=remaining),
            samples=[sample for sample in run.samples if sample.system in systems],
            phases=[phase for phase in run.phases if phase["system"] in systems],
        )
        for run in runs
        if (remaining := [system for system in run.manifest.systems if system["name"] in systems])
    ]


def _lines(path: Path, shape: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON lines of a file, none if it does not exist; an incomplete last line is left out."""
    records: list[dict[str, Any]] = []
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        try:
            records.append(json_checks.loads(line))
            json_checks.check(shape, records[-1])
        except ValueError as error:
            raise TgrError(
                f"{path} line {number} is damaged: {error}; restore it, or delete the line"
            ) from None
    return records
