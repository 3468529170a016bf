"""Olympiad and school maths: a box in the reply, compared by value with the official answer.

MATH-500 (Lightman et al. 2023), AIME, OlympiadBench (He et al. 2024) and Omni-MATH (Gao et al.
2024) share the question's wording and math-verify's judgement of whether two answers mean the same.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import END, NO_ANSWER, Benchmark, exact, last_box, user
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.system.answers import SIGNED, WORDS, compact, normalised

UNREADABLE = re.compile(r"\\(?:max|min|gcd|lcm|[lc]?dots)(?![a-z])")
"""LaTeX of which math-verify parses only a part."""
LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
BASE = re.compile(r"[0-9A-Za-z]+_\{?(\d+)\}?")
MOST_DIGITS, EXPONENT_DIGITS = 4000, 15
"""Longer numbers are not evaluated; Python does not print more than 4,300 digits."""
MOST_TERMS = 500
"""Longer sums are not multiplied out."""
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."


def prompts(question: str) -> dict[str, Any]:
    """The question as a chat and as a completion prompt, in Qwen's wording."""
    prompt = f"{question.strip()}\n{BOXED}"
    return {"messages": user(prompt), "raw": f"Question: {prompt}\nAnswer:"}


@dataclass(frozen=True)
class Maths(Benchmark):
    """A benchmark whose rows have a problem and one official answer."""

    packages: ClassVar[tuple[str, ...]] = ("math_verify",)

    def problem(self, row: Row, index: str) -> Problem:
        question = row.text("problem", "question", "Problem", "Question")
        answer = row.text("answer", "Answer")
        number = next(
            (str(row.fields[k]) for k in ("unique_id", "id", "ID") if row.fields.get(k)), index
        )
        groups = row.groups("level", "subject", "difficulty")
        return Problem(self.name, number, reference=answer, groups=groups, **prompts(question))

    def prepare(self) -> None:
        super().prepare()
        import math_verify  # noqa: F401

    def grade(self, problem: Problem, text: str) -> Grade:
        return compare(str(problem.reference), text)


@dataclass(frozen=True)
class OlympiadBench(Maths):
    """The open-ended English maths problems without images: answers with a unit that is not
    compared, and some with a tolerance."""

    def problem(self, row: Row, index: str) -> Problem:
        context = row.fields.get("context") or ""
        question = f"{context}\n{row.text('question', 'problem')}"
        answers = [str(answer).strip().replace("$", "") for answer in row.list("final_answer")]
        tolerance = row.fields.get("error") or 0
        try:
            allowed = max(float(part) for part in str(tolerance).split(","))
        except ValueError:
            raise ValueError(f"{row.where}: the error {tolerance!r} is not a number") from None
        reference = {"answer": ", ".join(answers), "tolerance": allowed}
        number = str(row.fields.get("id") or index)
        groups = row.groups("subfield")
        return Problem(self.name, number, reference=reference, groups=groups, **prompts(question))

    def grade(self, problem: Problem, text: str) -> Grade:
        return compare(problem.reference["answer"], text, problem.reference["tolerance"])


def compare(gold: str, text: str, tolerance: float = 0.0) -> Grade:
    """Whether the last answer in `text` means the same as `gold`, a piece of LaTeX."""
    from math_verify import verify

    gold, text = (part.replace("°", r"^\circ") for part in (gold, SIGNED.sub(r"\1-", text)))
    said, end = last_box(text), text[-END:]
    if said and last_box(end) is None:
        end = f"\\boxed{{{said}}}"
    wanted, values = parsed(f"\\boxed{{{gold}}}"), parsed(end)
    if not values and not said:
        return NO_ANSWER
    answer = key(values, said)
    if said and compact(said) == compact(gold):
        return exact(True, answer)
    detail = f"{answer} is not {gold}"[:300]
    if said and (unlike(gold, said) or is_huge(values) != is_huge(wanted)):
        return exact(False, answer, detail)
    if UNREADABLE.search(gold) or is_huge(wanted):
        return Grade(None, 0.0, answer, f"cannot be graded: no value is known for {gold}"[:300])
    is_right = bool(values) and bool(verify(wanted, values, timeout_seconds=None))
    is_right = is_right or (tolerance > 0 and is_near(wanted, values, tolerance))
    return exact(is_right, answer, "" if is_right else detail)


def unlike(gold: str, said: str) -> bool:
    """Whether two answers differ in something that math-verify ignores: the base of a number, or
    letter case."""
    bases = [BASE.fullmatch(compact(answer)) for answer in (gold, said)]
    if bases[0] and bases[1]:
        return bases[0][1] != bases[1][1]
    mine, yours = ({*LETTER.findall(WORDS.sub("", answer))} for answer in (gold, said))
    return mine != yours and {*map(str.lower, mine)} == {*map(str.lower, yours)}


def parsed(text: str) -> list[Any]:
    """math-verify's reading of the last answer, a box before everything else: a sympy expression
    and its text, or nothing. Without its own timeouts, which need signals: a worker is killed."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(text, extraction_config=config, parsing_timeout=None))


def key(values: list[Any], said: str | None) -> str | None:
    """A key that equal answers share: the value if there is one, else the text."""
    import sympy

    value = values[0] if values else None
    if isinstance(value, sympy.Basic) and not is_huge(values):
        value = plain(value)
    if isinstance(value, sympy.Number):
        return str(sympy.nsimplify(value, rational=True))
    if isinstance(value, sympy.Basic | sympy.MatrixBase):
        return str(value)
    return normalised(said or str(values[-1])) or None


def plain(value: Any) -> Any:
    """An expression evaluated and expanded, where that is quick; of ``x = …`` the right side."""
    import sympy

    if isinstance(value, sympy.Eq) and isinstance(value.lhs, sympy.Symbol):
        value = value.rhs
    slow = value.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)
    if slow or not isinstance(value, sympy.Expr) or terms(value) > MOST_TERMS:
        return value
    return sympy.expand(value.doit())


def terms(value: Any) -> int:
    """Upper bound of the number of terms of an expression that is multiplied out; MOST_TERMS + 1
    stands for every larger one."""
    parts = [terms(part) for part in value.args]
    if value.is_Add:
        count = sum(parts)
    elif value.is_Mul:
        count = math.prod(parts)
    elif value.is_Pow and parts[0] > 1:
        count = parts[0] ** (min(abs(value.exp.p), 10) if value.exp.is_Rational else 10)
    else:
        count = max(parts, default=1)
    return min(count, MOST_TERMS + 1)


def is_huge(values: list[Any]) -> bool:
    """Whether a number in an answer has too many digits to be evaluated."""
    import sympy

    return bool(values) and isinstance(values[0], sympy.Basic) and digits(values[0]) > MOST_DIGITS


def digits(value: Any) -> float:
    """About how many digits the longest number has that evaluating an expression takes."""
    import sympy

    if isinstance(value, sympy.Rational):
        return math.log10(max(abs(value.p), value.q))
    sizes = [digits(part) for part in value.args]
    most = max(sizes, default=0.0)
    if not value.is_number or not isinstance(value, sympy.Pow | sympy.factorial) or not sizes[0]:
        return most
    if most > MOST_DIGITS or sizes[-1] > EXPONENT_DIGITS:
        return math.inf
    times = abs(complex(value.args[-1]))  # the exponent, or the number of factors
    return max(most, times * sizes[0])


def is_near(wanted: list[Any], values: list[Any], tolerance: float) -> bool:
    """Whether both are numbers that differ by no more than the tolerance."""
    try:
        return abs(float(wanted[0]) - float(values[0])) <= tolerance
    except (TypeError, ValueError, IndexError, OverflowError):
        return False


MATH500 = Maths(
    "math500",
    "500 problems of the MATH test set; LaTeX answers compared by value",
    Source(
        ("math500/test.jsonl", "math500.jsonl", "MATH-500/test.jsonl"),
        "https://huggingface.co/datasets/HuggingFaceH4/MATH-500",
        {"path": "HuggingFaceH4/MATH-500", "split": "test"},
    ),
)
AIME24 = Maths(
    "aime24",
    "30 problems of the AIME 2024; whole numbers",
    Source(
        ("aime24/test.jsonl", "aime24.jsonl", "aime24/*.parquet"),
        "https://huggingface.co/datasets/HuggingFaceH4/aime_2024",
        {"path": "HuggingFaceH4/aime_2024", "split": "train"},
    ),
)
AIME25 = Maths(
    "aime25",
    "30 problems of the AIME 2025; whole numbers",
    Source(
        ("aime25/test.jsonl", "aime25.jsonl", "aime25/*.parquet"),
        "https://huggingface.co/datasets/math-ai/aime25",
        {"path": "math-ai/aime25", "split": "test"},
    ),
)
OLYMPIADBENCH = OlympiadBench(
    "olympiadbench",
    "675 open-ended English maths problems of OlympiadBench; LaTeX answers compared by value",
    Source(
        ("olympiadbench.jsonl", "olympiadbench/*.jsonl", "olympiadbench/*.parquet"),
        "https://huggingface.co/datasets/Hothan/OlympiadBench",
        {"path": "Hothan/OlympiadBench", "name": "OE_TO_maths_en_COMP", "split": "train"},
    ),
)
OMNIMATH = Maths(
    "omnimath",
    "olympiad problems of Omni-MATH; use its rule-gradable subset (2,821 rows)",
    Source(
        ("omni_math_rule.jsonl", "omnimath/*.jsonl", "omni_math.jsonl"),
        "https://github.com/KbsdJames/omni-math-rule",
        {"path": "KbsdJames/Omni-MATH", "split": "test"},
    ),
)
