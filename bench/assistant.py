"""The code assistant on generated problems: candidates, rounds, formats with a grammar and without.

    python bench/assistant.py [--model FILE] [--n 300] [--budget 4000] [--only ROW ROW]

Every problem of the task `bugs` is a folder with one file and its failing tests; the assistant's
own rounds work on it as `tgr-local code` does. Tests run in the sandbox, and their output is
written in pytest's form. The hidden tests judge the edit that the visible ones chose; a false pass
is an edit that only the visible ones accept. A row says how many candidates a round has and how
many rounds there may be; with a budget, rounds go on until a candidate passes or so many forward
tokens are spent, so that rows with it have equal cost at most. The intervals are 95%, by bootstrap
over the problems; the same seed gives the same problems to every row.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repairs import Clock, gain, percent

from tgr_local import EngineConfig, SearchConfig, load, methods
from tgr_local.code.edits import Change, FileText
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.reading.prompt import Form
from tgr_local.code.rounds import CodeTask, solve
from tgr_local.engine import Cancel, Engine
from tgr_local.lab.eval import programs
from tgr_local.lab.eval.bugs import checks, problem
from tgr_local.lab.eval.bugs.checks import Result
from tgr_local.lab.eval.bugs.output import Test, pytest_output
from tgr_local.lab.eval.bugs.problem import Bug
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.tasks.code import passes
from tgr_local.options import model_files
from tgr_local.options.config import CodeConfig
from tgr_local.options.resolve import resolve
from tgr_local.system.sandbox import backends

LIMITS = ProgramLimits(seconds=10)
SEEDS = 1000  # of a problem, so that no two share random numbers
# the sandbox sees no source of this package, so the program brings along what runs the checks
RUNNER = (
    re.sub(r"^from tgr_local.*\n", "", Path(checks.__file__).read_text(), flags=re.MULTILINE)
    + """
import json
text, asked = json.load(sys.stdin)
results = run(text, [Check(tuple(a), b, c) for a, b, c in asked])
plain = [dict(vars(one), value=repr(one.value)) for one in results or ()]
print(json.dumps(plain if results is not None else None))
"""
)


@dataclass(frozen=True)
class Row:
    """One way to use the assistant."""

    k: int
    rounds: int
    form: Form | str = "auto"
    constrained: bool = True
    is_bounded: bool = False
    """Whether it has the budget of all such rows."""


ROWS = {
    "one shot": Row(1, 1),
    "k = 8": Row(8, 1),
    "k = 8, 3 rounds": Row(8, 3),
    "budget, k = 1": Row(1, 100, is_bounded=True),
    "budget, k = 4": Row(4, 100, is_bounded=True),
    "budget, k = 8": Row(8, 100, is_bounded=True),
    "budget, k = 16": Row(16, 100, is_bounded=True),
    "file": Row(1, 1, "file"),
    "file, free": Row(1, 1, "file", constrained=False),
    "function": Row(1, 1, "function"),
    "function, free": Row(1, 1, "function", constrained=False),
}


@dataclass(frozen=True)
class Folder:
    """A problem as a folder with its tests."""

    bug: Bug

    @property
    def test_text(self) -> str:
        tests = "\n\n".join(test.source for test in self.bug.visible)
        return f"from {self.bug.module} import *\n\n\n{tests}"

    def read(self, path: str) -> FileText | None:
        texts = {self.bug.path: self.bug.file, self.bug.test_path: self.test_text}
        return FileText(path, texts[path]) if path in texts else None

    def judge(self, changes: Sequence[Change], _: Cancel) -> Verdict:
        """The visible tests of the file with these changes."""
        start, text = time.monotonic(), self.bug.file
        for change in changes:
            text = change.after if change.path == self.bug.path else text
        tests = [Test(test.name, test.checks, ()) for test in self.bug.visible]
        results = _results(text, [check for test in tests for check in test.checks])
        if isinstance(results, str):
            n = len(tests)
            return Verdict(
                True, 0, n, 0, 0, time.monotonic() - start, results, "failed", (), "pytest"
            )
        left_results = iter(results)
        tests = [Test(t.name, t.checks, tuple(next(left_results) for _ in t.checks)) for t in tests]
        n_failed = sum(test.failing is not None for test in tests)
        said = ""
        if n_failed:
            said = pytest_output(tests, self.bug.module, text, self.bug.test_path, "0.02")
        return Verdict(
            True, len(tests) - n_failed, n_failed, 0, 0, time.monotonic() - start, said,
            "failed" if n_failed else "passed", (), "pytest",
        )  # fmt: skip

    def is_right(self, text: str) -> bool:
        """Whether the hidden tests pass too."""
        lines = [line for test in self.bug.visible for line in test.lines]
        lines += [line for check in self.bug.hidden for line in (*check.setup, check.statement)]
        return bool(passes(text, "\n".join(lines), LIMITS).correct)


def _results(text: str, wanted: Sequence[checks.Check]) -> list[Result] | str:
    """What a file gives for each check, found in the sandbox; a text where it gives nothing."""
    request = json.dumps([text, [[check.setup, check.call, check.expected] for check in wanted]])
    outcome = programs.run(RUNNER, stdin=request, limits=LIMITS)
    try:
        rows = json.loads(outcome.stdout)
        return [Result(**_typed(row)) for row in rows]
    except (ValueError, TypeError, SyntaxError):
        return f"E   {outcome.why or 'the test does not end'}\n"


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Result`, which JSON has no tuples for."""
    columns = row["columns"]
    return row | {
        "value": ast.literal_eval(row["value"]),
        "columns": None if columns is None else tuple(columns),
        "given": tuple((name, value) for name, value in row["given"]),
    }


@dataclass(frozen=True)
class Solved:
    """What came of a problem."""

    visible: bool
    hidden: bool
    n_candidates: int
    n_applied: int
    forward_tokens: int
    seconds: float


def solve_one(
    engine: Engine, bug: Bug, text: str, row: Row, config: SearchConfig, budget: int
) -> Solved:
    """A problem, solved as the row says."""
    folder = Folder(bug)
    code = CodeConfig(
        test="pytest -q", candidates=row.k, rounds=row.rounds, edit_format=row.form,
        constrained=row.constrained, budget=budget if row.is_bounded else 0,
    )  # fmt: skip
    task = CodeTask(
        text, (bug.path, bug.test_path), folder.read, folder.judge, tests=code.test,
        refusal=lambda path: "a test" if path == bug.test_path else "",
    )  # fmt: skip
    outcome = solve(engine, task, config, methods.get("base"), code, Clock())
    every = [candidate for some in outcome.rounds for candidate in some]
    best = outcome.best
    chosen = next((c.after for c in best.changes if c.path == bug.path), "") if best else ""
    ended = [candidate for candidate in every if candidate.state == "done"]
    return Solved(
        best is not None and best.passes, bool(chosen) and folder.is_right(chosen), len(ended),
        sum(candidate.applies for candidate in ended), outcome.forward_tokens, outcome.seconds,
    )  # fmt: skip


def line(name: str, rows: Sequence[Solved]) -> str:
    """A row of the table."""
    applied = [row.n_applied / row.n_candidates for row in rows if row.n_candidates]
    cells = [
        percent([row.visible for row in rows]),
        percent([row.hidden for row in rows]),
        percent([not row.hidden for row in rows if row.visible]),
        percent(applied),
        f"{statistics.mean(row.forward_tokens for row in rows):.0f}",
        f"{statistics.median(row.seconds for row in rows):.2f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def differences(by_row: dict[str, list[Solved]]) -> str:
    """Each row with a budget against the first of them, problem by problem."""
    right = {n: [row.hidden for row in rows] for n, rows in by_row.items() if ROWS[n].is_bounded}
    first, *rest = right or [""]
    return "\n".join(gain(name, right[name], first, right[first]) for name in rest)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file; else the embedded code model")
    parser.add_argument("--n", type=int, default=300, help="problems")
    parser.add_argument("--budget", type=int, default=4000, help="forward tokens of a problem")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--sandbox", choices=backends.CHOICES, default=programs.strongest())
    options = parser.parse_args()
    programs.choose(options.sandbox)
    rng = random.Random(f"assistant {options.seed}")
    bugs = [problem.bug(rng, "test") for _ in range(options.n)]
    texts = [problem.task(rng, bug) for bug in bugs]
    file = options.model or model_files.find("tgr-mini-code")
    by_row: dict[str, list[Solved]] = {}
    with load(file, EngineConfig(n_threads=options.threads)) as engine:
        own = resolve(engine.metadata).config
        config = dataclasses.replace(own, seed=options.seed, temperature=options.temperature)
        print(
            f"{file.name}, sha256 {engine.model_hash}; {options.n} problems, seed {options.seed}, "
            f"T = {options.temperature}, budget {options.budget} forward tokens\n\n"
            "| row | visible tests pass, % | hidden tests pass, % | false passes, % | applied, % "
            "| forward tokens | s |\n|---|---|---|---|---|---|---|"
        )
        for name in options.only:
            rows = []
            for i, (bug, text) in enumerate(zip(bugs, texts, strict=True)):
                mine = dataclasses.replace(config, seed=options.seed + SEEDS * i)
                rows.append(solve_one(engine, bug, text, ROWS[name], mine, options.budget))
            print(line(name, rows), flush=True)
            by_row[name] = rows
    print(f"\n{differences(by_row)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
