"""Arithmetic and linear equations generated from a seed, as in the embedded model's training.

No file: `limit` says how many (200 by default). The answer is the number in the last box.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tgr_local.lab.eval.task import EvalTask, Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import n_generated, user
from tgr_local.lab.eval.tasks.gsm8k import compare
from tgr_local.lab.eval.tasks.puzzles import evaluate
from tgr_local.system.python_source import syntax_tree

N_DEFAULT, N_MOST = 200, 5000
LARGEST = 9999
"""Upper limit of every intermediate value."""
BOUND = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Generated(EvalTask):
    """A task whose problems are generated from the seed."""

    n_operands: int = 0
    """Numbers in an expression; 0: equations."""

    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        n = n_generated(self.name, path, limit, N_DEFAULT, N_MOST)
        rng = random.Random(f"{self.name} {seed}")
        answers: dict[str, int] = {}
        while len(answers) < n:
            question, value = equation(rng) if self.n_operands == 0 else sum_(rng, self.n_operands)
            answers[question] = value
        return [
            Problem(
                self.name,
                f"{seed}-{i}",
                user(question),
                value,
                f"{question}\n",
                self._groups(question),
            )
            for i, (question, value) in enumerate(answers.items())
        ]

    def _groups(self, question: str) -> dict[str, str]:
        if not self.n_operands:
            return {}
        return {"operators": " ".join(operator for operator in "+-*/" if operator in question)}

    def grade(self, problem: Problem, text: str) -> Grade:
        return compare(Fraction(problem.reference), text)


def sum_(rng: random.Random, n_operands: int) -> tuple[str, int]:
    """A question with an expression of `n_operands` numbers, and its value."""
    while True:
        text = tree(rng, n_operands)[0]
        if is_easy(syntax_tree(text, "eval").body):
            return f"What is {text}?", int(evaluate(text)[0])


def tree(rng: random.Random, n_operands: int) -> tuple[str, int]:
    """A random expression with the fewest brackets, and its precedence."""
    if n_operands == 1:
        return str(rng.randint(1, 12) if rng.random() < 0.5 else rng.randint(2, 99)), 3
    n_left = rng.randint(1, n_operands - 1)
    operator = rng.choices("+-*/", (0.38, 0.32, 0.22, 0.08))[0]
    (left, a), (right, b) = tree(rng, n_left), tree(rng, n_operands - n_left)
    bound = BOUND[operator]
    left = f"({left})" if a < bound else left
    right = f"({right})" if b < bound or (b == bound and operator in "-/") else right
    return f"{left} {operator} {right}", bound


def is_easy(node: ast.expr) -> bool:
    """Whether every intermediate value is a whole number from 0 to `LARGEST`, without long products
    or divisions by zero."""
    if not isinstance(node, ast.BinOp):
        return True
    if not (is_easy(node.left) and is_easy(node.right)):
        return False
    left, right = (evaluate(ast.unparse(side))[0] for side in (node.left, node.right))
    if isinstance(node.op, ast.Div) and right == 0:
        return False
    if isinstance(node.op, ast.Mult) and max(left, right) > 99 and min(left, right) > 12:
        return False
    value: Fraction = evaluate(ast.unparse(node))[0]
    return value.denominator == 1 and 0 <= value <= LARGEST


def equation(rng: random.Random) -> tuple[str, int]:
    """A question with a linear equation in x, and its whole root."""
    root, factor, shift = rng.randint(1, 30), rng.randint(2, 12), rng.randint(1, 30)
    form = rng.randrange(4)
    if form == 0:
        text = f"{factor}x + {shift} = {factor * root + shift}"
    elif form == 1:
        text = f"{factor}x - {shift} = {factor * root - shift}"
    elif form == 2:
        text = f"{factor}(x + {shift}) = {factor * (root + shift)}"
    else:
        more = factor + rng.randint(1, 5)
        total = (more - factor) * root + shift
        text = f"{more}x + {shift} = {factor}x + {total}"
    return f"Solve {text}", root


def arithmetic(n_operands: int) -> Generated:
    """The task of expressions with `n_operands` numbers."""
    return Generated(
        f"arithmetic{n_operands}",
        f"generated expressions of {n_operands} numbers; whole values",
        n_operands,
    )


ARITHMETIC3, ARITHMETIC4, ARITHMETIC5, ARITHMETIC6 = map(arithmetic, (3, 4, 5, 6))
ARITHMETIC8, ARITHMETIC10 = map(arithmetic, (8, 10))
"""Longer than anything the embedded model was trained on."""
EQUATIONS = Generated("equations", "generated linear equations in x; whole roots")
