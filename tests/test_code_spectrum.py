"""Which lines each test runs, and what that says about where the defects are."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from code_folders import contents, write

from tgr_local.code.edits import FileText
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.reading import spectrum
from tgr_local.code.reading.context import Wish, make_context
from tgr_local.code.reading.prompt import Copy
from tgr_local.code.reading.spectrum import TRACER, Reach, Spectrum
from tgr_local.code.workplace import Workplace
from tgr_local.code.writing import departures
from tgr_local.engine import Cancel, Engine
from tgr_local.options.config import CodeConfig

SHOP = FileText(
    "shop.py",
    """\
RATE = 2


def price(n):
    \"\"\"The price of n.\"\"\"
    if n < 0:
        return 0
    return (
        n
        * RATE
    )


@property
def unused(self):
    return 1
""",
)


def record(test: str, failed: bool, **lines: list[int]) -> str:
    return json.dumps({"test": test, "failed": failed, "lines": lines})


def traced(*records: str, n: int = 1) -> Spectrum:
    found = spectrum.read(["\n".join(records)], n)
    assert found is not None
    return found


# ---- reading what was written ----


def test_a_test_has_the_lines_of_all_its_records_and_processes() -> None:
    found = spectrum.read(
        [
            record("", False, a=[1]) + "\n" + record("t", False, a=[2]),
            record("t", True, a=[3], b=[1]) + "\n" + record("u", False, a=[2]),
        ],
        1,
    )
    assert found == Spectrum(({"a": frozenset({2, 3}), "b": frozenset({1})},), ({"a": {2}},))


def test_a_program_that_names_no_test_is_one_test_that_fails() -> None:
    assert traced(record("", False, a=[1]), n=5).failing == ({"a": frozenset({1})},)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [record("t", False, a=[1])],
        [record("t", True, a=[1]), record("u", False, a=[1])],  # another failure was not seen
        [record("t", True), record("u", True)],
    ],
)
def test_nothing_is_known_where_a_failure_was_not_traced(records: list[str]) -> None:
    assert spectrum.read(["\n".join(records)], 2) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        "[" * 9999,
        "\0",
        '{"test": "t"}',
        '{"test": "t", "failed": 1, "lines": [1]}',
        '{"test": "t", "failed": true, "lines": {"a": 7}}',
    ],
)
def test_what_else_stands_in_the_file_is_passed_over(line: str) -> None:
    assert traced(line, record("t", True, a=[1])) == traced(record("t", True, a=[1]))


# ---- scores ----


def test_a_line_has_the_share_of_failing_tests_among_those_that_run_it() -> None:
    found = traced(
        record("t", True, **{"shop.py": [6, 8, 9]}), record("u", False, **{"shop.py": [6, 7]}),
        record("v", False, **{"shop.py": [6, 7]}),
    )  # fmt: skip
    reach = found.reach(SHOP)
    third = math.sqrt(1 / 3)
    # the head has the score of the first statement; line 7 is near: the line before it ran
    assert [round(reach.score(n) ** 2, 3) for n in (1, 4, 6, 7, 8, 11)] == [
        round(score**2, 3) for score in (third, third, third, third, 1, 1)
    ]
    assert reach.away == ((14, 16),)
    assert (reach.highest(4, 11), reach.highest(14, 16)) == (1, 0)
    assert found.files() == {"shop.py": 1.0}


def test_lines_behind_those_that_no_failing_test_runs_are_away() -> None:
    text = "def f(x):\n    if x:\n        return 1\n    y = 2\n    return y\n"
    reach = traced(record("t", True, **{"a.py": [2, 3]})).reach(FileText("a.py", text))
    assert reach.away == ((5, 5),)


def test_nothing_is_known_of_other_languages_and_of_files_with_a_syntax_error() -> None:
    found = traced(record("t", True, **{"a.js": [1], "b.py": [1]}))
    assert found.reach(FileText("a.js", "let x = 1\n")) == Reach()
    assert found.reach(FileText("b.py", "def f(:\n")) == Reach()


# ---- the tracer ----

CODE = """\
def f(x):
    if x > 2:
        return x
    return -x


def g(x):
    return x + 1
"""
UNITTEST = """\
import subprocess
import sys
import unittest

import m


class T(unittest.TestCase):
    def test_a(self):
        self.assertEqual(m.f(3), 3)

    def test_b(self):
        self.assertEqual(m.f(1), 1)

    def test_c(self):
        for i in range(2):
            with self.subTest(i=i):
                self.assertEqual(m.g(i), i + 2)

    @unittest.expectedFailure
    def test_d(self):
        self.assertEqual(m.f(1), 7)

    def test_e(self):
        subprocess.run([sys.executable, "-c", "import m; m.g(1)"], check=True)
"""
PYTEST = """\
import pytest

import m


@pytest.mark.parametrize("x", [1, 3])
def test_f(x):
    assert m.f(x) == x


@pytest.mark.xfail
def test_g():
    assert m.g(1) == 3


def test_skipped():
    pytest.skip("no")
"""


def lines_of_tests(folder: Path, *command: str) -> dict[str, tuple[bool, dict[str, set[int]]]]:
    """What each test ran of m.py."""
    traces = folder / ".traces"
    traces.mkdir()
    shutil.copyfile(TRACER, traces / "sitecustomize.py")
    env = {**os.environ, "PYTHONPATH": str(traces), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, *command], cwd=folder, env=env, check=False)
    tests: dict[str, tuple[bool, dict[str, set[int]]]] = {}
    for path in traces.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            one = json.loads(line)
            failed, lines = tests.get(one["test"], (False, {}))
            for name, numbers in one["lines"].items():
                lines[name] = lines.get(name, set()) | set(numbers)
            tests[one["test"]] = (failed or one["failed"], lines)
    return tests


def ran(tests: dict[str, tuple[bool, dict[str, set[int]]]]) -> dict[str, tuple[bool, set[int]]]:
    return {
        name.rpartition("test_")[2]: (failed, lines.get("m.py", set()) - {1, 7})
        for name, (failed, lines) in tests.items()
        if name
    }


def test_the_tests_of_unittest_are_traced_each_by_itself(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": CODE, "test_m.py": UNITTEST})
    assert ran(lines_of_tests(tmp_path, "-m", "unittest", "-q")) == {
        "a": (False, {2, 3}), "b": (True, {2, 4}), "c": (True, {8}), "d": (False, {2, 4}),
        "e": (False, {8}),
    }  # fmt: skip


def test_the_tests_of_pytest_are_traced_each_by_itself(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": CODE, "test_m.py": PYTEST})
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_m.py")
    assert ran(lines_of_tests(tmp_path, *command)) == {
        "f[1]": (True, {2, 4}), "f[3]": (False, {2, 3}), "g": (False, {8}),
        "skipped": (False, set()),
    }  # fmt: skip


def test_a_program_is_traced_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": CODE})
    assert lines_of_tests(tmp_path, "-c", "import m; assert m.f(1) == 1") == {
        "": (False, {"m.py": {1, 2, 4, 7}})
    }


# ---- in a copy of the folder ----


def trace(folder: Path, command: str, *, fails: bool = True) -> Spectrum | None:
    workplace = Workplace(folder, CodeConfig(test=command, sandbox="none"))
    with workplace.copied():
        verdict = Verdict(
            True, 1, int(fails), 0, 0, 0.1, "", "failed" if fails else "passed"
        )  # fmt: skip
        return workplace.trace((), verdict, Cancel())


def test_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    write(folder, {"m.py": CODE, "test_m.py": UNITTEST})
    before = contents(folder)
    command = f"{sys.executable} -m unittest -q"
    found = trace(folder, command)
    assert found is not None and len(found.failing) == 2
    assert found.files()["m.py"] == math.sqrt(1 / 2)
    assert contents(folder) == before
    assert trace(folder, command, fails=False) is None


def test_a_command_with_a_search_path_of_its_own_is_traced(tmp_path: Path) -> None:
    write(tmp_path, {"src/m.py": CODE, "test_m.py": "import m\nassert m.f(1) == 1\n"})
    found = trace(tmp_path, f"PYTHONPATH=src {sys.executable} test_m.py")
    assert found is not None and "src/m.py" in found.files()


@pytest.mark.parametrize(
    "command",
    [
        "false", "exit 3", "rm -rf .tgr-trace", "rm -rf .tgr-trace && mkfifo .tgr-trace",
        "ln -s /etc/passwd .tgr-trace/1.jsonl", "mkfifo .tgr-trace/1.jsonl",
        "mkdir .tgr-trace/1.jsonl", "head -c 100000 /dev/zero > .tgr-trace/1.jsonl",
    ],
)  # fmt: skip
def test_tests_without_a_trace_do_no_harm(tmp_path: Path, command: str) -> None:
    write(tmp_path, {"m.py": CODE})
    assert trace(tmp_path, command) is None


# ---- what it is good for ----


def test_a_file_that_no_traceback_names_is_shown_where_failing_tests_run_it() -> None:
    texts = {
        "units.py": "def factor(unit):\n    return 1 / 1000\n",
        "parcel.py": "from units import factor\n\n\ndef grams(x):\n    return x * factor('kg')\n",
        "other.py": "def unrelated():\n    return 1\n",
        "test_parcel.py": "from parcel import grams\n\n\ndef test_g():\n    grams(1)\n",
    }
    output = "test_parcel.py:5: AssertionError\n"
    found = traced(record("test_parcel.py::test_g", True, **{"units.py": [2], "parcel.py": [5]}))

    def how(ran: Spectrum | None) -> dict[str, str]:
        wish = Wish("Make the failing tests pass.", output, spectrum=ran)
        context = make_context(
            list(texts), lambda path: FileText(path, texts[path]), wish, 1000, len
        )
        return {file.path: file.how for file in context.shown if file.path != "test_parcel.py"}

    assert how(None)["units.py"] == "outline"
    assert how(found) == {"parcel.py": "whole", "units.py": "whole", "other.py": "outline"}


def test_of_a_long_file_the_functions_that_failing_tests_run_are_shown() -> None:
    functions = [f"def f{n}(x):\n    return x + {n}\n\n\n" for n in range(40)]
    document = FileText("a.py", "".join(functions))
    found = traced(record("t", True, **{"a.py": [30]}))
    wish = Wish("Mend it.", "", ("a.py",), spectrum=found)
    context = make_context(["a.py"], lambda path: document, wish, 900, len)
    assert [file.functions for file in context.shown] == [("f7",)]


def test_each_failing_test_has_its_turn() -> None:
    tests = {"a": {1}, "b": {1}, "c": {1}, "d": {2}, "e": set(), "f": {1, 2}, "g": {3}}

    def order(items: str) -> str:
        return "".join(departures._in_turn(items, lambda item: frozenset(tests[item])))

    assert order("abcdg") == "adgbc"
    assert order("abe") == "abe" and order("eab") == "abe"
    assert order("fabd") == "fad" + "b"  # f is for both
    assert order("") == ""


def test_a_line_knows_the_failing_tests_that_run_it() -> None:
    found = traced(
        record("t", True, **{"shop.py": [6, 8]}), record("u", True, **{"shop.py": [6, 7]}), n=2
    )
    reach = found.reach(SHOP)
    assert [sorted(reach.running(n, n)) for n in (1, 4, 6, 7, 8, 16)] == [
        [0, 1], [0, 1], [0, 1], [1], [0], [],
    ]  # fmt: skip
    assert reach.running(7, 8) == {0, 1}


def test_departures_from_suspicious_lines_come_first(engine: Engine) -> None:
    code = "x = 1\ny = 2\nz = 3\n"
    tokens = engine.tokenize(f"Mend it.\na:\n{code.rstrip()}", parse_special=False)

    def first(scores: dict[int, float]) -> int:
        reach = Reach((), scores)
        copy = Copy(FileText("a.txt", code), "a:\n", code, tokens, reach=reach)
        found = departures.find(engine, [copy], 9).departures
        return found[0].text.rstrip("\n").count("\n")

    assert {first({1: 1.0, 2: 1e-9, 3: 1e-9}), first({1: 1e-9, 2: 1e-9, 3: 1.0})} == {1, 3}
