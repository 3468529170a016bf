"""Small Python files with a defect, generated from a seed: a failing test is shown, others are not.

No file: `limit` says how many (300 by default). The user's message is that of the code assistant;
the instructions ask for a whole function, and every form that `repairs.py` reads is accepted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.bugs import problem as problems
from tgr_local.lab.eval.bugs.problem import Bug, Split
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.task import EvalTask, Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import NO_ANSWER, exact, n_generated
from tgr_local.lab.eval.tasks.code import SLACK, passes
from tgr_local.lab.eval.tasks.repairs import changed_file

N_DEFAULT, N_MOST = 300, 5000
FALSE_PASS = "false pass: the shown tests pass, the hidden ones do not"
"""`Grade.detail` of an answer that only the hidden tests refuse."""
SYSTEM = """\
You repair Python code. Answer with the path of the file, "::", the name of the function (a method \
as Class.method), and then the whole corrected function in a fenced block:

{path}::{name}
```python
(all lines of the function)
```
"""


@dataclass(frozen=True)
class Bugs(EvalTask):
    """Problems of one split of `tgr_local.lab.eval.bugs`."""

    split: Split

    needs_exec: ClassVar[bool] = True
    limits: ClassVar[ProgramLimits] = ProgramLimits()

    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        n = n_generated(self.name, path, limit, N_DEFAULT, N_MOST)
        rng = random.Random(f"{self.name} {seed}")
        by_file: dict[str, Problem] = {}
        while len(by_file) < n:
            bug = problems.bug(rng, self.split)
            by_file.setdefault(bug.file, self.problem(bug, rng, f"{seed}-{len(by_file)}"))
        return list(by_file.values())

    def problem(self, bug: Bug, rng: random.Random, name: str) -> Problem:
        """A generated problem as a question."""
        printed = problems.output(rng, bug)
        prompt = problems.user_message(bug.path, bug.file, problems.task(rng, bug), printed)
        reference = {
            "family": bug.family,
            "kinds": list(bug.kinds),
            "path": bug.path,
            "name": bug.name,
            "file": bug.file,
            "repaired": bug.repaired,
            "visible": [line for test in bug.visible for line in test.lines],
            "hidden": [line for check in bug.hidden for line in (*check.setup, check.statement)],
        }
        messages = (
            {"role": "system", "content": SYSTEM.format(path=bug.path, name=bug.name)},
            {"role": "user", "content": prompt},
        )
        groups = {"family": bug.family, "defect": " and ".join(bug.kinds)}
        return Problem(self.name, name, messages, reference, f"{prompt}\n", groups)

    def prepare(self) -> None:
        programs.check()

    def seconds(self, problem: Problem) -> float:
        return 2 * self.limits.seconds + SLACK

    def grade(self, problem: Problem, text: str) -> Grade:
        known = problem.reference
        code = changed_file(text, known["file"], known["name"])
        if code is None:
            return NO_ANSWER
        if code.strip() == known["repaired"].strip():
            return exact(True, code.strip())
        if code.strip() == known["file"].strip():
            return exact(False, code.strip(), "unchanged")
        all_tests = passes(code, "\n".join([*known["visible"], *known["hidden"]]), self.limits)
        if all_tests.correct or not passes(code, "\n".join(known["visible"]), self.limits).correct:
            return all_tests
        return exact(False, code.strip(), FALSE_PASS)


TASK = Bugs("bugs", "generated Python files with a defect and a failing test; hidden tests", "test")
FAMILIES = Bugs(
    "bugs-families", "the same, of kinds of functions that the embedded model never saw", "families"
)
