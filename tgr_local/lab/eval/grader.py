"""Grades answers in worker processes that can be killed.

In: problems and texts. Out: futures of grades. A grader that hangs, dies or uses too much memory
loses its answer and its worker, but does not end the run. Workers are new interpreters, not forks,
so the engine's threads do no harm. They exchange JSON lines over a pipe and have process groups of
their own; `worker_main` runs in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from tgr_local.lab.eval.task import FAILED, Grade, Problem
from tgr_local.lab.eval.tasks import get, writingbench
from tgr_local.system.sandbox import backends, usage
from tgr_local.system.sandbox.backends import Backend

START_SECONDS = 120.0
"""A worker's time to start and to import what its task needs."""
START = """if True:
    import sys
    sys.path[:] = [place for place in sys.path if place]  # not the current folder
    import json
    sys.path[:] = json.loads(sys.argv[1])
    from tgr_local.lab.eval.worker_main import work
    work(sys.argv[2])
"""
CLOSED = "this Grader is closed"
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

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _serve(self, worker: WorkerProcess) -> None:
        while (job := self._jobs.get()) is not None:
            problem, text, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._grade(worker, problem, text))
            except Exception as error:
                future.set_exception(error)

    def _grade(self, worker: WorkerProcess, problem: Problem, text: str) -> Grade:
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


# ---- one worker, as its parent sees it ----


class WorkerLostError(Exception):
    """The worker died, or was killed after a timeout, before it answered."""


class WorkerProcess:
    """A worker process: started on first use, and again after it was lost."""

    def __init__(self, environment: Mapping[str, str], backend: Backend) -> None:
        self._environment, self._backend = environment, backend
        self._process: subprocess.Popen[str] | None = None
        self.folder = ""
        """Folder of temporary files, which a killed process cannot delete itself."""
        self._lock = threading.Lock()
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """Process id; None while there is no process."""
        process = self._process
        return process.pid if process else None

    def prepare(self, task: str) -> dict[str, Any]:
        """Prepares the process for a task; a process that died meanwhile is replaced, once."""
        question = {"prepare": task}
        try:
            return self.ask(question, START_SECONDS)
        except WorkerLostError:
            try:
                return self.ask(question, START_SECONDS)
            except WorkerLostError as why:
                return {"error": str(why)}

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a question. Raises WorkerLostError where none comes in time, RuntimeError
        after `kill`."""
        process = self._started()
        late = threading.Event()

        def expire() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        line = _exchange(process, json.dumps({**question, "seconds": seconds}))
        timer.cancel()
        if line.endswith("\n"):
            return dict(json.loads(line))
        self._end()
        if self._is_over:
            raise RuntimeError(CLOSED)
        if late.is_set():
            raise WorkerLostError(f"{FAILED}timed out after {seconds:g} s")
        code = process.wait()
        raise WorkerLostError(f"{FAILED}died ({signal.Signals(-code).name if code < 0 else code})")

    def kill(self) -> None:
        """Ends the process; it is not started again."""
        self._is_over = True
        self._end()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_over:
                raise RuntimeError(CLOSED)
            if self._process is None:
                self.folder = tempfile.mkdtemp(prefix="tgr-grader-")
                self._process = subprocess.Popen(
                    [sys.executable, "-c", START, json.dumps(sys.path), self._backend],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=None if os.environ.get("TGR_DEBUG") else subprocess.DEVNULL,
                    env={**os.environ, **self._environment, "TMPDIR": self.folder},
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,
                )
            return self._process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            usage.remove(self.folder)


def _exchange(process: subprocess.Popen[str], question: str) -> str:
    """The answer to a line; incomplete or empty where the process died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):
        return ""


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a worker and all of its process group."""
    if os.name == "nt":  # it has no groups
        return process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
