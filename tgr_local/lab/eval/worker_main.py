"""The main loop of a worker process, which grades answers for `grader.Grader`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.task import Problem
from tgr_local.lab.eval.tasks import get
from tgr_local.system import job_object
from tgr_local.system.errors import TgrError, describe
from tgr_local.system.sandbox import usage
from tgr_local.system.sandbox.backends import Backend

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

MEMORY = 8 << 30
"""Address space of a worker, bytes."""


def work(backend: Backend) -> None:
    """Reads a JSON line, writes a JSON line, until the pipe closes. Programs run in the sandbox
    `backend`."""
    programs.choose(backend)
    _bound_memory()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    ready: set[str] = set()
    for line in sys.stdin:
        question = json.loads(line)
        _bound_time(question["seconds"])
        out.write(json.dumps(_answer(question, ready)) + "\n")
        out.flush()
    usage.remove(os.environ["TMPDIR"])  # the parent is gone


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
    """Limits the address space: a grader gets a MemoryError before the machine runs out of
    memory."""
    with contextlib.suppress(OSError, ValueError):
        if resource is None:
            return job_object.limit(memory=MEMORY)
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        bound = MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (bound, most))


def _bound_time(seconds: float) -> None:
    """Limits the CPU time, so that the system ends a worker whose parent was killed."""
    with contextlib.suppress(OSError, ValueError):
        if resource is None:
            return job_object.limit(seconds=2 * seconds + 2)
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        bound = int(used + 2 * seconds) + 2
        bound = bound if most == resource.RLIM_INFINITY else min(bound, most)
        resource.setrlimit(resource.RLIMIT_CPU, (bound, most))
