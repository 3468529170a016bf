"""The forms in which test programs print what failed, as a table.

In: an output without colours. Out: counts and failures. A form is a table of regular expressions,
taken from real outputs (`tests/test_code_formats.py` has them). Each takes a time that grows with
the length of the output, whatever the output is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tgr_local.code.judging.test_counts import Failure, Found, OutputCounts, sections

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
        "minitest",
        r"^\d+ (?:runs|tests), \d+ assertions, \d+ failures, \d+ errors, \d+ (?:skips|pendings)",
        failed=r"(\d+) failures", errors=r"(\d+) errors", skipped=r"(\d+) (?:skips|pendings)",
        total=r"(\d+) (?:runs|tests)",
        head=r"^ +\d{1,6}\) (?:Failure|Error):\n(?P<name>[^\s\[]+)"
        r"(?: \[(?P<file>[^\]\n:]+):(?P<line>\d+)\])?:$",
        below=(_FIRST_LINE,),
    ),
    Format(
        "unity",
        r"^\d+ Tests \d+ Failures \d+ Ignored ?$",
        failed=r"(\d+) Failures", skipped=r"(\d+) Ignored", total=r"(\d+) Tests",
        head=r"^(?P<file>[^\s:][^\n:]*):(?P<line>\d+):(?P<name>\w+):FAIL"
        r"(?:: ?(?P<message>[^\n]*))?$",
    ),
    Format(
        "check",
        r"^\d+%: Checks: \d+, Failures: \d+, Errors: \d+$",
        failed=r"Failures: (\d+)", errors=r"Errors: (\d+)", total=r"Checks: (\d+)",
        head=r"^(?P<file>[^\s:][^\n:]*):(?P<line>\d+):[FE]:[^\n:]*:(?P<name>\w+):\d+: "
        r"(?P<message>[^\n]*)$",
        adds=True,
    ),
    Format(
        "bats",  # in a terminal; else it prints TAP
        r"^\d+ tests?, \d+ failures?(?:, \d+ (?:skipped|not run))*$",
        failed=r"(\d+) failure", skipped=r"(\d+) (?:skipped|not run)", total=r"(\d+) test",
        head=r"^ ✗ (?P<name>[^\n]*)$",
        below=(r"in test file (?P<file>[^\n,]+), line (?P<line>\d+)", r"^ +(?P<message>`[^\n]*)$"),
    ),
)  # fmt: skip
