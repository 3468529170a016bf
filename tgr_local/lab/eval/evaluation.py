"""Carries out an evaluation run: its manifest, then all of its phases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.lab.eval import manifest, phases, samples, systems, tasks
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.live import Estimate, Live
from tgr_local.lab.eval.making import Maker, Phase
from tgr_local.lab.eval.manifest import Manifest
from tgr_local.lab.eval.request import EvaluationRequest
from tgr_local.lab.eval.samples import SamplePlan, Store
from tgr_local.lab.eval.task import Problem
from tgr_local.options.config import SearchConfig
from tgr_local.options.resolve import resolve
from tgr_local.search import strength
from tgr_local.system import paths
from tgr_local.system.errors import CapacityError
from tgr_local.system.files import naming
from tgr_local.system.json_values import to_json_value
from tgr_local.system.progress import ProgressLine
from tgr_local.system.versions import versions

OF_THE_PAPER = {"search_from": 0}
"""Options of all systems that are not the front ends' defaults: the search begins before the first
chunk."""


def manifest_of(
    engine: Engine,
    request: EvaluationRequest,
    problems: dict[str, list[Problem]],
    grading: dict[str, Any],
    raw: bool,
    command: str,
) -> Manifest:
    """The manifest of a run; `grading` is that of `manifest.grading_settings`."""
    configs = _configs(engine, request)
    strengths = {}
    with ProgressLine("measuring the strength of the injection, once for this model"):
        for system in request.systems:
            if methods.get(system.method).of_thinking.steers:
                config = configs[system.name]
                measured = strength.prepare(engine, config)
                if measured is None and strength.is_needed(config):
                    raise CapacityError(
                        f"the strength of {system.name}'s injection cannot be measured, so it "
                        "would inject nothing; raise n_ctx or divergence, or set calibration to "
                        "absolute"
                    )
                strengths.update({system.name: measured} if measured else {})
    return manifest.Manifest(
        format=manifest.FORMAT,
        created=manifest.now(),
        model=manifest.model_facts(engine),
        versions=manifest.anywhere(versions()),
        engine=manifest.anywhere(to_json_value(engine.config)),
        raw=raw,
        systems=[systems.record(system, configs[system.name]) for system in request.systems],
        tasks=[
            {
                "name": name,
                "metric": tasks.get(name).metric,
                "problems": len(problems[name]),
                "sha256": manifest.digest(problems[name]),
                **({"rollout_len": lens} if lens else {}),
            }
            for name in request.tasks
            for lens in [_rollout_lens(engine, request, name)]
        ],
        seeds=list(request.seeds),
        k=list(request.ks),
        budget=request.budget,
        grading=grading,
        recipe=request.name,
        reference=request.reference,
        metric=request.metric,
        machines=[manifest.machine(engine, strengths)],
        command=command,
    )


def evaluate(
    engine: Engine,
    request: EvaluationRequest,
    problems: dict[str, list[Problem]],
    folder: Path,
    grader: Grader,
    wanted: Manifest,
    maker: Maker | None = None,
) -> list[str]:
    """Makes the samples, by default with this engine, into a new or an existing run folder. Returns
    a reason for each phase without any reply."""
    configs = _configs(engine, request)
    for system in request.systems:
        phases.check(engine, system, configs[system.name])
    paths.made(folder)
    plan = SamplePlan(max(request.ks), request.seeds, request.budget)
    todo = phases_of(engine, request, problems, wanted.raw)
    with Store(folder / "samples.jsonl") as store:
        manifest.settle(folder, wanted, manifest.grading_in_use(store.known.values()))
        _write_prompts(folder, problems)
        estimate = Estimate(phases.work(engine, todo, plan, store))
        with Live(len(todo), estimate) as live:
            for phase in todo:
                took = phases.run_phase(
                    engine, phase, plan, store, grader, live, request.parallel, maker
                )
                if took["samples"]:
                    samples.append(folder / "phases.jsonl", took)
        return [why for phase in todo if (why := phases.why_empty(phase, store))]


def phases_of(
    engine: Engine, request: EvaluationRequest, problems: dict[str, list[Problem]], raw: bool
) -> list[Phase]:
    """Every system on every task, with the options that it has there."""
    configs, phases = _configs(engine, request), []
    for task in request.tasks:
        lens = _rollout_lens(engine, request, task)
        for system in request.systems:
            config = configs[system.name]
            if system.name in lens:
                config = dataclasses.replace(config, rollout_len=lens[system.name])
            phases.append(Phase(task, system, config, problems[task], raw))
    return phases


def _configs(engine: Engine, request: EvaluationRequest) -> dict[str, SearchConfig]:
    """The options of each system."""
    config = resolve(engine.metadata, {**OF_THE_PAPER, **request.options}).config
    return {s.name: s.resolve(config, engine.n_embd) for s in request.systems}


def _rollout_lens(engine: Engine, request: EvaluationRequest, task: str) -> dict[str, int]:
    """The rollout_len of the systems that have another one for this task."""
    if not tasks.get(task).needs_exec:
        return {}
    source = resolve(engine.metadata, request.options).sources["rollout_len"]
    return systems.rollout_lens(request.systems, source)


def _write_prompts(folder: Path, problems: dict[str, list[Problem]]) -> None:
    """Writes the prompts and groups, for the cases and profiles of a report."""
    path = folder / "problems.jsonl"
    with naming(path), path.open("w", encoding="utf-8") as file:
        for task, some in problems.items():
            for problem in some:
                prompt = problem.messages[-1]["content"] if problem.messages else problem.raw
                groups = {"groups": problem.groups} if problem.groups else {}
                line = {"task": task, "id": problem.id, "prompt": prompt, **groups}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
