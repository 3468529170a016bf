"""The format ``function``: a whole function or method, its decorators included.

    calc.py::Stack.push
    ```python
    the whole function
    ```

The new text is indented as the old one is. Functions that stand in each other are changed at most
once together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tgr_local.code.edits.document import FileText, Patch, lines_of, n_equal
from tgr_local.system.python_source import syntax_tree


class Function(NamedTuple):
    """A function or method of a file, its decorators included."""

    path: str
    name: str
    """Name of the function with its outer names: ``Stack.push``."""
    first: int
    """First line of the function, from 1."""
    last: int


def functions_of(document: FileText) -> list[Function]:
    """The functions and methods of a Python file, in the order of their lines; none where Python
    cannot parse it. A repeated name gets a number: ``size#2``."""
    if "\r" in document.text or "\f" in document.text:
        return []  # which Python counts as lines, or not, in its own way
    if (tree := parsed(document.text)) is None:
        return []
    functions: list[Function] = []
    times: dict[str, int] = {}
    for name, node in definitions_in(tree):
        times[name] = n = times.get(name, 0) + 1
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        full = name if n == 1 else f"{name}#{n}"
        functions.append(Function(document.path, full, first, node.end_lineno or first))
    return sorted(functions, key=lambda function: (function.first, -function.last))


def check_functions(functions: Sequence[Function], documents: Sequence[FileText]) -> list[Function]:
    """The functions that a caller names. Raises ValueError for one that its file does not have."""
    n_lines = {document.path: len(lines_of(document.text)) for document in documents}
    names: set[str] = set()
    for func in functions:
        if not 1 <= func.first <= func.last <= n_lines.get(func.path, 0):
            raise ValueError(
                f"the function {head(func)} has lines {func.first} to {func.last}, which are not "
                "in the open files"
            )
        if not func.name.isprintable() or func.name != func.name.strip() or not func.name:
            raise ValueError(f"the function {head(func)!r:.80} needs a name on one line")
        if head(func) in names:
            raise ValueError(f"the function {head(func)!r:.80} is there twice")
        names.add(head(func))
    return list(functions)


def head(function: Function) -> str:
    """The line that names it in an answer."""
    return f"{function.path}::{function.name}"


def in_place(new: str, old: Sequence[str]) -> list[str]:
    """The lines of a new function, indented like the `old` lines, without blank lines around
    them."""
    lines = lines_of(new)
    while lines and not lines[0].strip():
        del lines[0]
    while lines and not lines[-1].strip():
        del lines[-1]
    target = _indent(next((line for line in old if line.strip()), ""))
    if not lines or _indent(lines[0]) == target:
        return lines
    indentation = _indent(lines[0])
    in_strings = _lines_in_strings([_dedent(line, indentation) for line in lines])
    return [
        line if i in in_strings or not line.strip() else target + _dedent(line, indentation)
        for i, line in enumerate(lines)
    ]


def replacing(document: FileText, first: int, last: int, new: str) -> Patch:
    """The patch that puts a new function in the place of these lines, from 1."""
    replaced = range(first - 1, last)
    return replaced, in_place(new, lines_of(document.text)[replaced.start : replaced.stop])


def parsed(text: str) -> ast.Module | None:
    """The syntax tree of Python code; None of other text."""
    try:
        return syntax_tree(text)
    except SyntaxError:
        return None


def definitions_in(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions below a node, with their qualified names."""
    below: list[tuple[str, ast.AST]] = [("", tree)]
    while below:
        within, node = below.pop()
        for child in ast.iter_child_nodes(node):
            inside = within
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{within}{child.name}."
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield within + child.name, child
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                below.append((inside, child))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _dedent(line: str, indent: str) -> str:
    """A line without the part of the indentation that it has."""
    return line[n_equal(line, indent) :]


def _lines_in_strings(lines: Sequence[str]) -> set[int]:
    """Indices of the lines of Python that begin within a string, but not in a docstring: indenting
    them would change the string."""
    if (tree := parsed("\n".join(lines))) is None:
        return set()
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            is_text = isinstance(node, ast.JoinedStr) or isinstance(node.value, str | bytes)
            if is_text and node.end_lineno:
                inside |= set(range(node.lineno, node.end_lineno))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside -= set(range(node.lineno, node.end_lineno or node.lineno))
    return inside
