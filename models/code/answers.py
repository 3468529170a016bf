"""Answers of the code assistant in its two forms, and as quoted lines that are replaced, from a
file and its repaired text."""

from __future__ import annotations

from tgr_local.lab.eval.bugs.problem import Bug


def function(problem: Bug, text: str = "") -> str:
    """The whole function; `text` instead of the correct one."""
    return f"{problem.path}::{problem.name}\n```python\n{text or problem.function}\n```"


def whole_file(problem: Bug) -> str:
    """The whole file."""
    return f"{problem.path}\n```python\n{problem.repaired}```"


def replace(problem: Bug) -> str:
    """The lines that differ, as a search-and-replace block; the quoted lines occur once."""
    old, new = (text.split("\n")[:-1] for text in (problem.file, problem.repaired))
    first = next(i for i, line in enumerate(new) if i >= len(old) or old[i] != line)
    end = 0
    while end < min(len(old), len(new)) - first and old[-1 - end] == new[-1 - end]:
        end += 1
    last = len(old) - end
    if first == last:  # lines were missing: the one before is repeated
        first -= 1
    while _count(old, old[first:last]) > 1:
        if first > 0 and old[first - 1]:
            first -= 1
        else:
            last, end = last + 1, end - 1
    quoted, written = old[first:last], new[first : len(new) - end]
    body = "".join(f"{line}\n" for line in written)
    search = "".join(f"{line}\n" for line in quoted)
    return f"{problem.path}\n<<<<<<< SEARCH\n{search}=======\n{body}>>>>>>> REPLACE"


def _count(lines: list[str], run: list[str]) -> int:
    """How often a run of lines occurs."""
    return sum(lines[i : i + len(run)] == run for i in range(len(lines) - len(run) + 1))
