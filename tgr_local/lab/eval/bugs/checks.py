"""Tests of a generated function, and what a version of it gives for them.

Only text that this package generates is executed here, in this process, with a limit on the lines
that it runs; a model's answer never is.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from dataclasses import dataclass
from itertools import islice
from types import FrameType, TracebackType
from typing import Any

from tgr_local.lab.eval.bugs.family import FamilyMember
from tgr_local.lab.eval.bugs.slots import arguments

MOST_LINES = 1500
"""Executed lines of one test; a defect can make a loop endless."""
MAY_NOT_END = re.compile(r"\bwhile\b|\.(?:append|insert|extend)\(")
ADDRESS = "0x7f3b5c1d2e90"
LONGEST = 60
"""Characters of a value in a test."""


@dataclass(frozen=True)
class Check:
    """One comparison: the setup lines run first, then `call` must equal `expected`."""

    setup: tuple[str, ...]
    call: str
    expected: str
    """The source of the value."""

    @property
    def statement(self) -> str:
        """The assert statement, in the form that people write."""
        if self.expected in ("True", "False"):
            return f"assert {'not ' * (self.expected == 'False')}{self.call}"
        return f"assert {self.call} {'is' if self.expected == 'None' else '=='} {self.expected}"


@dataclass(frozen=True)
class Result:
    """Result of a call: a value, or an exception."""

    value: Any = None
    error: str = ""
    """Type and message of the exception, empty without one."""
    line: int = 0
    """Line of the exception within the executed text, from 1."""
    columns: tuple[int, int] | None = None
    """Start and end of the expression that raised it, where Python (3.11 and later) marks it."""
    given: tuple[tuple[str, str], ...] = ()
    """Names and values of the arguments of the function that raised it."""
    depth: int = 0
    """Calls between the test and the line that raised it."""


class _Endless(BaseException):
    """The limit of executed lines was reached."""


def run(text: str, checks: list[Check]) -> list[Result] | None:
    """The results of `text` for each check; None where one does not end."""
    space: dict[str, Any] = {"__name__": "generated"}
    exec(compile(text, "<generated>", "exec"), space)
    is_bounded = not MAY_NOT_END.search(text) and not _recursive(text)
    results = []
    for check in checks:
        result = _one(dict(space), check, is_bounded=is_bounded)
        if result is None:
            return None
        results.append(result)
    return results


def _is_large(value: object) -> bool:
    """Whether a value grows without end, which would make each line slower than the one before."""
    if isinstance(value, int):
        return value.bit_length() > 256
    return isinstance(value, str | list) and len(value) > 1000


def _recursive(text: str) -> bool:
    """Whether a function at the top may call itself."""
    names = re.findall(r"^def (\w+)", text, re.MULTILINE)
    return any(text.count(f"{name}(") > 1 for name in names)


def _one(space: dict[str, Any], check: Check, *, is_bounded: bool) -> Result | None:
    n_left = MOST_LINES

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0 or (n_left % 8 == 0 and any(map(_is_large, frame.f_locals.values()))):
            raise _Endless
        return count

    old_trace = sys.gettrace()
    if not is_bounded:
        sys.settrace(count)
    try:
        for line in check.setup:
            exec(line, space)
        return Result(eval(check.call, space))
    except _Endless:
        return None
    except RecursionError:
        return None
    except Exception as error:
        sys.settrace(old_trace)
        return _failed_result(error)
    finally:
        sys.settrace(old_trace)


def _failed_result(error: Exception) -> Result:
    """The place of an exception in the generated text, with the arguments there."""
    at = error.__traceback__
    line, columns, depth = 0, None, 0
    arguments: tuple[tuple[str, str], ...] = ()
    while at is not None:
        frame = at.tb_frame
        if frame.f_code.co_filename == "<generated>":
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            line, columns, depth = at.tb_lineno, _columns(at), depth + 1
            arguments = tuple((name, _shown(frame.f_locals.get(name))) for name in names)
        at = at.tb_next
    message = str(error)
    return Result(
        None, f"{type(error).__name__}: {message}".rstrip(": "), line, columns, arguments, depth
    )


def _shown(value: object) -> str:
    """An argument as pytest shows it; an object's address is always the same."""
    return re.sub(r"\bat 0x[0-9a-f]+>", f"at {ADDRESS}>", repr(value))


def _columns(at: TracebackType) -> tuple[int, int] | None:
    """Start and end of the expression at which a frame stands, where it is in one line."""
    code = at.tb_frame.f_code
    if sys.version_info < (3, 11):
        return None
    first, last, start, end = next(islice(code.co_positions(), at.tb_lasti // 2, None))
    if start is None or end is None or first != last:
        return None
    return start, end


def passes(check: Check, result: Result) -> bool:
    """Whether a result is the expected one."""
    return not result.error and bool(result.value == ast.literal_eval(check.expected))


def draw(rng: random.Random, draft: FamilyMember, n: int) -> list[Check]:
    """Up to `n` different checks that the correct text passes."""
    checks: dict[tuple[tuple[str, ...], str], Check] = {}
    for _ in range(3 * n):
        setup, call = _draw_script(rng, draft) if draft.family.asks else _draw_call(rng, draft)
        if (setup, call) in checks or len(call) > LONGEST:
            continue
        results = run(draft.text, [Check(setup, call, "")])
        if results is None or results[0].error:
            continue
        expected = repr(results[0].value)
        if len(expected) <= LONGEST:
            checks[setup, call] = Check(setup, call, expected)
        if len(checks) == n:
            break
    return list(checks.values())


def _draw_call(rng: random.Random, draft: FamilyMember) -> tuple[tuple[str, ...], str]:
    return (), f"{draft.name}({', '.join(arguments(rng, draft.family.arguments))})"


def _draw_script(rng: random.Random, draft: FamilyMember) -> tuple[tuple[str, ...], str]:
    """Setup lines and a last call for a class; methods that it lacks are not called."""
    family, name = draft.family, draft.name.lower()

    def has(method: str) -> bool:
        word = method.split()[0]
        return word.startswith("=") or f"def {word}(" in draft.text

    def call(method: str) -> str:
        word, _, kinds = method.partition(" ")
        if word.startswith("="):
            return f"{name}.{word[1:]}"
        return f"{name}.{word}({', '.join(arguments(rng, kinds))})"

    changes = [method for method in family.changes if has(method)]
    lines = [f"{name} = {draft.name}({', '.join(arguments(rng, family.arguments))})"]
    if changes:
        lines += [call(rng.choice(changes)) for _ in range(rng.randint(1, 3))]
    return tuple(lines), call(rng.choice([method for method in family.asks if has(method)]))
