"""The forms in which test programs, compilers and type checkers print what failed.

In: an output without colours. Out: counts and failures. A form is a table of regular expressions,
taken from real outputs (`tests/test_code_formats.py` has them). Each takes a time that grows with
the length of the output, whatever the output is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tgr_local.code.judging.test_counts import Failure, Found, OutputCounts, last, sections

_FIRST_LINE = r"\A\s*(?P<message>[^\n]+)"
_JS_PLACE = (
    r"^ +(?:at |❯ )(?:[^\n(]*\()?(?!node:|[^\n]*node_modules)(?:async )?(?:file://)?"
    r"(?P<file>[^\s():]+):(?P<line>\d+):\d+\)?$"
)
_JAVA_PLACE = (
    r"^\s+(?:at )?(?!java\.|jdk\.|sun\.|org\.junit|org\.hamcrest|org\.opentest4j)[\w.$/<>]+"
    r"\((?P<file>[\w$]+\.(?:java|kt|scala|groovy)):(?P<line>\d+)\)$"
)


@dataclass(frozen=True)
class Format:
    """One form. The expressions of numbers have one group; what they find in a summary is added.
    Those of failures have the groups `name`, `file`, `line` and `message`."""

    framework: str
    summary: str
    passed: str = ""
    failed: str = ""
    errors: str = ""
    skipped: str = ""
    total: str = ""
    """The number of all tests, where that of the passed ones is not printed."""
    broken: str = ""
    """A line of the output for each file that could not be run."""
    head: str = ""
    """The line of a failure; what is below it belongs to it."""
    below: tuple[str, ...] = ()
    """Expressions that are looked for below the head."""
    reached: str = ""
    """Expression of a call that led to the failure; the last one below the head is the test's."""
    is_after: bool = False
    """Whether failures are listed after the summary alone."""
    adds: bool = False
    """Whether an output has a summary for each part, to be added."""

    def read(self, text: str) -> Found:
        """The counts of an output in this form."""
        summaries = list(re.finditer(self.summary, text, re.MULTILINE))
        if not summaries:
            return None
        said = "\n".join(match[0] for match in (summaries if self.adds else summaries[-1:]))
        n = {
            key: sum(map(int, re.findall(pattern, said))) if (pattern := getattr(self, key)) else 0
            for key in ("passed", "failed", "errors", "skipped", "total")
        }
        if self.broken:
            n["errors"] += len(set(re.findall(self.broken, text, re.MULTILINE)))
        passed = n["passed"]
        if self.total:
            passed = max(0, n["total"] - n["failed"] - n["errors"] - n["skipped"])
        return summaries[-1].end(), OutputCounts(
            self.framework, passed, n["failed"], n["errors"], n["skipped"],
            tuple(self._failures(text[summaries[-1].end() :] if self.is_after else text)),
        )  # fmt: skip

    def _failures(self, text: str) -> Iterator[Failure]:
        for head, part in sections(re.compile(self.head, re.MULTILINE), text):
            groups = head.groupdict()
            for pattern in self.below:
                if match := re.search(pattern, part, re.MULTILINE):
                    groups |= match.groupdict()
            calls = self.reached and list(re.finditer(self.reached, part, re.MULTILINE))
            yield _failure(groups, calls[-1] if calls else None)


def _failure(groups: dict[str, Any], call: re.Match[str] | None) -> Failure:
    name = " > ".join(line.strip() for line in (groups.get("name") or "").split("\n"))
    message = (groups.get("message") or "").strip()
    reached, reached_in = (int(call["line"]), call["file"]) if call else (0, "")
    return Failure(
        name, groups.get("file") or "", int(groups.get("line") or 0), message, reached, reached_in
    )


FORMATS = (
    Format(
        "node:test",  # the spec reporter; its TAP is below
        r"^ℹ pass \d+\nℹ fail \d+\nℹ cancelled \d+\nℹ skipped \d+\nℹ todo \d+$",
        passed=r"pass (\d+)", failed=r"(?:fail|cancelled) (\d+)", skipped=r"(?:skipped|todo) (\d+)",
        head=r"^test at (?P<file>[^\n]{1,500}?):(?P<line>\d+):\d+\n"
        r"✖ (?P<name>[^\n]*?) \([\d.]+ms\)(?! # TODO)[^\n]*$",
        below=(_FIRST_LINE,), reached=_JS_PLACE, is_after=True,
    ),
    Format(
        "mocha",
        r"^  \d+ passing \([^)\n]*\)$(?:\n  \d+ pending$)?(?:\n  \d+ failing$)?",
        passed=r"(\d+) passing", failed=r"(\d+) failing", skipped=r"(\d+) pending",
        head=r"^  \d{1,6}\) (?P<name>[^\n]+?(?:\n {7,60}\S[^\n]*?){0,20}):$",
        below=(_FIRST_LINE, _JS_PLACE), reached=_JS_PLACE, is_after=True,
    ),
    Format(
        "jest",
        r"^Tests: +(?:\d+ (?:failed|passed|skipped|todo|pending|total)[, ]*)+$",
        passed=r"(\d+) passed", failed=r"(\d+) failed", skipped=r"(\d+) (?:skipped|todo|pending)",
        broken=r"^FAIL (\S+)[^\n]*\n  ● Test suite failed to run$",
        head=r"^  ● (?!Console$)(?P<name>\S[^\n]*)$", below=(_FIRST_LINE, _JS_PLACE),
        reached=_JS_PLACE,
    ),
    Format(
        "vitest",
        r"^ +Tests +(?:no tests|(?:\d+ (?:failed|passed|skipped|todo)[| ]*)+\(\d+\))$",
        passed=r"(\d+) passed", failed=r"(\d+) failed", skipped=r"(\d+) (?:skipped|todo)",
        broken=r"^ FAIL +(\S+) \[ [^\n]* \]$",
        head=r"^ FAIL +(?P<name>\S[^\n]*)$", below=(_FIRST_LINE, _JS_PLACE),
        reached=_JS_PLACE,
    ),
    Format(
        "ctest",
        r"^\d+% tests passed, \d+ tests? failed out of \d+$",
        failed=r"(\d+) tests? failed", total=r"out of (\d+)",
        head=r"^\t +\d+ - (?P<name>[^\n(]+) \((?!Disabled|Skipped)(?P<message>[^)\n]*)\)[^\n]*$",
        is_after=True,
    ),
    Format(
        "rspec",
        r"^\d+ examples?, \d+ failures?(?:, \d+ pending)?(?:, \d+ errors? occurred outside)?",
        failed=r"(\d+) failure", errors=r"(\d+) error", skipped=r"(\d+) pending",
        total=r"(\d+) example",
        head=r"^rspec (?P<file>[^\s:]+):(?P<line>\d+) # (?P<name>[^\n]*)$", is_after=True,
    ),
    Format(
        "phpunit",
        r"^OK \(\d+ tests?, \d+ assertions?\)$"
        r"|^Tests: \d+, Assertions: \d+(?:, [\w ]{1,30}: \d+)*\.$",
        failed=r"Failures: (\d+)", errors=r"Errors: (\d+)",
        skipped=r"(?:Skipped|Incomplete): (\d+)", total=r"(?:Tests: |OK \()(\d+)",
        head=r"^\d{1,6}\) (?P<name>[^\s:]+::[^\n]*)$",
        below=(_FIRST_LINE, r"^(?P<file>[^\s:][^\n:]*\.php):(?P<line>\d+)$"),
        reached=r"^(?P<file>[^\s:][^\n:]*\.php):(?P<line>\d+)$",
    ),
    Format(
        "junit",  # by Maven's surefire
        r"^(?:\[\w+\] )?Tests run: \d+, Failures: \d+, Errors: \d+, Skipped: \d+$",
        failed=r"Failures: (\d+)", errors=r"Errors: (\d+)", skipped=r"Skipped: (\d+)",
        total=r"Tests run: (\d+)",
        head=r"^(?:\[ERROR\] )? {2,3}(?P<name>[\w$]+(?:\.[\w$]+)+)"
        r"(?::(?P<line>\d+))?(?:->[^\s:]+:\d+)* (?P<message>[^\n]*)$",
        adds=True,
    ),
    Format(
        "junit 5",  # its own console
        r"^\[ +\d+ tests found +\]$(?:\n\[ +\d+ tests \w+ +\]$)*",
        passed=r"(\d+) tests successful", failed=r"(\d+) tests failed",
        errors=r"(\d+) tests aborted", skipped=r"(\d+) tests skipped",
        head=r"^  (?:JUnit \w+:)(?P<name>\S[^\n]*)\n    MethodSource [^\n]*$",
        below=(r"\A\s*=> (?P<message>[^\n]+)", _JAVA_PLACE), reached=_JAVA_PLACE,
    ),
    Format(
        "junit 4",
        r"^OK \(\d+ tests?\)$|^Tests run: \d+,  Failures: \d+$",
        failed=r"Failures: (\d+)", total=r"(?:OK \(|Tests run: )(\d+)",
        head=r"^\d{1,6}\) (?P<name>[^\s()]+\([\w.$]+\))$",
        below=(_FIRST_LINE, _JAVA_PLACE), reached=_JAVA_PLACE,
    ),
    Format(
        "catch2",
        r"^test cases: +\d+ \|[^\n]*$|^All tests passed \(\d+ assertions? in \d+ test cases?\)$",
        passed=r"(\d+) (?:passed|test cases?\))", failed=r"(\d+) failed(?! as)",
        skipped=r"(\d+) (?:skipped|failed as)",
        head=r"^-{70,}\n(?P<name>\S[^\n]*(?:\n  [^\n]*){0,9})\n-{70,}$",
        below=(r"^(?P<file>[^\n:]{1,500}):(?P<line>\d+): FAILED:\n(?P<message>[^\n]*)",),
    ),
    Format(
        "bats",  # in a terminal; else it prints TAP
        r"^\d+ tests?, \d+ failures?(?:, \d+ (?:skipped|not run))*$",
        failed=r"(\d+) failure", skipped=r"(\d+) (?:skipped|not run)", total=r"(\d+) test",
        head=r"^ ✗ (?P<name>[^\n]*)$",
        below=(r"in test file (?P<file>[^\n,]+), line (?P<line>\d+)", r"^ +(?P<message>`[^\n]*)$"),
    ),
)  # fmt: skip


# ---- forms that are no table ----

_GO = re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)$", re.MULTILINE)
_GO_RUN = re.compile(r"^(?:[ \t]*--- \w+: (\S+) \([\d.]+s\)|=== (?:RUN|CONT|NAME) +(\S+))$", re.M)
_GO_PACKAGE = re.compile(
    r"^(?:(ok)  ?\t|(FAIL)\t)(\S+)(?:\t| )(?:[\d.]+s|\(cached\)|\[[^\]\n]*\])[^\n]*$", re.MULTILINE
)
_GO_PLACE = re.compile(
    r"^[ \t]+(?P<file>[\w./-]+\.go):(?P<line>\d+): (?P<message>[^\n]*)$", re.MULTILINE
)
_GO_PANIC = re.compile(r"^panic: ([^\n]*)$", re.MULTILINE)
_GO_CALL = re.compile(r"^\t(?!/)(?P<file>[\w./-]+\.go):(?P<line>\d+)\b", re.MULTILINE)


def go(text: str) -> Found:
    """Reads the output of go test. Without -v a package that passes prints one line, which counts
    as one test. A test of several parts is its parts."""
    packages = list(_GO_PACKAGE.finditer(text))
    if not packages:
        return None
    tests = list(_GO.finditer(text))
    whole = {name[: at.start()] for _, name in (test.groups() for test in tests)
             for at in re.finditer("/", name)}  # fmt: skip
    n = Counter(kind for kind, name in (test.groups() for test in tests) if name not in whole)
    broken = [Failure(package[3], message="does not build") for package in packages
              if package[2] and "[" in package[0].rpartition("\t")[2]]  # fmt: skip
    places: dict[str, Failure] = {}
    for head, part in sections(_GO_RUN, text):
        if failure := _go_failure(head[1] or head[2], part):
            places.setdefault(failure.name, failure)
    failures = [
        places.get(name, Failure(name)) for name in (test[2] for test in tests if test[1] == "FAIL")
        if name not in whole
    ]  # fmt: skip
    wrong = list(errors(text)) if broken else []
    return packages[-1].end(), OutputCounts(
        "go test", n["PASS"] or sum(1 for package in packages if package[1]), n["FAIL"],
        len(wrong or broken), n["SKIP"], tuple(failures + (wrong or broken)),
        only_failures=not n["PASS"] or bool(broken),
    )  # fmt: skip


def _go_failure(name: str, part: str) -> Failure | None:
    """The failure of a test in what is printed below its name; of a panic, the test's own line is
    among the calls."""
    if place := _GO_PLACE.search(part):
        file, line = place["file"], int(place["line"])
        return Failure(name, file, line, place["message"], line if _is_go_test(file) else 0, file)
    if not (panic := _GO_PANIC.search(part)):
        return None
    calls = [(call["file"], int(call["line"])) for call in _GO_CALL.finditer(part, panic.end())]
    own = [call for call in calls if _is_go_test(call[0])]
    file, line = calls[0] if calls else ("", 0)
    reached_in, reached = own[-1] if own else ("", 0)
    return Failure(name, file, line, panic[1], reached, reached_in)


def _is_go_test(file: str) -> bool:
    return file.endswith("_test.go")


_CARGO = re.compile(
    r"^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE
)
_CARGO_FAILED = re.compile(  # "test a - should panic ... FAILED", and with -q "a --- FAILED"
    r"^(?:test )?(\S+)(?: - should panic|( - [^\n]*?))?(?: \.\.\.| ---) FAILED$", re.MULTILINE
)
_CARGO_PANIC = re.compile(
    r"^thread '([^'\n]+)'[^\n]{0,99} panicked at ([^\n:]{1,500}):(\d+):\d+:\n([^\n]*)",
    re.MULTILINE,
)


_RUST_TEST = re.compile(r"(?:^|/)tests?/|(?:^|[/_])tests?\.rs$")


def cargo(text: str) -> Found:
    """Reads the output of cargo test: a summary for each program."""
    results = list(_CARGO.finditer(text))
    if not results:
        return None
    places = {match[1]: match for match in _CARGO_PANIC.finditer(text)}
    failures = []
    for match in _CARGO_FAILED.finditer(text):
        panic = places.get(match[1])
        file, line, message = (panic[2], int(panic[3]), panic[4]) if panic else ("", 0, "")
        reached = line if _RUST_TEST.search(file) else 0  # else what it calls panicked
        failures.append(Failure(f"{match[1]}{match[2] or ''}", file, line, message, reached, file))
    passed, failed, skipped = (sum(int(result[i]) for result in results) for i in (1, 2, 3))
    counts = OutputCounts("cargo test", passed, failed, 0, skipped, tuple(failures))
    return results[-1].end(), counts


_GTEST = re.compile(
    r"^\[==========\] (?P<total>\d+) tests? from \d+ test (?:suite|case)s? ran\.[^\n]*\n"
    r"\[  PASSED  \] (?P<passed>\d+) tests?\.$(?:\n\[  SKIPPED \] (?P<skipped>\d+) tests?)?",
    re.MULTILINE,
)
_GTEST_LINE = re.compile(
    r"^(?P<file>[^\n:]{1,500}):(?P<line>\d{1,9}): Failure\n(?P<message>[^\n]*)$"
    r"|^\[  FAILED  \] (?P<failed>[^\s,]+)(?:, where [^\n]*)? \(\d+ ms\)$|^\[ RUN      \]",
    re.MULTILINE,
)


def gtest(text: str) -> Found:
    """Reads the output of GoogleTest, in which the lines of a failure stand before its test."""
    if not (summary := last(_GTEST, text)):
        return None
    failures, first = [], None
    for match in _GTEST_LINE.finditer(text):
        if match["file"]:
            first = first or match
            continue
        if match["failed"]:
            file, line, said = first.group("file", "line", "message") if first else ("", "0", "")
            failures.append(Failure(match["failed"], file, int(line), said, int(line), file))
        first = None
    passed, skipped = int(summary["passed"]), int(summary["skipped"] or 0)
    failed = max(0, int(summary["total"]) - passed - skipped)
    return summary.end(), OutputCounts("gtest", passed, failed, 0, skipped, tuple(failures))


_TAP = re.compile(
    r"^(?P<indent> {0,64})(?P<bad>not )?ok (?P<number>\d+)"
    r"(?: -? ?(?P<name>[^\n#]*))?(?P<about>#[^\n]*)?$",
    re.MULTILINE,
)
_TAP_PLAN = re.compile(r"^ {0,64}1\.\.\d+|^TAP version \d+", re.MULTILINE)
_TAP_PLACE = re.compile(
    r"in test file (?P<file>[^\n,]{1,500}), line (?P<line>\d+)"
    r"|^ +location: '(?P<at>[^\n']{1,500}?):(?P<at_line>\d+):\d+'$",
    re.MULTILINE,
)
_TAP_CALL = re.compile(  # node's stack
    r"^ {2,64}(?:[^\n(]{0,300} \()?(?:file://)?(?P<file>[^\s():']{1,500}):(?P<line>\d+):\d+\)?$",
    re.MULTILINE,
)
_TAP_SAID = re.compile(r"^ +error: (?:\|-\n +([^\n]+)|'([^\n]*)'$)|^#   (`[^\n]*)$", re.MULTILINE)


def tap(text: str) -> Found:
    """Reads the Test Anything Protocol. Of a test with subtests, which stand before it and are
    indented, only the subtests count; the test itself counts if it fails and none of them does."""
    if not _TAP_PLAN.search(text):
        return None
    leaves: list[tuple[int, Failure, str]] = []  # indent, test, how it ended
    end = 0
    for line, part in sections(_TAP, text):
        indent, end = len(line["indent"]), line.end()
        is_skip = re.match(r"# *(?:skip|todo)", line["about"] or "", re.IGNORECASE)
        how = "skipped" if is_skip else "failed" if line["bad"] else "passed"
        name = (line["name"] or "").strip() or f"test {line['number']}"
        at, fails = len(leaves), False
        while at and leaves[at - 1][0] > indent:
            at -= 1
            _, inner, its = leaves[at]
            fails = fails or its == "failed"
            leaves[at] = (indent, replace(inner, name=f"{name} > {inner.name}"), its)
        if at == len(leaves) or (how == "failed" and not fails):
            place, said = _TAP_PLACE.search(part), _TAP_SAID.search(part)
            file, number = (place["file"] or place["at"], place["line"] or place["at_line"]) if (
                place) else ("", "0")  # fmt: skip
            message = next(filter(None, said.groups()), "") if said else ""
            calls = [call["line"] for call in _TAP_CALL.finditer(part) if call["file"] == file]
            reached = number if place and place["file"] else calls[-1] if calls else "0"
            test = Failure(name, file, int(number), message, int(reached), file)
            leaves.append((indent, test, how))
    if not leaves:
        return None
    n = Counter(how for *_, how in leaves)
    failures = tuple(test for _, test, how in leaves if how == "failed")
    return end, OutputCounts("TAP", n["passed"], n["failed"], 0, n["skipped"], failures)


_ERROR = re.compile(
    # mypy, pyright, gcc, clang, javac, tsc with colours; tsc; rustc; go
    r"^ {0,4}(?P<file>[^\s:()][^\n:()]{0,300}):(?P<line>\d+)(?::\d+){0,3}(?::| -) (?:fatal )?"
    r"error\b:?(?P<message>[^\n]*)$"
    r"|^(?P<ts_file>[^\s:()][^\n:()]{0,300})\((?P<ts_line>\d+),\d+\): error (?P<ts_message>[^\n]*)$"
    r"|^error(?:\[E\d+\])?: (?P<rs_message>[^\n]*)\n"
    r" +--> (?P<rs_file>[^\n:]{1,300}):(?P<rs_line>\d+):\d+$"
    r"|^(?P<go_file>[\w./-]{1,300}\.go):(?P<go_line>\d+):\d+: (?P<go_message>[^\n]*)$"
    # the linker; with -g it knows lines
    r"|^(?:[^\s:]{1,300}ld: )?(?P<ld_file>[^\s:()]{1,300}):(?:(?P<ld_line>\d+)|\([^)\n]{1,99}\)):"
    r" (?P<ld_message>undefined reference to [^\n]*)$",
    re.MULTILINE,
)


def errors(text: str) -> tuple[Failure, ...]:
    """The errors that compilers and type checkers print, each once. The name of an error does not
    contain its line, which changes with the lines above it."""
    failures = []
    names: Counter[str] = Counter()
    for match in {error[0]: error for error in _ERROR.finditer(text)}.values():
        said = {key.rpartition("_")[2]: value for key, value in match.groupdict().items() if value}
        file, message = said["file"], said.get("message", "").strip()
        name = f"{file}: {message}"
        names[name] += 1
        number = f" ({names[name]})" if names[name] > 1 else ""
        failures.append(Failure(f"{name}{number}", file, int(said.get("line", 0)), message))
    return tuple(failures)
