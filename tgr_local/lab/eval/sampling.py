"""Makes the samples of one phase with a pool of threads that keeps the engine's batch full.

Each thread has one sample after another made, for whatever problem is next. The replies are graded
in other processes while the next ones are made.
"""

from __future__ import annotations

import dataclasses
import functools
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future

from tgr_local.engine import Cancel, Workers
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.live import Live
from tgr_local.lab.eval.making import Job, Maker, Phase
from tgr_local.lab.eval.samples import Sample, Store
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.system.errors import CancelledError

_UNGRADED_REPLIES = 512  # replies that wait for a grade at most; a kill loses them


class Sampler:
    """A pool of threads that makes the samples of a list."""

    def __init__(
        self,
        maker: Maker,
        phase: Phase,
        prompts: Mapping[str, list[int]],
        store: Store,
        grader: Grader,
        progress: Live,
    ) -> None:
        self.maker, self.phase, self.prompts = maker, phase, prompts
        self.store, self.grader, self.progress = store, grader, progress
        self.n_added = self.counted = 0
        """Samples added to the store, and their forward tokens."""
        self._lock = threading.Lock()
        self._cancel = Cancel()
        self._failure: BaseException | None = None
        self._slots = threading.Semaphore(_UNGRADED_REPLIES)
        self._pending = 0
        self._graded: queue.SimpleQueue[None] = queue.SimpleQueue()  # Ctrl-C cannot leave it locked

    def run(self, jobs: Sequence[Job], n_cells: int, parallel: int) -> int:
        """Makes the samples, which have at most `n_cells` cells each, `parallel` at a time (0 = as
        many as fit). Returns the number at a time when all are on the disk. Raises the first
        error."""
        at_once = self.maker.begin(self.phase, n_cells, parallel, len(jobs))
        todo = iter(jobs)

        def work() -> None:
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

        self._finish([work] * at_once)
        return at_once

    def grade_again(self, samples: Iterable[Sample]) -> None:
        """Grades samples that have no grade. Returns when all are on the disk. Raises the first
        error."""
        problems = {problem.id: problem for problem in self.phase.problems}

        def work() -> None:
            for sample in samples:
                if self._cancel.is_set():
                    return
                self._grade(problems[sample.problem], sample)

        self._finish([work])

    def _finish(self, works: Sequence[Callable[[], None]]) -> None:
        """Does the work in threads, each with its own. Returns when its samples are on the disk.
        Raises the first error."""
        workers = Workers()
        try:
            for work in works:
                workers.start(functools.partial(self._guard, work))
            workers.wait()
            while self._pending and not self._failure:
                self._graded.get()
        except BaseException:
            self._cancel.cancel()
            workers.wait()
            raise
        finally:
            self.store.flush()
        if self._failure:
            raise self._failure

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
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
        graded = self.grader.submit(problem, sample.text)
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
            with self._lock:
                self._pending -= 1
            self._graded.put(None)

    def _add(self, sample: Sample) -> None:
        self.store.add(sample)
        with self._lock:
            self.n_added += 1
            self.counted += sample.cost
        self.progress.sample(sample)
