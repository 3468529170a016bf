"""The tasks in which a file is repaired: `bugs`, and aider's edit benchmark in its local form."""

from __future__ import annotations

import re

import pytest
from eval_doubles import exercise

from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.task import Problem
from tgr_local.lab.eval.tasks.bugs import FALSE_PASS, N_DEFAULT
from tgr_local.lab.eval.tasks.repairs import changed_file

pytestmark = pytest.mark.usefixtures("sandboxed")
FILE = """\
def one():
    return 1


class Stack:
    def push(self, x):
        return 0

    def pop(self):
        return 0
"""


def fenced(code: str) -> str:
    return f"calc.py::f\n```python\n{code}\n```"


def test_a_function_a_method_and_a_file_are_placed():
    assert changed_file(fenced("def one():\n    return 2"), FILE, "one") == FILE.replace(
        "return 1", "return 2"
    )
    for indent in ("", "    "):  # a method, indented or not
        method = f"{indent}def pop(self):\n{indent}    return 5"
        head, _, end = FILE.rpartition("return 0")
        assert changed_file(fenced(method), FILE, "Stack.pop") == f"{head}return 5{end}"
    whole = FILE.replace("return 0", "return 7")
    assert changed_file(fenced(whole), FILE, "one") == whole
    klass = "class Stack:\n    pass"
    assert (
        changed_file(fenced(klass), FILE, "Stack.pop") == FILE.partition("class")[0] + klass + "\n"
    )


def test_search_and_replace_applies_or_is_no_answer():
    def block(old: str, new: str) -> str:
        return f"calc.py\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE"

    assert changed_file(block("    return 1\n", "    return 2\n"), FILE, "one") == FILE.replace(
        "return 1", "return 2"
    )
    assert changed_file(block("    return 1\n", ""), FILE, "one") == FILE.replace(
        "    return 1\n", ""
    )
    assert changed_file(block("return 1\n", "x\n"), FILE, "one") is None  # not whole lines
    assert changed_file(block("", "x\n"), FILE, "one") is None
    for text in ("no code", fenced("def two():\n    return 2"), fenced("def one(:")):
        assert changed_file(text, FILE, "one") is None


def bugs(n: int) -> list[Problem]:
    return tasks.get("bugs").load(limit=n, seed=7)


def grade(problem: Problem, code: str) -> tuple[bool | None, str]:
    found = tasks.get("bugs").grade(problem, fenced(code))
    return found.correct, found.detail


def test_the_repaired_file_is_right_and_the_defective_one_wrong():
    for problem in bugs(20):
        known = problem.reference
        assert grade(problem, known["repaired"]) == (True, "")
        assert grade(problem, known["file"]) == (False, "unchanged")
        assert known["file"] in problem.messages[-1]["content"]


def test_answers_are_run():
    (problem,) = bugs(1)
    known = problem.reference
    # The same results by other means, and a change of nothing: both have to be run.
    assert grade(problem, known["repaired"] + "\nx = 1\n")[0] is True
    refused = grade(problem, known["file"] + "\nx = 1\n")
    assert refused[0] is False and refused[1] != FALSE_PASS


def test_an_answer_that_only_the_shown_tests_accept_is_a_false_pass():
    (problem,) = bugs(1)
    reference = {
        **problem.reference,
        "file": "def f(x):\n    return 0\n",
        "repaired": "def f(x):\n    return x\n",
        "name": "f",
        "visible": ["assert f(1) == 1"],
        "hidden": ["assert f(2) == 2"],
    }
    made = Problem(problem.task, "0", problem.messages, reference)
    assert grade(made, "def f(x):\n    return 1") == (False, FALSE_PASS)
    assert grade(made, "def f(x):\n    return +x") == (True, "")


def test_problems_come_from_the_seed_alone(tmp_path):
    task = tasks.get("bugs")
    assert task.load(limit=5, seed=1) == task.load(tmp_path, limit=5, seed=1)
    assert task.load(limit=5, seed=1) != task.load(limit=5, seed=2)
    assert len({problem.reference["file"] for problem in task.load(limit=50)}) == 50
    assert N_DEFAULT == 300
    with pytest.raises(ValueError, match="bugs is generated: it takes a limit and a seed"):
        task.load(tmp_path / "bugs.jsonl")
    with pytest.raises(ValueError, match="limit must be from 0"):
        task.load(limit=-1)


def test_an_exercise_is_asked_and_graded_by_its_unit_tests(tmp_path, monkeypatch):
    exercise(tmp_path / "exercism-python", "twice")
    task = tasks.get("aider-edit")
    (problem,) = task.load(tmp_path)
    assert [problem] == task.load(tmp_path / "exercism-python")
    asked = problem.messages[-1]["content"]
    assert "Double a number." in asked and "def twice(x):" in asked and "assertEqual" not in asked
    assert task.grade(problem, fenced("def twice(x):\n    return 2 * x")).correct is True
    assert task.grade(problem, fenced("def twice(x):\n    return 3 * x")).correct is False
    assert task.grade(problem, fenced("import sys\nsys.exit(0)")).correct is False
    assert task.grade(problem, "I cannot.").answer is None
    monkeypatch.delenv("TGR_DATA", raising=False)
    with pytest.raises(ValueError, match="aider-edit needs its data"):
        task.load()
    (tmp_path / "polyglot-benchmark").mkdir()
    with pytest.raises(ValueError, match="aider-edit found no exercises there"):
        task.load(tmp_path)


def test_an_exercise_reads_no_file_outside(tmp_path):
    exercise(tmp_path, "twice", solution="../../../../secret.py")
    with pytest.raises(ValueError, match="lies outside of the exercise"):
        tasks.get("aider-edit").load(tmp_path)


@pytest.mark.parametrize("config", [b"{", b"[]", b"\xff"])
def test_a_damaged_exercise_is_named(tmp_path, config: bytes):
    exercise(tmp_path, "twice")
    (file,) = tmp_path.rglob("config.json")
    file.write_bytes(config)
    with pytest.raises(ValueError, match=re.escape(str(file))):
        tasks.get("aider-edit").load(tmp_path)
