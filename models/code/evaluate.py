"""Measures tgr-mini-code on generated problems that it never saw: Pass@k and what the tests select.

In: a GGUF file. Out: a table in Markdown, a row for each split of `tgr_local.lab.eval.bugs`: the
share of problems that the first answer solves, and that one of k answers solves, by the hidden
tests; the share solved when the visible tests select among k; the share of those selections that
the hidden tests refuse (false passes); the share of answers that apply. Answers are free, and
prompts have no instructions, which the assistant leaves out for this model. Intervals: 95%, Wilson.
Answers run in the sandbox.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from models.evaluate import pass_at, powers_of_two, wilson
from tgr_local import EngineConfig, load
from tgr_local.engine import Engine
from tgr_local.generation.many import generate_many
from tgr_local.lab.eval import programs
from tgr_local.lab.eval.bugs.problem import Split
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.bugs import FALSE_PASS, Bugs
from tgr_local.options.resolve import resolve
from tgr_local.system.sandbox import backends

SPLITS: dict[Split, str] = {
    "test": "unseen functions", "pairs": "unseen pairs of family and defect",
    "families": "unseen families",
}  # fmt: skip
LONGEST = 320
"""Tokens of an answer at most."""
HEAD = """\
| problems | n | first answer right, % | Pass@1, % | one of k right, % \
| selected by tests, right, % | false passes, % | applied, % | tokens |
|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Answer:
    """One answer with its grade."""

    text: str
    n_tokens: int
    grade: Grade

    @property
    def is_right(self) -> bool:
        return bool(self.grade.correct)

    @property
    def is_passing(self) -> bool:
        """Whether the visible tests pass."""
        return self.is_right or self.grade.detail == FALSE_PASS

    @property
    def is_applied(self) -> bool:
        return self.grade.answer is not None


def answers(
    engine: Engine, task: Bugs, problems: Sequence[Problem], k: int, seed: int, temperature: float
) -> list[list[Answer]]:
    """k graded answers to each problem, [problem][answer]."""
    advised = resolve(engine.metadata).config
    config = replace(advised, temperature=temperature, max_tokens=LONGEST)
    rows: list[list[Answer]] = []
    known: dict[tuple[str, str], Grade] = {}
    with ThreadPoolExecutor(2) as pool:

        def graded(problem: Problem, text: str) -> Grade:
            key = problem.id, text
            if key not in known:
                known[key] = task.grade(problem, text)
            return known[key]

        for number, problem in enumerate(problems):
            mine = replace(config, seed=seed + number * k)  # no two answers share random numbers
            replies = generate_many(engine, problem.messages[1:], mine, k, method="base")
            grades = pool.map(lambda reply, p=problem: graded(p, reply.text), replies)
            rows.append(
                [
                    Answer(reply.text, reply.n_tokens, grade)
                    for reply, grade in zip(replies, grades, strict=True)
                ]
            )
    return rows


def share(n: int, of: int) -> str:
    """A share in percent with its interval."""
    if not of:
        return "-"
    low, high = wilson(n, of)
    return f"{100 * n / of:.1f} ({low:.1f}-{high:.1f})"


def table(rows: Sequence[Sequence[Answer]], label: str) -> str:
    """The row of one set of problems."""
    n, k = len(rows), len(rows[0])
    first = sum(row[0].is_right for row in rows)
    any_right = sum(any(one.is_right for one in row) for row in rows)
    chosen = [next((one for one in row if one.is_passing), None) for row in rows]
    passing = [one for one in chosen if one is not None]
    selected = sum(one.is_right for one in passing)
    every = [one for row in rows for one in row]
    mean = 100 * sum(one.is_right for one in every) / len(every)
    return (
        f"| {label} | {n} | {share(first, n)} | {mean:.1f} | {share(any_right, n)} "
        f"| {share(selected, n)} | {share(len(passing) - selected, len(passing))} "
        f"| {100 * sum(one.is_applied for one in every) / (n * k):.1f} "
        f"| {sum(one.n_tokens for one in every) / (n * k):.0f} |"
    )


def by_kind(problems: Sequence[Problem], rows: Sequence[Sequence[Answer]]) -> Iterator[str]:
    """Pass@1 and Pass@k by the kind of defect."""
    found: dict[str, list[Sequence[Answer]]] = defaultdict(list)
    for problem, row in zip(problems, rows, strict=True):
        found[problem.reference["kinds"][0]].append(row)
    yield "| defect | problems | Pass@1, % | one of k, % |"
    yield "|---|---|---|---|"
    for kind, mine in sorted(found.items(), key=lambda item: -len(item[1])):
        each = [one.is_right for row in mine for one in row]
        solved = sum(any(one.is_right for one in row) for row in mine)
        first, last = 100 * sum(each) / len(each), 100 * solved / len(mine)
        yield f"| {kind} | {len(mine)} | {first:.0f} | {last:.0f} |"


def details(
    problems: Sequence[Problem], rows: Sequence[Sequence[Answer]], n_shown: int
) -> Iterator[str]:
    """More about one set: kinds of defects, Pass@k, families, some wrong answers."""
    yield from by_kind(problems, rows)
    correct = [[one.is_right for one in row] for row in rows]
    passes = (f"@{k} {pass_at(k, correct)[0]:.1f}" for k in powers_of_two(len(rows[0])))
    yield f"\nPass@k: {', '.join(passes)}"
    pairs = list(zip(problems, rows, strict=True))
    unsolved = Counter(p.reference["family"] for p, row in pairs if not any(map(is_right, row)))
    yield f"families with unsolved problems: {dict(unsolved.most_common(20))}"
    wrong = [(problem, row[0]) for problem, row in pairs if not row[0].is_right]
    for problem, answer in wrong[:n_shown]:
        yield f"\n{problem.messages[-1]['content']}\n> {answer.text}\n> {answer.grade.detail}"


def is_right(answer: Answer) -> bool:
    return answer.is_right


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="GGUF file")
    parser.add_argument("--n", type=int, default=300, help="problems of each split")
    parser.add_argument("-k", type=int, default=8, help="answers to a problem")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sandbox", choices=backends.CHOICES, default=programs.strongest())
    parser.add_argument("--show", type=int, default=0, help="wrong first answers to print")
    options = parser.parse_args()
    programs.choose(options.sandbox)
    with load(options.file, EngineConfig(n_threads=options.threads)) as engine:
        print(f"{options.file}, sha256 {engine.model_hash}, seed {options.seed}, ", end="")
        print(f"T = {options.temperature}, k = {options.k}\n\n{HEAD}", flush=True)
        more: list[str] = []
        for split in options.splits:
            task = Bugs("bugs", "", split)
            problems = task.load(limit=options.n, seed=options.seed)
            rows = answers(engine, task, problems, options.k, options.seed, options.temperature)
            print(table(rows, SPLITS[split]), flush=True)
            if split == options.splits[0]:
                more = list(details(problems, rows, options.show))
        print("\n" + "\n".join(more))


if __name__ == "__main__":
    main()
