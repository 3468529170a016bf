"""Reads the output of tests: how many passed and failed, and which failed where.

In: the end of an output and the exit code. Out: counts and failures, by pytest, unittest, go test,
cargo test, jest, vitest and TAP; of other programs only the exit code counts. It is text that a
candidate's code can print, so nobody may trust it more than the exit code, unless it counts
failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_TOO_LONG = re.compile(r"\d{1000,}")  # for a number that Python reads
_MOST_FAILURES = 50
_LONGEST = 300  # characters of a name or a message


@dataclass(frozen=True)
class Failure:
    """A test that failed, or a file whose tests could not be run."""

    name: str
    """Name of the test in the framework, such as ``tests/test_a.py::test_b``."""
    file: str = ""
    """File as the output names it; empty if it does not."""
    line: int = 0
    """Line, from 1; 0 if the output names none."""
    message: str = ""
    """One line."""
    reached: int = 0
    """The line of the test itself at which it stopped, from 1; 0 where the output names none."""
    reached_in: str = ""
    """The file of that line, as the output names it."""


@dataclass(frozen=True)
class OutputCounts:
    """The tests of one output."""

    framework: str = ""
    """Empty for an output of an unknown form: the counts are 0."""
    passed: int = 0
    failed: int = 0
    errors: int = 0
    """Tests or files that could not be run."""
    skipped: int = 0
    failures: tuple[Failure, ...] = ()

    @property
    def total(self) -> int:
        """The tests that ran or should have."""
        return self.passed + self.failed + self.errors


def read(output: str) -> OutputCounts:
    """The counts of an output; of several frameworks, those of the last summary."""
    text = _TOO_LONG.sub("…", plain(output))
    summaries = [summary for reader in _READERS if (summary := reader(text))]
    if not summaries:
        return OutputCounts()
    counts = max(summaries, key=lambda summary: summary[0])[1]
    return replace(counts, failures=tuple(_each_once(counts.failures))[:_MOST_FAILURES])


def plain(output: str) -> str:
    """An output without colours, and of lines that were written over, the last version."""
    lines = _ESCAPES.sub("", output).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _each_once(failures: tuple[Failure, ...]) -> Iterator[Failure]:
    names = set()
    for failure in failures:
        if failure.name not in names:
            names.add(failure.name)
            yield replace(failure, name=failure.name[:_LONGEST], message=failure.message[:_LONGEST])


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007
        pass
    return match


def _parts(head: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each head with the text up to the next one."""
    heads = list(head.finditer(text))
    ends = [match.start() for match in heads[1:]] + [len(text)]
    for match, end in zip(heads, ends, strict=False):
        yield match, text[match.end() : end]


def _numbers(text: str, words: str) -> int:
    return sum(int(number) for number in re.findall(rf"(\d+) (?:subtests )?(?:{words})\b", text))


# ---- pytest ----

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


def _pytest(text: str) -> tuple[int, OutputCounts] | None:
    summary = _last(_PYTEST, text)
    result = (summary.end(), _pytest_said(summary[1])) if summary else _pytest_quiet(text)
    if not result:
        return None
    end, counts = result
    sections = list(_pytest_sections(text))
    failures = []
    for match in _PYTEST_FAILED.finditer(text):
        file, _, test = match[1].partition("::")
        heads = (test.replace("::", "."), file)
        matching = [places for head, places in sections if head in heads]
        own = [places for places in matching if any(path == file for path, _ in places)]
        places = (own or matching or [[]])[0]
        line = places[-1][1] if places else 0
        reached = next((line for path, line in places if path == file), 0)
        failures.append(Failure(match[1], file, line, match[2] or "", reached, file))
    if not failures:
        failures = [Failure(head, *places[-1]) for head, places in sections]
    return end, replace(counts, failures=tuple(failures))


def _pytest_said(said: str) -> OutputCounts:
    return OutputCounts(
        "pytest", _numbers(said, "passed|xpassed"), _numbers(said, "failed"),
        _numbers(said, "errors?"), _numbers(said, "skipped|xfailed"),
    )  # fmt: skip


def _pytest_quiet(text: str) -> tuple[int, OutputCounts] | None:
    """Reads an output without a summary: a letter for each test, and a list of those that failed or
    could not be run. pytest prints it when it is quiet twice, as by ``-q`` for a project whose
    settings have it too."""
    lines = list(_PYTEST_LETTERS.finditer(text))
    letters = "".join(line[1] for line in lines)
    listing = _last(_PYTEST_LIST, text)
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
    for head, part in _parts(_PYTEST_HEAD, text):
        if places := [(match[1], int(match[2])) for match in _PYTEST_PLACE.finditer(part)]:
            yield head[1], places


# ---- unittest ----

_UNITTEST = re.compile(
    r"^Ran (\d+) tests? in [\d.]+s\n+(OK|FAILED|NO TESTS RAN)(?: \(([^)\n]*)\))?$", re.MULTILINE
)
_UNITTEST_HEAD = re.compile(r"^(?:FAIL|ERROR): (\S+)(?: \((\S+)\))?[^\n]*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+)(?:, in (\w+))?', re.MULTILINE)


def _unittest(text: str) -> tuple[int, OutputCounts] | None:
    summary = _last(_UNITTEST, text)
    if not summary:
        return None
    pairs = re.findall(r"([a-z ]{1,40})=(\d{1,9})", summary[3] or "")
    about = {key: int(number) for key, number in pairs}
    about = {key.strip(): number for key, number in about.items()}
    failed = about.get("failures", 0) + about.get("unexpected successes", 0)
    errors = about.get("errors", 0)
    skipped = about.get("skipped", 0) + about.get("expected failures", 0)
    failures = []
    for head, part in _parts(_UNITTEST_HEAD, text[: summary.start()]):
        frames = list(_FRAME.finditer(part.rpartition("\nTraceback (most recent call last)")[2]))
        own = [(frame[1], int(frame[2])) for frame in frames if frame[3] == head[1]]
        lines = [line for line in part.strip().splitlines() if line[:1] not in ("", " ", "-", "=")]
        name = head[2] or head[1]
        if not name.endswith(head[1]) and head[1] != name:
            name = f"{name}.{head[1]}"
        file, line = (frames[-1][1], int(frames[-1][2])) if frames else ("", 0)
        reached_in, reached = own[0] if own else ("", 0)
        said = lines[-1] if lines else ""
        failures.append(Failure(name, file, line, said, reached, reached_in))
    if n_ran := int(summary[1]):  # each subtest that fails is counted, of one test
        errors = min(errors, n_ran)
        failed = min(failed, n_ran - errors)
    passed = max(0, n_ran - failed - errors - skipped)
    return summary.end(), OutputCounts("unittest", passed, failed, errors, skipped, tuple(failures))


# ---- go, cargo, jest and vitest, TAP ----

_GO = re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (\S+) \([\d.]+s\)$", re.MULTILINE)
_GO_PACKAGE = re.compile(
    r"^(?:(ok)  ?\t|(FAIL)\t)(\S+)(?:\t| )(?:[\d.]+s|\(cached\)|\[[^\]\n]*\])[^\n]*$", re.MULTILINE
)
_GO_PLACE = re.compile(r"^[ \t]+([\w./-]+\.go):(\d+): ([^\n]*)$", re.MULTILINE)


def _go(text: str) -> tuple[int, OutputCounts] | None:
    """Counts tests of Go. Without -v a package that passes prints one line, which counts as one
    test."""
    packages = list(_GO_PACKAGE.finditer(text))
    if not packages:
        return None
    tests = list(_GO.finditer(text))
    n = {kind: sum(test[1] == kind for test in tests) for kind in ("PASS", "FAIL", "SKIP")}
    broken = [p for p in packages if p[2] and "[" in p[0].rpartition("\t")[2]]
    passed = n["PASS"] or sum(1 for package in packages if package[1])
    failures = []
    for test, part in _parts(_GO, text):
        if test[1] == "FAIL":
            place = _GO_PLACE.search(part)
            file, line, message = (place[1], int(place[2]), place[3]) if place else ("", 0, "")
            failures.append(Failure(test[2], file, line, message))
    failures += [Failure(package[3], message="does not build") for package in broken]
    counts = OutputCounts("go test", passed, n["FAIL"], len(broken), n["SKIP"], tuple(failures))
    return packages[-1].end(), counts


_CARGO = re.compile(
    r"^test result: (?:ok|FAILED)\. (\d+) passed; (\d+) failed; (\d+) ignored;", re.MULTILINE
)
_CARGO_FAILED = re.compile(r"^test (\S+)(?: - [^\n]*)? \.\.\. FAILED$", re.MULTILINE)
_CARGO_PANIC = re.compile(
    r"^thread '([^'\n]+)'[^\n]{0,99} panicked at ([^\n:]{1,500}):(\d+):\d+:\n([^\n]*)",
    re.MULTILINE,
)


def _cargo(text: str) -> tuple[int, OutputCounts] | None:
    results = list(_CARGO.finditer(text))
    if not results:
        return None
    places = {match[1]: match for match in _CARGO_PANIC.finditer(text)}
    failures = []
    for match in _CARGO_FAILED.finditer(text):
        panic = places.get(match[1])
        file, line, message = (panic[2], int(panic[3]), panic[4]) if panic else ("", 0, "")
        failures.append(Failure(match[1], file, line, message))
    passed, failed, skipped = (sum(int(result[i]) for result in results) for i in (1, 2, 3))
    return results[-1].end(), OutputCounts(
        "cargo test", passed, failed, 0, skipped, tuple(failures)
    )


_JEST = re.compile(r"^[ \t]*Tests:? +((?:\d+ (?:failed|passed|skipped|todo|pending)[,| ]*)+)", re.M)
_JEST_FAILED = re.compile(r"^[ \t]*(?:●|FAIL) +(\S[^\n]*? [›>] [^\n]*)$", re.MULTILINE)


def _jest(text: str) -> tuple[int, OutputCounts] | None:
    summary = _last(_JEST, text)
    if not summary:
        return None
    failures = tuple(Failure(" ".join(m[1].split())) for m in _JEST_FAILED.finditer(text))
    said = summary[1]
    passed, failed = _numbers(said, "passed"), _numbers(said, "failed")
    counts = OutputCounts(
        "jest", passed, failed, 0, _numbers(said, "skipped|todo|pending"), failures
    )
    return summary.end(), counts


_TAP = re.compile(r"^(not )?ok (\d+)(?: -? ?([^\n#]*))?(#[^\n]*)?$", re.MULTILINE)
_TAP_PLAN = re.compile(r"^1\.\.\d+|^TAP version \d+", re.MULTILINE)


def _tap(text: str) -> tuple[int, OutputCounts] | None:
    lines = list(_TAP.finditer(text)) if _TAP_PLAN.search(text) else []
    if not lines:
        return None
    skips = [bool(re.match(r"# *(skip|todo)", line[4] or "", re.IGNORECASE)) for line in lines]
    bad = [line for line, skip in zip(lines, skips, strict=True) if line[1] and not skip]
    failures = tuple(Failure((line[3] or "").strip() or f"test {line[2]}") for line in bad)
    passed = len(lines) - len(bad) - sum(skips)
    return lines[-1].end(), OutputCounts("TAP", passed, len(bad), 0, sum(skips), failures)


_READERS: tuple[Callable[[str], tuple[int, OutputCounts] | None], ...] = (
    _pytest, _unittest, _go, _cargo, _jest, _tap,
)  # fmt: skip
