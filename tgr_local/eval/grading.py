"""Grades answers in worker processes that can be killed.

In: problems and texts. Out: futures of grades. A grader that hangs, dies or eats memory costs its
answer and its worker, never the run. Workers are fresh interpreters, not forks, so they are safe
beside the engine's threads; they speak JSON lines over a pipe and form process groups of their own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tgr_local.errors import TgrError, describe
from tgr_local.eval import sandbox, walls
from tgr_local.eval.task import FAILED, Grade, Problem, Task
from tgr_local.eval.tasks import get, writingbench
from tgr_local.eval.walls import Wall

if TYPE_CHECKING:
    from tgr_local.eval.samples import Sample

MEMORY = 8 << 30
"""Address space of a worker, bytes."""
START_SECONDS = 120.0
"""A worker's time to start and to import what its task needs."""
START = """if True:
    import sys
    sys.path[:] = [place for place in sys.path if place]  # not the current folder
    import json
    sys.path[:] = json.loads(sys.argv[1])
    from tgr_local.eval.grading import work
    work(sys.argv[2])
"""

CLOSED = "this Grader is closed"

Job = tuple[Problem, str, "Future[Grade]"]


def settings(
    tasks: Iterable[str],
    seconds: float,
    allow_exec: bool,
    judge: tuple[str, str],
    wall: Wall = walls.DEFAULT,
) -> dict[str, Any]:
    """What the grades of these tasks may depend on, as a manifest has it; `judge` is a URL and a
    model."""
    url, model = judge
    tasks = list(tasks)
    found = {"seconds": seconds, "allow_exec": allow_exec, "judge": url}
    if allow_exec and any(get(task).needs_exec for task in tasks):
        found["wall"] = wall
    if model:
        found["judge_model"] = model
    return found | {name: _version(name) for task in tasks for name in _packages(get(task))}


def is_judged(task: Task) -> bool:
    return task.metric == "score"


def in_use(samples: Iterable[Sample]) -> set[str]:
    """The names of the settings that the grades of these samples depend on. Time that ran out is
    no grade, but for programs, which are then wrong."""
    found: set[str] = set()
    for sample in samples:
        if sample.correct is not None:
            task = get(sample.task)
            found.update(_packages(task))
            if task.needs_exec:
                found |= {"seconds", "allow_exec", "wall"}
            if is_judged(task) and sample.answer is not None:
                found |= {"judge", "judge_model"}
    return found - {"sacrebleu"}  # which every report asks anew


def _packages(task: Task) -> list[str]:
    """The packages that its numbers come from."""
    own = [name.replace("_", "-") for name in getattr(task, "packages", ())]
    return own if task.metric == "pass" else [*own, "sacrebleu"]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class Grader:
    """`with Grader(2, timeout=10) as grader: grader.submit(problem, text).result()`.

    `timeout` is in seconds for one answer; a task whose own rules allow more gets that. Programs
    that a model wrote run only if `allow_exec`, behind `wall`; where that does not work here they
    get no grade. Without a judge nothing is judged, whatever the environment says. Leaving the
    block cancels what has not begun and kills the workers: wait for the futures first.
    """

    def __init__(
        self,
        n_workers: int = 1,
        timeout: float = 10.0,
        allow_exec: bool = False,
        judge_url: str = "",
        judge_model: str = "",
        wall: Wall = walls.DEFAULT,
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
        self._workers = [_Worker(judge, wall) for _ in range(n_workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(worker,), name="tgr-grader", daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, problem: Problem, text: str) -> Future[Grade]:
        """The grade to come. Raises ValueError for an unknown task or one that runs code without
        leave, RuntimeError after the end."""
        task = get(problem.task)
        if task.needs_exec and not self._allow_exec:
            raise ValueError(
                f"{task.name} runs programs that the model wrote; allow it (--allow-exec, or "
                "allow_exec=True): they run in a sandbox"
            )
        if self._closing.is_set():
            raise RuntimeError(CLOSED)
        future: Future[Grade] = Future()
        self._jobs.put((problem, text, future))
        return future

    def close(self) -> None:
        """Cancel what has not begun, kill the workers. May be called twice."""
        self._closing.set()
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job[2].cancel()
        for worker in self._workers:
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

    def _serve(self, worker: _Worker) -> None:
        while (job := self._jobs.get()) is not None:
            problem, text, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._graded(worker, problem, text))
            except Exception as error:
                future.set_exception(error)

    def _graded(self, worker: _Worker, problem: Problem, text: str) -> Grade:
        task = get(problem.task)
        seconds = max(self._timeout, task.seconds(problem))
        answer = worker.prepare(problem.task)
        if "error" not in answer:
            try:
                answer = worker.ask({"problem": asdict(problem), "text": text}, seconds)
            except _Lost as why:
                # a program that takes its grader down is wrong; of other answers nothing is known
                return Grade(False if task.needs_exec else None, 0.0, None, str(why))
        if "error" in answer:
            return Grade(None, 0.0, None, f"{FAILED}failed: {answer['error']}")
        return Grade(**answer["grade"])


class _Lost(Exception):
    """The worker died, or had to be killed, before it answered."""


class _Worker:
    """One worker process, started when it is first asked, and again after it was lost."""

    def __init__(self, environment: Mapping[str, str], wall: Wall) -> None:
        self._environment, self._wall = environment, wall
        self._process: subprocess.Popen[str] | None = None
        self._folder = ""
        """Its temporary files: a killed process cannot clear up behind itself."""
        self._lock = threading.Lock()
        self._is_over = False

    def prepare(self, task: str) -> dict[str, Any]:
        """Have the process ready for a task; one that died meanwhile is replaced, once."""
        question = {"prepare": task}
        try:
            return self.ask(question, START_SECONDS)
        except _Lost:
            try:
                return self.ask(question, START_SECONDS)
            except _Lost as why:
                return {"error": str(why)}

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. Raises _Lost where there is none in time, RuntimeError after `kill`."""
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
            raise _Lost(f"{FAILED}timed out after {seconds:g} s")
        code = process.wait()
        raise _Lost(f"{FAILED}died ({signal.Signals(-code).name if code < 0 else code})")

    def kill(self) -> None:
        """End the process for good."""
        self._is_over = True
        self._end()

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._is_over:
                raise RuntimeError(CLOSED)
            if self._process is None:
                self._folder = tempfile.mkdtemp(prefix="tgr-grader-")
                self._process = subprocess.Popen(
                    [sys.executable, "-c", START, json.dumps(sys.path), self._wall],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=None if os.environ.get("TGR_DEBUG") else subprocess.DEVNULL,
                    env={**os.environ, **self._environment, "TMPDIR": self._folder},
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
            sandbox.remove(self._folder)


def _exchange(process: subprocess.Popen[str], question: str) -> str:
    """The line that answers a line; without its end, or empty, where the process died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):
        return ""


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a worker and everything in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def work(wall: Wall) -> None:
    """The life of a worker: one JSON line in, one out, until the pipe closes. Programs run behind
    `wall`."""
    sandbox.choose(wall)
    _bound_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    ready: set[str] = set()
    for line in sys.stdin:
        question = json.loads(line)
        _bound_time(question["seconds"])
        out.write(json.dumps(_answer(question, ready)) + "\n")
        out.flush()
    sandbox.remove(os.environ["TMPDIR"])  # nobody is left who would


def _answer(question: Mapping[str, Any], ready: set[str]) -> dict[str, Any]:
    try:
        if "prepare" in question:
            name = question["prepare"]
            if name not in ready:
                get(name).prepare()
                ready.add(name)
            return {}
        problem = Problem(**question["problem"])
        return {"grade": asdict(get(problem.task).grade(problem, question["text"]))}
    except (Exception, SystemExit) as error:
        words = describe(error) if isinstance(error, TgrError | ValueError) else repr(error)
        return {"error": words[:300]}


def _bound_memory() -> None:
    """A runaway grader gets a MemoryError instead of the whole machine's memory."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        bound = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (bound, most))


def _bound_time(seconds: float) -> None:
    """The system ends a worker that goes on long after its time: who should have done so was
    killed."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        bound = int(used + 2 * seconds) + 2
        bound = bound if most == resource.RLIM_INFINITY else min(bound, most)
        resource.setrlimit(resource.RLIMIT_CPU, (bound, most))
