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
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from tgr_local.code import syntax
from tgr_local.code.edits import Document
from tgr_local.system.python_source import syntax_tree

MAX_CHARACTERS = 1 << 19
"""Of a file with an outline."""
_SIGNATURE, _SUMMARY = 160, 100  # characters
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A class or a function of a file."""

    name: str
    """With the names of the classes around it: ``Stack.push``."""
    kind: Literal["class", "function"]
    first: int
    """Its first line, counted from 1; decorators belong to it."""
    last: int
    """Its last line."""
    signature: str
    """In one line: ``def push(self, item: int) -> None``."""
    summary: str
    """The first line of its docstring or of the comment before it; empty without one."""
    depth: int = 0
    """The number of classes around it."""
    exact: bool = True
    """Whether its lines are known; not where it has a syntax error."""


@dataclass(frozen=True)
class Outline:
    """What a file defines."""

    definitions: tuple[Definition, ...]
    """In the order of their first lines."""
    problem: str = ""
    """Why there is no outline; empty where there is one."""

    @property
    def functions(self) -> tuple[Definition, ...]:
        """Those that an edit can name: their names are unique in the file."""
        n_named = Counter(one.name for one in self.definitions)
        every = (one for one in self.definitions if one.kind == "function" and one.exact)
        return tuple(one for one in every if n_named[one.name] == 1)


@functools.lru_cache(maxsize=4096)
def outline(document: Document) -> Outline:
    """The outline of a document; without definitions where it has none or cannot be read."""
    if len(document.text) > MAX_CHARACTERS:
        return Outline((), f"longer than {MAX_CHARACTERS:,} characters")
    language = syntax.language(document.path)
    if language == "python":
        try:
            return Outline(tuple(_python(document.text)))
        except SyntaxError:
            pass  # tree-sitter reads what is whole of it
    if not language:
        ending = PurePosixPath(document.path).suffix or PurePosixPath(document.path).name
        return Outline((), f"no outline of {ending} files")
    if problem := syntax.problem():
        reason = "has a syntax error" if language == "python" else f"is {language}"
        return Outline((), f"{reason}; {problem}")
    found = (
        Definition(
            one.name, one.kind, one.first, one.last,
            _cut(one.signature, _SIGNATURE), _cut(one.summary, _SUMMARY), one.depth,
            one.exact and language != "python",
        )
        for one in syntax.definitions(document.text, language)
    )  # fmt: skip
    return Outline(tuple(found))


def outline_text(definitions: Sequence[Definition]) -> str:
    """A line for each definition, indented by its depth."""
    return "\n".join(line(one) for one in definitions)


def line(one: Definition) -> str:
    """``    def push(self, item)  # Adds an item.``"""
    summary = f"  # {one.summary}" if one.summary else ""
    return "    " * one.depth + one.signature + summary


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


# ---- Python ----


def _python(text: str) -> Iterator[Definition]:
    yield from _of_body(syntax_tree(text).body, "")


def _of_body(body: Sequence[ast.stmt], within: str) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            yield _definition(node, within)
        if isinstance(node, ast.ClassDef):
            yield from _of_body(node.body, f"{within}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            parts = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
            for part in parts:
                yield from _of_body(part, within)
            for handler in getattr(node, "handlers", []):
                yield from _of_body(handler.body, within)


def _definition(node: _Function | ast.ClassDef, within: str) -> Definition:
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    kind: Literal["class", "function"] = "class"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(one) for one in (*node.bases, *node.keywords))
        signature = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        kind = "function"
        word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{word} {node.name}({ast.unparse(node.args)}){returns}"
    docstring = (ast.get_docstring(node) or "").partition("\n")[0]
    return Definition(
        within + node.name, kind, first, node.end_lineno or first,
        _cut(signature, _SIGNATURE), _cut(docstring, _SUMMARY), within.count("."),
    )  # fmt: skip
