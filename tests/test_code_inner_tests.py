"""Tests in files of the code: Rust's modules of tests, examples in docstrings. No edit changes
them by the way."""

from __future__ import annotations

import subprocess
import sys

import pytest
from code_folders import needs_tree_sitter

from tgr_local.code.edits import Change, FileText
from tgr_local.code.edits.inner_tests import keep_tests, ranges
from tgr_local.code.judging.test_counts import Failure
from tgr_local.code.reading import reach
from tgr_local.code.reading.context import functions_of

WISH = "Make the failing tests pass."
CODE = """\
pub fn len(text: &str) -> usize {
    text.len() // '{' and "{" {
}
"""
TESTS = """\
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(len("{\\"}"), 3);
        let _: &'static str = r#"{ " "#;
    }
}
"""
RUST = f"{CODE}\n{TESTS}"


def kept(path: str, before: str, after: str, task: str = WISH) -> str:
    return keep_tests(Change(path, before, after), task).after


def test_where_tests_are_in_rust():
    (found,) = ranges("src/lib.rs", RUST)
    assert RUST[slice(*found)] == TESTS.rstrip("\n")
    assert ranges("tests/all.rs", RUST) == ranges("src/a_tests.rs", RUST) == []
    assert ranges("a.py", RUST) == [] and ranges("src/lib.rs", CODE) == []
    alone = "#[tokio::test]\n#[ignore]\nasync fn works() {\n    f();\n}\n"
    (found,) = ranges("src/lib.rs", f"{CODE}{alone}fn f() {{}}\n")
    assert f"{CODE}{alone}"[slice(*found)] == alone.rstrip("\n")
    assert ranges("src/lib.rs", "#[cfg(test)]\nmod tests;\n\nfn f() {}\n") == []
    open_end = RUST[: RUST.rindex("}")]
    assert ranges("src/lib.rs", open_end)[0][1] == len(open_end)


def test_an_edit_leaves_the_tests_of_rust():
    right = CODE.replace("text.len()", "text.chars().count()")
    weak = TESTS.replace("3", "2")
    assert kept("src/lib.rs", RUST, f"{right}\n{weak}") == f"{right}\n{TESTS}"
    assert kept("src/lib.rs", RUST, right) == f"{right}\n{TESTS}"
    more = TESTS.rstrip()[:-1] + "\n    #[test]\n    fn two() {}\n}\n"
    assert kept("src/lib.rs", RUST, f"{right}\n{more}") == f"{right}\n{TESTS}"
    assert kept("src/lib.rs", RUST, f"{weak}\n{right}", "Update the tests.") == f"{weak}\n{right}"
    assert kept("src/lib.rs", CODE, f"{right}\n{weak}") == f"{right}\n{weak}"


PYTHON = '''\
def double(x):
    """Twice.

    >>> double(1)
    2
    """
    return x


class A:
    def half(self, x):
        """Half.

        >>> A().half(2)
        1
        """
        return x
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [("    2\n", "    1\n"), ("    >>> double(1)\n    2\n", ""), ("        1\n", "        2\n")],
)
def test_an_edit_leaves_the_examples_of_docstrings(old: str, new: str):
    right = PYTHON.replace("return x\n\n", "return 2 * x\n\n")
    assert kept("a.py", PYTHON, right.replace(old, new, 1)) == right
    assert kept("a.py", PYTHON, right.replace(old, new, 1), "Correct the docstrings.") != right


def test_lost_docstrings_with_examples_come_back(tmp_path):
    """doctest passes where there is no example."""
    short = "def double(x):\n    return x\n\n\nclass A:\n    def half(self, x):\n        return x\n"
    assert kept("a.py", PYTHON, short) == PYTHON
    assert kept("a.py", PYTHON, "def double(x): return x\n") == "def double(x): return x\n"
    assert kept("a.py", PYTHON, "def double(x:\n") == "def double(x:\n"
    plain = PYTHON.replace(">>> ", "")
    assert kept("a.py", plain, short) == short
    (tmp_path / "a.py").write_text(kept("a.py", PYTHON, short))
    done = subprocess.run([sys.executable, "-m", "doctest", "a.py"], cwd=tmp_path, check=False,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 1


@needs_tree_sitter
def test_tests_of_rust_are_no_functions_to_change():
    document = FileText("src/lib.rs", f"{RUST}\nfn other() {{}}\n")
    assert [function.name for function in functions_of(document)] == ["len", "other"]
    failures = [Failure("tests::counts", "src/lib.rs", 7)]
    away = reach.out_of_reach(failures, [document], [document])
    assert away == {"src/lib.rs": ((16, 16),)}


@pytest.mark.parametrize(
    "part", ["#[cfg(test)]\n", "#[test]\nfn a() {", "{", '"', 'r#"', "/*", "'"]
)
def test_hostile_rust_is_read_in_linear_time(part: str):
    text = part * (100_000 // len(part))
    ranges("a.rs", text)
    ranges("a.rs", f"#[test]\nfn a() {{{text}")
