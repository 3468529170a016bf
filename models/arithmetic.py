"""Whole-number expressions, and their solutions with one operation per line.

In: a `numpy.random.Generator`. Out: a `Problem` whose reasoning is true (except for slips that it
marks and repairs itself). Knows nothing of tokens, chat formats or other tasks.

An expression is an `int` or a tuple `(operator, left, right)` with operator one of `+ - * /`;
division is always exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Expression = int | tuple[str, "Expression", "Expression"]
Piece = tuple[str, bool]
"""Text, and whether the model is to learn it (deliberate slips are shown, but not learnt)."""

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
CHECK_RATE = 0.12
"""Share of steps that are checked by the inverse operation."""
NEGATIVE_RATE = 0.2
"""Share of the expressions with a negative intermediate value that are accepted."""
SLIP_RATE = 0.4
"""Share of the checked steps whose first result is wrong on purpose."""


@dataclass(frozen=True)
class Problem:
    """One question with a worked solution."""

    task: str
    question: str
    reasoning: tuple[Piece, ...]
    """Lines that end in a newline each; empty for an answer that needs none."""
    answer: str


def apply(operator: str, left: int, right: int) -> int | None:
    """The value of `left operator right`, or None where division is not exact."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    return left // right if right != 0 and left % right == 0 else None


def value(expression: Expression) -> int | None:
    """The value of an expression, or None where a division is not exact."""
    if isinstance(expression, int):
        return expression
    operator, left, right = expression
    a, b = value(left), value(right)
    return None if a is None or b is None else apply(operator, a, b)


def text(expression: Expression, space: str = "", signs: dict[str, str] | None = None) -> str:
    """The expression with the fewest parentheses; `signs` replaces operator signs."""
    if isinstance(expression, int):
        return str(expression)
    operator, left, right = expression
    sides = []
    for side, is_right in ((left, False), (right, True)):
        written = text(side, space, signs)
        if isinstance(side, tuple):
            inner, outer = PRECEDENCE[side[0]], PRECEDENCE[operator]
            if inner < outer or (inner == outer and is_right and operator in "-/"):
                written = f"({written})"
        elif side < 0 and is_right:
            written = f"({written})"
        sides.append(written)
    return f"{sides[0]}{space}{(signs or {}).get(operator, operator)}{space}{sides[1]}"


def next_operation(expression: Expression) -> tuple[str, int, int]:
    """The leftmost operation whose two sides are numbers already."""
    assert isinstance(expression, tuple)
    operator, left, right = expression
    if isinstance(left, tuple):
        return next_operation(left)
    if isinstance(right, tuple):
        return next_operation(right)
    return operator, left, right


def reduced(expression: Expression) -> Expression:
    """The expression after its next operation is replaced by the result."""
    assert isinstance(expression, tuple)
    operator, left, right = expression
    if isinstance(left, tuple):
        return (operator, reduced(left), right)
    if isinstance(right, tuple):
        return (operator, left, reduced(right))
    result = apply(operator, left, right)
    assert result is not None
    return result


def calculation(operator: str, left: int, right: int) -> str:
    """`left operator right=result`, long products through partial products."""
    result = apply(operator, left, right)
    head = f"{left}{operator}{right}="
    if operator == "*" and min(left, right) > 10:
        left, right = max(left, right), min(left, right)
        tens, ones = right - right % 10, right % 10
        if ones and left % 10:
            return f"{head}{left}*{tens}+{left}*{ones}={left * tens}+{left * ones}={result}"
    return f"{head}{result}"


def check(operator: str, left: int, right: int, result: int) -> str | None:
    """The inverse operation on a claimed result, or None where there is no simple one."""
    if operator == "+":
        return f"{result}-{right}={result - right}"
    if operator == "-":
        return f"{result}+{right}={result + right}"
    if operator == "/":
        return f"{result}*{right}={result * right}"
    if 1 < right < 10 and 0 < left < 100:
        return f"{left}*{right - 1}+{left}={left * (right - 1)}+{left}={left * right}"
    return None


def slip(rng: np.random.Generator, result: int) -> int:
    """A wrong value of the kind that comes from a lost carry or a miscount."""
    off = int(rng.choice([1, 2, 10, 10, 20, 9, 100 if result >= 100 else 1]))
    wrong = result + off if rng.random() < 0.5 else result - off
    return wrong if wrong >= 0 else result + off


def worked(rng: np.random.Generator, operator: str, left: int, right: int) -> list[Piece]:
    """One operation in full, now and then checked, sometimes with a slip that the check finds."""
    result = apply(operator, left, right)
    assert result is not None
    inverse = check(operator, left, right, result)
    written = calculation(operator, left, right)
    if inverse is None or result < 0 or rng.random() >= CHECK_RATE:
        return [(written, True)]
    if rng.random() >= SLIP_RATE:
        return [(f"{written}? {inverse} ok", True)]
    wrong = slip(rng, result)
    seen = check(operator, left, right, wrong)
    start = written[: written.rindex("=") + 1]
    return [
        (start, True),
        (str(wrong), False),
        (f"? {seen} wrong, {left}{operator}{right}={result}", True),
    ]


def solution(rng: np.random.Generator, expression: Expression) -> list[Piece]:
    """The reasoning: the expression, then one operation per line with what is left after it."""
    pieces: list[Piece] = [(text(expression) + "\n", True)]
    while isinstance(expression, tuple):
        pieces += worked(rng, *next_operation(expression))
        expression = reduced(expression)
        pieces.append((f"; {text(expression)}\n" if isinstance(expression, tuple) else "\n", True))
    return pieces


def number(rng: np.random.Generator) -> int:
    """A number as people type it: mostly one or two digits, sometimes three."""
    u = rng.random()
    if u < 0.45:
        return int(rng.integers(1, 13))
    return int(rng.integers(2, 100)) if u < 0.97 else int(rng.integers(100, 1000))


def product(rng: np.random.Generator, *, alone: bool) -> tuple[int, int]:
    """Two factors: mostly from the small tables, sometimes two digits each; three only `alone`."""
    u = rng.random() * (1.0 if alone else 0.85)
    if u < 0.45:
        pair = int(rng.integers(2, 13)), int(rng.integers(1, 13))
    elif u < 0.8:
        pair = int(rng.integers(11, 100)), int(rng.integers(2, 10))
    elif u < 0.95:
        pair = int(rng.integers(11, 100)), int(rng.integers(11, 100))
    else:
        pair = int(rng.integers(100, 1000)), int(rng.integers(2, 13))
    return pair if rng.random() < 0.5 else (pair[1], pair[0])


def binary(rng: np.random.Generator, *, alone: bool = True) -> tuple[str, int, int]:
    """An expression of two operands, easier where it is part of a larger one."""
    operator = str(rng.choice(["+", "-", "*", "/"], p=[0.3, 0.3, 0.28, 0.12]))
    if operator == "*":
        left, right = product(rng, alone=alone)
    elif operator == "/":
        right = int(rng.integers(1, 13)) if rng.random() < 0.8 else int(rng.integers(2, 60))
        left = right * int(rng.integers(1, 13 if rng.random() < 0.6 else 60))
    else:
        left, right = number(rng), number(rng)
        if operator == "-" and left < right and rng.random() < 0.75:
            left, right = right, left
        left = -left if rng.random() < 0.04 else left
    return (operator, left, right)


def tree(rng: np.random.Generator, n_operands: int) -> Expression:
    """A random expression of `n_operands` numbers, not yet tested for readable values."""
    if n_operands == 1:
        return number(rng)
    if n_operands == 2:
        return binary(rng, alone=False)
    n_left = int(rng.integers(1, n_operands))
    operator = str(rng.choice(["+", "-", "*", "/"], p=[0.38, 0.32, 0.22, 0.08]))
    left, right = tree(rng, n_left), tree(rng, n_operands - n_left)
    if operator == "*" and isinstance(left, int):
        left = int(rng.integers(2, 13))
    if operator in "*/" and isinstance(right, int):
        right = int(rng.integers(2, 13))
    return (operator, left, right)


def is_readable(expression: Expression) -> bool:
    """Whether every intermediate value is small and exact, negative only at the far left, and no
    product is long."""
    while isinstance(expression, tuple):
        operator, left, right = next_operation(expression)
        result = apply(operator, left, right)
        if result is None or abs(result) > 9999 or right < 0 or (left < 0 and operator in "*/"):
            return False
        if operator == "*" and max(left, right) > 99 and min(left, right) > 12:
            return False
        expression = reduced(expression)
        if isinstance(expression, tuple) and result < 0 and not text(expression).startswith("-"):
            return False
    return True


def has_negative(expression: Expression) -> bool:
    """Whether an intermediate value is negative."""
    while isinstance(expression, tuple):
        expression = reduced(expression)
        if text(expression).startswith("-"):
            return True
    return False


def expression(rng: np.random.Generator, n_operands: int) -> Expression:
    """A random readable expression of `n_operands` numbers."""
    while True:
        candidate = binary(rng) if n_operands == 2 else tree(rng, n_operands)
        if is_readable(candidate) and (rng.random() < NEGATIVE_RATE or not has_negative(candidate)):
            return candidate


def drill(rng: np.random.Generator, n_lines: int) -> list[Piece]:
    """Unrelated operations, one per line, of which only the results are learnt."""
    pieces: list[Piece] = []
    for _ in range(n_lines):
        goal = binary(rng)
        if goal[0] in "+-" and rng.random() < 0.6:
            high, low = sorted(map(int, rng.integers(1, 201, size=2)), reverse=True)
            goal = (goal[0], high, low)
        head, result = calculation(*goal).split("=", 1)
        pieces += [(head + "=", False), (result + "\n", True)]
    return pieces


ASKED = (
    "{e}", "{e}", "{e}", "{e}=", "{e} =", "{e}=?", "{e} = ?", "{e}?", "What is {e}?",
    "What is {e}?",
    "What is {e}", "What's {e}?", "How much is {e}?", "Compute {e}", "Compute {e}.",
    "Calculate {e}",
    "Calculate {e}.", "Evaluate {e}", "Evaluate {e}.", "Work out {e}", "Solve {e}", "Find {e}",
    "Find the value of {e}.", "Please compute {e}.", "Can you compute {e}?", "What does {e} equal?",
    "What is the value of {e}?", "Tell me {e}", "What is the result of {e}?", "Do you know {e}?",
    "Can you tell me what {e} is?", "Hello, what is {e}?", "Hi! What is {e}?", "I need {e}",
)  # fmt: skip
SPOKEN = {
    "+": ("{a} plus {b}", "{a} and {b} added", "the sum of {a} and {b}"),
    "-": ("{a} minus {b}", "the difference of {a} and {b}", "{a} take away {b}"),
    "*": ("{a} times {b}", "{a} multiplied by {b}", "the product of {a} and {b}"),
    "/": ("{a} divided by {b}", "{a} over {b}"),
}
SIGNS = (
    {}, {}, {}, {"*": "x"}, {"*": "×", "/": "÷"}, {"*": "×"}, {"/": "÷"}, {"*": "·"},
)  # fmt: skip


def asked(rng: np.random.Generator, form: str) -> str:
    """A wording, now and then all in lower case."""
    return form.lower() if rng.random() < 0.3 else form


def problem(rng: np.random.Generator, n_operands: int) -> Problem:
    """An arithmetic question with its solution."""
    goal = expression(rng, n_operands)
    assert isinstance(goal, tuple)
    if n_operands == 2 and rng.random() < 0.2:
        spoken = str(rng.choice(SPOKEN[goal[0]]))
        written = spoken.format(a=goal[1], b=goal[2])
    else:
        signs = SIGNS[int(rng.integers(len(SIGNS)))]
        written = text(goal, "" if rng.random() < 0.4 and "x" not in signs.values() else " ", signs)
    question = asked(rng, str(rng.choice(ASKED))).format(e=written)
    answer = f"The answer is \\boxed{{{value(goal)}}}."
    return Problem(f"arithmetic{n_operands}", question, tuple(solution(rng, goal)), answer)
