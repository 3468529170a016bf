"""Makes the samples of one phase with a pool of threads that keeps the engine's batch full.

Each thread generates one sample after another, for whatever problem is next. The replies are graded
in other processes while the next ones are generated.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tgr_local.engine import Cancel, Engine
from tgr_local.errors import CancelledError, TgrError, describe
from tgr_local.eval import boundaries
from tgr_local.eval.plan import seed_of
from tgr_local.eval.samples import ENGINE, Sample
from tgr_local.eval.store import Store
from tgr_local.eval.systems import System
from tgr_local.eval.task import Grade, Problem
from tgr_local.generation import Reply, generate, query_tokens
from tgr_local.options.config import SearchConfig

_UNGRADED_REPLIES = 512  # at most so many wait for a grade; a kill loses them
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


class Grades(Protocol):
    """Grades replies while others are generated: `grader.Grader`."""

    def submit(self, problem: Problem, text: str) -> Future[Grade]: ...


class Progress(Protocol):
    """Gets the progress of a run."""

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        """A phase begins, with these of its `n_total` samples."""

    def sample(self, sample: Sample) -> None: ...


def prompt_of(engine: Engine, phase: Phase, problem: Problem) -> list[int]:
    """The tokens of a problem's prompt. ValueError, CapacityError as `query_tokens`."""
    prompt = problem.raw if phase.raw else problem.messages
    return query_tokens(engine, prompt, phase.config, raw=phase.raw)


class Sampler:
    """A pool of threads that makes the samples of a list."""

    def __init__(
        self,
        engine: Engine,
        phase: Phase,
        prompts: Mapping[str, list[int]],
        store: Store,
        grades: Grades,
        progress: Progress,
    ) -> None:
        self.engine, self.phase, self.prompts = engine, phase, prompts
        self.store, self.grades, self.progress = store, grades, progress
        self.n_added = self.counted = 0
        """Samples added to the store, and their forward tokens."""
        self._lock = threading.Lock()
        self._cancel = Cancel()
        self._failure: BaseException | None = None
        self._slots = threading.Semaphore(_UNGRADED_REPLIES)
        self._pending = 0
        self._graded = threading.Condition(self._lock)

    def run(self, jobs: Sequence[Job], at_once: int, n_cells: int) -> int:
        """Makes the samples, `at_once` at a time with at most `n_cells` cells each. Returns the
        number at a time when all are on the disk. Raises the first error."""
        at_once = min(at_once, len(jobs))
        self.engine.grow_cache(n_cells, at_once)
        todo = iter(jobs)
        # a sample that does not fit would get the free cells between the others, and each of its
        # tokens would attend across all of them
        threads = [
            threading.Thread(target=self._work, args=(todo,), daemon=True) for _ in range(at_once)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
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
        """Grades samples that have no grade. Returns when all are on the disk. Raises the first
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
                self._graded.wait()

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
            prompt = self.prompts.get(problem.id) or prompt_of(self.engine, self.phase, problem)
            reply = generate(
                self.engine, prompt, config,
                method=self.phase.system.method, cancel=self._cancel,
            )  # fmt: skip
        except CancelledError:
            raise
        except SAMPLE_ERRORS as error:
            # TgrError itself, without a subclass, is a failure of the engine, which may not recur
            kind = ENGINE if type(error) is TgrError else ""
            self._add(_failed(where, kind + describe(error)))
            return
        self._grade(problem, self._ungraded(where, reply, config))

    def _grade(self, problem: Problem, sample: Sample) -> None:
        """Submits a sample for grading; `_take` adds it to the store."""
        self._slots.acquire()
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
                self.progress.sample(sample)  # already in the store
            else:
                self._add(graded)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            self._cancel.cancel()
        finally:
            self._slots.release()
            with self._graded:
                self._pending -= 1
                self._graded.notify_all()

    def _add(self, sample: Sample) -> None:
        self.store.add(sample)
        with self._lock:
            self.n_added += 1
            self.counted += sample.cost
        self.progress.sample(sample)

    def _ungraded(
        self, where: tuple[str, str, str, int, int], reply: Reply, config: SearchConfig
    ) -> Sample:
        steps = reply.steps
        logprobs = [step.logprobs for step in steps if len(step.logprobs)]
        measured = boundaries.measured(steps, config)
        if where[-1] == 0:  # one sample of each problem has texts, for the report
            measured = boundaries.with_texts(self.engine, steps, measured)
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
            counts=reply.counts.decoded,
            parts=parts,
            seconds=round(reply.seconds, 5),
            boundaries=measured,
        )


def _failed(where: tuple[str, str, str, int, int], why: str) -> Sample:
    return Sample(
        *where, text="", thinking="", tokens=0, finish="error", correct=None, score=0.0,
        answer=None, detail=why, logprob=None, counts={}, parts={}, seconds=0.0,
    )  # fmt: skip
