"""The interface of a benchmark: its problems, and a grade for one answer.

A task turns its official file into problems and a text into a grade. It does not know models,
methods or the search. `EvalTask.grade` may be slow, hang or crash: `grader.Grader` calls it in a
process that can be killed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

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
    """Data for grading, serialisable as JSON."""
    raw: str = ""
    """The prompt for completion, for models without a chat template."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Groups that a report divides the problems into: property → group, such as level → 5. They
    change no sample and no grade."""


@dataclass(frozen=True)
class Grade:
    """The grade of one answer."""

    correct: bool | None
    """None: not graded (no judge, or the grader failed); never counts as wrong."""
    score: float
    """0 to 1; for exact tasks 1 when correct."""
    answer: str | None
    """The extracted answer in a normal form, the key for majority votes; None if there is none."""
    detail: str = ""
    """The reason, in one line."""


FAILED = "grader "
"""Prefix of `Grade.detail` where the grader failed: a crash, a timeout, or no answer of the judge.
Another attempt may succeed."""


@dataclass(frozen=True)
class EvalTask(ABC):
    """A benchmark."""

    name: str
    doc: str
    """One line: its kind of questions and their number."""
    _: KW_ONLY
    metric: Metric = "pass"

    needs_exec: ClassVar[bool] = False
    """Whether grading runs code that the model wrote."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages for grading beyond the standard library."""

    @abstractmethod
    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        """The problems, from the official file `path`, or that in the folder `path` or TGR_DATA;
        where it is missing and `fetch` is set, from the Hugging Face hub. A `limit` above 0 draws
        that many with `seed`.

        Raises ValueError for invalid arguments or a file of another format, OSError for an
        unreadable one, InstallError where a package for grading is missing, TgrError where fetching
        fails.
        """

    def prepare(self) -> None:  # noqa: B027
        """Imports the packages for grading, once in each worker, before any time limit starts.

        Raises InstallError where a package is missing.
        """

    def seconds(self, problem: Problem) -> float:
        """The benchmark's own time limit for grading; 0 where it has none."""
        return 0.0

    @abstractmethod
    def grade(self, problem: Problem, text: str) -> Grade:
        """The grade of a reply without its thinking."""
