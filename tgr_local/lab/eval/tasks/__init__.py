"""The benchmarks by name. A task is imported on first use, its packages for grading."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import cast

from tgr_local.lab.eval.task import EvalTask
from tgr_local.options.model_names import is_unmistakable, pull_hint
from tgr_local.system.near_names import did_you_mean

_PLACES = {
    "math500": "maths:MATH500",
    "aime24": "maths:AIME24",
    "aime25": "maths:AIME25",
    "olympiadbench": "maths:OLYMPIADBENCH",
    "omnimath": "maths:OMNIMATH",
    "gsm8k": "gsm8k:TASK",
    "humaneval": "humaneval:TASK",
    "humaneval-code": "humaneval:CODE",
    "mbpp": "mbpp:TASK",
    "bigcodebench": "bigcodebench:TASK",
    "livecodebench": "livecodebench:TASK",
    "ifeval": "ifeval:STRICT",
    "ifeval-loose": "ifeval:LOOSE",
    "writingbench": "writingbench:ALL",
    "writingbench-arts": "writingbench:ARTS",
    "writingbench-diversity": "writingbench:DIVERSITY",
    "countdown": "puzzles:COUNTDOWN",
    "game24": "puzzles:GAME24",
    "bugs": "bugs:TASK",
    "bugs-families": "bugs:FAMILIES",
    "humanevalfix": "humaneval:FIX",
    "aider-edit": "aider_edit:TASK",
    "arithmetic3": "generated:ARITHMETIC3",
    "arithmetic4": "generated:ARITHMETIC4",
    "arithmetic5": "generated:ARITHMETIC5",
    "arithmetic6": "generated:ARITHMETIC6",
    "arithmetic8": "generated:ARITHMETIC8",
    "arithmetic10": "generated:ARITHMETIC10",
    "equations": "generated:EQUATIONS",
}
"""Module and name of each task."""


class _Tasks(Mapping[str, EvalTask]):
    """Imports a task when it is looked up."""

    def __getitem__(self, name: str) -> EvalTask:
        module, _, attribute = _PLACES[name].partition(":")
        return cast(EvalTask, getattr(importlib.import_module(f"{__name__}.{module}"), attribute))

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


TASKS: Mapping[str, EvalTask] = _Tasks()


def get(name: str) -> EvalTask:
    """The task of that name. Raises ValueError for another, with the nearest ones."""
    if name not in TASKS:
        hint = did_you_mean(name.lower(), TASKS, "")
        hint = f"{hint} " if hint else ""
        if name.lower().endswith(".gguf"):
            hint = f"a model is named with -m {name}; "
        elif is_unmistakable(name):
            hint = f"a model is named with -m {name}, and {pull_hint(name)}; "
        raise ValueError(f"unknown task {name!r}; {hint}tgr-local eval list shows all")
    return TASKS[name]
