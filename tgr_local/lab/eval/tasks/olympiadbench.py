"""OlympiadBench (He et al. 2024): the open-ended English maths problems without images."""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.data import Row, Source
from tgr_local.lab.eval.tasks.maths import Maths, compare, prompts


@dataclass(frozen=True)
class OlympiadBench(Maths):
    """Answers with a unit that is not compared, and some with a tolerance."""

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


TASK = OlympiadBench(
    "olympiadbench",
    "675 open-ended English maths problems of OlympiadBench; LaTeX answers compared by value",
    Source(
        ("olympiadbench.jsonl", "olympiadbench/*.jsonl", "olympiadbench/*.parquet"),
        "https://huggingface.co/datasets/Hothan/OlympiadBench",
        {"path": "Hothan/OlympiadBench", "name": "OE_TO_maths_en_COMP", "split": "train"},
    ),
)
