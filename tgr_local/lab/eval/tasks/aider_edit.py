"""Aider's edit benchmark in a local form: Exercism's Python exercises, each with hidden unit tests.

The data is a folder of exercises as Exercism publishes them (`exercises/practice/NAME` with
`.docs`, `.meta/config.json`, a stub and its tests), such as the Python part of the polyglot
benchmark. One answer to each: the second try, with the output of the tests, belongs to the code
assistant, not to a task.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import user
from tgr_local.lab.eval.tasks.code import CodeBenchmark, blocks, passes
from tgr_local.lab.eval.tasks.data import Row, Source, find, sample
from tgr_local.lab.eval.tasks.repairs import SEARCH, changed_file
from tgr_local.system.files import utf8_text

WITHIN = ("python/exercises/practice", "exercises/practice", "practice", "")
"""Folders of the exercises below a folder that was named."""
DOCS = ("introduction.md", "instructions.md", "instructions.append.md")
MOST = 1 << 20
"""Bytes of one file of an exercise."""
RUN_TESTS = """
import sys as __sys, unittest as __unittest
__result = __unittest.TestResult()
__unittest.defaultTestLoader.loadTestsFromModule(__sys.modules['__main__']).run(__result)
assert __result.testsRun, 'no tests'
assert __result.wasSuccessful(), str((__result.failures + __result.errors)[0][1])[-300:]
"""
AS_MODULE = """
import sys as __sys, types as __types
__module = __types.ModuleType({name!r})
__sys.modules[{name!r}] = __module
exec(compile({code!r}, {path!r}, 'exec'), __module.__dict__)
"""


@dataclass(frozen=True)
class AiderEdit(CodeBenchmark):
    """Exercises with one solution file and one file of tests."""

    limits: ClassVar[ProgramLimits] = ProgramLimits(seconds=60.0)

    def load(
        self, path: Path | None = None, *, limit: int = 0, seed: int = 0, fetch: bool = False
    ) -> list[Problem]:
        if path is not None and path.is_dir() and (own := exercises(path)):
            folders = own
        else:
            folders = [
                e for folder in find(self.name, self.source, path) for e in exercises(folder)
            ]
        problems = [problem for folder in folders if (problem := self.exercise(folder)) is not None]
        if not problems:
            raise ValueError(
                f"{self.name} found no exercises there; it needs the folder with "
                f"exercises/practice of {self.source.home}"
            )
        return sample(problems, limit, seed)

    def exercise(self, folder: Path) -> Problem | None:
        """The problem of an exercise; None where it has more than one file to change."""
        file = folder / ".meta" / "config.json"
        try:
            files = json.loads(text_of(file)).get("files", {})
            solutions, tests = files.get("solution", []), files.get("test", [])
        except (json.JSONDecodeError, AttributeError):
            raise ValueError(f"{file} is damaged; get the exercises again") from None
        if len(solutions) != 1 or len(tests) != 1:
            return None
        stub, tested = (inside(folder, name) for name in (solutions[0], tests[0]))
        docs = [folder / ".docs" / name for name in DOCS]
        said = "\n\n".join(text_of(doc).strip() for doc in docs if doc.is_file())
        path = stub.name
        prompt = (
            f"{said}\n\nDo this by changing the file `{path}`:\n\n```python\n{text_of(stub)}```\n\n"
            "Keep the names of its functions and classes, since the tests use them; import nothing "
            "but the standard library. Answer with the whole new file in one fenced block.\n"
        )
        reference = {"path": path, "file": text_of(stub), "test": text_of(tested)}
        return Problem(self.name, folder.name, user(prompt), reference, prompt)

    def problem(self, row: Row, index: str) -> Problem | None:
        raise NotImplementedError("exercises are folders, not rows")

    def code(self, problem: Problem, text: str) -> str | None:
        if SEARCH.search(text):
            return changed_file(text, problem.reference["file"], "")
        codes = blocks(text)
        return codes[-1] if codes else None

    def judged(self, problem: Problem, code: str) -> Grade:
        path = problem.reference["path"]
        module = AS_MODULE.format(name=path.removesuffix(".py"), code=code, path=path)
        return passes(module, problem.reference["test"] + RUN_TESTS, self.limits)


def exercises(folder: Path) -> list[Path]:
    """The folders of exercises below a folder, in the first of the usual places."""
    for place in WITHIN:
        folders = sorted(f.parent.parent for f in (folder / place).glob("*/.meta/config.json"))
        if folders:
            return folders
    return []


def inside(folder: Path, name: str) -> Path:
    """A file of an exercise. Raises ValueError where its name leads out of the folder."""
    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise ValueError(f"{folder}: the file {name!r} lies outside of the exercise")
    return file


def text_of(file: Path) -> str:
    """The text of a file. Raises ValueError for a large one or other bytes than UTF-8."""
    data = file.read_bytes()
    if len(data) > MOST:
        raise ValueError(f"{file} has {len(data)} bytes; an exercise's file has at most {MOST}")
    try:
        return utf8_text(data)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: byte {error.start} is invalid") from None


TASK = AiderEdit(
    "aider-edit",
    "Exercism's Python exercises as aider's edit benchmark has them; hidden unit tests",
    Source(
        ("polyglot-benchmark", "exercism-python", "python/exercises/practice"),
        "https://github.com/Aider-AI/polyglot-benchmark",
    ),
)
