"""Output of test runners for a failing check: pytest's long form, unittest's, a bare assert's.

The texts are written here, not by the runners: a problem needs no pytest, and the same checks with
the same results give the same bytes. `tests/test_bugs.py` compares them with pytest itself.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.lab.eval.bugs.checks import ADDRESS, Check, Result, passes

WIDTH = 80


@dataclass(frozen=True)
class Test:
    """A test function: its checks in order, and what the program under test gave for each."""

    name: str
    checks: tuple[Check, ...]
    results: tuple[Result, ...]

    @property
    def failing(self) -> int | None:
        """Place of the first check that fails."""
        pairs = enumerate(zip(self.checks, self.results, strict=True))
        return next((i for i, (check, result) in pairs if not passes(check, result)), None)

    @property
    def lines(self) -> list[str]:
        """The body of the test function, a line each."""
        return [line for check in self.checks for line in (*check.setup, check.statement)]

    @property
    def source(self) -> str:
        """The test function."""
        return f"def {self.name}():\n" + "".join(f"    {line}\n" for line in self.lines)


def headed(title: str, letter: str) -> str:
    """A title in the middle of a line of letters."""
    side = letter * max((WIDTH - len(title) - 2) // 2, 1)
    line = f"{side} {title} {side}"
    return line + letter if len(line) < WIDTH else line


def explanation(check: Check, value: object, module: str) -> list[str]:
    """The lines in which pytest explains a comparison that failed."""
    want, actual = ast.literal_eval(check.expected), repr(value)
    method = "." in check.call
    called = (check.call.partition(".")[2] if method else check.call).replace('"', "'")
    where = [f" +  where {actual} = {called}"]
    if method:
        owner, name = check.call.split("(")[0].split(".", 1)
        kind = next(line for line in check.setup if line.startswith(f"{owner} = "))
        kind = kind.removeprefix(f"{owner} = ").split("(")[0]
        instance = f"<{module}.{kind} object at {ADDRESS}>"
        where = (
            [where[0], f" +    where {name} = {instance}.{name}"]
            if "(" in check.call
            else [f" +  where {actual} = {instance}.{name}"]
        )
    if check.expected == "True":
        return [f"assert {actual}", *where]
    if check.expected == "False":
        return [f"assert not {actual}", *where]
    if check.expected == "None":
        return [f"assert {actual} is None", *where]
    summary = f"assert {actual} == {check.expected}"
    details = _details(value, want)
    return [summary, "  ", *(f"  {line}" for line in details)] if details else [summary, *where]


def _details(left: object, right: object) -> list[str]:
    """The differences of two values of one kind."""
    if isinstance(left, str) and isinstance(right, str):
        return _of_texts(left, right)
    more = "Use -v to get more diff"
    if type(left) is type(right) and isinstance(left, list | tuple):
        assert isinstance(right, list | tuple)
        return [*_of_sequences(left, right), more]
    if isinstance(left, dict) and isinstance(right, dict):
        return [*_of_tables(left, right), more]
    both = isinstance(left, list | tuple | dict | set), isinstance(right, list | tuple | dict | set)
    return [more] if all(both) else []


def _of_texts(left: str, right: str) -> list[str]:
    if left.isspace() or right.isspace():
        left, right = repr(left), repr(right)
        said = ["Strings contain only whitespace, escaping them using repr()"]
    else:
        said = []
    lines = difflib.ndiff(right.splitlines(), left.splitlines())
    return [*said, *(line.strip("\n") for line in lines)]


def _of_sequences(left: Sequence[object], right: Sequence[object]) -> list[str]:
    said = []
    for i, (mine, theirs) in enumerate(zip(left, right, strict=False)):
        if mine != theirs:
            said.append(f"At index {i} diff: {mine!r} != {theirs!r}")
            break
    if len(left) != len(right):
        side, longer = ("Left", left) if len(left) > len(right) else ("Right", right)
        n, first = abs(len(left) - len(right)), longer[min(len(left), len(right))]
        text = f"{n} more items, first extra item" if n > 1 else "one more item"
        said.append(f"{side} contains {text}: {first!r}")
    return said


def _of_tables(left: dict[object, object], right: dict[object, object]) -> list[str]:
    same = [key for key in left if key in right and left[key] == right[key]]
    differing = [key for key in left if key in right and left[key] != right[key]]
    said = []
    if same:
        said.append(f"Omitting {len(same)} identical items, use -vv to show")
    if differing:
        said.append("Differing items:")
        said += [f"{{{key!r}: {left[key]!r}}} != {{{key!r}: {right[key]!r}}}" for key in differing]
    for side, mine, theirs in (("Left", left, right), ("Right", right, left)):
        extra = {key: mine[key] for key in mine if key not in theirs}
        if extra:
            items = "1 more item" if len(extra) == 1 else f"{len(extra)} more items"
            said += [f"{side} contains {items}:", repr(extra)]
    return said


def _message(lines: Sequence[str]) -> list[str]:
    """The lines with the name of the error, which pytest leaves out of simple ones."""
    text = "\n".join(lines)
    has_name = repr(text).startswith('"')
    return [f"AssertionError: {lines[0]}" if has_name else lines[0], *lines[1:]]


def pytest_failure(test: Test, module: str, text: str, test_path: str, first_line: int) -> str:
    """The section of a failing test: source, explanation, place. `first_line` is the line of the
    test in its file; `text` is the program under test, of `module`."""
    at = test.failing
    assert at is not None
    check, result = test.checks[at], test.results[at]
    n_before = sum(len(c.setup) + 1 for c in test.checks[:at]) + len(check.setup)
    line = first_line + n_before + 1
    source = [f"def {test.name}():", *(f"    {line}" for line in test.lines[:n_before])]
    out = [headed(test.name, "_"), "", *(f"    {row}" for row in source)]
    out.append(f">       {check.statement}")
    if not result.error:
        lines = explanation(check, result.value, module)
        out += [f"E       {row}" for row in _message(lines)]
        return "\n".join([*out, "", f"{test_path}:{line}: AssertionError"]) + "\n"
    if "(" in check.call:
        start = check.statement.index(check.call)
        out.append("    " + " " * (4 + start) + "^" * len(check.call))
    out += ["", f"{test_path}:{line}: ", "_ " * (WIDTH // 2), ""]
    kind = result.error.split(":")[0]
    place = f"{module}.py:{result.line}: {kind}"
    inside = [line.replace("<generated.", f"<{module}.") for line in _inside(result, text)]
    return "\n".join([*out, *inside, "", place]) + "\n"


def _inside(result: Result, text: str) -> list[str]:
    """The function that raised an exception, up to the line that did, with its arguments."""
    lines = text.split("\n")
    last = result.line - 1
    start = max((i for i in range(last + 1) if lines[i].lstrip().startswith("def ")), default=last)
    indent = len(lines[start]) - len(lines[start].lstrip())
    arguments = ", ".join(f"{name} = {value}" for name, value in result.given)
    out = [arguments, ""] if arguments else []
    out += [f"    {line[indent:]}" if line else "    " for line in lines[start:last]]
    code = lines[last][indent:]
    out.append(f">   {code}")
    if result.columns is not None:
        a, b = result.columns
        out.append("    " + " " * (a - indent) + "^" * (b - a))
    deep = " " * (len(code) - len(code.lstrip()))
    return [*out, *(f"E   {deep}{line}" for line in result.error.split("\n"))]


def pytest_output(
    tests: Sequence[Test], module: str, text: str, test_path: str, seconds: str = "0.02"
) -> str:
    """All that ``python -m pytest -q`` prints for a file with these tests."""
    dots = "".join("." if test.failing is None else "F" for test in tests)
    out = [f"{dots:<73}[100%]", headed("FAILURES", "=")]
    line, summaries = 4, []
    for test in tests:
        at = test.failing
        if at is not None:
            out.append(pytest_failure(test, module, text, test_path, line).rstrip("\n"))
            summaries.append(_summary(test, at, module, test_path))
        line += len(test.lines) + 3
    out += [headed("short test summary info", "="), *summaries]
    n_failed = len(summaries)
    passed = f", {len(tests) - n_failed} passed" if n_failed < len(tests) else ""
    return "\n".join([*out, f"{n_failed} failed{passed} in {seconds}s"]) + "\n"


def _summary(test: Test, at: int, module: str, test_path: str) -> str:
    result = test.results[at]
    said = result.error or _message(explanation(test.checks[at], result.value, module))[0]
    line = f"FAILED {test_path}::{test.name} - "
    said = said.split("\n")[0]
    room = WIDTH - len(line)
    return line + (said if len(said) <= room else said[: max(0, room - 3)] + "...")


def bare_output(test: Test, text: str, path: str, test_path: str, first_line: int) -> str:
    """Returns Python's output for a file of bare assert statements."""
    at = test.failing
    assert at is not None
    line = first_line + sum(len(c.setup) + 1 for c in test.checks[: at + 1]) - 1
    check, result = test.checks[at], test.results[at]
    out = ["Traceback (most recent call last):", f'  File "{test_path}", line {line}, in <module>']
    out.append(f"    {check.statement}")
    if not result.error:
        return "\n".join([*out, "AssertionError"]) + "\n"
    start = check.statement.index(check.call)
    out.append("    " + " " * start + "^" * len(check.call))
    lines = text.split("\n")
    names = [i for i in range(result.line) if lines[i].lstrip().startswith("def ")]
    name = lines[names[-1]].split("def ")[1].split("(")[0] if names else "<module>"
    out += [f'  File "{path}", line {result.line}, in {name}']
    out += [f"    {lines[result.line - 1].strip()}"]
    return "\n".join([*out, result.error]) + "\n"


def unittest_output(test: Test, module: str, test_path: str, first_line: int) -> str:
    """Returns unittest's output for a test case with one `assertEqual` for each check."""
    at = test.failing
    assert at is not None
    check, result = test.checks[at], test.results[at]
    word = "ERROR" if result.error else "FAIL"
    said = result.error or f"AssertionError: {result.value!r} != {check.expected}"
    line = first_line + sum(len(c.setup) + 1 for c in test.checks[: at + 1]) - 1
    kind = f"test_{module}.Tests.{test.name}"
    return (
        f"{word[0]}\n{'=' * 70}\n{word}: {test.name} ({kind})\n{'-' * 70}\n"
        "Traceback (most recent call last):\n"
        f'  File "{test_path}", line {line}, in {test.name}\n'
        f"    self.assertEqual({check.call}, {check.expected})\n{said}\n\n{'-' * 70}\n"
        f"Ran 1 test in 0.001s\n\nFAILED ({'errors' if result.error else 'failures'}=1)\n"
    )
