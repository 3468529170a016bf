"""One sample, made by an engine and not yet graded; and how many an engine makes at a time.

In: a phase, and a problem with a seed. Out: a `Sample`. It does not know stores, graders, or which
samples are missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, backend_devices
from tgr_local.generation import Reply, generate, query_tokens
from tgr_local.lab.eval import boundaries
from tgr_local.lab.eval.samples import ENGINE, Sample, seed_of
from tgr_local.lab.eval.systems import System
from tgr_local.lab.eval.task import Problem
from tgr_local.options.config import SearchConfig
from tgr_local.search import strength
from tgr_local.system.errors import CancelledError, TgrError, describe

SAMPLE_ERRORS = (TgrError, ValueError)  # these end one sample, not the phase
Job = tuple[Problem, int, int]  # problem, seed, index


@dataclass(frozen=True)
class Phase:
    """One system on one task."""

    task: str
    system: System
    config: SearchConfig
    problems: Sequence[Problem]
    raw: bool


class Maker(Protocol):
    """Makes the samples of one phase after the other: `EngineMaker`, `ray_nodes.NodePool`."""

    @property
    def positions(self) -> int:
        """Positions decoded so far."""

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        """Prepares for `n_jobs` samples of a phase with at most `n_cells` cells each. Returns the
        number that it makes at a time: `parallel`, or as many as fit where that is 0, at most
        `n_jobs`."""

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> Sample:
        """The sample, without a grade; with the reason where it cannot be made. May be called by
        any thread. `prompt` is None where it was invalid. CancelledError by `cancel`."""


def prompt_of(engine: Engine, phase: Phase, problem: Problem) -> list[int]:
    """The tokens of a problem's prompt. ValueError, CapacityError as `query_tokens`."""
    prompt = problem.raw if phase.raw else problem.messages
    return query_tokens(engine, prompt, phase.config, raw=phase.raw)


class EngineMaker:
    """The `Maker` of one engine, in this process."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def positions(self) -> int:
        return self.engine.stats().n_positions

    def begin(self, phase: Phase, n_cells: int, parallel: int, n_jobs: int) -> int:
        self._phase = phase
        if methods.get(phase.system.method).of_thinking.steers:
            strength.prepare(self.engine, phase.config)  # which no sample must pay for
        n_seqs = methods.get(phase.system.method).sequences(self.engine, phase.config)
        at_once = min(parallel or fitting(self.engine, n_seqs, n_cells), n_jobs)
        # a sample that does not fit would get the free cells between the others, and each of its
        # tokens would attend across all of them
        self.engine.grow_cache(n_cells, at_once)
        return at_once

    def make(self, job: Job, prompt: list[int] | None, cancel: Cancel) -> Sample:
        phase, (problem, seed, index) = self._phase, job
        config = dataclasses.replace(
            phase.config, seed=seed_of(seed, phase.task, problem.id, index)
        )
        try:
            prompt = prompt or prompt_of(self.engine, phase, problem)
            # a search with shorter chunks would be another system
            methods.get(phase.system.method).cells(self.engine, len(prompt), config)
            reply = generate(self.engine, prompt, config, method=phase.system.method, cancel=cancel)
        except CancelledError:
            raise
        except SAMPLE_ERRORS as error:
            # TgrError itself, without a subclass, is a failure of the engine, which may not recur
            kind = ENGINE if type(error) is TgrError else ""
            return failed(phase, job, kind + describe(error))
        return self._ungraded(job, reply, config)

    def _ungraded(self, job: Job, reply: Reply, config: SearchConfig) -> Sample:
        steps = reply.steps
        logprobs = [step.logprobs for step in steps if len(step.logprobs)]
        measured = boundaries.measured(steps, config)
        if job[2] == 0:  # one sample of each problem has texts, for the report
            measured = boundaries.with_texts(self.engine, steps, measured)
        parts: dict[str, float] = {}
        for step in steps:
            for part, seconds in vars(step.seconds).items():
                parts[part] = round(parts.get(part, 0.0) + seconds, 5)
        return Sample(
            *_where(self._phase, job),
            text=reply.text,
            thinking=reply.thinking,
            tokens=reply.n_tokens,
            finish=reply.finish,
            correct=None,
            score=0.0,
            answer=None,
            detail="",
            logprob=float(np.mean(np.concatenate(logprobs), dtype=float)) if logprobs else None,
            counts=reply.counts.decoded,
            parts=parts,
            seconds=round(reply.seconds, 5),
            boundaries=measured,
        )


def failed(phase: Phase, job: Job, why: str) -> Sample:
    """The record of a sample that could not be made."""
    return Sample(
        *_where(phase, job), text="", thinking="", tokens=0, finish="error", correct=None,
        score=0.0, answer=None, detail=why, logprob=None, counts={}, parts={}, seconds=0.0,
    )  # fmt: skip


def _where(phase: Phase, job: Job) -> tuple[str, str, str, int, int]:
    problem, seed, index = job
    return phase.task, problem.id, phase.system.name, seed, index


def fitting(engine: Engine, n_seqs: int, n_cells: int) -> int:
    """Estimated number of works, of at most so many sequences and cells each, that fit into the
    engine's sequences and memory."""
    most = engine.n_seq_max // n_seqs
    capacity = engine.config.n_ctx or _free_bytes(engine) // engine.cell_bytes
    return max(1, min(most, capacity // max(n_cells, 1)))


def _free_bytes(engine: Engine) -> int:
    """Bytes that the cache may use: most of the free GPU memory, or half of the free main
    memory."""
    used = set(engine.devices())
    devices = [device for device in backend_devices() if device.name in used]
    gpus = sum(device.memory_free for device in devices if device.kind != "cpu")
    ram = sum(device.memory_free for device in devices if device.kind == "cpu")
    return int(0.85 * gpus) or ram // 2
