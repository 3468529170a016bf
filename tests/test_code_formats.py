"""Real outputs of test programs, compilers and type checkers, shortened, and how they are read."""

from __future__ import annotations

import pytest

from tgr_local.code.judging.test_counts import OutputCounts
from tgr_local.code.judging.test_output import read

NODE = """\
✔ adds (1.077681ms)
✖ subtracts (1.251749ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
▶ cart
  ✔ is empty (0.287026ms)
  ✖ has a total (0.263662ms)
  ﹣ later (0.091706ms) # SKIP
  ✖ todo (40.463911ms) # TODO
✖ cart (41.869309ms)
ℹ tests 6
ℹ suites 1
ℹ pass 2
ℹ fail 2
ℹ cancelled 0
ℹ skipped 1
ℹ todo 1
ℹ duration_ms 624.655826

✖ failing tests:

test at node.test.js:4:1
✖ subtracts (1.251749ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
  
  2 !== 1

test at node.test.js:7:3
✖ has a total (0.263662ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:

test at node.test.js:9:3
✖ todo (40.463911ms) # TODO
  AssertionError [ERR_ASSERTION]: The expression evaluated to a falsy value:
"""  # noqa: W293
NODE_TAP = """\
TAP version 13
# Subtest: adds
ok 1 - adds
  ---
  duration_ms: 13.591718
  ...
# Subtest: subtracts
not ok 2 - subtracts
  ---
  location: 'node.test.js:4:1'
  failureType: 'testCodeFailure'
  error: |-
    Expected values to be strictly equal:
    
    2 !== 1
  ...
# Subtest: cart
    # Subtest: is empty
    ok 1 - is empty
      ---
      duration_ms: 0.328949
      ...
    # Subtest: has a total
    not ok 2 - has a total
      ---
      location: 'node.test.js:7:3'
      error: 'bad'
      ...
    # Subtest: later
    ok 3 - later # SKIP
    # Subtest: todo
    not ok 4 - todo # TODO
    1..4
not ok 3 - cart
  ---
  location: 'node.test.js:5:1'
  error: '1 subtest failed'
  ...
1..3
# tests 6
# pass 2
# fail 2
"""  # noqa: W293
PERL = """\
1..4
ok 1 - one
# Subtest: cart
    1..2
    ok 1 - empty
    not ok 2 - total
not ok 2 - cart
not ok 3
not ok 4 - todo # TODO x
"""
BATS_TAP = """\
1..3
ok 1 adds
not ok 2 subtracts
# (in test file t/bats.bats, line 4)
#   `[ "$output" = "4" ]' failed
ok 3 later # skip slow
"""
BATS = """\
bats.bats
 ✓ adds
 ✗ subtracts
   (in test file t/bats.bats, line 4)
     `[ "$output" = "4" ]' failed
 - later (skipped: slow)

3 tests, 1 failure, 1 skipped
"""
MOCHA = """\

> js@1.0.0 test
> mocha mocha.js

  cart
    ✔ is empty
    1) has a total
    - later
    inner
      2) throws


  1 passing (26ms)
  1 pending
  2 failing

  1) cart
       has a total:

      AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:
      at Context.<anonymous> (mocha.js:4:36)
      at process.processImmediate (node:internal/timers:483:21)

  2) cart
       inner
         throws:
     TypeError: Cannot read properties of null (reading 'x')
      at process.processImmediate (node:internal/timers:483:21)
npm error Lifecycle script `test` failed with error:
"""
JEST = """\
FAIL ./sum.test.js
  ✕ plain (1 ms)
  cart
    ✓ is empty (1 ms)
    ✕ has a total (14 ms)
    ○ skipped later

  ● cart › has a total

    expect(received).toBe(expected) // Object.is equality

    > 3 |   test("has a total", () => { expect(0).toBe(5); });

      at Object.toBe (sum.test.js:3:41)

  ● plain

    bad

      at Object.<anonymous> (sum.test.js:6:29)

FAIL ./other.test.js
  ● Test suite failed to run

    Cannot find module './nowhere' from 'other.test.js'

Test Suites: 2 failed, 2 total
Tests:       2 failed, 1 skipped, 1 passed, 4 total
Snapshots:   0 total
"""
VITEST = """\
 ❯ v/sum.test.ts (4 tests | 2 failed | 1 skipped) 86ms
     ✓ is empty 28ms
     × has a total 56ms
     ↓ later
   × plain 1ms

⎯⎯⎯⎯⎯⎯⎯ Failed Tests 2 ⎯⎯⎯⎯⎯⎯⎯

 FAIL  v/sum.test.ts > cart > has a total
AssertionError: expected +0 to be 5 // Object.is equality

 ❯ v/sum.test.ts:4:41
      2| describe("cart", () => {

⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯⎯[1/2]⎯

 FAIL  v/sum.test.ts > plain
Error: bad
 ❯ v/sum.test.ts:7:29

 Test Files  1 failed (1)
      Tests  2 failed | 1 passed | 1 skipped (4)
   Start at  02:57:26
"""
GO = """\
--- FAIL: TestSplit (0.00s)
    --- FAIL: TestSplit/trailing_sep (0.00s)
        split_test.go:25: expected: [a b c], got: [a b c ]
FAIL
exit status 1
FAIL\ttest/split\t0.002s
ok  \ttest/other\t0.010s
"""
GO_V = """\
=== RUN   TestSplit
=== RUN   TestSplit/simple
=== RUN   TestSplit/trailing_sep
    split_test.go:25: expected: [a b c], got: [a b c ]
--- FAIL: TestSplit (0.00s)
    --- PASS: TestSplit/simple (0.00s)
    --- FAIL: TestSplit/trailing_sep (0.00s)
FAIL
exit status 1
FAIL\t_/root/test/split\t0.002s
"""
GO_BUILD = """\
# example.com/calc [example.com/calc.test]
./calc.go:5:9: undefined: total
./calc.go:9:2: missing return
FAIL\texample.com/calc [build failed]
"""
CARGO = """\
running 3 tests
test tests::good ... ok
test tests::old ... ignored
test tests::bad ... FAILED

failures:

---- tests::bad stdout ----

thread 'tests::bad' (28637) panicked at src/lib.rs:6:24:
assertion `left == right` failed
  left: 0
 right: 2

failures:
    tests::bad

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.25s
"""
RUSTC = """\
   Compiling calc v0.1.0 (/tmp/calc)
error[E0425]: cannot find value `nothing` in this scope
 --> src/lib.rs:9:21
  |
9 | pub fn g() -> i32 { nothing }
  |                     ^^^^^^^ not found in this scope

error[E0308]: mismatched types
 --> src/lib.rs:1:37
  |
error: could not compile `calc` (lib) due to 2 previous errors
"""
CTEST = """\
Test project /tmp/b
    Start 1: good
1/5 Test #1: good .............................   Passed    0.01 sec
2/5 Test #2: bad ..............................***Failed    0.01 sec
3/5 Test #3: gone .............................***Not Run   0.00 sec
5/5 Test #5: off ..............................***Not Run (Disabled)   0.00 sec

25% tests passed, 3 tests failed out of 4

Total Test time (real) =   1.02 sec

The following tests did not run:
\t  5 - off (Disabled)

The following tests FAILED:
\t  2 - bad (Failed)
\t  3 - gone (Not Run)
\t  4 - slow (Timeout)
Errors while running CTest
"""
RSPEC = """\
F

Failures:

  1) Calculator#add returns the sum of two numbers
     Failure/Error: expect(calculator.add(5, 2)).to eql(7)

       expected: 7
            got: nil

     # ./spec/calculator_spec.rb:7:in `block (3 levels) in <top (required)>'

Finished in 0.28565 seconds (files took 0.6273 seconds to load)
4 examples, 1 failure, 1 pending

Failed examples:

rspec ./spec/calculator_spec.rb:5 # Calculator#add returns the sum of two numbers
"""
PHPUNIT = """\
PHPUnit 9.5.0 by Sebastian Bergmann and contributors.

..F                                                                 3 / 3 (100%)

Time: 00:00.008, Memory: 4.00 MB

There was 1 failure:

1) MyTest::test3
Failed asserting that a string is empty.

/home/app/MyTest.php:31

FAILURES!
Tests: 3, Assertions: 3, Failures: 1.
"""
MAVEN = """\
[INFO] Running com.example.UserServiceTest
[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.123 s
[INFO] Running com.example.OrderServiceTest
[ERROR] Tests run: 2, Failures: 1, Errors: 1, Skipped: 0, Time elapsed: 0.234 s <<< FAILURE! -- in \
com.example.OrderServiceTest
[ERROR] com.example.OrderServiceTest.testPlaceOrder -- Time elapsed: 0.045 s <<< FAILURE!
org.opentest4j.AssertionFailedError: expected: <201> but was: <400>
[INFO]
[INFO] Results:
[INFO]
[ERROR] Failures:
[ERROR]   OrderServiceTest.testPlaceOrder:25 expected: <201> but was: <400>
[ERROR] Errors:
[ERROR]   OrderServiceTest.testCancelOrder:42 Order not found
[INFO]
[ERROR] Tests run: 4, Failures: 1, Errors: 1, Skipped: 0
[INFO]
[INFO] BUILD FAILURE
"""
MYPY = """\
a.py:2: error: Incompatible return value type (got "int", expected "str")  [return-value]
a.py:4:3:4:5: error: Argument 1 to "f" has incompatible type "str"; expected "int"  [arg-type]
b.py:3: error: Cannot find implementation or library stub for module named "no"  [import-not-found]
b.py:3: note: See https://mypy.readthedocs.io/en/stable/running_mypy.html#missing-imports
Found 3 errors in 2 files (checked 2 source files)
make: *** [Makefile:2: test] Error 1
"""
TSC = """\
t/a.ts(1,40): error TS2322: Type 'number' is not assignable to type 'string'.
t/a.ts(3,3): error TS2345: Argument of type 'string' is not assignable to parameter.
"""
TSC_PRETTY = """\
t/a.ts:1:40 - error TS2322: Type 'number' is not assignable to type 'string'.

1 export function f(x: number): string { return x; }
                                         ~~~~~~

t/a.ts:3:3 - error TS2345: Argument of type 'string' is not assignable to parameter.

Found 2 errors in the same file, starting at: t/a.ts:1
"""
GCC = """\
gcc -Wall -c a.c
a.c: In function ‘f’:
a.c:1:23: error: ‘y’ undeclared (first use in this function)
    1 | int f(int x) { return y; }
a.c:1:23: note: each undeclared identifier is reported only once
a.c:3:24: warning: unused variable ‘z’ [-Wunused-variable]
make: *** [Makefile:2: test] Error 1
"""
JAVAC = """\
A.java:1: error: incompatible types: String cannot be converted to int
class A { int f() { return "x"; }
                           ^
A.java:2: error: cannot find symbol
  symbol:   method h()
2 errors
"""
CASES = {
    "node:test": (NODE, "node:test", (2, 2, 0, 2), ("subtracts", "node.test.js", 4)),
    "node TAP": (NODE_TAP, "TAP", (2, 2, 0, 2), ("cart > has a total", "node.test.js", 7)),
    "perl": (PERL, "TAP", (2, 2, 0, 1), ("cart > total", "", 0)),
    "bats TAP": (BATS_TAP, "TAP", (1, 1, 0, 1), ("subtracts", "t/bats.bats", 4)),
    "bats": (BATS, "bats", (1, 1, 0, 1), ("subtracts", "t/bats.bats", 4)),
    "mocha": (MOCHA, "mocha", (1, 2, 0, 1), ("cart > has a total", "mocha.js", 4)),
    "jest": (JEST, "jest", (1, 2, 1, 1), ("plain", "sum.test.js", 6)),
    "vitest": (VITEST, "vitest", (1, 2, 0, 1),
               ("v/sum.test.ts > cart > has a total", "v/sum.test.ts", 4)),
    "go": (GO, "go test", (1, 1, 0, 0), ("TestSplit/trailing_sep", "split_test.go", 25)),
    "go -v": (GO_V, "go test", (1, 1, 0, 0), ("TestSplit/trailing_sep", "split_test.go", 25)),
    "go build": (GO_BUILD, "go test", (0, 0, 2, 0),
                 ("./calc.go: undefined: total", "./calc.go", 5)),
    "cargo": (CARGO, "cargo test", (1, 1, 0, 1), ("tests::bad", "src/lib.rs", 6)),
    "rustc": (RUSTC, "errors", (0, 0, 2, 0), ("src/lib.rs: mismatched types", "src/lib.rs", 1)),
    "ctest": (CTEST, "ctest", (1, 3, 0, 0), ("gone", "", 0)),
    "rspec": (RSPEC, "rspec", (2, 1, 0, 1),
              ("Calculator#add returns the sum of two numbers", "./spec/calculator_spec.rb", 5)),
    "phpunit": (PHPUNIT, "phpunit", (2, 1, 0, 0), ("MyTest::test3", "/home/app/MyTest.php", 31)),
    "maven": (MAVEN, "junit", (2, 1, 1, 0), ("OrderServiceTest.testCancelOrder", "", 42)),
    "mypy": (MYPY, "errors", (0, 0, 3, 0),
             ('b.py: Cannot find implementation or library stub for module named "no"  '
              "[import-not-found]", "b.py", 3)),
    "tsc": (TSC, "errors", (0, 0, 2, 0),
            ("t/a.ts: TS2322: Type 'number' is not assignable to type 'string'.", "t/a.ts", 1)),
    "tsc --pretty": (TSC_PRETTY, "errors", (0, 0, 2, 0), (
        "t/a.ts: TS2345: Argument of type 'string' is not assignable to parameter.", "t/a.ts", 3)),
    "gcc": (GCC, "errors", (0, 0, 1, 0),
            ("a.c: ‘y’ undeclared (first use in this function)", "a.c", 1)),
    "javac": (JAVAC, "errors", (0, 0, 2, 0), ("A.java: cannot find symbol", "A.java", 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_real_output(name: str):
    output, framework, numbers, failure = CASES[name]
    wrapped = f"\n> js@1.0.0 test\n> tool\n\n{output}\nmake: *** [Makefile:2: test] Error 1\n"
    for text in (output, output.replace("\n", "\x1b[0m\r\n"), wrapped):
        counts = read(text)
        found = (counts.passed, counts.failed, counts.errors, counts.skipped)
        assert (counts.framework, found) == (framework, numbers)
        assert len(counts.failures) == counts.failed + counts.errors
        assert failure in [(one.name, one.file, one.line) for one in counts.failures]


def test_what_a_failure_says():
    said = {name: [one.message for one in read(CASES[name][0]).failures] for name in CASES}
    assert said["jest"][0] == "expect(received).toBe(expected) // Object.is equality"
    assert said["vitest"][1] == "Error: bad"
    assert said["mocha"][1] == "TypeError: Cannot read properties of null (reading 'x')"
    assert said["node TAP"] == ["Expected values to be strictly equal:", "bad"]
    assert said["bats"] == said["bats TAP"] == ['`[ "$output" = "4" ]\' failed']
    assert said["ctest"] == ["Failed", "Not Run", "Timeout"]
    assert said["phpunit"] == ["Failed asserting that a string is empty."]
    assert said["maven"][1] == "Order not found"


def test_errors_count_where_no_test_fails():
    assert read(TSC, code=0) == OutputCounts()  # a test may print them, too
    assert read(MYPY, code=0).errors == 3  # the sum says that it is no test
    both = read(f"5 passed in 0.10s\n{MYPY}")
    assert (both.framework, both.passed, both.errors, both.only_failures) == ("pytest", 5, 3, True)
    failing = read(f"1 failed, 5 passed in 0.10s\n{TSC}")
    assert (failing.passed, failing.failed, failing.errors) == (5, 1, 0)


def test_equal_errors_are_several_and_have_no_line_in_their_names():
    first, second = read("a.c:1:2: error: x\na.c:9:2: error: x\n").failures
    assert (first.name, second.name) == ("a.c: x", "a.c: x (2)")
    (moved,) = read("a.c:12:2: error: x\n").failures
    assert moved.name == first.name


def test_a_group_of_tests_that_fails_by_itself_counts():
    counts = read("1..1\n    1..1\n    ok 1 - a\nnot ok 1 - group\n")
    assert (counts.passed, [one.name for one in counts.failures]) == (1, ["group"])
    deep = read("1..1\n        ok 1 - a\n        not ok 2 - b\n    not ok 1 - c\nnot ok 1 - d\n")
    assert (deep.passed, [one.name for one in deep.failures]) == (1, ["d > c > b"])
