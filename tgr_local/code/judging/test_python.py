"""Reads the outputs of pytest and unittest.

In: an output. Out: counts and failures, with the line of the test that each one reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from tgr_local.code.judging.test_counts import Failure, Found, OutputCounts, last, sections

_PYTEST = re.compile(
    r"^(?:=+ )?((?:\d+ (?:subtests )?"
    r"(?:passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun)"
    r"(?:, )?)+|no tests ran) in [\d.]+s(?: \([\d:]+\))?(?: =+)?$",
    re.MULTILINE,
)
_PYTEST_LETTERS = re.compile(r"^([.FEsxXR]+) +\[ *\d+%\]$", re.MULTILINE)
_PYTEST_LIST = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_PYTEST_ERROR = re.compile(r"^ERROR \S", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S[^\n]*?)(?: - ([^\n]*))?$", re.MULTILINE)
_PYTEST_HEAD = re.compile(r"^_{3,} (?:ERROR (?:at \w+ of|collecting) )?(\S[^\n]*?) _{3,}$", re.M)
_PYTEST_PLACE = re.compile(r"^([^\s:>][^\n:]*\.py):(\d+): (?=\S|$)", re.MULTILINE)


def pytest_counts(text: str) -> Found:
    """Reads the output of pytest."""
    summary = last(_PYTEST, text)
    result = (summary.end(), _pytest_said(summary[1])) if summary else _pytest_quiet(text)
    if not result:
        return None
    end, counts = result
    parts = list(_pytest_sections(text))
    failures = []
    for match in _PYTEST_FAILED.finditer(text):
        file, _, test = match[1].partition("::")
        heads = (test.replace("::", "."), file)
        matching = [places for head, places in parts if head in heads]
        own_places = [places for places in matching if any(path == file for path, _ in places)]
        places = (own_places or matching or [[]])[0]
        line = places[-1][1] if places else 0
        reached = next((line for path, line in places if path == file), 0)
        failures.append(Failure(match[1], file, line, match[2] or "", reached, file))
    if not failures:
        failures = [Failure(head, *places[-1]) for head, places in parts]
    return end, replace(counts, failures=tuple(failures))


def _numbers(text: str, words: str) -> int:
    return sum(int(number) for number in re.findall(rf"(\d+) (?:subtests )?(?:{words})\b", text))


def _pytest_said(said: str) -> OutputCounts:
    return OutputCounts(
        "pytest", _numbers(said, "passed|xpassed"), _numbers(said, "failed"),
        _numbers(said, "errors?"), _numbers(said, "skipped|xfailed"),
    )  # fmt: skip


def _pytest_quiet(text: str) -> Found:
    """Reads an output without a summary: a letter for each test, and a list of those that failed or
    could not be run. pytest prints it when it is quiet twice, as by ``-q`` for a project whose
    settings have it too."""
    lines = list(_PYTEST_LETTERS.finditer(text))
    letters = "".join(line[1] for line in lines)
    listing = last(_PYTEST_LIST, text)
    if not lines and not listing:
        return None
    errors = letters.count("E")
    if listing and not lines:  # no test ran
        errors = len(_PYTEST_ERROR.findall(text, listing.end()))
    n = {letter: letters.count(letter) for letter in ".XFsx"}
    counts = OutputCounts("pytest", n["."] + n["X"], n["F"], errors, n["s"] + n["x"])
    return max(match.end() for match in (*lines, listing) if match), counts


def _pytest_sections(text: str) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yields the name in the head of each failure, and the files and lines below it; the last line
    is where it failed."""
    for head, part in sections(_PYTEST_HEAD, text):
        if places := [(match[1], int(match[2])) for match in _PYTEST_PLACE.finditer(part)]:
            yield head[1], places


# ---- unittest ----

_UNITTEST = re.compile(
    r"^Ran (\d+) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]*)\))?$", re.MULTILINE
)
_UNITTEST_HEAD = re.compile(r"^(?:FAIL|ERROR): (\S+)(?: \((\S+)\))?[^\n]*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+)(?:, in (\w+))?', re.MULTILINE)


def unittest_counts(text: str) -> Found:
    """Reads the output of unittest."""
    summary = last(_UNITTEST, text)
    if not summary:
        return None
    pairs = re.findall(r"([a-z ]{1,40})=(\d{1,9})", summary[3] or "")
    about = {key: int(number) for key, number in pairs}
    about = {key.strip(): number for key, number in about.items()}
    failed = about.get("failures", 0) + about.get("unexpected successes", 0)
    errors = about.get("errors", 0)
    skipped = about.get("skipped", 0) + about.get("expected failures", 0)
    failures = []
    for head, part in sections(_UNITTEST_HEAD, text[: summary.start()]):
        frames = list(_FRAME.finditer(part.rpartition("\nTraceback (most recent call last)")[2]))
        own_frames = [(frame[1], int(frame[2])) for frame in frames if frame[3] == head[1]]
        lines = [line for line in part.strip().splitlines() if line[:1] not in ("", " ", "-", "=")]
        name = head[2] or head[1]
        if not name.endswith(head[1]) and head[1] != name:
            name = f"{name}.{head[1]}"
        file, line = (frames[-1][1], int(frames[-1][2])) if frames else ("", 0)
        reached_in, reached = own_frames[0] if own_frames else ("", 0)
        said = lines[-1] if lines else ""
        failures.append(Failure(name, file, line, said, reached, reached_in))
    if n_ran := int(summary[1]):  # each subtest that fails is counted, of one test
        errors = min(errors, n_ran)
        failed = min(failed, n_ran - errors)
    passed = max(0, n_ran - failed - errors - skipped)
    return summary.end(), OutputCounts("unittest", passed, failed, errors, skipped, tuple(failures))
