"""The questions that a probe is fitted on: a task of the evaluation, or a file of questions.

A file has a JSON object on each line: ``{"question": "…", "answer": "…"}``. Where answers are
missing, a text counts as right if its answer is that of the majority.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.task import Problem
from tgr_local.lab.eval.tasks.benchmark import Benchmark
from tgr_local.lab.eval.tasks.data import only_file
from tgr_local.system import json_checks, paths
from tgr_local.system.answers import answer_key, normalised

_SHAPE = {"question": str, "answer?": str}
_MOST = 100_000  # questions of a file


@dataclass(frozen=True)
class Question:
    """One question, and what tells which of several replies are right."""

    messages: tuple[Mapping[str, str], ...]
    raw: str
    """The prompt for a model without a chat template."""
    judge: Callable[[Sequence[str]], list[bool] | None]
    """Grades replies; returns None if they cannot be graded."""
    judged_by: str
    """Basis of `judge`: the task and its reference, the answer, or the majority."""


def load(
    name: str,
    path: Path | None,
    limit: int,
    seed: int,
    grader: Grader,
    *,
    fetch: bool = False,
    alone: bool = False,
) -> list[Question]:
    """The questions of a task, `limit` of them drawn by `seed`, or the first `limit` of a
    ``.jsonl`` file. For a task that is `alone`, `path` may be the folder of its file. ValueError
    for an unknown task, one without final answers, or a file of another form; OSError for an
    unreadable one."""
    if name.endswith(".jsonl"):
        return of_file(paths.expanded("the task", name), limit)
    task = tasks.get(name)
    if task.needs_exec or task.metric != "pass":
        raise ValueError(
            f"{name} has no final answers, but a probe needs a task with answers that are right or "
            "wrong, or a .jsonl file of questions"
        )

    def judged(problem: Problem) -> Callable[[Sequence[str]], list[bool] | None]:
        def judge(texts: Sequence[str]) -> list[bool] | None:
            grades = [grader.submit(problem, text) for text in texts]
            flags = [grade.result().correct for grade in grades]
            return None if None in flags else [bool(flag) for flag in flags]

        return judge

    if alone and isinstance(task, Benchmark):
        path = only_file(task.source, path)
    problems = task.load(path, limit=limit, seed=seed, fetch=fetch)
    return [
        Question(p.messages, p.raw, judged(p), json.dumps([p.task, p.reference], sort_keys=True))
        for p in problems
    ]


def of_file(file: Path, limit: int) -> list[Question]:
    """The first `limit` questions of a file. ValueError for a file of another form, OSError for an
    unreadable one."""
    questions: list[Question] = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if len(questions) >= min(limit, _MOST):
                break
            if not line.strip():
                continue
            try:
                data = json_checks.loads(line)
                json_checks.check(_SHAPE, data)
            except ValueError as error:
                raise ValueError(f"{file} line {number}: {error}") from None
            messages = ({"role": "user", "content": data["question"]},)
            answer = data.get("answer")
            judge = agreement if answer is None else _equality(normalised(answer))
            judged_by = "majority" if answer is None else f"answer {normalised(answer)}"
            questions.append(Question(messages, data["question"] + "\n", judge, judged_by))
    if not questions:
        raise ValueError(f"{file} has no questions")
    return questions


def _equality(answer: str) -> Callable[[Sequence[str]], list[bool] | None]:
    return lambda texts: [answer_key(text) == answer for text in texts]


def agreement(texts: Sequence[str]) -> list[bool] | None:
    """Whether the answer of each text is the most frequent one; None where no text has one."""
    keys = [answer_key(text) for text in texts]
    votes = Counter(key for key in keys if key is not None)
    if not votes:
        return None
    ((most, _),) = votes.most_common(1)
    return [key == most for key in keys]
