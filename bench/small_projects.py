"""Reads small projects with defects, and checks that each one's own solution is right.

    python bench/small_projects.py [FOLDER] [--only NAME …] [--output] [--parts]

A project is a TOML file: task, test, files, and hidden programs that judge an edit. Each hidden
program runs with python3 or node. Where the file has a command `judge`, all of them are put beside
the files and that command judges. A `solution` is a list of texts to replace, which no model sees.

Each project that has a solution is judged without it, where the tests and the hidden programs have
to fail, and with it, where both have to pass. A refactoring passes its tests before, too.
`--output` shows what the tests print and how it is read. `--parts` makes each replacement of a
solution alone, and says whether the assistant sees that it gets further.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tgr_local.code.edits import Change
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.files import toml_tables
from tgr_local.system.paths import program
from tgr_local.system.sandbox import backends

FOLDER = Path(__file__).with_name("projects")


@dataclass(frozen=True)
class Repair:
    """A folder's files, the task, and what judges the edit that the tests chose."""

    name: str
    files: dict[str, str]
    task: str
    test: str
    hidden: str = ""
    """A program that follows solution.py; empty = the folder's own tests are all there is."""
    hidden_files: dict[str, str] = dataclasses.field(default_factory=dict)
    """Programs beside the files that fail where an edit is wrong."""
    judge: str = ""
    """The command that runs them; empty = each runs by itself."""
    solution: tuple[Change, ...] = ()
    """A right edit, which no model sees."""

    parts: tuple[Change, ...] = ()
    """Each replacement of the solution alone."""
    needs: tuple[str, ...] = ()
    """Programs without which its tests do not run."""
    is_green: bool = False
    """Whether its tests pass without an edit."""

    def lacking(self) -> str:
        """The first program that it needs and that is not here; empty where all are."""
        return next((name for name in self.needs if not program(name)), "")


def read(folder: Path) -> Iterator[Repair]:
    """The projects of a folder."""
    for file in sorted(folder.glob("*.toml")):
        some = toml_tables(file.read_bytes())
        after, parts = dict(some["files"]), []
        for part in some.get("solution", []):
            path, old = part["path"], part["old"]
            if after[path].count(old) != 1:
                raise ValueError(f"{file}: {path} has not once what its solution replaces: {old}")
            after[path] = after[path].replace(old, part["new"])
            text = some["files"][path]
            parts.append(Change(path, text, text.replace(old, part["new"])))
        changes = (Change(path, text, after[path]) for path, text in some["files"].items())
        yield Repair(
            file.stem, some["files"], some["task"], some["test"], hidden_files=some["hidden"],
            judge=some.get("judge", ""), parts=tuple(parts), needs=tuple(some.get("needs", [])),
            is_green=some.get("is_green", False),
            solution=tuple(change for change in changes if change.before != change.after),
        )  # fmt: skip


def write(files: Mapping[str, str], folder: Path) -> None:
    """Writes the files of a project into a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())


def is_right(job: Repair, folder: Path, changes: Sequence[Change], sandbox: str) -> bool:
    """Whether the hidden programs pass with an edit of the project's files in a folder."""
    files = [Change(path, "", text) for path, text in job.hidden_files.items()]
    runs = [(job.judge, files)] if job.judge else [
        (f"{'node' if file.path.endswith('.js') else 'python3'} {file.path}", [file])
        for file in files
    ]  # fmt: skip
    return all(verdict(folder, test, [*changes, *some], sandbox).passes for test, some in runs)


def verdict(folder: Path, test: str, changes: Sequence[Change], sandbox: str) -> Verdict:
    """What a command says of a folder with some changes."""
    place = Workplace(folder, CodeConfig(test=test, sandbox=sandbox))
    with place.copied():
        return place.judge(changes, Cancel())


def faults(job: Repair, sandbox: str, shows: bool = False) -> list[str]:
    """What is wrong with a project; nothing where its solution is right."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(job.files, folder)
        before = verdict(folder, job.test, (), sandbox)
        after = verdict(folder, job.test, job.solution, sandbox)
        if shows:
            for each in (before, after):
                print(f"{each.output}-- {each.framework or 'unknown'}: {each.summary}")
                print(*(f"--   {failure}" for failure in each.failures), sep="\n")
        return [
            fault for fault, is_there in {
                "its tests do not say that an edit is needed": before.passes is not job.is_green,
                "its tests fail with its solution": not after.passes,
                "its hidden programs pass without an edit": is_right(job, folder, (), sandbox),
                "its hidden programs fail with its solution":
                    not is_right(job, folder, job.solution, sandbox),
            }.items() if is_there
        ]  # fmt: skip
    finally:
        shutil.rmtree(folder)


def show_parts(job: Repair, sandbox: str) -> None:
    """Prints what the tests say of each part of a solution."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(job.files, folder)
        place = Workplace(folder, CodeConfig(test=job.test, sandbox=sandbox))
        with place.copied():
            before = place.judge([], Cancel())
            print(f"{job.name}: {before.summary}")
            for part in job.parts:
                after = place.judge([part], Cancel())
                print(f"  {part.path}: {after.summary}{', further' * after.is_beyond(before)}")
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these projects")
    parser.add_argument("--output", action="store_true", help="what the tests print")
    parser.add_argument("--parts", action="store_true", help="each part of a solution alone")
    parser.add_argument("--sandbox", choices=backends.CHOICES, default="auto")
    options = parser.parse_args()
    is_good = True
    for job in read(options.folder):
        if not job.solution or (options.only and job.name not in options.only):
            continue
        if lacking := job.lacking():
            print(f"{job.name}: skipped, there is no {lacking}")
            continue
        if options.parts and not job.is_green:
            show_parts(job, options.sandbox)
            continue
        wrong = faults(job, options.sandbox, options.output)
        print(f"{job.name}: {'; '.join(wrong) or 'right'}", flush=True)
        is_good = is_good and not wrong
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
