"""Real outputs of further test programs, and of tests without a framework; how they are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sandboxes
from code_folders import write

from tgr_local.code.edits import Change
from tgr_local.code.judging.judge import Verdict
from tgr_local.code.judging.test_output import read
from tgr_local.code.workplace import Workplace
from tgr_local.engine import Cancel
from tgr_local.options.config import CodeConfig
from tgr_local.system.sandbox import commands

GTEST = """\
[==========] Running 4 tests from 2 test suites.
[ RUN      ] Sums.Adds
[       OK ] Sums.Adds (0 ms)
[ RUN      ] Sums.Subtracts
sum_test.cc:7: Failure
Expected equality of these values:
  sub(3, 1)
    Which is: 4
  2
sum_test.cc:8: Failure
Value of: false
[  FAILED  ] Sums.Subtracts (0 ms)
[ RUN      ] Sums.Later
sum_test.cc:10: Skipped
[  SKIPPED ] Sums.Later (0 ms)
[ RUN      ] All/P.Even/1
sum_test.cc:14: Failure
Expected equality of these values:
[  FAILED  ] All/P.Even/1, where GetParam() = 3 (0 ms)
[==========] 4 tests from 2 test suites ran. (0 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Sums.Later
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] Sums.Subtracts
[  FAILED  ] All/P.Even/1, where GetParam() = 3

 2 FAILED TESTS
"""
CATCH = """\
-------------------------------------------------------------------------------
subtracts
  small
-------------------------------------------------------------------------------
catch_test.cpp:6
...............................................................................

catch_test.cpp:6: FAILED:
  CHECK( sub(3, 1) == 2 )
with expansion:
  4 == 2

===============================================================================
test cases: 3 | 2 passed | 1 failed
assertions: 4 | 3 passed | 1 failed
"""
JUNIT_5 = """\
Failures (2):
  JUnit Jupiter:SumTest:subtracts()
    MethodSource [className = 'SumTest', methodName = 'subtracts', methodParameterTypes = '']
    => org.opentest4j.AssertionFailedError: bad ==> expected: <2> but was: <4>
       org.junit.jupiter.api.AssertEquals.assertEquals(AssertEquals.java:150)
       SumTest.check(SumTest.java:3)
       SumTest.subtracts(SumTest.java:7)
       java.base/java.lang.reflect.Method.invoke(Method.java:569)
       [...]
  JUnit Jupiter:SumTest:Inner:has a name
    MethodSource [className = 'SumTest$Inner', methodName = 'named', methodParameterTypes = '']
    => org.opentest4j.AssertionFailedError: x
       SumTest$Inner.named(SumTest.java:11)

Test run finished after 185 ms
[         5 containers found      ]
[         0 containers failed     ]
[         4 tests found           ]
[         1 tests skipped         ]
[         3 tests started         ]
[         0 tests aborted         ]
[         1 tests successful      ]
[         2 tests failed          ]
"""
JUNIT_4 = """\
JUnit version 4.13.2
.I.E
Time: 0.006
There was 1 failure:
1) subtracts(OldTest)
java.lang.AssertionError: expected:<2> but was:<3>
\tat org.junit.Assert.fail(Assert.java:89)
\tat org.junit.Assert.assertEquals(Assert.java:633)
\tat OldTest.subtracts(OldTest.java:5)

FAILURES!!!
Tests run: 2,  Failures: 1
"""
CARGO_QUIET = """\

running 3 tests
. 1/3
tests::panics --- FAILED
adds_up --- FAILED

failures:

---- tests::panics stdout ----
note: test did not panic as expected at src/lib.rs:10:29
---- adds_up stdout ----

thread 'adds_up' (140) panicked at tests/stock.rs:21:5:
assertion `left == right` failed


failures:
    tests::panics
    adds_up

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s

running 1 test
src/lib.rs - add (line 3) --- FAILED

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.29s
"""
NODE_STACK = """\
TAP version 13
# Subtest: Plan
    # Subtest: sorts
    not ok 1 - sorts
      ---
      location: 'test/plan.test.js:28:3'
      error: 'plan.at is not a function'
      stack: |-
        Plan.at (lib/plan.js:9:1)
        TestContext.<anonymous> (test/plan.test.js:31:23)
        Test.runInAsyncScope (node:async_hooks:206:9)
        async Suite.run (node:internal/test_runner/test:1135:7)
      ...
    1..1
not ok 1 - Plan
1..1
"""
JEST_CALLS = """\
  ● adds

    bad

      at check (sum.test.js:3:41)
      at Object.<anonymous> (sum.test.js:16:29)
      at node_modules/jest-circus/build/run.js:1:2

Tests:       1 failed, 1 total
"""
LINKER = """\
/usr/bin/ld: ring_test.o: in function `test_full':
ring_test.c:28: undefined reference to `ring_clear'
/usr/bin/ld: /tmp/cc6yYi7F.o: in function `main':
t.c:(.text+0xa): undefined reference to `total'
collect2: error: ld returned 1 exit status
make: *** [Makefile:7: ring_test] Error 1
"""
DOCTEST = """\
**********************************************************************
File "units.py", line 11, in units.size
Failed example:
    size(1000)
Expected:
    '1 KB'
Got:
    '1e+03 B'
**********************************************************************
1 items had failures:
   1 of   3 in units.size
***Test Failed*** 1 failures.
"""
MARKED = """\
PASS row takes from the left
FAIL row takes the last seat: expected 5, got 0
[ok] not counted
[PASS] counted
ok: counts a level
FAILED: counts levels, not words: expected '1', got '2'
test_adds ... ok
test_subtracts ... FAILED
✗ has a sign
2 failed
FAIL 4 of 9
Failed to open a window
"""
PLACED = """\
./date_test
date.cpp:3:5: warning: unused failure [-Wunused]
date_test.cpp:19: failed: is_leap(2000)
date_test.cpp:23: failed: text() == "2024-01-01"
2 checks failed
"""
MINITEST = """\
# Running:

.F.E

Finished in 0.001s, 2000.0 runs/s, 2000.0 assertions/s.

  1) Failure:
TestCalc#test_add [test/calc_test.rb:8]:
Expected: 5
  Actual: -1

  2) Error:
TestCalc#test_div:
ZeroDivisionError: divided by 0
    calc.rb:3:in `/'

4 runs, 4 assertions, 1 failures, 1 errors, 0 skips
"""
UNITY = """\
test_ring.c:12:test_order:PASS
test_ring.c:28:test_full:FAIL: Expected 1 Was 9
test_ring.c:40:test_later:IGNORE

-----------------------
3 Tests 1 Failures 1 Ignored 
FAIL
"""  # noqa: W291
CHECK = """\
Running suite(s): Sums
50%: Checks: 2, Failures: 1, Errors: 0
check_test.c:4:F:core:subtracts:0: Assertion '3 - 1 == 3' failed: 3 - 1 == 2, 3 == 3
"""
GO_PANIC = """\
--- FAIL: TestMax (0.00s)
    --- FAIL: TestMax/none (0.00s)
panic: runtime error: index out of range [0] with length 0 [recovered]
\tpanic: runtime error: index out of range [0] with length 0

goroutine 8 [running]:
panic({0x518d00, 0xc0000180d8})
\t/usr/lib/go/src/runtime/panic.go:884 +0x212
example.com/calc.Max(...)
\tcalc.go:7
example.com/calc.TestMax.func1(0x0?)
\tcalc_test.go:19 +0x65
testing.tRunner(0xc000007d40, 0xc0000245c0)
\t/usr/lib/go/src/testing/testing.go:1446 +0x10b
FAIL\texample.com/calc\t0.006s
"""
GO_HELPER = """\
--- FAIL: TestAdd (0.00s)
    calc_test.go:14: got 0, want 2
FAIL\texample.com/calc\t0.006s
"""
CASES = {
    "minitest": (MINITEST, "minitest", (2, 1, 1, 0),
                 ("TestCalc#test_add", "test/calc_test.rb", 8, 0)),
    "unity": (UNITY, "unity", (1, 1, 0, 1), ("test_full", "test_ring.c", 28, 0)),
    "check": (CHECK, "check", (1, 1, 0, 0), ("subtracts", "check_test.c", 4, 0)),
    "go panic": (GO_PANIC, "go test", (0, 1, 0, 0), ("TestMax/none", "calc.go", 7, 19)),
    "go": (GO_HELPER, "go test", (0, 1, 0, 0), ("TestAdd", "calc_test.go", 14, 14)),
    "gtest": (GTEST, "gtest", (1, 2, 0, 1), ("Sums.Subtracts", "sum_test.cc", 7, 7)),
    "catch2": (CATCH, "catch2", (2, 1, 0, 0), ("subtracts > small", "catch_test.cpp", 6, 0)),
    "junit 5": (JUNIT_5, "junit 5", (1, 2, 0, 1), ("SumTest:subtracts()", "SumTest.java", 3, 7)),
    "junit 4": (JUNIT_4, "junit 4", (1, 1, 0, 0), ("subtracts(OldTest)", "OldTest.java", 5, 5)),
    "cargo -q": (CARGO_QUIET, "cargo test", (1, 3, 0, 0), ("adds_up", "tests/stock.rs", 21, 21)),
    "cargo doc": (CARGO_QUIET, "cargo test", (1, 3, 0, 0), ("src/lib.rs - add (line 3)", "", 0, 0)),
    "node": (NODE_STACK, "TAP", (0, 1, 0, 0), ("Plan > sorts", "test/plan.test.js", 28, 31)),
    "jest": (JEST_CALLS, "jest", (0, 1, 0, 0), ("adds", "sum.test.js", 3, 16)),
    "linker -g": (LINKER, "errors", (0, 0, 2, 0),
                  ("ring_test.c: undefined reference to `ring_clear'", "ring_test.c", 28, 0)),
    "linker": (LINKER, "errors", (0, 0, 2, 0),
               ("t.c: undefined reference to `total'", "t.c", 0, 0)),
    "doctest": (DOCTEST, "checks", (0, 1, 0, 0), ("units.size: size(1000)", "units.py", 11, 0)),
    "marked": (MARKED, "checks", (4, 4, 0, 0), ("row takes the last seat", "", 0, 0)),
    "placed": (PLACED, "checks", (0, 2, 0, 0),
               ("date_test.cpp: failed: is_leap(2000)", "date_test.cpp", 19, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_real_output(name: str):
    output, framework, numbers, failure = CASES[name]
    for text in (output, output.replace("\n", "\x1b[0m\r\n"), f"{output}make: *** Error 1\n"):
        counts = read(text)
        found = (counts.passed, counts.failed, counts.errors, counts.skipped)
        assert (counts.framework, found) == (framework, numbers)
        assert len(counts.failures) == counts.failed + counts.errors
        assert failure in [(one.name, one.file, one.line, one.reached) for one in counts.failures]


C = "ring_test: ring_test.c:28: test_full: Assertion `value == 1' failed.\n"
CPP = "t2: t2.cpp:3: void a::check(T) [with T = int]: Assertion `total(n) == n' failed.\nAborted\n"
MAC = "Assertion failed: (value == 1), function test_full, file ring_test.c, line 28.\n"
MUSL = "Assertion failed: value == 1 (ring_test.c: test_full: 28)\n"
RUST = """\

thread 'main' (5717) panicked at src/main.rs:2:13:
assertion `left == right` failed
  left: 0
"""
JAVA = """\
Exception in thread "main" java.lang.AssertionError: expected 3
\tat java.base/java.util.Objects.check(Objects.java:9)
\tat Bank.take(Bank.java:12)
\tat BankTest.check(BankTest.java:5)
\tat BankTest.main(BankTest.java:31)
"""
SCRIPT = """\
node:assert:90
  throw new AssertionError(obj);
  ^

AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

0 !== 2

    at check (lib/check.js:2:10)
    at test_add (file://t.js:5:10)
    at Object.<anonymous> (t.js:7:1)
    at Module._compile (node:internal/modules/cjs/loader:1521:14) {
  code: 'ERR_ASSERTION',
}

Node.js v20.20.2
"""
PYTHON = """\
Traceback (most recent call last):
  File "t.py", line 8, in <module>
    test_add()
  File "t.py", line 6, in test_add
    assert add(1, 1) == 2
  File "calc.py", line 2, in add
    return a + None
TypeError: unsupported operand
"""
STOPS = {
    "C": (C, "ring_test.c", 28, "Assertion `value == 1' failed"),
    "C++": (CPP, "t2.cpp", 3, "Assertion `total(n) == n' failed"),
    "macOS": (MAC, "ring_test.c", 28, "Assertion failed: (value == 1)"),
    "musl": (MUSL, "ring_test.c", 28, "Assertion failed: value == 1"),
    "Rust": (RUST, "src/main.rs", 2, "assertion `left == right` failed"),
    "Java": (JAVA, "BankTest.java", 5, "java.lang.AssertionError: expected 3"),
    "node": (SCRIPT, "t.js", 5,
             "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:"),
    "Python": (PYTHON, "t.py", 6, "TypeError: unsupported operand"),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPS)
def test_where_a_program_stopped(name: str):
    output, *place = STOPS[name]
    counts = read(f"cc -o t t.c\n{output}make: *** [Makefile:4: test] Aborted\n", code=2)
    (one,) = counts.failures
    assert (counts.framework, counts.errors, counts.only_failures) == ("stop", 1, True)
    assert [one.file, one.line, one.message] == place
    assert (one.name, one.reached, one.reached_in) == (one.file, one.line, one.file)
    assert read(output, code=0).framework == ""  # a program may print that it expected an error


def test_marks_count_by_the_exit_code():
    good = "PASS a\nok: b\n"
    assert (read(good, code=0).passed, read(good, code=0).total) == (2, 2)
    assert read(good, code=1).framework == ""  # it broke off
    assert read(MARKED, code=0).framework == ""
    only = read("FAIL a\nFAIL b\nFAIL a\n", code=1)
    assert only.only_failures and [one.name for one in only.failures] == ["a", "b", "a (2)"]


@pytest.mark.parametrize(
    "part",
    ["PASS ", "ok: ", "a ... ", "FAIL\t", "a.c:1: fail", "a.c:1: x: ", "[  FAILED  ] ", "at a.b(",
     'File "a", line 1, in b\nFailed example:\n', "Traceback (most recent call last):\n", "-" * 70,
     '  File "a", line 1\n', "Error\n", "    at a (b:1:2)\n", "Assertion failed: ",
     "a.c:1: Failure\n", "Assertion `", "\tat a(b.c:1)\n", "JUnit A:", "undefined reference to ",
     "a - ", " --- FAILED",
     "\n  ", 'Exception in thread "main" ', "-" * 70 + "\na\n", "a.cc:(.text): ", "panic: a\n",
     "--- FAIL: a (0s)\npanic: \n", "a.c:1:a:FAIL\n", "a.c:1:F:a:a:0: b\n",
     "  1) Error:\n", "\ta.go:1\n"],
)  # fmt: skip
def test_hostile_outputs_are_read_in_linear_time(part: str):
    """A regular expression that takes quadratic time would take minutes."""
    text = part * (130_000 // len(part))
    tails = ("", "\nNode.js v20", "\ntest cases: 1 | 1 failed", "\n[    1 tests found   ]")
    tails += ("\nTests run: 1,  Failures: 1", "\nFAIL\ta\t0.1s")
    tails += ("\ntest result: ok. 1 passed; 1 failed; 0 ignored;",)
    tails += ("\n1 Tests 1 Failures 0 Ignored", "\n50%: Checks: 2, Failures: 1, Errors: 0")
    tails += ("\n1 runs, 1 assertions, 1 failures, 0 errors, 0 skips",)
    for tail in tails:
        read(f"{text}{tail}\n")


# ---- what the assistant makes of it ----

PY = "from calc import f\n\nassert f(1) == 2\nassert f(2) == 4\nprint('done')\n"


TWO, TWICE, CRASH = (
    f"import os\n\n\ndef f(x):\n    {body}\n" for body in ("return 2", "return 2 * x", "os.abort()")
)


def verdicts(folder: Path, test: str, *edits: str) -> list[Verdict]:
    """What the tests say of the folder, and of it with each of these texts as calc.py."""
    place = Workplace(folder, CodeConfig(test=test, sandbox=sandboxes.strongest(commands.obstacle)))
    with place.copied():
        before = place.read("calc.py")
        assert before is not None
        return [
            place.judge([Change("calc.py", before.text, text)] if text else [], Cancel())
            for text in ("", *edits)
        ]


def test_a_later_assert_is_further_and_a_crash_is_not(tmp_path):
    write(tmp_path, {"calc.py": "def f(x):\n    return x\n", "t.py": PY})
    before, further, right, crashed, worse = verdicts(
        tmp_path, f"{sys.executable} t.py", TWO, TWICE, CRASH, "def g(x):\n    return x\n"
    )
    assert (before.framework, before.summary) == ("stop", "stops at t.py:3")
    assert further.is_beyond(before) and further.summary == "stops at t.py:4"
    assert right.passes and right.total == before.total
    assert not any(one.passes or one.is_beyond(before) for one in (crashed, worse))


def test_checks_that_print_failures_alone(tmp_path):
    test = "import sys\nfrom calc import f\n\nbad = 0\nfor n in (1, 2, 3):\n    if f(n) != 2 * n:\n"
    test += "        bad += 1\n        print(f't.py:{n}: check failed: {n}')\nsys.exit(bad > 0)\n"
    write(tmp_path, {"calc.py": "def f(x):\n    return x\n", "t.py": test})
    before, further, right, crashed = verdicts(
        tmp_path, f"{sys.executable} t.py", TWO, TWICE, CRASH
    )
    assert [one.summary for one in (before, further)] == ["0 of 3 pass", "1 of 3 pass"]
    assert further.is_beyond(before) and right.passes and not crashed.is_beyond(before)


def test_doctest_itself(tmp_path):
    text = 'def f(x):\n    """Twice.\n\n    >>> f(1)\n    2\n    >>> f(2)\n    4\n    """\n'
    text += "    return x\n"
    write(tmp_path, {"calc.py": text})
    done = subprocess.run(
        [sys.executable, "-m", "doctest", "calc.py"], cwd=tmp_path, capture_output=True, text=True
    )
    counts = read(done.stdout, done.returncode)
    assert [one.name for one in counts.failures] == ["calc.f: f(1)", "calc.f: f(2)"]
