"""Grades answers in worker processes that can be killed.

In: problems and texts. Out: futures of grades. A grader that hangs, dies or uses too much memory
loses its answer and its worker, but does not end the run.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType

from tgr_local.lab.eval.task import FAILED, Grade, Problem
from tgr_local.lab.eval.tasks import get, writingbench
from tgr_local.lab.eval.worker import CLOSED, WorkerLostError, WorkerProcess
from tgr_local.system.sandbox import backends
from tgr_local.system.sandbox.backends import Backend

Job = tuple[Problem, str, "Future[Grade]"]


class Grader:
    """`with Grader(2, timeout=10) as grader: grader.submit(problem, text).result()`.

    `timeout` is in seconds for one answer; a task whose own rules allow more gets that. Programs
    that a model wrote run only if `allow_exec`, in the sandbox `backend`; where it does not work
    they get no grade. The judge is `judge_url` only, whatever the environment says. Leaving the
    block cancels waiting answers and kills the workers: wait for the futures first.
    """

    def __init__(
        self,
        n_workers: int = 1,
        timeout: float = 10.0,
        allow_exec: bool = False,
        judge_url: str = "",
        judge_model: str = "",
        backend: Backend = backends.DEFAULT,
    ) -> None:
        if n_workers < 1:
            raise ValueError(f"n_workers must be at least 1, got {n_workers}")
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        self._timeout = timeout
        self._allow_exec = allow_exec
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        judge = {"TGR_JUDGE_URL": writingbench.checked(judge_url)}
        if judge_model:
            judge["TGR_JUDGE_MODEL"] = judge_model
        self.workers = [WorkerProcess(judge, backend) for _ in range(n_workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name="tgr-grader", daemon=True)
            for worker in self.workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        """The future of a grade. Raises ValueError for an unknown task, or one that runs code
        without `allow_exec`; RuntimeError after `close`."""
        task = get(problem.task)
        if task.needs_exec and not self._allow_exec:
            raise ValueError(
                f"{task.name} runs programs that the model wrote, in a sandbox; allow it with "
                "--allow-exec, or allow_exec=True"
            )
        if self._closing.is_set():
            raise RuntimeError(CLOSED)
        future: Future[Grade] = Future()
        self._jobs.put((problem, text, future))
        return future

    def close(self) -> None:
        """Cancels waiting answers and kills the workers. May be called twice."""
        self._closing.set()
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job[2].cancel()
        for worker in self.workers:
            self._jobs.put(None)
            worker.kill()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, worker: WorkerProcess) -> None:
        while (job := self._jobs.get()) is not None:
            problem, text, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._graded(worker, problem, text))
            except Exception as error:
                future.set_exception(error)

    def _graded(self, worker: WorkerProcess, problem: Problem, text: str) -> Grade:
        task = get(problem.task)
        seconds = max(self._timeout, task.seconds(problem))
        answer = worker.prepare(problem.task)
        if "error" not in answer:
            try:
                answer = worker.ask({"problem": asdict(problem), "text": text}, seconds)
            except WorkerLostError as why:
                # a program that ends its grader is wrong; any other answer has no grade
                return Grade(False if task.needs_exec else None, 0.0, None, str(why))
        if "error" in answer:
            return Grade(None, 0.0, None, f"{FAILED}failed: {answer['error']}")
        return Grade(**answer["grade"])
