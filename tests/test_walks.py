"""docs/architecture.md: real runs call the functions that its walks through the files name."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import sandboxes
from surroundings import HANG, ROOT, environment

from tgr_local.system.sandbox import commands

PAGE = ROOT / "docs" / "architecture.md"
if not PAGE.exists():
    pytest.skip("docs are not next to the tests", allow_module_level=True)

NOTING = """
import ast, builtins, sys
from importlib.machinery import SourceFileLoader
called = set()
builtins._noted = called.add
plain = SourceFileLoader.get_code
def with_notes(loader, name):
    path = loader.get_filename(name)
    if "/tgr_local/" not in path:
        return plain(loader, name)
    tree = ast.parse(loader.get_data(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            at = 1 if ast.get_docstring(node) else 0
            node.body[at:at] = ast.parse(f"_noted({(path, node.name)!r})").body
    return loader.source_to_code(ast.fix_missing_locations(tree), path)
SourceFileLoader.get_code = with_notes
from tgr_local.commands.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    for path, name in list(called):
        print(path, name, file=file)
sys.exit(code)
"""
# Not a profile function: with one in several threads, Python 3.11.2 crashes in generators.
QUESTION = ("run", "Make 24 from 4 7 8 8.", "--chunk-len", "16", "--n-candidates", "8",
            "--rollout-len", "4", "--max-tokens", "64", "--seed", "1",
            "--calibration", "divergence")  # fmt: skip
PYTEST = f"{shlex.quote(sys.executable)} -B -m pytest -q -x -p no:cacheprovider"
TASK = ("code", "Make the failing tests pass.", "--yes", "--rounds", "9", "-k", "8", "--test",
        f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTEST}")  # fmt: skip
# as the page says: the embedded code model has learnt a form of edits, and a sandbox is named here
NOT_CALLED = {"find", "read_answer", "strongest"}


def called(folder: Path, *arguments: str) -> set[tuple[str, str]]:
    """The functions of the package that a command calls: files and names."""
    names = folder / "names"
    done = subprocess.run(
        [sys.executable, "-c", NOTING, str(names), *arguments],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr.decode()
    pairs = (line.rsplit(" ", 1) for line in names.read_text().splitlines())
    return {(path[path.rfind("tgr_local/") :], name) for path, name in pairs}


def walk(title: str) -> set[tuple[str, str]]:
    """The functions in Python that a section of the page names."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"\| `(tgr_local/\S+)` \| `(\w+)` \|$", section, re.MULTILINE)
    assert len(rows) > 10
    return set(rows)


def test_a_run_goes_the_way_of_a_prompt_and_of_an_anchor(tmp_path):
    found = called(tmp_path, *QUESTION, "--trace", str(tmp_path / "trace"))
    assert (walk("The way of a prompt") | walk("The way of an anchor")) - found == set()


def test_the_code_assistant_goes_the_way_of_an_edit(tmp_path):
    for file in (ROOT / "examples" / "code").glob("*.py"):
        text = file.read_text(encoding="utf-8")  # one defect of three less, for fewer rounds
        (tmp_path / file.name).write_text(text.replace("total = 1", "total = 0"))
    found = called(tmp_path, *TASK, "--sandbox", sandboxes.strongest(commands.obstacle))
    missing = walk("The way of an edit") - found
    assert {name for _, name in missing} == NOT_CALLED
