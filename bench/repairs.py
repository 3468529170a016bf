"""The code assistant on real folders with failing tests, compared with plain chat requests.

    python bench/repairs.py MODEL --humaneval HumanEval.jsonl.gz [--n 100] [--skip 0]
    python bench/repairs.py MODEL --projects FOLDER
    … [--rows chat k8 rounds] [--seed 42] [--threads 2] [--json FILE]

Repairs are made from HumanEval: a defect of `tgr_local.lab.eval.bugs` in the official solution
that fails an example of the docstring and the official tests. The examples are the tests that the
assistant sees, as a test file; the official tests judge what it chose, and a false pass is an edit
that only the examples accept. `--skip` leaves out the first problems, such as those that a prompt
was chosen on. FOLDER has projects and a `tasks.tsv`: name, task, test command. Or it has a TOML
file for each project, as `bench/projects` does (`small_projects.py` reads them).

A row is one way to ask. `chat` rows are what a person does without the assistant: the files, the
wish and the failing output in one request, the code taken from the answer by the same reader, and
the tests tried on each answer. The rows `file8` and `quoted8` also ask for a form; `no-tests` and
`no-output` are the assistant, whose prompt lacks the source of the failing tests, or what they
print. Everything runs as `tgr-local code` runs it. Intervals are 95%, by
bootstrap over the tasks.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import gzip
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import small_projects
from small_projects import Repair

from tgr_local import EngineConfig, SearchConfig, load, methods
from tgr_local.code import rounds
from tgr_local.code.edits import Change
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.reading import context, prompt
from tgr_local.code.rounds import CodeTask, TaskOutcome, solve
from tgr_local.code.workplace import Workplace
from tgr_local.code.writing import departures
from tgr_local.engine import Engine
from tgr_local.lab.eval import programs
from tgr_local.lab.eval.bugs import defects
from tgr_local.lab.eval.metrics import interval, paired
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.tasks.code import passes
from tgr_local.options.config import CodeConfig
from tgr_local.options.resolve import resolve
from tgr_local.system.sandbox import backends, commands

LIMITS = ProgramLimits(seconds=5)
WISH = "Make the failing tests pass."
_CALL = r"(?:==|➞|=>|->|should return|returns?|=)"


@dataclass(frozen=True)
class Row:
    """One way to ask."""

    k: int
    rounds: int = 1
    is_chat: bool = False
    closing: str = ""
    """A sentence at the end of the request."""
    without: str = ""
    """What the prompt does not show: tests, or their output."""


_QUOTED = (
    "Answer with SEARCH/REPLACE blocks. Each has a line <<<<<<< SEARCH, lines of the file, a line "
    "=======, the lines that take their place, and a line >>>>>>> REPLACE."
)
ROWS = {
    "chat": Row(1, is_chat=True),
    "chat8": Row(8, is_chat=True),
    "file8": Row(8, is_chat=True, closing="Write the whole changed file in a fenced block."),
    "quoted8": Row(8, is_chat=True, closing=_QUOTED),
    "k1": Row(1),
    "k8": Row(8),
    "rounds": Row(8, rounds=3),
    "no-tests": Row(8, without="tests"),
    "no-output": Row(8, without="output"),
}


@dataclass
class Solved:
    """What came of a task."""

    visible: bool
    hidden: bool
    n_candidates: int
    n_passed: int
    n_edits: int
    """Answers of which an edit was taken that changes something and can be read."""
    mended: float
    """Share of the tests that failed and pass with the best edit."""
    forward_tokens: int
    first: float | None
    """Seconds to the first candidate that passes, the reading of the prompt included."""
    seconds: float


class Clock:
    """A `Listener` that notes when a candidate passes first."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.first: float | None = None

    def baseline(self, verdict: Verdict) -> None:
        self.start = time.monotonic()

    def update(self, candidate: Candidate, text: str) -> None:
        if candidate.passes and self.first is None:
            self.first = time.monotonic() - self.start

    def context(self, shown: context.Context, form: prompt.Form) -> None: ...
    def round_begins(self, number: int, candidates: Sequence[Candidate]) -> None: ...
    def round_ends(self, outcome: TaskOutcome) -> None: ...
    def adopts(self, candidate: Candidate) -> None: ...


# ---- tasks ----


def examples(head: str, name: str) -> list[tuple[str, str]]:
    """Calls and their results in a docstring, as Python texts."""
    lines = head.split("\n")
    pairs = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if (shell := re.match(rf"\s*>>> ({name}\(.*\))\s*$", line)) is not None:
            pairs.append((shell[1], following.strip()))
        elif (said := re.match(rf"\s*({name}\(.*\))\s*{_CALL}\s*(.+?)\.?$", line)) is not None:
            pairs.append((said[1], said[2]))
    return [pair for pair in dict.fromkeys(pairs) if all(map(_is_expression, pair))]


def _is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True


def repair(row: dict[str, str]) -> Repair | None:
    """The repair of a problem; None where its docstring has no example, or no defect fails one."""
    rng, name = random.Random(f"repairs {row['task_id']}"), row["entry_point"]
    right = f"{row['prompt']}{row['canonical_solution'].rstrip()}\n"
    hidden = f"{row['test']}\ncheck({name})"
    calls = [
        (call, value)
        for call, value in examples(row["prompt"], name)
        if passes(right, f"assert {call} == {value}", LIMITS).correct
    ]
    if not calls or not passes(right, hidden, LIMITS).correct:
        return None
    visible = "\n".join(f"assert {call} == {value}" for call, value in calls)
    for defect in defects.draw(rng, right, 14):
        wrong = defect.apply(right)
        with contextlib.suppress(SyntaxError):
            compile(wrong, "solution.py", "exec")
            seen, kept = (passes(wrong, tests, LIMITS).correct for tests in (visible, hidden))
            if not seen and not kept:
                checks = "\n".join(f"        self.assertEqual({a}, {b})" for a, b in calls)
                test = (
                    f"import unittest\n\nfrom solution import {name}\n\n\n"
                    f"class Test{name.title().replace('_', '')}(unittest.TestCase):\n"
                    f"    def test_examples(self):\n{checks}\n"
                )
                files = {"solution.py": wrong, "test_solution.py": test}
                return Repair(row["task_id"], files, WISH, "python3 -m unittest -q", hidden)
    return None


def repairs(file: Path, n: int, skip: int) -> Iterator[Repair]:
    """Up to `n` repairs, after the first `skip`."""
    data = file.read_bytes()
    lines = (gzip.decompress(data) if file.suffix == ".gz" else data).decode().splitlines()
    every = (r for line in lines if (r := repair(json.loads(line))) is not None)
    yield from itertools.islice(every, skip, skip + n)


def projects(folder: Path) -> Iterator[Repair]:
    """The projects of a folder."""
    yield from small_projects.read(folder)
    if not (folder / "tasks.tsv").exists():
        return
    for line in (folder / "tasks.tsv").read_text().splitlines():
        name, task, test = line.split("\t")
        files = {
            path.relative_to(folder / name).as_posix(): path.read_bytes().decode()
            for path in sorted((folder / name).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
        test = re.sub(r"^pytest\b", f"{sys.executable} -m pytest -p no:cacheprovider", test)
        yield Repair(name, files, task, test)


# ---- rows ----


@contextlib.contextmanager
def shown(row: Row) -> Iterator[None]:
    """Prompts without what the row leaves out."""
    with contextlib.ExitStack() as stack:
        if row.without == "tests":
            stack.enter_context(mock.patch.object(context._Builder, "_add_tests", lambda _: None))
        if row.without == "output":
            stack.enter_context(mock.patch.object(prompt, "tail", lambda *_: ""))
        yield


@contextlib.contextmanager
def asked(row: Row) -> Iterator[None]:
    """Requests with the row's sentence, without what only the assistant has."""
    ask, free = prompt.conversation, departures.FoundDepartures()

    def conversation(user: str, *more: str) -> list[prompt.Message]:
        return ask(f"{user.rstrip()}\n\n{row.closing}\n" if row.closing else user, *more)

    with (
        mock.patch.object(prompt, "conversation", conversation),
        mock.patch.object(departures, "find", lambda *_: free),
        mock.patch.object(rounds, "combine", lambda *_: ()),
        mock.patch.object(rounds, "furthest", lambda *_: None),
        mock.patch.object(rounds, "sideways", lambda *_: None),
    ):
        yield


def solved(engine: Engine, job: Repair, row: Row, config: SearchConfig, sandbox: str) -> Solved:
    """What a row makes of a task, in a folder of its own."""
    code = CodeConfig(
        test=job.test, candidates=row.k, rounds=row.rounds, sandbox=sandbox, test_seconds=60.0
    )
    clock, folder = Clock(), Path(tempfile.mkdtemp())
    try:
        small_projects.write(job.files, folder)
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        place = Workplace(folder, code)
        with place.copied(), asked(row) if row.is_chat else shown(row):
            task = CodeTask(
                job.task, place.paths(), place.read, place.judge, job.test, refusal=place.refusal
            )
            outcome = solve(engine, task, config, methods.get("base"), code, clock)
        best = outcome.best if outcome.best is not None and outcome.best.passes else None
        passes_hidden = best is not None and is_right(job, folder, best.changes, sandbox)
    finally:
        shutil.rmtree(folder)
    every = [candidate for some in outcome.rounds for candidate in some]
    ended = [some for some in every if some.state == "done" and not some.parts]
    return Solved(
        best is not None, passes_hidden, len(ended), sum(candidate.passes for candidate in every),
        sum(candidate.parses for candidate in ended), mended(outcome), outcome.forward_tokens,
        clock.first, outcome.seconds,
    )  # fmt: skip


def is_right(job: Repair, folder: Path, changes: Sequence[Change], sandbox: str) -> bool:
    """Whether what the tests do not show is right, too."""
    if job.hidden:
        return bool(passes(changes[0].after, job.hidden, LIMITS).correct)
    return small_projects.is_right(job, folder, changes, sandbox)


def mended(outcome: TaskOutcome) -> float:
    """Share of the tests that failed and pass with the best edit; of tests that could not begin,
    those of the best edit."""
    before, best = outcome.baseline, outcome.best
    after = best.verdict if best is not None else None
    if before is None or after is None:
        return 0.0
    n_failed = max(before.total, after.total) - before.passed
    return max(0, after.passed - before.passed) / n_failed if n_failed else float(after.passes)


def percent(values: Sequence[float]) -> str:
    """A mean share in percent with its interval."""
    if not values:
        return "-"
    share = interval(values)
    return f"{100 * share.mean:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def gain(name: str, rows: Sequence[bool], first: str, first_rows: Sequence[bool]) -> str:
    """A line about one row against the first, problem by problem."""
    difference = paired(rows, first_rows)
    return (
        f"{name} - {first}: {100 * difference.mean:+.1f} points "
        f"({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
    )


def line(name: str, rows: Sequence[Solved]) -> str:
    """A row of the table."""
    n = sum(row.n_candidates for row in rows)
    firsts = sorted(row.first for row in rows if row.first is not None)
    cells = [
        percent([row.visible for row in rows]),
        percent([row.hidden for row in rows]),
        percent([not row.hidden for row in rows if row.visible]),
        f"{100 * sum(row.n_edits for row in rows) / n:.1f}" if n else "-",
        f"{100 * sum(row.mended for row in rows) / len(rows):.0f}",
        f"{sum(row.forward_tokens for row in rows) / len(rows):.0f}",
        f"{firsts[len(firsts) // 2]:.1f}" if firsts else "-",
        f"{sum(row.seconds for row in rows) / len(rows):.0f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--humaneval", type=Path, metavar="FILE")
    source.add_argument("--projects", type=Path, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these projects")
    parser.add_argument("--n", type=int, default=100, help="repairs")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=["chat", "chat8", "k8"])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sandbox", choices=backends.CHOICES, help="none: with your rights")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    sandbox = options.sandbox or commands.strongest()
    programs.choose(sandbox if options.sandbox else programs.strongest())
    tasks = list(
        projects(options.projects)
        if options.projects
        else repairs(options.humaneval, options.n, options.skip)
    )
    seeds = {task.name: options.seed + 1000 * i for i, task in enumerate(tasks)}
    tasks = [task for task in tasks if not options.only or task.name in options.only]
    by_row: dict[str, list[Solved]] = {}
    with load(options.model, EngineConfig(n_threads=options.threads)) as engine:
        own = resolve(engine.metadata).config
        print(
            f"{options.model.name}, sha256 {engine.model_hash}; {len(tasks)} tasks, seed "
            f"{options.seed}, T = {own.temperature}\n\n| row | visible tests pass, % | hidden "
            "tests pass, % | false passes, % | edits among the answers, % | tests mended, % | "
            "forward tokens | first pass, s | all, s |\n|---|---|---|---|---|---|---|---|---|"
        )
        for name in options.rows:
            rows = by_row[name] = []
            for task in tasks:
                config = dataclasses.replace(own, seed=seeds[task.name])
                rows.append(solved(engine, task, ROWS[name], config, sandbox))
                last = rows[-1]
                said = f"{name} {task.name}: {last.n_passed} pass, hidden {last.hidden}"
                said += f", mended {last.mended:.2f}, {last.forward_tokens} tokens"
                print(f"{said}, {last.seconds:.0f} s", file=sys.stderr, flush=True)
            print(line(name, rows), flush=True)
    right = {name: [row.hidden for row in rows] for name, rows in by_row.items()}
    first, *rest = options.rows
    for name in rest:
        print(gain(name, right[name], first, right[first]))
    if options.json:
        plain = {
            name: [
                {"task": task.name, **dataclasses.asdict(row)}
                for task, row in zip(tasks, rows, strict=True)
            ]
            for name, rows in by_row.items()
        }
        options.json.write_text(json.dumps(plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
