"""Makes samples on disk from tasks and systems, one phase for each task and system.

Every sample has a seed of its own, made from (seed, task, problem, number), and all systems share
these seeds. So neither the order nor an interruption nor the number of threads changes a sample.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.live import Live, MissingWork, Place
from tgr_local.lab.eval.making import SAMPLE_ERRORS, EngineMaker, Job, Maker, Phase, prompt_of
from tgr_local.lab.eval.samples import Sample, SamplePlan, Store
from tgr_local.lab.eval.sampling import Sampler
from tgr_local.lab.eval.systems import System
from tgr_local.lab.eval.task import Problem
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import CapacityError


def check(engine: Engine, system: System, config: SearchConfig) -> None:
    """Raises CapacityError for a system that needs more sequences than this engine has."""
    needs = methods.get(system.method).sequences(engine, config)
    if needs > engine.n_seq_max:
        raise CapacityError(
            f"{system.name} needs {needs} sequences at a time, but the engine holds "
            f"{engine.n_seq_max}; raise n_seq_max, or lower the number of candidates or samples"
        )


def run_phase(
    engine: Engine,
    phase: Phase,
    plan: SamplePlan,
    store: Store,
    grader: Grader,
    progress: Live,
    parallel: int = 0,
    maker: Maker | None = None,
) -> dict[str, Any]:
    """Makes every sample of a phase that the store lacks, and returns its cost. A sample that
    cannot be made is recorded with the reason. Earlier samples without a grade are graded again;
    those at which the engine failed are made again.

    `parallel` is the number of samples at a time for each engine; 0 = as many as fit. `maker` makes
    them, by default `engine` itself, which otherwise only reads the prompts. KeyboardInterrupt and
    errors end the work; graded samples remain in the store.
    """
    maker = maker or EngineMaker(engine)
    start, begun = time.monotonic(), maker.positions
    prompts = _prompts(engine, phase)
    n_cells = _cells(engine, phase, prompts)
    n_made = counted = at_once = 0
    for sample in _samples(phase, store):
        if sample.lacks_text:
            del store.known[sample.key]
    if ungraded := {sample.key for sample in _samples(phase, store) if sample.lacks_grade}:
        progress.phase(phase, [], len(ungraded))
        sampler = Sampler(maker, phase, prompts, store, grader, progress)
        sampler.grade_again(store.whole(ungraded))
    while missing := _missing(phase, plan, store):
        known = _samples(phase, store)
        progress.phase(phase, known, len(known) + len(missing))
        sampler = Sampler(maker, phase, prompts, store, grader, progress)
        at_once = max(at_once, sampler.run(missing, n_cells, parallel))
        n_made, counted = n_made + sampler.n_added, counted + sampler.counted
    return {
        "task": phase.task,
        "system": phase.system.name,
        "samples": n_made,
        "parallel": at_once,
        "counted": counted,
        "positions": maker.positions - begun,
        "seconds": round(time.monotonic() - start, 3),
    }


def work(
    engine: Engine, todo: Sequence[Phase], plan: SamplePlan, store: Store
) -> dict[Place, MissingWork]:
    """Returns the work that each phase lacks, with the forward tokens that it takes at most, by the
    limits of its system. Samples that cannot be made count nothing; a budget may end in the middle
    of a wave, so that it is exceeded by one sample of each seed, or a little more."""
    prompts: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    missing_work = {}
    for phase in todo:
        # systems with the same prompt options share their prompts
        config = phase.config
        key = phase.task, config.thinking, bool(config.thinking_budget or config.grammar)
        if key not in prompts:
            prompts[key] = _prompts(engine, phase)
        most = {
            problem: _most(engine, phase, len(tokens)) for problem, tokens in prompts[key].items()
        }
        missing = _missing(phase, plan, store)
        total = sum(most.get(problem.id, 0) for problem, _, _ in missing)
        if plan.budget and missing:
            begun = {problem.id for problem, _, _ in missing}
            each = ((plan.budget + len(plan.seeds) * most.get(problem, 0)) for problem in begun)
            total = max(total, sum(each))
        missing_work[phase.task, phase.system.name] = MissingWork(len(missing), total)
    return missing_work


def _most(engine: Engine, phase: Phase, n_query: int) -> int:
    """Forward tokens of a sample at most; 0 for one that cannot be made."""
    method, budget = methods.get(phase.system.method), phase.config.max_forward_tokens
    try:
        most = (method.positions or method.cells)(engine, n_query, phase.config)
    except SAMPLE_ERRORS:
        return 0
    return min(most, budget) if budget else most


def why_empty(phase: Phase, store: Store) -> str:
    """Names why no sample of a phase could be made, in one line; empty where at least one could."""
    samples = _samples(phase, store)
    if not samples or any(sample.finish != "error" for sample in samples):
        return ""
    ((why, _),) = Counter(sample.detail for sample in samples).most_common(1)
    of_it = f"{phase.system.name} on {phase.task}"
    return f"none of the {len(samples)} samples of {of_it} could be made: {why}"


def _samples(phase: Phase, store: Store) -> list[Sample]:
    where = (phase.task, phase.system.name)
    return [sample for key, sample in store.known.items() if key[:2] == where]


def _prompts(engine: Engine, phase: Phase) -> dict[str, list[int]]:
    """Prompt tokens by problem, without the problems whose prompts are invalid: their samples
    record the reason."""
    prompts = {}
    for problem in phase.problems:
        with contextlib.suppress(*SAMPLE_ERRORS):
            prompts[problem.id] = prompt_of(engine, phase, problem)
    return prompts


def _missing(phase: Phase, plan: SamplePlan, store: Store) -> list[Job]:
    """The samples to make next; none when the phase is complete."""
    known = store.known
    jobs: list[Job] = []
    for problem in phase.problems:
        for seed in plan.seeds:

            def at(i: int, seed: int = seed, problem: Problem = problem) -> Sample | None:
                return known.get((phase.task, phase.system.name, problem.id, seed, i))

            n = plan.target(at)
            jobs += [(problem, seed, i) for i in range(n) if at(i) is None]
    return jobs


def _cells(engine: Engine, phase: Phase, prompts: Mapping[str, list[int]]) -> int:
    """Cells of the largest sample; 0 when none fits."""
    needed = [0]
    for tokens in prompts.values():
        with contextlib.suppress(*SAMPLE_ERRORS):  # its samples record the reason
            method = methods.get(phase.system.method)
            needed.append(method.cells(engine, len(tokens), phase.config))
    return max(needed)
