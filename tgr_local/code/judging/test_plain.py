"""Reads the outputs of tests without a framework: lines for checks, and where a program stopped.

In: an output without colours. Out: counts and failures. A program such as a main of tests prints
what its author likes. Three habits are known: a line with PASS or FAIL for each check; a line with
a place for each check that fails; an assert that ends the program. doctest is among them, since it
prints only failures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tgr_local.code.judging.test_counts import Failure, OutputCounts, last

CHECKS, STOP = "checks", "stop"
"""The names of these forms in a verdict."""
_GOOD = r"PASS(?:ED)?|OK|✓|✔|✅"
_BAD = r"FAIL(?:ED|URE)?|NOT OK|✗|✘|✕|❌|×"
_GOOD_WORD, _BAD_WORD = r"[Oo]k|[Pp]ass(?:ed)?", r"[Nn]ot ok|[Ff]ail(?:ed|ure)?"
_NAME = r"(?!\(?\d)\S[^\n]*"  # no number of tests
_MARKED = re.compile(
    # "[PASS] name", "FAIL: name", "not ok - name"
    rf"^[ \t]{{0,20}}\[?[ ]?(?:(?P<good>{_GOOD})|(?P<bad>{_BAD}))[ ]?\]?"
    rf"(?:[ \t]{{0,20}}:[ \t]{{1,20}}|[ \t]{{1,20}}(?:-[ \t]{{1,20}})?)(?P<name>{_NAME})$"
    rf"|^[ \t]{{0,20}}(?:(?P<good_word>{_GOOD_WORD})|(?P<bad_word>{_BAD_WORD}))"
    rf"(?:[ \t]{{0,20}}:[ \t]{{1,20}}|[ \t]{{1,20}}-[ \t]{{1,20}})(?P<name_behind>{_NAME})$"
    # "name ... ok"
    rf"|^[ \t]{{0,20}}(?P<name_before>[^\s\d][^\n.:]{{0,200}})(?:[ ]?\.{{2,80}}|:)[ \t]{{0,20}}"
    rf"(?:(?P<good_end>{_GOOD}|{_GOOD_WORD})|(?P<bad_end>{_BAD}|{_BAD_WORD}))[ \t.!]{{0,20}}$",
    re.MULTILINE,
)
_PLACED = re.compile(
    r"^(?P<file>[^\s:()][^\n:()]{0,300}\.\w{1,8}):(?P<line>\d{1,9})(?::\d{1,9})?:? "
    r"(?!warning|note|remark)(?P<message>[^\n]*)$",
    re.MULTILINE,
)
_FAILS = re.compile(r"fail|assert|expect|mismatch|FAIL|Fail|Assert|Expect")
_DOCTEST = re.compile(
    r'^File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<name>\S+)\n'
    r"Failed example:\n +(?P<message>[^\n]*)$",
    re.MULTILINE,
)
_ASSERT = re.compile(
    # glibc; macOS; musl
    r"^(?:[^\n:]{1,300}: )?(?P<file>[^\s:][^\n:]{0,300}):(?P<line>\d{1,9}): [^\n]{0,500}?"
    r"(?P<said>Assertion `[^\n]*' failed)\.?$"
    r"|^(?P<mac_said>Assertion failed: [^\n]{1,500}), function [^\n]{1,300}, "
    r"file (?P<mac_file>[^\n,]{1,300}), line (?P<mac_line>\d{1,9})\.$"
    r"|^(?P<musl_said>Assertion failed: [^\n]{1,500}) \((?P<musl_file>[^\n:()]{1,300}): "
    r"[^\n]{1,300}: (?P<musl_line>\d{1,9})\)$",
    re.MULTILINE,
)
_PANIC = re.compile(
    r"^thread '(?:main|<unnamed>)'[^\n]{0,99} panicked at (?P<file>[^\n:]{1,500}):"
    r"(?P<line>\d{1,9}):\d{1,9}:\n(?P<said>[^\n]*)",
    re.MULTILINE,
)
_CALLS = {
    "python": re.compile(r'^  File "(?P<file>[^"\n<>]+)", line (?P<line>\d{1,9})', re.MULTILINE),
    "node": re.compile(
        r"^ {4}at (?:async )?(?:[^\n(]{0,300} \()?(?:file://)?(?P<file>[^\s():]{1,500}):"
        r"(?P<line>\d{1,9}):\d{1,9}\)?(?: \{)?$",
        re.MULTILINE,
    ),
    "java": re.compile(
        r"^\tat (?!java\.|jdk\.)[^\n(]{1,300}\((?P<file>[\w$]+\.\w{1,9}):(?P<line>\d{1,9})\)$",
        re.MULTILINE,
    ),
}
_SAID = {
    "python": re.compile(r"^(?P<said>[A-Za-z_][^\n]*)", re.MULTILINE),
    "node": re.compile(r"^(?P<said>\w{0,99}Error\b[^\n]*)$", re.MULTILINE),
    "java": re.compile(r'^Exception in thread "main" (?P<said>[^\n]*)$', re.MULTILINE),
}
_TRACEBACK, _NODE = "Traceback (most recent call last):\n", "\nNode.js v"
_MOST_CALLS = 200


def marked(text: str, code: int) -> OutputCounts | None:
    """The checks that have a line each; None without any. Where the exit code is 0, a line about a
    failure is no check: a program may print such a line for another reason. Where it is another and
    none fails, the program did not come to its end."""
    good, bad = 0, []
    for match in _MARKED.finditer(text):
        kinds = match.groupdict()
        if kinds["good"] or kinds["good_word"] or kinds["good_end"]:
            good += 1
            continue
        name = kinds["name"] or kinds["name_behind"] or kinds["name_before"] or ""
        name, _, message = name.partition(": ")
        bad.append((name.strip(), "", 0, message))
    if bool(bad) != bool(code) or not (good or bad):
        return None
    failures = tuple(_numbered(bad))
    return OutputCounts(CHECKS, good, len(bad), 0, 0, failures, only_failures=not good)


def unmarked(text: str) -> OutputCounts | None:
    """The checks that fail in an output that says nothing of the others; else the place at which a
    program stopped. None where there is neither."""
    checks = [
        (f"{m['name']}: {m['message']}", m["file"], int(m["line"]), m["message"])
        for m in _DOCTEST.finditer(text)
    ] or [
        (f"{m['file']}: {m['message']}", m["file"], int(m["line"]), m["message"])
        for m in _PLACED.finditer(text) if _FAILS.search(m["message"])
    ]  # fmt: skip
    if checks:
        failures = tuple(_numbered(checks))
        return OutputCounts(CHECKS, 0, len(failures), failures=failures, only_failures=True)
    for file, line, message in _stops(text):
        stop = Failure(file, file, line, message, line, file)
        return OutputCounts(STOP, errors=1, failures=(stop,), only_failures=True)
    return None


def _numbered(checks: Iterable[tuple[str, str, int, str]]) -> Iterator[Failure]:
    """Failures with different names: a name that is there twice gets a number."""
    names: Counter[str] = Counter()
    for name, file, line, message in checks:
        names[name] += 1
        number = f" ({names[name]})" if names[name] > 1 else ""
        yield Failure(f"{name}{number}", file, line, message)


def _stops(text: str) -> Iterator[tuple[str, int, str]]:
    """Yields where a program stopped: the file that it began in, the last line there, and why."""
    for pattern in (_ASSERT, _PANIC):
        if match := last(pattern, text):
            said = {k.rpartition("_")[2]: v for k, v in match.groupdict().items() if v}
            yield said["file"], int(said["line"]), said["said"].strip()
    if _TRACEBACK in text:
        part = text.rpartition(_TRACEBACK)[2]
        yield from _outermost(_calls("python", part), _SAID["python"].search(part))
    if _NODE in text and (error := last(_SAID["node"], text)):
        yield from _outermost(_calls("node", text[error.end() :])[::-1], error)
    if thrown := last(_SAID["java"], text):
        yield from _outermost(_calls("java", text[thrown.end() :])[::-1], thrown)


def _calls(kind: str, text: str) -> list[tuple[str, int]]:
    """The files and lines of the calls that led to an error, in the order of the output."""
    calls = zip(_CALLS[kind].finditer(text), range(_MOST_CALLS), strict=False)
    places = ((match["file"], int(match["line"])) for match, _ in calls)
    return [place for place in places if "/lib/python" not in place[0] and place[0] != "node"]


def _outermost(
    calls: Sequence[tuple[str, int]], error: re.Match[str] | None
) -> Iterator[tuple[str, int, str]]:
    """The file of the outermost call, and the last line there."""
    lines = [line for file, line in calls if file == calls[0][0]]
    if lines:
        yield calls[0][0], lines[-1], error["said"].strip() if error else ""
