"""The outline of a file: its classes and functions, with signatures and first docstring lines.

In: a document. Out: its definitions with the lines that each takes, and their text. Python is read
by its own parser, and by tree-sitter where it has a syntax error; other languages are read by
tree-sitter, which the extra `code` installs. Neither runs anything of the file.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from tgr_local.code.edits import FileText, inner_tests, syntax
from tgr_local.code.edits.syntax import SIGNATURE, SUMMARY, Definition
from tgr_local.console.wrap import shortened
from tgr_local.system.python_source import syntax_tree

MAX_CHARACTERS = 1 << 19
"""Largest length of a file with an outline."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Outline:
    """Definitions of a file."""

    definitions: tuple[Definition, ...]
    """Definitions in the order of their first lines."""
    problem: str = ""
    """Reason why there is no outline; empty where there is one."""

    @property
    def functions(self) -> tuple[Definition, ...]:
        """Functions that an edit can name: their names are unique in the file."""
        n_named = Counter(d.name for d in self.definitions)
        functions = (d for d in self.definitions if d.kind == "function" and d.exact)
        return tuple(d for d in functions if n_named[d.name] == 1)


@functools.lru_cache(maxsize=4096)
def outline(document: FileText) -> Outline:
    """The outline of a document; without definitions where it has none or cannot be read."""
    if len(document.text) > MAX_CHARACTERS:
        return Outline((), f"longer than {MAX_CHARACTERS:,} characters")
    language = syntax.language(document.path)
    if language == "python":
        try:
            return Outline(tuple(_body_definitions(syntax_tree(document.text).body, "")))
        except SyntaxError:
            pass  # tree-sitter reads what is whole of it
    if not language:
        ending = PurePosixPath(document.path).suffix or PurePosixPath(document.path).name
        return Outline((), f"no outline of {ending} files")
    if problem := syntax.problem():
        reason = "has a syntax error" if language == "python" else f"is {language}"
        return Outline((), f"{reason}; {problem}")
    definitions = syntax.definitions(document.text, language)
    if language == "python":
        definitions = (replace(definition, exact=False) for definition in definitions)
    if tests := inner_tests.lines(document.path, document.text):
        definitions = (replace(d, is_test=d.is_test or d.first in tests) for d in definitions)
    return Outline(tuple(definitions))


def outline_text(definitions: Sequence[Definition]) -> str:
    """A line for each definition, indented by its depth."""
    return "\n".join(line(definition) for definition in definitions)


def line(definition: Definition) -> str:
    """``    def push(self, item)  # Adds an item.``"""
    summary = f"  # {definition.summary}" if definition.summary else ""
    return "    " * definition.depth + definition.signature + summary


# ---- Python ----


def _body_definitions(body: Sequence[ast.stmt], within: str) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            yield _definition(node, within)
        if isinstance(node, ast.ClassDef):
            yield from _body_definitions(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            parts = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
            for part in parts:
                yield from _body_definitions(part, within)
            for handler in getattr(node, "handlers", []):
                yield from _body_definitions(handler.body, within)


def _definition(node: _Function | ast.ClassDef, within: str) -> Definition:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    kind: Literal["class", "function"] = "class"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in (*node.bases, *node.keywords))
        signature = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        kind = "function"
        word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{word} {node.name}({ast.unparse(node.args)}){returns}"
    docstring = (ast.get_docstring(node) or "").partition("\n")[0]
    return Definition(
        within + node.name, kind, first, node.end_lineno or first,
        shortened(signature, SIGNATURE), shortened(docstring, SUMMARY), within.count("."),
    )  # fmt: skip
