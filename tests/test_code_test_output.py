"""What outputs of test frameworks say, and which command runs the tests of a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from code_folders import write
from surroundings import environment

from tgr_local.code.folder.project import Project
from tgr_local.code.judging.test_command import suggest
from tgr_local.code.judging.test_counts import Failure, OutputCounts
from tgr_local.code.judging.test_output import plain, read

TEST = """\
import unittest


def helper():
    raise ValueError("bad")


class Sums(unittest.TestCase):
    def test_good(self):
        pass

    def test_bad(self):
        self.assertEqual(1, 2)

    def test_raises(self):
        helper()

    @unittest.skip("no")
    def test_skipped(self):
        pass
"""


def output_of(folder: Path, *command: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n")  # no settings of a folder above hold
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True,
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS=""),
    )  # fmt: skip
    return done.stdout + done.stderr


def test_pytest(tmp_path):
    """The program itself, in its forms of output."""
    write(tmp_path, {"sub/test_a.py": TEST, "test_broken.py": "import no_such_module\n"})
    for flags in (["-q"], ["-qq"], ["-v", "--color=yes", "--tb=short"], ["--tb=line"]):
        counts = read(output_of(tmp_path, "pytest", *flags, "sub", "-p", "no:cacheprovider"))
        assert (counts.framework, counts.passed, counts.failed, counts.skipped) == (
            "pytest", 1, 2, 1,
        )  # fmt: skip
        assert {one.name for one in counts.failures} == {
            "sub/test_a.py::Sums::test_bad", "sub/test_a.py::Sums::test_raises",
        }  # fmt: skip
        assert all(one.file == "sub/test_a.py" for one in counts.failures)
        if flags != ["--tb=line"]:
            assert {one.line for one in counts.failures} == {13, 5}
            assert {one.reached for one in counts.failures} == {13, 16}
    for quiet in ("-q", "-qq"):
        broken = read(output_of(tmp_path, "pytest", quiet, "-p", "no:cacheprovider"))
        assert (broken.errors, broken.total) == (1, 1)
        assert broken.failures[0].name == broken.failures[0].file == "test_broken.py"
    nothing = read(output_of(tmp_path, "pytest", "-q", "sub", "-k", "nothing"))
    assert nothing.framework == "pytest" and nothing.total == 0


CHAINED = """\
import unittest

from source import convert


class Chained(unittest.TestCase):
    def test_convert(self):
        self.assertEqual(convert("1"), 1)
        convert("x")
"""
SOURCE = """\
def convert(text):
    try:
        return int(text)
    except ValueError:
        raise KeyError(text)
"""


def test_what_a_test_reached_is_a_line_of_the_test(tmp_path):
    """Not of the source that it calls, whose exceptions have causes, nor of what sets it up."""
    write(tmp_path, {"test_a.py": CHAINED, "source.py": SOURCE})
    commands = ["pytest", "-q", "-p", "no:cacheprovider"], ["unittest"]
    for command in commands:
        (failure,) = read(output_of(tmp_path, *command)).failures
        assert failure.reached == 9, command
    fixture = "import pytest\n\n@pytest.fixture(autouse=True)\ndef made():\n    raise ValueError\n"
    write(tmp_path, {"conftest.py": fixture})
    (failure,) = read(output_of(tmp_path, *commands[0])).failures
    assert failure.reached == 0
    write(tmp_path, {"conftest.py": ""})
    for folder, line in [("one", 2), ("two", 3)]:  # tests of one name in two files
        text = "def test_same():\n" + "    assert True\n" * (line - 2) + "    assert False\n"
        write(tmp_path, {f"{folder}/test_{folder}.py": text})
    found = read(output_of(tmp_path, *commands[0], "one", "two")).failures
    assert [one.reached for one in sorted(found, key=lambda one: one.name)] == [2, 3]


PARTS = """\
import unittest
from unittest import mock


class Parts(unittest.TestCase):
    def test_parts(self):
        for i in range(5):
            with self.subTest(i=i):
                self.assertEqual(i, {wrong})

    @mock.patch("os.getcwd")
    def test_mock(self, _):
        self.assertTrue({right})
"""


def test_parts_of_a_test_are_no_tests(tmp_path):
    """A mended test must not look as if fewer ran. What a patched test reached is its own line."""
    write(tmp_path, {"test_a.py": PARTS.format(wrong="-1", right="False")})
    before = read(output_of(tmp_path, "unittest"))
    assert (before.passed, before.failed, before.total) == (0, 2, 2)
    assert {one.name.rpartition(".")[2]: one.reached for one in before.failures} == {
        "test_parts": 9, "test_mock": 13,
    }  # fmt: skip
    write(tmp_path, {"test_a.py": PARTS.format(wrong="i", right="True")})
    assert read(output_of(tmp_path, "unittest")).total == before.total
    one, two = "1 passed, 3 subtests passed in 0.01s\n", "3 subtests failed, 1 failed in 0.01s\n"
    assert (read(one).passed, read(two).failed) == (4, 4)


def test_unittest(tmp_path):
    write(tmp_path, {"test_a.py": TEST})
    counts = read(output_of(tmp_path, "unittest", "-v"))
    assert (counts.framework, counts.passed, counts.failed, counts.errors, counts.skipped) == (
        "unittest", 1, 1, 1, 1,
    )  # fmt: skip
    bad, raises = sorted(counts.failures, key=lambda one: one.name)
    assert bad.name.endswith("Sums.test_bad") and bad.message == "AssertionError: 1 != 2"
    assert raises.file.endswith("test_a.py") and (raises.line, raises.reached) == (5, 16)


TAP = "TAP version 13\n1..4\nok 1 - a\nnot ok 2 - b\nok 3 # SKIP slow\nok 4\n"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        (TAP, OutputCounts("TAP", 2, 1, 0, 1, (Failure("b"),))),
        ("anything", OutputCounts()),
        ("", OutputCounts()),
        ("2 passed in a row", OutputCounts()),
        ("=== 2 passed, 1 warning in 0.01s ===\nlater\n", OutputCounts("pytest", 2)),
        (f"{TAP}\n5 failed, 2 passed in 61.20s (0:01:01)", OutputCounts("pytest", 2, 5)),
    ],
)  # fmt: skip
def test_other_outputs(output: str, counts: OutputCounts):
    assert read(output) == counts
    colours = output.replace("\n", "\x1b[0m\r\n").replace("FAIL", "\x1b[31mFAIL")
    assert read(colours) == counts


@pytest.mark.parametrize(
    "output",
    ["=== {} passed in 1.0s ===\n", "Ran {} tests in 1s\n\nFAILED (failures={})\n",
     "test result: ok. {} passed; {} failed; 0 ignored\n", "Tests: {} failed, {} passed, 2 total\n",
     "Tests  {} failed | {} passed (2)\n", "1..{}\nok {} - a\nnot ok {}\n", "a.py:{}: E\n"],
)  # fmt: skip
def test_a_number_that_python_does_not_read_is_none(output: str):
    digits = "9" * 5000
    read(output.replace("{}", digits))
    after = read(output.replace("{}", digits) + "\n2 passed in 0.1s\n")
    assert (after.framework, after.passed, after.failed) == ("pytest", 2, 0)


def test_plain_output():
    assert plain("\x1b[1;31ma\x1b[0m\x1b]0;title\x07b\n10%\r20%\r100%\r\nc") == "ab\n100%\nc"


@pytest.mark.parametrize(
    "part",
    ["\n", " ", "_", "___ a ", "1 passed, ", "\r", "\x1b]", "\x1b[", "FAILED a - ", "ERROR ",
     "ok 1 ", "thread 'a' panicked at ", "Ran 1 test in 0s\n", "--- FAIL: a ", "Tests: 1 failed ",
     "a.py:1: ", "9", "a.py:1: error: x\n", "    ok 1\nok 1\n", "  1) a\n       b\n", "not ok 1\n",
     "  ● a\n", " FAIL  a [ ]\n", "1) A::b\n", "test at ", "error: a\n --> b:", " at (", "`a",
     "    at a:1:", "[ERROR]   a.b", "a.b", "/", "1..2\n", "  1 passing (1)\n",
     "--- FAIL: a/ (0s)\n"],
)  # fmt: skip
def test_hostile_outputs_are_read_in_linear_time(part: str):
    """A regular expression that takes quadratic time would take minutes."""
    text = part * (130_000 // len(part))
    for before in ("", "___", "thread 'a' ", "1..2\n", "  1 passing (1)\n", "Tests: 1 failed\n"):
        read(before + text)
        read(before + text + "x")


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"pyproject.toml": "[tool.pytest.ini_options]\n"}, "-m pytest -q"),
        ({"conftest.py": ""}, "-m pytest -q"),
        ({"tests/test_a.py": "def test_a(): pass"}, "-m pytest -q"),
        ({"pkg/a_test.py": ""}, "-m pytest -q"),
        ({"Cargo.toml": "[package]"}, "cargo test"),
        ({"go.mod": "module x"}, "go test ./..."),
        ({"package.json": '{"scripts": {"test": "jest"}}'}, "npm test"),
        ({"Makefile": "all:\ntest: all\n"}, "make test"),
        ({"package.json": "{}", "test/a.js": 'require("node:test")'}, "node --test"),
        ({"a.test.mjs": 'import { test } from "node:test";'}, "node --test"),
    ],
)
def test_a_command_is_suggested(tmp_path, files: dict[str, str | bytes], command: str):
    write(tmp_path, files)
    found = suggest(Project(tmp_path))
    assert found.endswith(command)
    if "python" in found:
        write(tmp_path, {".venv/bin/python": ""})
        (tmp_path / ".venv/bin/python").chmod(0o755)
        assert suggest(Project(tmp_path)).startswith(".venv/bin/python -m ")


def test_unittest_is_suggested_where_there_is_no_pytest(tmp_path):
    write(tmp_path, {"tests/test_a.py": TEST, "venv/bin/python": "", "venv/pyvenv.cfg": ""})
    (tmp_path / "venv/bin/python").chmod(0o755)
    assert suggest(Project(tmp_path)) == "venv/bin/python -m unittest discover -s tests"


@pytest.mark.parametrize(
    "files",
    [{}, {"a.py": "x = 1"}, {"package.json": "["}, {"package.json": '{"scripts": []}'},
     {"package.json": '{"scripts": {"test": "echo no test specified"}}'}, {"Makefile": "all:\n"},
     {"pyproject.toml": "[project]"}, {"pytest.ini": b"\0"}],
)  # fmt: skip
def test_without_tests_nothing_is_suggested(tmp_path, files: dict[str, str | bytes]):
    write(tmp_path, files)
    assert suggest(Project(tmp_path)) == ""
