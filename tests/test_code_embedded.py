"""The assistant with the embedded code model: it repairs small functions, and nothing else is read
or written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import sandboxes
from code_folders import contents, write
from command_line import finished
from surroundings import ROOT

from tgr_local.system.sandbox import commands

PYTEST = f"{sys.executable} -B -m pytest -q -x -p no:cacheprovider"
# without the plugins that happen to be installed, which may take seconds to load
TESTS = f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTEST}"
TASK = (
    "Make the failing tests pass.", "--test", TESTS, "--n-threads", "1",
    "--sandbox", sandboxes.strongest(commands.obstacle),
)  # fmt: skip
SUM = """\
def sum_of(numbers):
    total = 1
    for x in numbers:
        total += x
    return total
"""
TEST_SUM = """\
from quaxle import sum_of


def test_sum_of():
    assert sum_of([3, 1, 2]) == 6
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder, which is the current one."""
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def test_it_repairs_the_example(folder: Path):
    """Three defects, three rounds at least."""
    for file in (ROOT / "examples" / "code").glob("*.py"):
        shutil.copy(file, folder)
    tests = (folder / "test_scores.py").read_bytes()
    status, out, err = finished("code", *TASK, "--yes", "--rounds", "9", "-k", "16", double=False)
    assert status == 0, out + err
    assert (folder / "test_scores.py").read_bytes() == tests
    scores: dict[str, Any] = {}
    exec((folder / "scores.py").read_text(), scores)
    assert scores["highest"]([3, 9, 4]) == 9
    assert scores["running_total"]([2, 3, 5]) == [2, 5, 10]


@pytest.mark.parametrize("form", ["file", "function"])
def test_each_form_repairs_a_function_in_a_file_of_any_name(folder: Path, form: str):
    """And without --yes the folder stays as it is."""
    write(folder, {"quaxle.py": SUM, "test_quaxle.py": TEST_SUM})
    before = contents(folder)
    _, out, err = finished(
        "code", *TASK, "--json", "-k", "16", "--rounds", "3", "--edit-format", form, double=False
    )
    assert contents(folder) == before
    passing = [one for row in json.loads(out)["rounds"] for one in row if one["passes"]]
    assert passing, out + err
    assert "+    total = 0" in passing[0]["diff"]


def test_a_task_that_it_cannot_do_changes_nothing(folder: Path):
    test = "from parse import parse\n\ndef test_parse():\n    assert parse('2*(3+4)') == 14\n"
    write(folder, {"parse.py": "def parse(text):\n    return None\n", "test_parse.py": test})
    before = contents(folder)
    status, out, err = finished("code", *TASK, "--yes", "-k", "2", "--rounds", "1", double=False)
    assert status != 0, out + err
    assert contents(folder) == before
