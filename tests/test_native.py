"""The tests in C++ (tests/native) of the engine's parts that need neither a model nor a GPU, run by
the program native_tests one by one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from surroundings import HANG

from tgr_local.engine.native import native

FOLDER = Path(__file__).parent / "native"
PROGRAM = Path(native.__file__).with_name("native_tests.exe" if os.name == "nt" else "native_tests")
TESTS = [
    (path.stem, name)
    for path in sorted(FOLDER.glob("*.cpp"))
    for name in re.findall(r"^TEST\((\w+)\)", path.read_text(encoding="utf-8"), re.MULTILINE)
]
SKIPPED = 77


def run(*names: str) -> tuple[int, str]:
    """The program's exit code and what it prints."""
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is absent; make test builds it")
    done = subprocess.run(
        [PROGRAM, *names], capture_output=True, text=True, errors="replace", timeout=HANG
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", [pytest.param(name, id=f"{part}-{name}") for part, name in TESTS])
def test_a_part(name: str):
    code, printed = run(name)
    if code == SKIPPED:
        pytest.skip(printed)
    assert code == 0, printed


def test_every_test_has_a_name_of_its_own_that_the_program_knows():
    assert len({name for _, name in TESTS}) == len(TESTS) > 40
    code, printed = run("no_such_test")
    assert code == 2 and "no_such_test: there is no such test" in printed
