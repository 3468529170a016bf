"""Common code of the tasks in which a file is repaired: the changed file, out of a reply.

A reply may have search-and-replace blocks, the whole function, the whole file, or code around them;
chat models mix these. What cannot be placed is not an answer.
"""

from __future__ import annotations

import ast
import re
import textwrap

from tgr_local.lab.eval.tasks.code import blocks, lines_at, program, span
from tgr_local.system.python_source import syntax_tree

SEARCH = re.compile(
    r"^<{5,9} SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} REPLACE[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def changed_file(text: str, file: str, name: str) -> str | None:
    """The file with the change of a reply; `name` is the function asked for, a method as
    ``Class.method``. None where the reply has none that applies."""
    exchanges = SEARCH.findall(text)
    if exchanges:
        return _replace(file, exchanges)
    codes = [textwrap.dedent(code) for code in blocks(text)]
    if not codes:
        solution = program(text, name.partition(".")[0])
        codes = [solution] if solution is not None else []
    own, _, method = name.partition(".")
    for code in reversed(codes):
        places = _places(code)
        if places is None:
            continue
        theirs = _places(file) or {}
        if own in places and set(theirs) <= set(places):
            return code.rstrip("\n") + "\n"
        for wanted in dict.fromkeys((name, own)):
            if wanted in places and wanted in theirs:
                return _exchange(file, theirs[wanted], lines_at(code, places[wanted]))
        if method and method in places and name in theirs:
            return _exchange(file, theirs[name], lines_at(code, places[method]))
    return None


def _replace(file: str, exchanges: list[tuple[str, str]]) -> str | None:
    for old, new in exchanges:
        at = f"\n{file}".find(f"\n{old}")
        if not old or at < 0:
            return None
        file = file[:at] + new + file[at + len(old) :]
    return file


def _places(code: str) -> dict[str, tuple[int, int]] | None:
    """First and last line, from 1, of every function and class at the top, and of methods. None
    where the code cannot be parsed."""
    try:
        body = syntax_tree(code).body
    except SyntaxError:
        return None
    places: dict[str, tuple[int, int]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            places[node.name] = span(node)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    places[f"{node.name}.{inner.name}"] = span(inner)
    return places


def _exchange(file: str, place: tuple[int, int], new: str) -> str:
    """The file with lines exchanged by a function, which gets the indentation of the old one."""
    lines = file.split("\n")
    old = lines[place[0] - 1]
    indent = old[: len(old) - len(old.lstrip())]
    lines[place[0] - 1 : place[1]] = textwrap.indent(textwrap.dedent(new), indent).split("\n")
    return "\n".join(lines)
