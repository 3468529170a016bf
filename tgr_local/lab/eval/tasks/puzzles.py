"""Countdown and the Game of 24: make a target from a few numbers, each used exactly once.

The answer is an expression in a box or an <answer> tag, evaluated in exact rational arithmetic.
"""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import NO_ANSWER, Benchmark, exact, last_box, user
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.system.answers import cleaned
from tgr_local.system.python_source import syntax_tree

BRACKETS = str.maketrans("[]", "()")
LETTER_X = re.compile(r"(?<=[\d)])(\s*)[xX](?=\s*[\d(])")
OPERATOR = re.compile(r"[\d)]\s*[-+*/]")
OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
FOREIGN = "something other than + - * / and whole numbers"
LONGEST = 300
"""Maximum length of an expression, characters; no answer to these puzzles is longer."""


def expression(text: str) -> str | None:
    """The last expression in a reply, without layout and without its stated value."""
    _, is_tagged, inside = text.rpartition("</answer>")[0].rpartition("<answer>")
    formula = last_box(inside) or inside if is_tagged else last_box(text)
    if formula is None:
        return None
    formula = cleaned(formula[: 4 * LONGEST]).translate(BRACKETS)
    sides = LETTER_X.sub(r"\1*", formula).split("=")
    formula = next((side for side in sides if OPERATOR.search(side)), sides[0])
    return formula.strip(" .") or None


def evaluate(text: str) -> tuple[Fraction, Counter[int]]:
    """The exact value of an expression of + - * / and whole numbers, and the numbers in it.

    Raises ValueError for anything else, ZeroDivisionError.
    """
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST} letters")
    if not re.fullmatch(r"[0-9+*/() -]*", text):
        raise ValueError(FOREIGN)
    try:
        return _value(syntax_tree(text, "eval").body)
    except (SyntaxError, RecursionError):
        raise ValueError("no expression") from None


def _value(node: ast.expr) -> tuple[Fraction, Counter[int]]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value), Counter([node.value])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value, numbers = _value(node.operand)
        return -value, numbers
    if not isinstance(node, ast.BinOp):
        raise ValueError(FOREIGN)
    (a, left), (b, right) = _value(node.left), _value(node.right)
    if type(node.op) not in OPERATORS:
        raise ValueError(FOREIGN)
    return OPERATORS[type(node.op)](a, b), left + right


def judge(numbers: Sequence[int], target: int, text: str) -> Grade:
    """Whether the expression in a text uses exactly these numbers and makes the target."""
    formula = expression(text)
    if formula is None:
        return NO_ANSWER
    answer = formula.replace(" ", "")[:LONGEST]
    try:
        value, used = evaluate(formula)
    except (ValueError, ZeroDivisionError) as error:
        return exact(False, answer, f"cannot be evaluated: {error}")
    if used != Counter(numbers):
        return exact(False, answer, f"uses {sorted(used.elements())}, not {sorted(numbers)}")
    return exact(value == target, answer, "" if value == target else f"makes {value}, not {target}")


@dataclass(frozen=True)
class Puzzle(Benchmark):
    """Each row has numbers and a target."""

    def made(self, identity: str, numbers: list[int], target: int) -> Problem:
        """The problem in the wording of the embedded model's training."""
        prompt = f"Using the numbers {numbers}, create an equation that equals {target}."
        reference = {"numbers": numbers, "target": target}
        groups = {"numbers": str(len(numbers))}
        return Problem(self.name, identity, user(prompt), reference, f"{prompt}\n", groups)

    def grade(self, problem: Problem, text: str) -> Grade:
        return judge(problem.reference["numbers"], problem.reference["target"], text)


def whole(row: Row, values: Sequence[object]) -> list[int]:
    """The values as whole numbers."""
    try:
        return [int(str(value)) for value in values]
    except ValueError:
        raise ValueError(f"{row.where} holds no whole numbers: {values!r}") from None


@dataclass(frozen=True)
class Countdown(Puzzle):
    """Rows with `input` and `output` (d1), or with `nums` and `target` (TinyZero)."""

    def problem(self, row: Row, index: str) -> Problem:
        if "input" in row.fields:
            numbers = whole(row, row.text("input").split(","))
        else:
            numbers = whole(row, row.list("nums"))
        return self.made(index, numbers, whole(row, [row.get("output", "target")])[0])


@dataclass(frozen=True)
class Game24(Puzzle):
    """The CSV of Tree of Thoughts; its test rows are those of rank 901 to 1000."""

    def problem(self, row: Row, index: str) -> Problem | None:
        rank = whole(row, [row.get("Rank")])[0]
        if not 901 <= rank <= 1000:
            return None
        return self.made(str(rank), whole(row, row.text("Puzzles").split()), 24)


COUNTDOWN = Countdown(
    "countdown",
    "make a target from three or four numbers; any valid expression counts",
    Source(
        ("countdown/countdown_cd3_test.jsonl", "countdown.jsonl", "countdown/*.parquet"),
        "https://github.com/dllm-reasoning/d1",
        {"path": "Jiayi-Pan/Countdown-Tasks-3to4", "split": "train"},
    ),
)
GAME24 = Game24(
    "game24",
    "make 24 from four numbers; the 100 hard ones of Tree of Thoughts",
    Source(
        ("game24/24.csv", "24.csv", "game24.csv"),
        "https://github.com/princeton-nlp/tree-of-thought-llm",
    ),
)
