"""Reads outputs whose form is no table: of go test, cargo test, GoogleTest and TAP, and the errors
of compilers, linkers and type checkers.

In: an output without colours. Out: counts and failures. Each takes a time that grows with the
length of the output, whatever the output is.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from tgr_local.code.edits.inner_tests import RUST_TEST_FILE
from tgr_local.code.judging.test_counts import Failure, Found, OutputCounts, last, sections

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
        reached = line if RUST_TEST_FILE.search(file) else 0  # else what it calls panicked
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
