"""Makes the samples of one phase with a pool of threads that keeps the engine's batch full.

Each thread has one sample after another made, for whatever problem is next. The replies are graded
in other processes while the next ones are made.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from tgr_local.engine import Cancel
from tgr_local.errors import CancelledError
from tgr_local.eval.making import Job, Maker, Phase
from tgr_local.eval.samples import Sample
from tgr_local.eval.store import Store
from tgr_local.eval.task import Grade, Problem

_UNGRADED_REPLIES = 512  # at most so many wait for a grade; a kill loses them


class Grades(Protocol):
    """Grades replies while others are generated: `grader.Grader`."""

    def submit(self, problem: Problem, text: str) -> Future[Grade]: ...


class Progress(Protocol):
    """Gets the progress of a run."""

    def phase(self, phase: Phase, samples: Sequence[Sample], n_total: int) -> None:
        """A phase begins, with these of its `n_total` samples."""

    def sample(self, sample: Sample) -> None: ...


class Sampler:
    """A pool of threads that makes the samples of a list."""

    def __init__(
        self,
        maker: Maker,
        phase: Phase,
        prompts: Mapping[str, list[int]],
        store: Store,
        grades: Grades,
        progress: Progress,
    ) -> None:
        self.maker, self.phase, self.prompts = maker, phase, prompts
        self.store, self.grades, self.progress = store, grades, progress
        self.n_added = self.counted = 0
        """Samples added to the store, and their forward tokens."""
        self._lock = threading.Lock()
        self._cancel = Cancel()
        self._failure: BaseException | None = None
        self._slots = threading.Semaphore(_UNGRADED_REPLIES)
        self._pending = 0
        self._graded = threading.Condition(self._lock)

    def run(self, jobs: Sequence[Job], n_cells: int, parallel: int) -> int:
        """Makes the samples, which have at most `n_cells` cells each, `parallel` at a time (0 = as
        many as fit). Returns the number at a time when all are on the disk. Raises the first
        error."""
        at_once = self.maker.begin(self.phase, n_cells, parallel, len(jobs))
        todo = iter(jobs)
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
        with self._lock:  # that of `_graded`, which Ctrl-C may leave locked when it is entered
            while self._pending and not self._failure:
                self._graded.wait()

    def _work(self, todo: Iterator[Job]) -> None:
        try:
            while not self._cancel.is_set():
                with self._lock:
                    job = next(todo, None)
                if job is None:
                    return
                sample = self.maker.make(job, self.prompts.get(job[0].id), self._cancel)
                if sample.finish == "error":
                    self._add(sample)
                else:
                    self._grade(job[0], sample)
        except BaseException as error:
            with self._lock:
                if self._failure is None and not isinstance(error, CancelledError):
                    self._failure = error
            self._cancel.cancel()

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
