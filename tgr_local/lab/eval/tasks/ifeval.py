"""IFEval (Zhou et al. 2023): prompts with instructions that a program can check.

The checks are lm-evaluation-harness's own functions, strict or loose. Two of the 25 kinds of
instruction split a text into sentences with nltk's `punkt_tab`, which nltk would download; where
it is not installed, the same algorithm runs with a list of common abbreviations instead.
"""

from __future__ import annotations

import atexit
import functools
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import Benchmark, user
from tgr_local.lab.eval.tasks.data import Row, Source

ABBREVIATIONS = (
    "a.m p.m e.g i.e etc vs cf viz al approx dr mr mrs ms prof rev hon gen col capt lt sgt st ave "
    "blvd jr sr inc ltd corp co dept est no vol fig u.s u.k u.n d.c ph.d m.d b.a m.a jan feb mar "
    "apr jun jul aug sept sep oct nov dec"
)
SENTENCES = {"length_constraints:number_sentences"}


@dataclass(frozen=True)
class IFEval(Benchmark):
    """Correct if every instruction is followed; the score is the share of followed ones."""

    loose: bool = False
    """Whether the first or last line and asterisks may be ignored if that helps."""
    packages: ClassVar[tuple[str, ...]] = ("lm_eval", "langdetect", "nltk", "immutabledict")

    def problem(self, row: Row, index: str) -> Problem:
        prompt, names = row.text("prompt"), row.list("instruction_id_list")
        options = row.list("kwargs")
        if len(options) != len(names):
            raise ValueError(f"{row.where}: {len(names)} instructions and {len(options)} kwargs")
        reference = {"key": row.get("key"), "prompt": prompt, "instruction_id_list": names}
        number = str(reference["key"])
        reference |= {"kwargs": options}
        groups = {"instructions": str(len(names))}
        return Problem(self.name, number, user(prompt), reference, prompt, groups)

    def prepare(self) -> None:
        super().prepare()
        checks()

    def grade(self, problem: Problem, text: str) -> Grade:
        harness, is_punkt_here = checks()
        reference = problem.reference
        names = reference["instruction_id_list"]
        random.seed(0)  # a check without options draws them at random
        check = (
            harness.test_instruction_following_loose
            if self.loose
            else harness.test_instruction_following_strict
        )
        followed = check(harness.InputExample(**reference), text).follow_instruction_list
        broken = [
            name for name, is_followed in zip(names, followed, strict=True) if not is_followed
        ]
        detail = f"not followed: {', '.join(broken)}" if broken else ""
        if not is_punkt_here and SENTENCES & set(names):
            detail = f"{detail} (sentences counted without punkt_tab)".strip()
        score = (len(names) - len(broken)) / max(len(names), 1)
        return Grade(not broken, score, text.strip() or None, detail)


@functools.cache
def checks() -> tuple[Any, bool]:
    """The harness's module of checks, and whether nltk's own sentence model is installed."""
    import langdetect
    import nltk

    try:
        nltk.data.find("tokenizers/punkt_tab")
        is_punkt_here = True
    except LookupError:
        is_punkt_here = False
        nltk.data.path.append(plain_punkt())
    from lm_eval.tasks.ifeval import utils

    langdetect.DetectorFactory.seed = 0  # otherwise it is random
    return utils, is_punkt_here


def plain_punkt() -> str:
    """A folder of nltk data with a sentence model that has abbreviations only."""
    root = tempfile.mkdtemp(prefix="tgr-nltk-")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    folder = Path(root) / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("\n".join(ABBREVIATIONS.split()), encoding="utf-8")
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("", encoding="utf-8")
    return root


SOURCE = Source(
    ("ifeval/input_data.jsonl", "ifeval.jsonl", "input_data.jsonl"),
    "https://huggingface.co/datasets/google/IFEval",
    {"path": "google/IFEval", "split": "train"},
)
STRICT = IFEval("ifeval", "541 prompts with checkable instructions; strict checks", SOURCE)
LOOSE = IFEval("ifeval-loose", "the same with the loose checks", SOURCE, loose=True)
