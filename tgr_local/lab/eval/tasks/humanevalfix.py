"""HumanEvalFix (Muennighoff et al. 2023): 164 functions with a bug, all of their tests shown."""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import Code, passes
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.lab.eval.tasks.repairs import changed_file

HELPERS = "\n".join(
    [f"import {name}" for name in ("collections", "copy", "functools", "hashlib", "heapq",
                                   "itertools", "math", "re", "string", "sys")]
    + ["from typing import *"]
)  # fmt: skip
"""Imported before each program, as the benchmark does."""


@dataclass(frozen=True)
class HumanEvalFix(Code):
    """The variant with tests: the function without its docstring, then its tests."""

    def problem(self, row: Row, index: str) -> Problem:
        file = row.text("declaration") + row.text("buggy_solution")
        tests, name = row.text("test"), row.text("entry_point")
        asked = (
            f"Fix bugs in {name}.\n\n```python\n{file.rstrip()}\n\n{tests.strip()}\n```\n\n"
            f"Answer with the whole corrected function {name} in a fenced block.\n"
        )
        reference = {"file": file, "test": tests, "entry_point": name}
        return Problem(self.name, row.text("task_id"), user(asked), reference, asked)

    def code(self, problem: Problem, text: str) -> str | None:
        return changed_file(text, problem.reference["file"], problem.reference["entry_point"])

    def judged(self, problem: Problem, code: str) -> Grade:
        return passes(f"{HELPERS}\n\n{code}", problem.reference["test"], self.limits)


TASK = HumanEvalFix(
    "humanevalfix",
    "164 Python functions with a bug; their tests are shown",
    Source(
        ("humanevalpack/python/data/humanevalpack.jsonl", "humanevalpack.jsonl",
         "data/python/data/humanevalpack.jsonl", "humanevalfix.jsonl"),
        "https://huggingface.co/datasets/bigcode/humanevalpack",
        {"path": "bigcode/humanevalpack", "name": "python", "split": "test"},
    ),
)  # fmt: skip
