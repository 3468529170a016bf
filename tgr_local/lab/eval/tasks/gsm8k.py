"""GSM8K (Cobbe et al. 2021): word problems of primary school, the answers whole numbers."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import END, NO_ANSWER, Benchmark, exact, last_box
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.lab.eval.tasks.maths import prompts
from tgr_local.system.answers import WORDS, cleaned, ungrouped

NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?")
BRACKETS = re.compile(r"(?<![\w)])\((-?[\d.]+)\)(?![\w(])")
PLAIN = r"(?:\d+\.?\d*|\.\d+)"
ONE = re.compile(
    r"(?:[A-Za-z\s:]|(?<=[A-Za-z])\.\s)*[€£¥]?\s*"  # words
    rf"([-+]?)\s*({PLAIN})(?:\s*([*/])\s*(-?{PLAIN})|\s+(\d+/\d+))?"  # 5, 2*3, 2/3 or 1 2/3
    r"\s*[%€£¥¢]?\s*(?:/?\s*[A-Za-z](?:[A-Za-z\s./']|\^\{?-?\d\}?)*)?"  # a unit
)
LONGEST = 200
"""Maximum length of a box with one number, characters."""


def number(text: str) -> Fraction | None:
    """The last number in a text; of a long text only the end is searched."""
    plain = ungrouped(cleaned(text[-END:]))
    numbers = NUMBER.findall(re.sub(r"(?<=\d)-(?=\d)", " ", plain))
    try:
        return Fraction(numbers[-1].replace(",", "")) if numbers else None
    except (ValueError, ZeroDivisionError):
        return None


def only_number(box: str) -> Fraction | None:
    """The only number in a box, possibly a fraction or a product of two, with words, a unit or an
    equation; None where there is anything else."""
    if len(box) > LONGEST:
        return None
    plain = cleaned(WORDS.sub(" u", box))
    plain = plain if re.search(r"\d", plain) else cleaned(box)
    plain = ungrouped(re.split(r"=|≈|\\approx", plain)[-1]).lstrip(" ,;:{").rstrip(" .,;:}\\")
    match = ONE.fullmatch(BRACKETS.sub(r"\1", plain))
    if match is None:
        return None
    sign, first, operator, second, fraction = match.groups()
    value = Fraction(first)
    try:
        if operator:
            value = value * Fraction(second) if operator == "*" else value / Fraction(second)
        elif fraction:
            value += Fraction(fraction)
    except ZeroDivisionError:
        return None
    return -value if sign == "-" else value


def shown(value: Fraction) -> str:
    """Writes a value as people do: 6.67; a fraction only where no decimal of 28 digits is exact."""
    with localcontext() as context, contextlib.suppress(ArithmeticError):
        context.traps[Inexact] = True
        return f"{Decimal(value.numerator) / value.denominator:f}"
    return str(value)


def answer(text: str) -> Fraction | None:
    """The number in the last box, else after the last ####, else the last in the text."""
    box = last_box(text)
    return number(text.rsplit("####", maxsplit=1)[-1]) if box is None else only_number(box)


def compare(reference: Fraction, text: str) -> Grade:
    """Whether the `answer` in a text is this number."""
    value = answer(text)
    if value is None:
        return NO_ANSWER
    is_right = value == reference
    return exact(is_right, shown(value), "" if is_right else f"not {shown(reference)}")


@dataclass(frozen=True)
class GSM8K(Benchmark):
    """Numbers compared exactly."""

    def problem(self, row: Row, index: str) -> Problem:
        solution = row.text("answer")
        if (gold := number(solution.rsplit("####", maxsplit=1)[-1])) is None:
            raise ValueError(f"{row.where}: the answer has no number: {solution[-60:]!r}")
        steps = {"steps of the solution": str(len(solution.strip().splitlines()) - 1)}
        wording = prompts(row.text("question"))
        return Problem(self.name, index, reference=str(gold), groups=steps, **wording)

    def grade(self, problem: Problem, text: str) -> Grade:
        return compare(Fraction(problem.reference), text)


TASK = GSM8K(
    "gsm8k",
    "1,319 word problems of primary school; numbers",
    Source(
        ("gsm8k/test.jsonl", "gsm8k.jsonl", "gsm8k/*test*.parquet"),
        "https://github.com/openai/grade-school-math",
        {"path": "openai/gsm8k", "name": "main", "split": "test"},
    ),
)
