"""Common code of the tasks that run the model's programs: extraction, sandbox, grade.

A program passes only if it prints a word, random in each run, after its tests; an early exit does
not pass.
"""

from __future__ import annotations

import ast
import re
import secrets
import textwrap
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tgr_local.lab.eval import programs
from tgr_local.lab.eval.programs import ProgramLimits
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.lab.eval.tasks.benchmark import NO_ANSWER, Benchmark, exact
from tgr_local.system.python_source import syntax_tree

BLOCK = re.compile(
    r"^((?:[ \t>]|(?:[-*+]|\d+[.)])[ \t])*)"  # indented, quoted, in a list
    r"(`{3,}(?!`)|~{3,}(?!~))[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t>]*\2|\Z)",
    re.M | re.S,
)
PYTHON = ("python", "py", "python3", "ipython", "ipython3")
FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
IMPORTED = """\
import sys as __sys
__name__ = '__test__'
__sys.modules[__name__] = __sys.modules['__main__']
"""
START = """\
def __run(code):
    import linecache, os
    word = os.read(0, 64)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    linecache.cache[__file__] = len(code), None, code.splitlines(True), __file__
    exec(compile(code, __file__, 'exec'), globals())
    os.write(1, b'\\n' + word + b'\\n')
__run({code!r})
"""
_MOST_CUTS = 200  # statements at the end of a cut program
SLACK = 10.0
"""Seconds that a grader waits beyond the time limit of a program."""


def blocks(text: str) -> list[str]:
    """The Python code blocks of a reply, or those without a language where none is marked as
    Python. The last one may be unfinished."""
    marked = [
        (language.lower(), moved(code, prefix)) for prefix, _, language, code in BLOCK.findall(text)
    ]
    python = [code for language, code in marked if language in PYTHON]
    return python or [code for language, code in marked if not language]


def moved(code: str, prefix: str) -> str:
    """The lines of a block without the prefix of its fence: quote marks or indentation."""
    if ">" in prefix:
        code = re.sub(r"^[ \t]*> ?", "", code, flags=re.MULTILINE)
        prefix = prefix.rpartition(">")[2][1:]
    return re.sub(rf"^[ \t]{{1,{len(prefix)}}}", "", code, flags=re.MULTILINE) if prefix else code


def defines(code: str, name: str) -> bool:
    """Whether code defines a function, class or variable of that name at its top."""
    return re.search(rf"^(?:(?:async )?def|class) +{re.escape(name)}\b|^{re.escape(name)} *=", code,
                     re.M) is not None  # fmt: skip


def program(text: str, name: str) -> str | None:
    """The code of a reply: the last block that defines `name`, else the last block, else the whole
    reply where it is Python itself. None where there is no code."""
    codes = blocks(text)
    if codes:
        flush = [textwrap.dedent(code) for code in codes]
        fitting = [code for code in (*flush, *codes) if name and defines(code, name)]
        return (fitting or flush)[-1]
    try:
        syntax_tree(text)
    except SyntaxError:
        return None
    return text if text.strip() else None


def definitions(code: str, name: str) -> str:
    """The code without what EvalPlus removes too: examples and checks at the top that the model
    adds, which may be wrong, and an end that a limit cut off. The whole code where it does not
    define `name`."""
    lines = code.split("\n")
    starts = [i for i, line in enumerate(lines) if line[:1].strip()][-_MOST_CUTS:]
    for end in [len(lines), *reversed(starts)]:
        text = "\n".join(lines[:end])
        if not defines(text, name):
            break
        try:
            tree = syntax_tree(text)
        except SyntaxError:
            continue
        parts = [node for node in tree.body if not _is_use(node)]
        return "\n\n".join(lines_at(code, span(node)) for node in parts) + "\n"
    return code


def _is_use(node: ast.stmt) -> bool:
    """Whether a statement at the top only uses what the program defines."""
    if isinstance(node, ast.If):
        return "__name__" in {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
    return isinstance(node, ast.Expr | ast.Assert | ast.For | ast.While | ast.With)


def span(node: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement, from 1, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or first


def lines_at(code: str, place: tuple[int, int]) -> str:
    """The lines of code at a `span`."""
    return "\n".join(code.split("\n")[place[0] - 1 : place[1]])


def as_program(code: str) -> str:
    """The code with its `from __future__` lines moved to the top, as Python requires."""
    futures = FUTURE.findall(code)
    return "\n".join([*futures, FUTURE.sub("", code)])


def as_module(code: str) -> str:
    """The code as an imported module: `if __name__ == "__main__"` is false."""
    return as_program(f"{IMPORTED}{code}")


def passes(code: str, tests: str, limits: ProgramLimits) -> Grade:
    """Whether `code` followed by `tests` runs to its end."""
    word = secrets.token_hex(16)
    module = as_module(f"{code}\n\n{tests}\n").encode(errors="replace").decode()
    outcome = programs.run(START.format(code=module), stdin=word, limits=limits)
    ended_well = word in outcome.stdout.split("\n")
    why = outcome.why or "ended before its tests did"
    return exact(ended_well, code.strip(), "" if ended_well else why)


@dataclass(frozen=True)
class CodeBenchmark(Benchmark):
    """A benchmark whose grading runs the model's program."""

    needs_exec: ClassVar[bool] = True
    limits: ClassVar[ProgramLimits] = ProgramLimits()

    def seconds(self, problem: Problem) -> float:
        return self.limits.seconds + SLACK

    def prepare(self) -> None:
        super().prepare()
        programs.check()

    def grade(self, problem: Problem, text: str) -> Grade:
        code = self.code(problem, text)
        return self.judged(problem, code) if code is not None else NO_ANSWER

    @abstractmethod
    def code(self, problem: Problem, text: str) -> str | None:
        """The program in a reply."""

    @abstractmethod
    def judged(self, problem: Problem, code: str) -> Grade:
        """The grade of a program."""
