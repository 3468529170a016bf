"""MBPP (Austin et al. 2021): short Python functions; the question contains the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import CodeBenchmark, definitions, passes, program
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.lab.eval.tasks.puzzles import whole

TEST_IDS = range(11, 511)
WRAPPERS = {"assert", "set", "sorted", "list", "tuple", "str", "len", "round", "not", "isclose"}
"""The code around the call in a test."""


@dataclass(frozen=True)
class MBPP(CodeBenchmark):
    """The full file and the sanitized one; of both the test split, ids 11 to 510."""

    def problem(self, row: Row, index: str) -> Problem | None:
        number = whole(row, [row.get("task_id")])[0]
        if number not in TEST_IDS:
            return None
        tests = [str(test) for test in row.list("test_list")]
        setup = row.fields.get("test_setup_code") or ""
        imports = row.list("test_imports") if row.fields.get("test_imports") else []
        prompt = (
            "You are an expert Python programmer, and here is your task:\n"
            f"{row.text('text', 'prompt')}\nYour code should pass these tests:\n" + "\n".join(tests)
        )
        reference = {"setup": "\n".join([*map(str, imports), str(setup)]), "tests": tests}
        return Problem(self.name, str(number), user(prompt), reference, f"{prompt}\n[BEGIN]\n")

    def code(self, problem: Problem, text: str) -> str | None:
        text = text.partition("[DONE]")[0]
        name = called(problem.reference["tests"][0])
        solution = program(text, name)
        return definitions(solution, name) if solution is not None and name else solution

    def judged(self, problem: Problem, code: str) -> Grade:
        tests = [problem.reference["setup"], *problem.reference["tests"]]
        return passes(code, "\n".join(tests), self.limits)


def called(test: str) -> str:
    """The function that a test of the form `assert f(…) == …` is about."""
    names = [name for name in re.findall(r"(\w+)\s*\(", test) if name not in WRAPPERS]
    return str(names[0]) if names else ""


TASK = MBPP(
    "mbpp",
    "500 short Python functions (257 in the sanitized file); the tests are shown",
    Source(
        ("mbpp/mbpp.jsonl", "mbpp.jsonl", "mbpp/sanitized-mbpp.json", "sanitized-mbpp.json"),
        "https://github.com/google-research/google-research/tree/master/mbpp",
        {"path": "google-research-datasets/mbpp", "name": "full", "split": "test"},
    ),
)
