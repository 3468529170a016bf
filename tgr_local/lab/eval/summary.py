"""Makes one `Outcome` for each task and system from the samples of one or more run folders.

Samples of all seeds are pooled. A sample without a grade is left out. A problem is left out of all
tables where any system has fewer graded samples than the largest k, so that all numbers are about
the same problems.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tgr_local.lab.eval import manifest, metrics
from tgr_local.lab.eval.outcome import Outcome
from tgr_local.lab.eval.run_folder import EvaluationRun
from tgr_local.lab.eval.samples import Key, Sample, SamplePlan
from tgr_local.system.errors import TgrError


def outcomes(runs: Sequence[EvaluationRun], ks: Sequence[int] = ()) -> dict[str, list[Outcome]]:
    """The outcomes by task, in the order of the manifests, for these k or those of the runs.

    A system that occurs in several runs with the same model and options is one outcome with all
    samples. Where different systems share a name, the label adds the model, or else the folder.
    TgrError for runs in which a problem has different prompts: they cannot be compared.
    """
    _check_prompts(runs)
    parts: dict[tuple[str, str, str], list[EvaluationRun]] = {}
    drawn: dict[tuple[str, str, str], dict[Key, Sample]] = defaultdict(dict)
    for run in runs:
        keys = {
            (task["name"], system["name"]): (
                task["name"],
                system["name"],
                _identity(run, _of_task(system, task)),
            )
            for task in run.manifest.tasks
            for system in run.manifest.systems
        }
        for key in keys.values():
            parts.setdefault(key, []).append(run)
        for sample in run.samples:
            if place := keys.get((sample.task, sample.system)):
                drawn[place].setdefault(sample.key, sample)
    by_task: dict[str, list[Outcome]] = defaultdict(list)
    for key, some in parts.items():
        alike = [own_runs[0] for place, own_runs in parts.items() if place[:2] == key[:2]]
        outcome = _outcome(key[0], key[1], some, drawn[key], _tail(some[0], alike))
        by_task[key[0]].append(dataclasses.replace(outcome, ks=tuple(ks) or outcome.ks))
    return {task: _align(some) for task, some in by_task.items()}


def _check_prompts(runs: Sequence[EvaluationRun]) -> None:
    prompts: dict[tuple[str, str], str] = {}
    for run in runs:
        for place, text in run.problems.items():
            if prompts.setdefault(place, text) != text:
                raise TgrError(
                    f"{run.folder} has another prompt for {' '.join(place)} than an earlier run; "
                    "report on runs of the same data"
                )


def _of_task(system: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """A system's entry in a manifest, with the options that it has on this task."""
    lens = task.get("rollout_len", {})
    if system["name"] not in lens:
        return system
    return system | {"config": system["config"] | {"rollout_len": lens[system["name"]]}}


def _identity(run: EvaluationRun, system: dict[str, Any]) -> str:
    """The facts that two runs must share for their samples of a system to be pooled."""
    about = run.manifest
    facts = [
        about.model["sha256"], manifest.anywhere(about.engine), manifest.anywhere(about.versions),
        about.raw, about.grading, system,
    ]  # fmt: skip
    return json.dumps(facts, sort_keys=True)


def _tail(run: EvaluationRun, alike: Sequence[EvaluationRun]) -> str:
    """Suffix that distinguishes systems of the same name; empty for a single one."""
    if len(alike) == 1:
        return ""
    tails: list[Callable[[EvaluationRun], str]] = [
        lambda run: str(run.manifest.model["name"]),
        lambda run: run.folder.name,
    ]
    for tail in tails:
        if len({tail(r) for r in alike}) == len(alike):
            return f" ({tail(run)})"
    return f" ({run.folder})"


def _outcome(
    task: str, name: str, runs: Sequence[EvaluationRun], drawn: dict[Key, Sample], tail: str
) -> Outcome:
    about = runs[0].manifest
    of_task = next(entry for entry in about.tasks if entry["name"] == task)
    by_problem: dict[str, list[Sample]] = {}
    for sample in sorted(drawn.values(), key=lambda s: (s.problem, s.seed, s.index)):
        by_problem.setdefault(sample.problem, []).append(sample)
    problems = {p for run in runs for of, p in run.problems if of == task}
    return Outcome(
        label=name + tail,
        task=task,
        system=_of_task(
            next(system for system in about.systems if system["name"] == name), of_task
        ),
        metric=of_task["metric"],
        ks=tuple(max((run.manifest.k for run in runs), key=max)),
        n_expected=len(problems),
        n_planned=_n_planned(task, runs, by_problem),
        by_problem=by_problem,
        phases=[p for r in runs for p in r.phases if (p["task"], p["system"]) == (task, name)],
        run=runs[0],
    )


def _n_planned(
    task: str, runs: Sequence[EvaluationRun], by_problem: dict[str, list[Sample]]
) -> int:
    """Number of samples that the runs are expected to make; with a budget, as known so far."""
    targets: dict[tuple[str, int], int] = {}
    for run in runs:
        plan = SamplePlan(max(run.manifest.k), tuple(run.manifest.seeds), run.manifest.budget)
        for problem in (p for of, p in run.problems if of == task):
            for seed in plan.seeds:
                known = {s.index: s for s in by_problem.get(problem, ()) if s.seed == seed}
                n = max(plan.target(known.get), targets.get((problem, seed), 0))
                targets[problem, seed] = n
    return sum(targets.values())


def _align(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes, limited to the k and the problems at which all can be compared.

    The k are those that all runs have, up to the largest that keeps at least half of the problems
    of the smallest. The problems are those with that many graded samples in every system. A system
    with fewer than half of the problems of the most complete one is left out: it was interrupted
    early.
    """
    common = set(outcomes[0].ks).intersection(*(outcome.ks for outcome in outcomes))
    ks = sorted(common) or [1]  # every run has Pass@1
    if not any(outcome.with_graded(ks[0]) for outcome in outcomes):
        ks = metrics.doublings(1, ks[0])  # interrupted before the first problem was complete
    counts = [len(outcome.with_graded(ks[0])) for outcome in outcomes]
    compared = [o for o, n in zip(outcomes, counts, strict=True) if 2 * n >= max(counts) > 0]
    shared = {k: _in_all(compared, k) for k in ks}
    most = max(k for k in ks if 2 * len(shared[k]) >= len(shared[ks[0]]))
    return [
        dataclasses.replace(
            outcome,
            ks=tuple(k for k in ks if k <= most),
            shared=shared[most] if outcome in compared else frozenset(),
        )
        for outcome in outcomes
    ]


def _in_all(outcomes: Sequence[Outcome], n: int) -> frozenset[str]:
    """The problems with n graded samples in every outcome."""
    problems = [outcome.with_graded(n) for outcome in outcomes]
    return frozenset.intersection(*problems) if problems else frozenset()
