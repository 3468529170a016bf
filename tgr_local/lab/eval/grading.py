"""What grades depend on: time, sandbox, judge, versions of packages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tgr_local.lab.eval.task import Task
from tgr_local.lab.eval.tasks import get
from tgr_local.system.sandbox import backends
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.versions import version

if TYPE_CHECKING:
    from tgr_local.lab.eval.samples import Sample


def settings(
    tasks: Iterable[str],
    seconds: float,
    allow_exec: bool,
    judge: tuple[str, str],
    backend: Backend = backends.DEFAULT,
) -> dict[str, Any]:
    """The entry `grading` of a manifest: what the grades of these tasks may depend on. `judge` is a
    URL and a model."""
    url, model = judge
    tasks = list(tasks)
    found = {"seconds": seconds, "allow_exec": allow_exec, "judge": url}
    if allow_exec and any(get(task).needs_exec for task in tasks):
        found["sandbox"] = backend
    if model:
        found["judge_model"] = model
    return found | {name: version(name) for task in tasks for name in _packages(get(task))}


def is_judged(task: Task) -> bool:
    """Whether a judge grades its answers."""
    return task.metric == "score"


def in_use(samples: Iterable[Sample]) -> set[str]:
    """The names of the settings that the grades of these samples depend on. A timeout gives no
    grade, except for a program, which is then wrong."""
    found: set[str] = set()
    for sample in samples:
        if sample.correct is not None:
            task = get(sample.task)
            found.update(_packages(task))
            if task.needs_exec:
                found |= {"seconds", "allow_exec", "sandbox"}
            if is_judged(task) and sample.answer is not None:
                found |= {"judge", "judge_model"}
    return found - {"sacrebleu"}  # every report computes it again


def _packages(task: Task) -> list[str]:
    """The packages that compute its numbers."""
    own = [name.replace("_", "-") for name in task.packages]
    return own if task.metric == "pass" else [*own, "sacrebleu"]
