"""BigCodeBench (Zhuo et al. 2024): functions that use many libraries, judged by unit tests."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from typing import ClassVar

from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import CodeBenchmark, passes, program
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.system.python_source import syntax_tree

PREFIX = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:"
)
RUN_TESTS = """
import unittest as __unittest
__result = __unittest.TestResult()
__unittest.defaultTestLoader.loadTestsFromTestCase(TestCases).run(__result)
if not __result.testsRun or not __result.wasSuccessful():
    for __test, __trace in __result.errors + __result.failures:
        raise SystemExit(__trace.strip().splitlines()[-1])
    raise SystemExit('no test passed')
"""


@dataclass(frozen=True)
class BigCodeBench(CodeBenchmark):
    """The chat prompt is in words (Instruct), the completion prompt is the docstring (Complete)."""

    limits: ClassVar[ProgramLimits] = ProgramLimits(
        seconds=240.0, memory=4 << 30, disk=256 << 20, processes=128
    )

    def problem(self, row: Row, index: str) -> Problem:
        head = row.text("complete_prompt")
        reference = {
            "code_prompt": row.text("code_prompt"),
            "prompt": head,
            "test": row.text("test"),
            "entry_point": row.text("entry_point"),
            "libs": [str(name) for name in row.list("libs")],
        }
        prompt = f"{PREFIX}\n{row.text('instruct_prompt').strip()}\n"
        return Problem(self.name, row.text("task_id"), user(prompt), reference, head)

    def code(self, problem: Problem, text: str) -> str | None:
        reference = problem.reference
        solution = program(text, reference["entry_point"])
        if solution is not None:
            return f"{reference['code_prompt']}\n    pass\n\n{solution}"
        return reference["prompt"] + text if text.startswith((" ", "\t")) else None

    def judged(self, problem: Problem, code: str) -> Grade:
        reference = problem.reference
        needed = {*reference["libs"], *imported(reference["prompt"] + "\n    pass")}
        if absent := missing(needed | imported(reference["test"])):
            return Grade(None, 0.0, code.strip(), f"cannot be graded here: no package {absent}")
        return passes(code, reference["test"] + RUN_TESTS, self.limits)


def imported(code: str) -> set[str]:
    """The top-level packages that code imports."""
    packages = set()
    for node in ast.walk(syntax_tree(code)):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages


def missing(packages: set[str]) -> str:
    """Lists the packages that are not installed, in one text."""
    return ", ".join(sorted(name for name in packages if importlib.util.find_spec(name) is None))


TASK = BigCodeBench(
    "bigcodebench",
    "1,140 functions that use many libraries; unit tests (name the Hard file for its 148)",
    Source(
        ("bigcodebench.jsonl", "bigcodebench_hard.jsonl", "bigcodebench/*.parquet"),
        "https://huggingface.co/datasets/bigcode/bigcodebench",
        {"path": "bigcode/bigcodebench", "split": "v0.1.4"},
    ),
)
