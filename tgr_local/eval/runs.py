"""From tasks and systems to samples on disk.

A run goes through phases, one for each task and system. In a phase a pool of threads keeps the
engine's batch full: each thread writes one sample after another, of whatever problem is next; the
replies are graded in processes of their own while the next ones are written. Every sample has a
seed of its own, made from (seed, task, problem, number), so neither order nor interruption nor the
number of threads matters. All systems share these seeds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, backend_devices
from tgr_local.errors import CancelledError, CapacityError, TgrError, describe
from tgr_local.eval import boundaries
from tgr_local.eval.samples import ENGINE, Draw, Sample, Store
from tgr_local.eval.systems import System
from tgr_local.eval.task import Grade, Problem
from tgr_local.generation import Reply, generate, prompt_tokens
from tgr_local.options.config import SearchConfig
from tgr_local.search.seeds import derived_seed

_WAITING_GRADES = 512  # replies that may wait for their grade: what a kill can lose
_OF_ONE_SAMPLE = (TgrError, ValueError)  # errors that end it and nothing else


class Grades(Protocol):
    """What grades replies while others are written: `grading.Grader`."""

    def submit(self, problem: Problem, text: str) -> Future[Grade]: ...


@dataclass(frozen=True)
class Phase:
    """One system on one task."""

    task: str
    system: System
    config: SearchConfig
    problems: Sequence[Problem]
    raw: bool


class Watcher(Protocol):
    """Hears how far a run is."""

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        """A phase begins with these samples of it, of so many."""

    def sample(self, sample: Sample) -> None: ...


def seed_of(seed: int, task: str, problem: str, index: int) -> int:
    """The seed of a sample: below 2^63, and a function of nothing else."""
    name = hashlib.sha256(json.dumps([task, problem]).encode()).digest()
    return derived_seed(seed, int.from_bytes(name[:8], "big"), index) >> 1


def check(engine: Engine, system: System, config: SearchConfig) -> None:
    """Raises CapacityError for a system that this engine can make no sample of."""
    needs = methods.get(system.method).sequences(config)
    if needs > engine.n_seq_max:
        raise CapacityError(
            f"{system.name} needs {needs} sequences at a time, but the engine holds "
            f"{engine.n_seq_max}; raise n_seq_max or lower what is tried at a time"
        )


def run_phase(
    engine: Engine,
    phase: Phase,
    draw: Draw,
    store: Store,
    grades: Grades,
    watcher: Watcher,
    parallel: int = 0,
) -> dict[str, Any]:
    """Makes every sample of a phase that the store does not have, and returns what it took. One
    that cannot be made is kept with the reason. Earlier ones without a grade are graded once more;
    those that the engine failed at are made once more.

    `parallel` is how many are made at a time; 0 = as many as fit. KeyboardInterrupt and errors end
    the work; what was made and graded is kept.
    """
    start, begun = time.monotonic(), engine.stats().n_positions
    prompts = _queries(engine, phase)
    n_made = counted = at_once = 0
    for sample in _of(phase, store):
        if sample.lacks_text:
            del store.known[sample.key]
    if ungraded := {sample.key for sample in _of(phase, store) if sample.lacks_grade}:
        watcher.phase(phase, [], len(ungraded))
        work = _Work(engine, phase, prompts, store, grades, watcher)
        work.grade_again(store.whole(ungraded))
    while missing := _missing(phase, draw, store):
        known = _of(phase, store)
        watcher.phase(phase, known, len(known) + len(missing))
        work = _Work(engine, phase, prompts, store, grades, watcher)
        at_once = max(at_once, work.run(missing, parallel or _fitting(engine, phase, prompts)))
        n_made, counted = n_made + work.n_kept, counted + work.counted
    return {
        "task": phase.task,
        "system": phase.system.name,
        "samples": n_made,
        "parallel": at_once,
        "counted": counted,
        "positions": engine.stats().n_positions - begun,
        "seconds": round(time.monotonic() - start, 3),
    }


def why_empty(phase: Phase, store: Store) -> str:
    """Why a phase has no sample that could be made, in one line; empty where it has one."""
    found = _of(phase, store)
    if not found or any(sample.finish != "error" for sample in found):
        return ""
    ((why, _),) = Counter(sample.detail for sample in found).most_common(1)
    of_it = f"{phase.system.name} on {phase.task}"
    return f"none of the {len(found)} samples of {of_it} could be made: {why}"


def _of(phase: Phase, store: Store) -> list[Sample]:
    where = (phase.task, phase.system.name)
    return [sample for key, sample in store.known.items() if key[:2] == where]


def _queries(engine: Engine, phase: Phase) -> dict[str, list[int]]:
    """The prompts that can be made, by problem; the samples of the others say why not."""
    found = {}
    for problem in phase.problems:
        with contextlib.suppress(*_OF_ONE_SAMPLE):
            found[problem.id] = _query(engine, phase, problem)
    return found


def _query(engine: Engine, phase: Phase, problem: Problem) -> list[int]:
    prompt = problem.raw if phase.raw else problem.messages
    return prompt_tokens(engine, prompt, phase.config, raw=phase.raw)


# ---- what is to do ----

Job = tuple[Problem, int, int]  # problem, seed, index


def _missing(phase: Phase, draw: Draw, store: Store) -> list[Job]:
    """The samples to make next; none when all are there."""
    known = store.known
    jobs: list[Job] = []
    for problem in phase.problems:
        for seed in draw.seeds:

            def at(i: int, seed: int = seed, problem: Problem = problem) -> Sample | None:
                return known.get((phase.task, phase.system.name, problem.id, seed, i))

            n = draw.target(at)
            jobs += [(problem, seed, i) for i in range(n) if at(i) is None]
    return jobs


def _fitting(engine: Engine, phase: Phase, prompts: Mapping[str, list[int]]) -> int:
    """How many samples fit into the engine's sequences and, as far as can be told, its memory."""
    method = methods.get(phase.system.method)
    most = engine.n_seq_max // method.sequences(phase.config)
    cells = _cells(engine, phase, prompts)
    room = engine.config.n_ctx or _free_bytes(engine) // engine.cell_bytes
    return max(1, min(most, room // max(cells, 1)))


def _cells(engine: Engine, phase: Phase, prompts: Mapping[str, list[int]]) -> int:
    """Cells of the largest sample; 0 when none fits."""
    needed = [0]
    for tokens in prompts.values():
        with contextlib.suppress(*_OF_ONE_SAMPLE):  # its samples will say so
            method = methods.get(phase.system.method)
            needed.append(method.cells(engine, len(tokens), phase.config))
    return max(needed)


def _free_bytes(engine: Engine) -> int:
    """Memory that the cache may take: most of what its GPUs have left, or half of the machine's."""
    used = set(engine.devices())
    devices = [device for device in backend_devices() if device.name in used]
    gpus = sum(device.memory_free for device in devices if device.kind != "cpu")
    rest = sum(device.memory_free for device in devices if device.kind == "cpu")
    return int(0.85 * gpus) or rest // 2


# ---- doing it ----


class _Work:
    """A pool of threads that makes the samples of a list."""

    def __init__(
        self,
        engine: Engine,
        phase: Phase,
        prompts: Mapping[str, list[int]],
        store: Store,
        grades: Grades,
        watcher: Watcher,
    ) -> None:
        self.engine, self.phase, self.prompts = engine, phase, prompts
        self.store, self.grades, self.watcher = store, grades, watcher
        self.n_kept = self.counted = 0
        """Samples that were put in line for the disk, and their forward tokens."""
        self._lock = threading.Lock()
        self._cancel = Cancel()
        self._failure: BaseException | None = None
        self._room = threading.Semaphore(_WAITING_GRADES)
        self._pending = 0
        self._graded = threading.Condition(self._lock)

    def run(self, jobs: Sequence[Job], at_once: int) -> int:
        """Returns, when all are on the disk, how many were made at a time; raises the first
        error."""
        at_once = min(at_once, len(jobs))
        self.engine.reserve(_cells(self.engine, self.phase, self.prompts), at_once)
        todo = iter(jobs)
        # no more than fit: one more would get the cells that are free between the others, and each
        # of its tokens would look at all that lies between them
        threads = [
            threading.Thread(target=self._work, args=(todo,), daemon=True) for _ in range(at_once)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)
            self._await_grades()
        except BaseException:
            self._cancel.cancel()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        finally:
            self.store.flush()
        if self._failure:
            raise self._failure
        return at_once

    def grade_again(self, samples: Iterable[Sample]) -> None:
        """Grades samples that have no grade. Returns when all are on the disk; raises the first
        error."""
        problems = {problem.id: problem for problem in self.phase.problems}
        try:
            for sample in samples:
                if not self._failure:
                    self._grade(problems[sample.problem], sample)
            self._await_grades()
        finally:
            self.store.flush()
        if self._failure:
            raise self._failure

    def _await_grades(self) -> None:
        with self._graded:
            while self._pending and not self._failure:
                self._graded.wait(0.1)

    def _work(self, todo: Iterator[Job]) -> None:
        try:
            while not self._cancel.is_set():
                with self._lock:
                    job = next(todo, None)
                if job is None:
                    return
                self._make(*job)
        except BaseException as error:
            with self._lock:
                if self._failure is None and not isinstance(error, CancelledError):
                    self._failure = error
            self._cancel.cancel()

    def _make(self, problem: Problem, seed: int, index: int) -> None:
        config = dataclasses.replace(
            self.phase.config, seed=seed_of(seed, self.phase.task, problem.id, index)
        )
        where = (self.phase.task, problem.id, self.phase.system.name, seed, index)
        try:
            prompt = self.prompts.get(problem.id) or _query(self.engine, self.phase, problem)
            reply = generate(
                self.engine, prompt, config,
                method=self.phase.system.method, cancel=self._cancel,
            )  # fmt: skip
        except CancelledError:
            raise
        except _OF_ONE_SAMPLE as error:
            # the engine's own errors are of no narrower kind, and may not come again
            kind = ENGINE if type(error) is TgrError else ""
            self._keep(_refused(where, kind + describe(error)))
            return
        self._grade(problem, self._ungraded(where, reply))

    def _grade(self, problem: Problem, sample: Sample) -> None:
        """Has a sample graded, and kept when that is done."""
        self._room.acquire()
        with self._lock:
            self._pending += 1
        graded = self.grades.submit(problem, sample.text)
        graded.add_done_callback(lambda future: self._take(sample, future))

    def _take(self, sample: Sample, future: Future[Grade]) -> None:
        try:
            grade = future.result()
            graded = dataclasses.replace(
                sample,
                correct=grade.correct,
                score=float(grade.score),
                answer=grade.answer,
                detail=grade.detail,
            )
            if sample.key in self.store.known and graded.lacks_grade:
                self.watcher.sample(sample)  # nothing new to keep
            else:
                self._keep(graded)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            self._cancel.cancel()
        finally:
            self._room.release()
            with self._graded:
                self._pending -= 1
                self._graded.notify_all()

    def _keep(self, sample: Sample) -> None:
        self.store.add(sample)
        with self._lock:
            self.n_kept += 1
            self.counted += sample.cost
        self.watcher.sample(sample)

    def _ungraded(self, where: tuple[str, str, str, int, int], reply: Reply) -> Sample:
        steps = reply.steps
        logprobs = [step.logprobs for step in steps if len(step.logprobs)]
        kept = boundaries.measured(steps, self.phase.config.geometry_top)
        if where[-1] == 0:  # one of each problem is kept in words
            kept = boundaries.with_texts(self.engine, steps, kept)
        parts: dict[str, float] = {}
        for step in steps:
            for part, seconds in vars(step.seconds).items():
                parts[part] = round(parts.get(part, 0.0) + seconds, 5)
        return Sample(
            *where,
            text=reply.text,
            thinking=reply.thinking,
            tokens=reply.n_tokens,
            finish=reply.finish,
            correct=None,
            score=0.0,
            answer=None,
            detail="",
            logprob=float(np.mean(np.concatenate(logprobs), dtype=float)) if logprobs else None,
            counts=dict(vars(reply.counts)),
            parts=parts,
            seconds=round(reply.seconds, 5),
            boundaries=kept,
        )


def _refused(where: tuple[str, str, str, int, int], why: str) -> Sample:
    return Sample(
        *where, text="", thinking="", tokens=0, finish="error", correct=None, score=0.0,
        answer=None, detail=why, logprob=None, counts={}, parts={}, seconds=0.0,
    )  # fmt: skip
