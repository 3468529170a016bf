"""The generated problems of `bugs`: what they promise; their outputs, against pytest itself."""

import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from surroundings import HANG

from tgr_local.lab.eval.bugs import checks, defects
from tgr_local.lab.eval.bugs import problem as problems
from tgr_local.lab.eval.bugs.checks import Check
from tgr_local.lab.eval.bugs.output import headed, pytest_output
from tgr_local.lab.eval.bugs.problem import FAMILIES, UNSEEN, Bug, bug


def drawn(split: problems.Split, n: int, seed: int = 0) -> list[Bug]:
    rng = random.Random(f"tests {split} {seed}")
    return [bug(rng, split) for _ in range(n)]


def holds(text: str, checks_: list[Check]) -> bool:
    """Whether a text passes, run as a plain program."""
    space: dict[str, object] = {}
    exec(text, space)
    try:
        for check in checks_:
            exec("\n".join([*check.setup, check.statement]), space)
    except Exception:
        return False
    return True


def test_a_problem_fails_with_its_defect_and_passes_without():
    for made in drawn("test", 40):
        visible = [check for test in made.visible for check in test.checks]
        assert not holds(made.file, visible)
        assert holds(made.repaired, [*visible, *made.hidden])
        assert made.function in made.repaired
        assert made.function not in made.file


def test_the_same_seed_gives_the_same_problems():
    assert drawn("test", 3) == drawn("test", 3)
    assert drawn("test", 3) != drawn("test", 3, seed=1)


def test_the_splits_share_no_function():
    trained = {made.function for made in drawn("train", 150)}
    tested = drawn("test", 50)
    assert not trained & {made.function for made in tested}
    assert not UNSEEN & {made.family for made in tested}
    assert {made.family for made in drawn("families", 30)} <= UNSEEN
    seen = {(made.family, kind) for made in drawn("train", 150) for kind in made.kinds}
    assert not seen & {(made.family, made.kinds[0]) for made in drawn("pairs", 15)}


def test_every_family_yields_problems():
    rng = random.Random(0)
    for family in FAMILIES.values():
        split = "families" if family.name in UNSEEN else "train"
        tries = (problems.attempt(rng, split, family, 1, 5) for _ in range(200))
        assert next((made for made in tries if made is not None), None), family.name


def test_most_kinds_of_defects_occur():
    kinds = {kind for made in drawn("train", 200) for kind in made.kinds}
    assert len(kinds) >= len(defects.KINDS) - 2


def test_a_loop_without_end_and_a_growing_value_are_stopped():
    check = Check((), "f(3)", "1")
    assert checks.run("def f(n):\n    while n > 0:\n        pass\n", [check]) is None
    grows = "def f(n):\n    while n > 0:\n        n = n * n + 2\n    return n\n"
    assert checks.run(grows, [check]) is None
    assert checks.run("def f(n):\n    return f(n)\n", [check]) is None


def normal(text: str) -> str:
    """Without the addresses of objects, which differ from run to run, and without their modules."""
    return re.sub(r"<\w+\.(\w+) object at 0x[0-9a-f]{6,}>", r"<\1 object>", text)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons mark no columns")
def test_the_output_is_that_of_pytest(tmp_path, monkeypatch):
    for name in ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS"):  # with them pytest prints something else
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # pytest prints the items of a set
    made = [replace(one, path=f"m{i}.py") for i, one in enumerate(drawn("test", 60, seed=3))]
    for one in made:
        (tmp_path / one.path).write_text(one.file)
        (tmp_path / one.test_path).write_text(file_of_tests(one))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=False,
    )  # fmt: skip
    printed = normal(run.stdout)
    differing = []
    for one in made:
        # The head of the whole output and its last line are of one file each.
        ours = normal(pytest_output(one.visible, one.module, one.file, one.test_path))
        sections, _, summary = (
            ours.partition("= FAILURES =")[2]
            .partition("\n")[2]
            .partition(headed("short test summary info", "=") + "\n")
        )
        lines = summary.split("\n")[:-2]
        if sections not in printed or not all(f"{line}\n" in printed for line in lines):
            differing.append(ours)
    # pytest lists the differing items of dictionaries in the order of a set, and versions of Python
    # mark calls differently
    assert len(differing) <= 8, "\n\n".join(differing[:9]) + printed[:20000]


def file_of_tests(one: Bug) -> str:
    """The visible tests as a file, with the line numbers that outputs have."""
    name = one.name.partition(".")[0]
    tests = "\n\n".join(test.source for test in one.visible)
    return f"from {one.module} import {name}\n\n\n{tests}"
