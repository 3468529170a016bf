"""LiveCodeBench (Jain et al. 2024): contest problems, through stdin or as a method.

Every test is a run of its own; expected outputs stay outside the sandbox.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import exact
from tgr_local.lab.eval.tasks.code import SLACK, CodeBenchmark, as_module, as_program, program
from tgr_local.lab.eval.tasks.data import Row, Source, literal

SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and "
    "will generate a correct Python program that matches the specification and passes all tests."
)
WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters."
)
FROM_STDIN = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly "
    "test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when "
    "the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT."
)
IMPORTS = """\
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, sys, json
sys.setrecursionlimit(50000)
"""
"""Imports that contest sites provide."""
CALL = """

import json as __json
__owner = Solution() if 'Solution' in globals() else __sys.modules[__name__]
__inputs = [__json.loads(line) for line in __sys.stdin.read().split('\\n') if line.strip()]
print('\\n' + __json.dumps(getattr(__owner, {name!r})(*__inputs)))
"""


@dataclass(frozen=True)
class LiveCodeBench(CodeBenchmark):
    """Six seconds per test, as in the official runner."""

    limits: ClassVar[ProgramLimits] = ProgramLimits(seconds=6.0, memory=4 << 30, disk=64 << 20)

    def problem(self, row: Row, index: str) -> Problem:
        question, starter = row.text("question_content"), row.fields.get("starter_code") or ""
        tests = [
            {"input": str(test["input"]), "output": str(test["output"])}
            for field in ("public_test_cases", "private_test_cases")
            for test in cases(row, field)
        ]
        how = f"{WITH_STARTER}\n```python\n{starter}" if starter else f"{FROM_STDIN}\n```python\n"
        how += "" if starter else "# YOUR CODE HERE"
        prompt = (
            f"### Question:\n{question}\n\n### Format: {how}\n```\n\n"
            "### Answer: (use the provided format with backticks)\n\n"
        )
        messages = ({"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt})
        reference = {"tests": tests, "function": function(row)}
        raw, groups = f"{SYSTEM}\n\n{prompt}", row.groups("difficulty", "platform")
        return Problem(self.name, row.text("question_id"), messages, reference, raw, groups)

    def seconds(self, problem: Problem) -> float:
        return (self.limits.seconds + 1) * len(problem.reference["tests"]) + SLACK

    def code(self, problem: Problem, text: str) -> str | None:
        return program(text, "Solution" if problem.reference["function"] else "")

    def judged(self, problem: Problem, code: str) -> Grade:
        tests, name = problem.reference["tests"], problem.reference["function"]
        if not tests:
            detail = "cannot be graded: the file has no tests for this problem"
            return Grade(None, 0.0, code.strip(), detail)
        source = f"{IMPORTS}{code}\n"
        source = as_module(source + CALL.format(name=name)) if name else as_program(source)
        for i, test in enumerate(tests, start=1):
            outcome = programs.run(source, test["input"], self.limits)
            printed = outcome.stdout
            if outcome.why:
                return exact(False, code.strip(), f"test {i}: {outcome.why}")
            same = same_value if name else same_text
            if not same(printed, test["output"]):
                return exact(False, code.strip(), f"test {i}: wrong output {printed[:80]!r}")
        return exact(True, code.strip())


def cases(row: Row, field: str) -> list[dict[str, Any]]:
    """The tests of a row: a JSON text, or the same packed as the `lite` files have it."""
    packed = row.fields.get(field) or []
    if isinstance(packed, str) and not packed.lstrip().startswith("["):
        try:
            packed = Plain(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load()
        except Exception as error:  # a damaged pickle raises almost anything
            raise ValueError(f"{row.where}: field {field!r} is damaged ({error})") from error
    tests = literal(packed, f"{row.where}, field {field!r}") if isinstance(packed, str) else packed
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and {"input", "output"} <= set(test) for test in tests
    ):
        raise ValueError(f"{row.where}: field {field!r} is not a list of inputs and outputs")
    return tests


class Plain(pickle.Unpickler):
    """Reads texts, numbers, lists and dictionaries; a pickle that names any class is refused."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def function(row: Row) -> str:
    """The method that the tests call; empty where they use stdin."""
    metadata = row.fields.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = literal(metadata, f"{row.where}, field 'metadata'")
    if not isinstance(metadata, dict):
        raise ValueError(f"{row.where}: field 'metadata' is not an object: {str(metadata)[:60]!r}")
    return str(metadata.get("func_name") or "")


def same_value(printed: str, wanted: str) -> bool:
    """Whether the last line printed is the wanted JSON value."""
    try:
        return bool(json.loads(printed.strip().split("\n")[-1]) == json.loads(wanted))
    except (ValueError, RecursionError):
        return False


def same_text(printed: str, wanted: str) -> bool:
    """Whether two outputs have the same lines, numbers compared as decimals."""
    left, right = (
        [line.strip() for line in text.strip().split("\n")] for text in (printed, wanted)
    )
    return len(left) == len(right) and all(map(same_line, left, right))


def same_line(left: str, right: str) -> bool:
    """Whether two lines are equal as text or as decimals."""
    try:
        return left == right or list(map(Decimal, left.split())) == list(
            map(Decimal, right.split())
        )
    except InvalidOperation:
        return False


TASK = LiveCodeBench(
    "livecodebench",
    "contest problems by date (v6: 1,055); tests through stdin or as a method",
    Source(
        ("livecodebench/test*.jsonl", "livecodebench.jsonl"),
        "https://huggingface.co/datasets/livecodebench/code_generation_lite",
        {
            "path": "json",
            "data_files": "hf://datasets/livecodebench/code_generation_lite/test*.jsonl",
            "split": "train",
        },
    ),
)
