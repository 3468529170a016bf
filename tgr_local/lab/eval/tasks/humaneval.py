"""HumanEval (Chen et al. 2021): 164 functions to complete, with hidden tests; and HumanEvalFix
(Muennighoff et al. 2023): the same with a bug, all of their tests shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import (
    CodeBenchmark,
    blocks,
    defines,
    definitions,
    passes,
    program,
)
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.lab.eval.tasks.repairs import changed_file

STOP = re.compile(r"\n(?:class|def|#|if|print)")
"""Pattern of the code that follows a bare completion of a function, as in the paper."""

HELPERS = "\n".join(
    [f"import {name}" for name in ("collections", "copy", "functools", "hashlib", "heapq",
                                   "itertools", "math", "re", "string", "sys")]
    + ["from typing import *"]
)  # fmt: skip
"""Imports before each program, as in the benchmark."""


@dataclass(frozen=True)
class HumanEval(CodeBenchmark):
    """A reply may repeat the function or only complete it."""

    def problem(self, row: Row, index: str) -> Problem:
        head = row.text("prompt")
        prompt = (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            f"```python\n{head}\n```\n"
        )
        reference = {
            "prompt": head,
            "test": row.text("test"),
            "entry_point": row.text("entry_point"),
        }
        return Problem(self.name, row.text("task_id"), user(prompt), reference, head)

    def code(self, problem: Problem, text: str) -> str | None:
        head, name = problem.reference["prompt"], problem.reference["entry_point"]
        solution = program(text, name)
        if solution is not None and defines(solution, name):
            # the head brings its imports and helpers
            return f"{head}\n    pass\n\n{definitions(solution, name)}"
        body = blocks(text)[-1] if blocks(text) else text
        body = STOP.split(f"\n{body}")[0][1:]
        if not body.strip():
            return None
        indent = "" if body[0].isspace() else "    "  # lost where a reply was stripped
        return f"{head}{indent}{body}"

    def judged(self, problem: Problem, code: str) -> Grade:
        tests = f"{problem.reference['test']}\n\ncheck({problem.reference['entry_point']})"
        return passes(code, tests, self.limits)


class HumanEvalCode(HumanEval):
    """Asks as EvalPlus (Liu et al. 2023) asks an instruct model, the form that reports of code
    models count: the answer begins with its program, so that no reasoning comes before it."""

    def problem(self, row: Row, index: str) -> Problem:
        problem = super().problem(row, index)
        prompt = (
            "Please provide a self-contained Python script that solves the following problem in a "
            f"markdown code block:\n```\n{problem.raw.strip()}\n```\n"
        )
        begun = {
            "role": "assistant",
            "content": "Below is a Python script with a self-contained function that solves the "
            "problem and passes corresponding tests:\n```python\n",
        }
        return replace(problem, messages=(*user(prompt), begun))

    def code(self, problem: Problem, text: str) -> str | None:
        return super().code(problem, f"```python\n{text}")


@dataclass(frozen=True)
class HumanEvalFix(CodeBenchmark):
    """The variant with tests: the function without its docstring, then its tests."""

    def problem(self, row: Row, index: str) -> Problem:
        file = row.text("declaration") + row.text("buggy_solution")
        tests, name = row.text("test"), row.text("entry_point")
        prompt = (
            f"Fix bugs in {name}.\n\n```python\n{file.rstrip()}\n\n{tests.strip()}\n```\n\n"
            f"Answer with the whole corrected function {name} in a fenced block.\n"
        )
        reference = {"file": file, "test": tests, "entry_point": name}
        return Problem(self.name, row.text("task_id"), user(prompt), reference, prompt)

    def code(self, problem: Problem, text: str) -> str | None:
        return changed_file(text, problem.reference["file"], problem.reference["entry_point"])

    def judged(self, problem: Problem, code: str) -> Grade:
        return passes(f"{HELPERS}\n\n{code}", problem.reference["test"], self.limits)


SOURCE = Source(
    ("humaneval/HumanEval.jsonl.gz", "HumanEval.jsonl.gz", "HumanEval.jsonl"),
    "https://github.com/openai/human-eval",
    {"path": "openai/openai_humaneval", "split": "test"},
)
TASK = HumanEval("humaneval", "164 Python functions from their docstrings; hidden tests", SOURCE)
CODE = HumanEvalCode(
    "humaneval-code", "the same, asked as EvalPlus does: the answer begins with its program", SOURCE
)
FIX = HumanEvalFix(
    "humanevalfix",
    "164 Python functions with a bug; their tests are shown",
    Source(
        ("humanevalpack/python/data/humanevalpack.jsonl", "humanevalpack.jsonl",
         "data/python/data/humanevalpack.jsonl", "humanevalfix.jsonl"),
        "https://huggingface.co/datasets/bigcode/humanevalpack",
        {"path": "bigcode/humanevalpack", "name": "python", "split": "test"},
    ),
)  # fmt: skip
