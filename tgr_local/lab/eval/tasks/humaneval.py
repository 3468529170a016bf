"""HumanEval (Chen et al. 2021): 164 functions to complete, with hidden tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import Code, blocks, defines, passes, program
from tgr_local.lab.eval.tasks.data import Row, Source

STOP = re.compile(r"\n(?:class|def|#|if|print)")
"""Where a bare completion of a function continues with something else, as in the paper."""


@dataclass(frozen=True)
class HumanEval(Code):
    """A reply may repeat the function or only complete it."""

    def problem(self, row: Row, index: str) -> Problem:
        head = row.text("prompt")
        asked = (
            "Write a solution to the following problem and make sure that it passes the tests:\n"
            f"```python\n{head}\n```\n"
        )
        reference = {
            "prompt": head,
            "test": row.text("test"),
            "entry_point": row.text("entry_point"),
        }
        return Problem(self.name, row.text("task_id"), user(asked), reference, head)

    def code(self, problem: Problem, text: str) -> str | None:
        head, name = problem.reference["prompt"], problem.reference["entry_point"]
        whole = program(text, name)
        if whole is not None and defines(whole, name):
            return f"{head}\n    pass\n\n{whole}"  # the head brings its imports and helpers
        body = blocks(text)[-1] if blocks(text) else text
        body = STOP.split(f"\n{body}")[0][1:]
        if not body.strip():
            return None
        indent = "" if body[0].isspace() else "    "  # lost where a reply was stripped
        return f"{head}{indent}{body}"

    def judged(self, problem: Problem, code: str) -> Grade:
        tests = f"{problem.reference['test']}\n\ncheck({problem.reference['entry_point']})"
        return passes(code, tests, self.limits)


TASK = HumanEval(
    "humaneval",
    "164 Python functions from their docstrings; hidden tests",
    Source(
        ("humaneval/HumanEval.jsonl.gz", "HumanEval.jsonl.gz", "HumanEval.jsonl"),
        "https://github.com/openai/human-eval",
        {"path": "openai/openai_humaneval", "split": "test"},
    ),
)
