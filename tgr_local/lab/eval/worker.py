"""One worker process of a grader, as its parent sees it.

Workers are new interpreters, not forks, so the engine's threads do no harm. They exchange
JSON lines over a pipe and have process groups of their own; `worker_main` runs in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from tgr_local.lab.eval.task import FAILED
from tgr_local.system.sandbox import programs
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


class WorkerLostError(Exception):
    """The worker died, or was killed after a timeout, before it answered."""


class WorkerProcess:
    """A worker process: started on first use, and again after it was lost."""

    def __init__(self, environment: Mapping[str, str], backend: Backend) -> None:
        self._environment, self._backend = environment, backend
        self._process: subprocess.Popen[str] | None = None
        self.folder = ""
        """Its temporary files, which a killed process cannot delete itself."""
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
            programs.remove(self.folder)


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
