"""What the evaluation knows of a benchmark: its problems, and a grade for one answer.

A task turns its official file into problems and a text into a grade. It knows nothing of models,
methods or the search. `Task.grade` may be slow, hang or crash: `grading.Grader` calls it in a
process that can be killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Metric = Literal["pass", "score", "diversity"]


@dataclass(frozen=True)
class Problem:
    """One question of a benchmark."""

    task: str
    """The name of the task in `tasks.TASKS`."""
    id: str
    """Unique within the task; the benchmark's own where it has one."""
    messages: tuple[Mapping[str, str], ...]
    """The prompt as chat messages, in the benchmark's own wording."""
    reference: Any
    """What grading needs; JSON-able."""
    raw: str = ""
    """The same as a completion prompt, for models without a chat template."""


@dataclass(frozen=True)
class Grade:
    """The judgement of one answer."""

    correct: bool | None
    """None: could not be graded (no judge, the grader failed); never to be counted as wrong."""
    score: float
    """0 to 1; for exact tasks 1 when correct."""
    answer: str | None
    """The extracted answer in a normal form, the key for majority votes; None if there is none."""
    detail: str = ""
    """Why, in one line."""


FAILED = "grader "
"""How `Grade.detail` begins where the grader failed: it crashed, took too long, or its judge was
down. Such a grade is worth another try."""


class Task(Protocol):
    """What every benchmark offers."""

    @property
    def name(self) -> str: ...
    @property
    def doc(self) -> str:
        """One line: what it asks, and how many problems it has."""

    @property
    def needs_exec(self) -> bool:
        """Whether grading runs code that the model wrote."""

    @property
    def metric(self) -> Metric: ...

    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        """The problems, from the official file `path`, or that in the folder `path` or TGR_DATA;
        where there is none and `fetch` is set, from the Hugging Face hub. A `limit` above 0 draws
        that many by `seed`.

        Raises ValueError for bad arguments or a file of another format, OSError for an unreadable
        one, InstallError where a package for grading is missing, TgrError where fetching fails.
        """

    def prepare(self) -> None:
        """Import what grading needs: once in each worker, before any clock runs.

        Raises InstallError where a package is missing.
        """

    def seconds(self, problem: Problem) -> float:
        """What grading may take by the benchmark's own rules; 0 where it has none."""

    def grade(self, problem: Problem, text: str) -> Grade:
        """The grade of the answer part of a reply."""
