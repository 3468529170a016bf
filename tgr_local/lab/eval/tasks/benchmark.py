"""Common code of the tasks that come from a file."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from tgr_local.lab.eval.task import EvalTask, Grade, Problem
from tgr_local.lab.eval.tasks.data import Row, Source, require, rows, sample
from tgr_local.system.answers import boxed


@dataclass(frozen=True)
class Benchmark(EvalTask):
    """A task whose problems are the rows of an official file."""

    source: Source

    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        require(*self.packages)
        read = rows(self.name, self.source, path, fetch)
        drawn = [self.problem(row, str(i)) for i, row in enumerate(read)]
        problems = unique([problem for problem in drawn if problem is not None])
        if not problems:
            raise ValueError(f"{self.name}: none of the {len(read)} rows belongs to its test set")
        return sample(problems, limit, seed)

    @abstractmethod
    def problem(self, row: Row, index: str) -> Problem | None:
        """The problem of a row; the index replaces a missing id. None where the row is not part of
        the test set."""

    def prepare(self) -> None:
        require(*self.packages)


def unique(problems: list[Problem]) -> list[Problem]:
    """The problems, with numbers added to repeated ids."""
    times: Counter[str] = Counter()
    numbered = []
    for problem in problems:
        n = times[problem.id]
        times[problem.id] += 1
        numbered.append(replace(problem, id=f"{problem.id}#{n + 1}") if n else problem)
    return numbered


def n_generated(name: str, path: Path | None, limit: int, default: int, most: int) -> int:
    """The number of problems of a task that has no file: its limit, or the default where that is 0.
    Raises ValueError."""
    if path is not None and not path.is_dir():  # a folder has the files of other tasks
        raise ValueError(f"{name} is generated: it takes a limit and a seed, no file")
    if not 0 <= limit <= most:
        raise ValueError(f"limit must be from 0 ({default} problems) to {most}, got {limit}")
    return limit or default


def user(content: str) -> tuple[dict[str, str], ...]:
    """One user message."""
    return ({"role": "user", "content": content},)


def exact(is_right: bool, answer: str | None, detail: str = "") -> Grade:
    """The grade of an answer that is either correct or wrong."""
    return Grade(is_right, float(is_right), answer, detail)


def last_box(text: str) -> str | None:
    """The content of the last box; of a reply with many boxes only the end is searched."""
    return boxed(text if text.count("\\boxed") < MANY else text[-END:])


END = 8000
"""Characters at the end of a long reply that are searched for the answer."""
MANY = 100
NO_ANSWER = Grade(False, 0.0, None, "no answer found")
