"""Tests are run in the copies, wherever their command leads: else no edit passes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import sandboxes
from code_folders import git, write

from tgr_local.code.edits import Change
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.sandbox import backends, commands
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.own_path import OwnPath

LOWEST = "def lowest(scores):\n    return min(scores)\n"
BROKEN = LOWEST.replace("min", "max")
RIGHT = LOWEST.replace("min(scores)", "sorted(scores)[0]")
TEST = (
    "import unittest\nfrom scores import lowest\n\n\nclass T(unittest.TestCase):\n"
    "    def test_lowest(self):\n        self.assertEqual(lowest([3, 9, 4]), 3)\n\n\n"
    "if __name__ == '__main__':\n    unittest.main()\n"
)
NOTES = "# Notes\n\nSome words.\n"
RUN = f"{sys.executable} -B -m unittest -q"
FORMS = (
    f'cd "$PWD" && {RUN}',
    f'cd "$(git rev-parse --show-toplevel)" && {RUN}',
    "make -C {folder} test",
    "{folder}/run.sh",
    "./run.sh",
    "./whole.sh",
    f"{sys.executable} -B {{folder}}/test_scores.py -q",
    f"{sys.executable} -B -m unittest discover -q {{folder}}",
    f"cd ~/.. && cd {{folder}} && {RUN}",
    f"cd '{{folder}}/' && {RUN}",
)
OUTSIDE = (f"cd {{link}} && {RUN}", f"cd {{parent}}; cd project; {RUN}", "{parent}/outside.sh")
"""Forms that need something beside the folder, which bubblewrap does not show."""


@pytest.fixture(params=backends.CHOICES)
def backend(request) -> Backend:
    """Every backend that works on this machine."""
    return sandboxes.needed(request.param, commands.obstacle)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    made = tmp_path / "project"
    write(made, {
        "scores.py": LOWEST, "test_scores.py": TEST, "notes.md": NOTES,
        "Makefile": f"test:\n\t{RUN}\n",
        "run.sh": f'#!/bin/sh\ncd "$(dirname "$0")" && {RUN}\n',
        "whole.sh": f"#!/bin/sh\ncd {made} && {RUN}\n",
    })  # fmt: skip
    write(tmp_path, {"outside.sh": f"#!/bin/sh\ncd {made} && {RUN}\n"})
    for path in (made / "run.sh", made / "whole.sh", tmp_path / "outside.sh"):
        path.chmod(0o755)
    (tmp_path / "link").symlink_to(made)
    git(made, "init", "-q")
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def verdicts(folder: Path, command: str, backend: Backend, *changes: Change) -> list[Verdict]:
    """What the tests say of the folder, and of a copy with each change."""
    before = {path: path.read_bytes() for path in folder.rglob("*.py")}
    place = Workplace(folder, CodeConfig(test=command, sandbox=backend))
    with place.copied():
        found = [place.judge((), Cancel()), *(place.judge((one,), Cancel()) for one in changes)]
    assert {path: path.read_bytes() for path in folder.rglob("*.py")} == before
    return found


@pytest.mark.parametrize(
    ("form", "backend"),
    # a sandbox has its own way for the folder; the texts of commands it reads as `none` does
    [(form, kind) for form in range(len(FORMS)) for kind in backends.CHOICES
     if kind == "none" or form in (0, 2, 5, 8)],
    indirect=["backend"],
)  # fmt: skip
def test_an_edit_that_breaks_the_tests_passes_in_no_form(folder: Path, backend: Backend, form: int):
    """And one that keeps them right does."""
    if "make" in FORMS[form] and not shutil.which("make"):
        pytest.skip("make is not installed")
    command = FORMS[form].format(folder=folder)
    before, broken, right = verdicts(
        folder, command, backend, Change("scores.py", LOWEST, BROKEN),
        Change("scores.py", LOWEST, RIGHT),
    )  # fmt: skip
    assert before.passes, before.output
    assert (broken.ended, right.ended) == ("failed", "passed"), right.output


@pytest.mark.parametrize("form", range(len(OUTSIDE)))
def test_what_cannot_be_replaced_is_noticed(folder: Path, tmp_path, form: int):
    command = OUTSIDE[form].format(folder=folder, parent=tmp_path, link=tmp_path / "link")
    before, broken, right = verdicts(
        folder, command, "none", Change("scores.py", LOWEST, BROKEN),
        Change("scores.py", LOWEST, RIGHT),
    )  # fmt: skip
    assert before.passes and not broken.passes
    if not form:  # a link to the folder is one of its names
        assert right.passes
    else:
        assert broken.ended == right.ended == "elsewhere"
        assert "perhaps your folder itself" in right.remark and "--sandbox bwrap" in right.remark


def test_a_project_of_one_file_is_controlled_too(tmp_path):
    one = tmp_path / "one"
    write(one, {"scores.py": LOWEST, "notes.md": NOTES})
    git(one, "init", "-q")
    code = "import scores; raise SystemExit(scores.lowest([3, 9]) != 3)"
    for command, ended in (
        (f"cd {tmp_path}; cd one; {sys.executable} -B -c '{code}'", "elsewhere"),
        (f"{sys.executable} -B -c '{code}'", "failed"),
    ):
        before, broken, notes = verdicts(
            one, command, "none", Change("scores.py", LOWEST, BROKEN),
            Change("notes.md", NOTES, NOTES.replace("Some", "Few")),
        )  # fmt: skip
        assert before.passes and broken.ended == ended
        assert notes.passes == (ended == "failed")


FINDER = """\
import importlib.util, sys

MAPPING = {{'pack': '{package}'}}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + '/__init__.py')


def install():
    sys.meta_path.append(Finder)
"""


@pytest.mark.parametrize("layout", ["path", "finder", "isolated"])
def test_packages_in_editable_mode_are_those_of_the_copy(folder: Path, layout: str):
    """Else, as where Python ignores PYTHONPATH, no edit of them passes."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / ".venv" / "lib" / python / "site-packages"
    write(folder, {
        "python/pack/__init__.py": LOWEST, "test_scores.py": TEST.replace("scores ", "pack "),
        ".venv/pyvenv.cfg": f"home = {Path(os.path.realpath(sys.executable)).parent}\n",
        "other.py": "x = 1\n",
    })  # fmt: skip
    site.mkdir(parents=True)
    (folder / ".venv" / "bin").mkdir()
    (folder / ".venv" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    if layout == "finder":
        finder = FINDER.format(package=folder / "python" / "pack")
        (site / "__editable___pack_finder.py").write_text(finder)
        loads = "import __editable___pack_finder as f; f.install()\n"
        (site / "__editable__.pack.pth").write_text(loads)
    else:
        (site / "pack.pth").write_text(f"{folder}/python\n")
    flag = "-I" if layout == "isolated" else ""
    before, broken, right, notes, other = verdicts(
        folder, f".venv/bin/python -B {flag} -m unittest discover -q", "none",
        Change("python/pack/__init__.py", LOWEST, BROKEN),
        Change("python/pack/__init__.py", LOWEST, RIGHT),
        Change("notes.md", NOTES, NOTES.replace("Some", "Few")),
        Change("other.py", "x = 1\n", "x = 2\n"),
    )  # fmt: skip
    assert before.passes, before.output
    assert not broken.passes
    assert right.passes == (layout != "isolated"), right.output
    assert notes.passes and other.passes  # which no test uses
    if layout == "isolated":
        assert "an installed package leads to" in broken.remark


def test_a_copy_is_controlled_once_for_the_same_files(folder: Path, monkeypatch):
    """And never where the tests failed before: they have seen the edit. Then they run once more
    with it, and without it where they are fast."""
    n_runs = 0
    run = commands.run

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal n_runs
        n_runs += 1
        return run(*arguments, **options)

    monkeypatch.setattr(commands, "run", counted)
    edits = [Change("scores.py", LOWEST, f"{RIGHT}# {i}\n") for i in range(3)]
    assert all(one.passes for one in verdicts(folder, RUN, "none", *edits))
    assert n_runs == 5
    (folder / "scores.py").write_text(BROKEN)
    n_runs = 0
    found = verdicts(folder, RUN, "none", Change("scores.py", BROKEN, RIGHT))
    assert [one.passes for one in found] == [False, True] and n_runs <= 4


# ---- the path in texts ----


def test_the_path_is_exchanged_where_it_is_the_folders(tmp_path):
    folder, copy = tmp_path / "a b" / "proj", Path("/copy/1")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / "sub").mkdir()
    (tmp_path / "to-sub").symlink_to(folder / "sub")
    own = OwnPath(folder, copy, [folder / ".venv"])
    for before, after in {
        f'cd "{folder}" && x': 'cd "/copy/1" && x',
        f"cd '{folder}/sub'": "cd '/copy/1/sub'",
        f"cd {str(folder).replace(' ', chr(92) + ' ')}/sub": "cd /copy/1/sub",
        f"x -C{folder} --rootdir={folder}:y": "x -C/copy/1 --rootdir=/copy/1:y",
        f"x {tmp_path}/to-sub/y.py": "x /copy/1/sub/y.py",
        f"x {folder}2 {folder}-old {folder}.bak /mnt{folder}": None,
        f"'{folder}/.venv/bin/python' -m x": None,
        "cd /copy/1 && /usr/bin/x ../a": None,
    }.items():
        assert own.in_command(before) == (before if after is None else after)
    data = f"path = {folder}\n".encode() + b"\xff\n"
    assert own.in_bytes(data) == b"path = /copy/1\n\xff\n" and own.in_bytes(b"x") == b"x"


def test_a_copy_may_lie_in_the_folder_itself(tmp_path):
    """As where a person works in a home folder, with its cache."""
    copy = tmp_path / ".cache" / "1" / "tree"
    own = OwnPath(tmp_path, copy)
    for before, after in {
        f"x {copy} {copy}/a.py": f"x {copy} {copy}/a.py",
        f"x {tmp_path} {tmp_path}/a.py": f"x {copy} {copy}/a.py",
        f"x {tmp_path}/.cache/1/tree2": f"x {copy}/.cache/1/tree2",
    }.items():
        assert own.in_command(before) == own.in_text(before) == after
    assert own.in_paths(f"{copy}/bin:{tmp_path}/bin") == f"{copy}/bin:{copy}/bin"


def test_an_edit_is_checked_where_the_cache_lies_in_the_folder(
    folder: Path, backend: Backend, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    changes = [Change("scores.py", LOWEST, text) for text in (RIGHT, "import nothing_such\n")]
    for command in (f"cd {folder} && {RUN}", ""):
        found = verdicts(folder, command, backend, *changes)
        assert [one.ended for one in found[1:]] == ["passed", "failed"], found[1].output


def test_the_persons_home_and_links_lead_into_the_copy(tmp_path, monkeypatch):
    (tmp_path / "proj").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    (tmp_path / "link").symlink_to("proj")
    own = OwnPath(tmp_path / "proj", Path("/copy"))
    assert own.in_command("cd ~/proj; $HOME/proj/x ${HOME}/link/y ~/other") == (
        "cd /copy; /copy/x /copy/y ~/other"
    )
    assert own.in_command(f"P={tmp_path}/proj/x:{tmp_path}/link:~/o y") == "P=/copy/x:/copy:~/o y"
    assert own.in_text(f"cd {tmp_path}/link/x") == "cd /copy/x"
    assert own.in_paths(f"/bin:{tmp_path}/proj/bin") == "/bin:/copy/bin"
    strange = OwnPath(tmp_path / "proj", Path("/a $b"))
    assert strange.in_command("cd ~/proj") == "cd ~/proj"
