"""Edits with which code cannot be loaded any more: they rank last, and nothing is built on them.

The outputs are real: of Node 20, Python 3.11, Ruby 3.1, gcc 12, rustc and Go.
"""

from __future__ import annotations

import pytest
import sandboxes
from code_folders import write

from tgr_local.code.edits import Change
from tgr_local.code.judging.candidate import Candidate
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.ranking import ranked, sideways
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.sandbox import commands

NODE_FAILS = """\
TAP version 13
# Subtest: f
not ok 1 - f
  ---
  location: 't.test.mjs:4:1'
  failureType: 'testCodeFailure'
  error: '1 == 2'
  code: 'ERR_ASSERTION'
  ...
1..1
# fail 1
"""
NODE_UNLOADED = """\
TAP version 13
# file://a.mjs:1
# {said}
# Node.js v20.20.2
# Subtest: t.test.mjs
not ok 1 - t.test.mjs
  ---
  location: 't.test.mjs:1:1'
  failureType: 'testCodeFailure'
  exitCode: 1
  error: 'test failed'
  code: 'ERR_TEST_FAILURE'
  ...
1..1
# fail 1
"""
SYNTAX = NODE_UNLOADED.format(said="SyntaxError: Unexpected token '}'")
THROWS = NODE_UNLOADED.format(said="ReferenceError: x is not defined")
NO_MODULE = NODE_UNLOADED.format(
    said="Error [ERR_MODULE_NOT_FOUND]: Cannot find module 'nowhere.mjs' imported from a.mjs"
)
PLAIN_STOPS = """\
Traceback (most recent call last):
  File "test_a.py", line 3, in <module>
    assert f() == 2
AssertionError
"""
PLAIN_UNLOADED = """\
Traceback (most recent call last):
  File "test_a.py", line 1, in <module>
    from a import f, g
ImportError: cannot import name 'g' from 'a' (a.py)
"""
NODE_STOPS = """\
node:internal/modules/run_main:123
AssertionError [ERR_ASSERTION]: 1 == 2
    at file://t.mjs:3:8

Node.js v20.20.2
"""
NODE_PLAIN_UNLOADED = """\
a.mjs:1
x.y()
^

ReferenceError: x is not defined
    at file://a.mjs:1:1

Node.js v20.20.2
"""
RUBY_FAILS = """\
Run options: --seed 1

  1) Failure:
T#test_f [t.rb:5]:
Expected: 2
  Actual: 1

1 runs, 1 assertions, 1 failures, 0 errors, 0 skips
"""
RUBY_UNLOADED = """\
kernel_require.rb:85:in `require': cannot load such file -- x (LoadError)
"""
C_STOPS = "t: t.c:4: main: Assertion `f() == 2' failed.\nAborted\n"
C_UNBUILT = "a.c: In function 'f':\na.c:1:14: error: 'x' undeclared (first use)\n"
RUST_FAILS = """\
test t ... FAILED

thread 't' panicked at a.rs:3:10:
assertion `left == right` failed

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
"""
RUST_UNBUILT = "error[E0308]: mismatched types\n --> a.rs:1:23\n"
GO_FAILS = "--- FAIL: TestF (0.00s)\n    a_test.go:6: 1\nFAIL\nFAIL\tshop\t0.002s\nFAIL\n"
GO_UNBUILT = "# shop\n./a.go:3:9: undefined: x\nFAIL\tshop [build failed]\nFAIL\n"
GO_SILENT = "go: errors parsing go.mod:\ngo.mod:3: unknown directive: x\n"
PYTEST_FAILS = """\
___ test_f ___
test_a.py:5: AssertionError
=== short test summary info ===
FAILED test_a.py::test_f - assert 1 == 2
1 failed in 0.01s
"""
PYTEST_UNLOADED = """\
___ ERROR collecting test_a.py ___
test_a.py:1: in <module>
    from a import f
E   ModuleNotFoundError: No module named 'nowhere'
=== short test summary info ===
ERROR test_a.py
1 error in 0.01s
"""


def verdicts(tmp_path, monkeypatch, *outputs: str) -> list[Verdict]:
    """What tests say that print these outputs, the first one without an edit."""
    folder = tmp_path / "folder"
    write(folder, {"out": outputs[0], "a.mjs": ""})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code = CodeConfig(test="cat out; exit 1", sandbox=sandboxes.strongest(commands.obstacle))
    place = Workplace(folder, code)
    with place.copied():
        edit = Change("a.mjs", "", "x")
        edits = ([Change("out", outputs[0], text), edit] for text in outputs[1:])
        return [place.judge(some, Cancel()) for some in ([], *edits)]


CASES = {
    "node, a syntax error": (NODE_FAILS, SYNTAX),
    "node, an error at the top": (NODE_FAILS, THROWS),
    "node, no module": (NODE_FAILS, NO_MODULE),
    "a script of Python": (PLAIN_STOPS, PLAIN_UNLOADED),
    "a script of Node": (NODE_STOPS, NODE_PLAIN_UNLOADED),
    "Ruby": (RUBY_FAILS, RUBY_UNLOADED),
    "C": (C_STOPS, C_UNBUILT),
    "Rust": (RUST_FAILS, RUST_UNBUILT),
    "Go": (GO_FAILS, GO_UNBUILT),
    "pytest": (PYTEST_FAILS, PYTEST_UNLOADED),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_with_which_code_cannot_be_loaded_any_more(tmp_path, monkeypatch, name: str):
    fails, unloaded = CASES[name]
    other = fails.replace("1 == 2", "3 == 2").replace("Actual: 1", "Actual: 3")
    before, *results = verdicts(tmp_path, monkeypatch, fails, unloaded, other)
    assert before.loads and not results[0].loads and results[1].loads
    assert not results[0].is_beyond(before)
    changes = (Change("a", "", "x"),)
    candidates = [
        Candidate(number, number, "done", changes=changes, parses=True, verdict=result, logprob=-p)
        for number, result, p in zip((1, 2, 3), (results[0], results[0], results[1]), (1, 1, 9),
                                     strict=True)
    ]  # fmt: skip
    assert ranked(candidates)[0].number == 3  # though two behave alike, and are likelier
    assert sideways(candidates[:2], before, set()) is None


def test_more_tests_that_pass_are_no_way_on_from_code_that_is_not_loaded(tmp_path, monkeypatch):
    begins = NODE_FAILS.replace("1..1", "ok 2 - g\nnot ok 3 - h\n1..3")
    half = NODE_UNLOADED.replace("1..1", "ok 2 - g\nok 3 - h\n1..3")
    before, broken = verdicts(tmp_path, monkeypatch, begins, half.format(said="SyntaxError: x"))
    assert broken.passed == 2 > before.passed and not broken.is_beyond(before)
    assert before.is_beyond(broken) is False


def test_a_name_that_is_lacking_is_better_than_a_module_that_cannot_be_loaded(
    tmp_path, monkeypatch
):
    lacks = NODE_UNLOADED.format(
        said="SyntaxError: The requested module './a.mjs' does not provide an export named 'g'"
    )
    _, broken, lacking = verdicts(tmp_path, monkeypatch, lacks + "\n", SYNTAX, lacks)
    lacking = Verdict(**{**lacking.__dict__, "lacks": (("a.mjs", "g"),)})
    changes = (Change("a", "", "x"),)
    candidates = [
        Candidate(1, 1, "done", changes=changes, parses=True, verdict=broken, logprob=-1.0),
        Candidate(2, 2, "done", changes=changes, parses=True, verdict=lacking, logprob=-9.0),
    ]
    assert [c.number for c in ranked(candidates)] == [2, 1]


def test_a_script_that_gets_further_is_further_though_a_name_is_undefined_there(
    tmp_path, monkeypatch
):
    later = PLAIN_STOPS.replace("line 3", "line 4").replace("AssertionError", "NameError: x")
    before, further, unloaded = verdicts(tmp_path, monkeypatch, PLAIN_STOPS, later, PLAIN_UNLOADED)
    assert further.is_beyond(before) and not unloaded.is_beyond(before)


def test_a_failure_that_is_not_listed_is_not_mended_where_nothing_is_said(tmp_path, monkeypatch):
    before, silent = verdicts(tmp_path, monkeypatch, GO_FAILS, GO_SILENT)
    assert silent.passed == 0 and not silent.is_beyond(before)
