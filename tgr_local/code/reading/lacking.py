"""Names that tests use and the modules of the project lack.

In: texts of tests and of modules. Out: each module with the names that it lacks. An import that
fails names the first one alone; so these are read from the code. Nothing is run.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence

from tgr_local.code.edits import FileText, syntax
from tgr_local.code.reading.evidence import Paths
from tgr_local.system.python_source import syntax_tree

Lacking = tuple[tuple[str, str], ...]
"""Pairs of a module's path and a name that it does not have, each once."""
_Read = Callable[[str], FileText | None]
_ALL = "*"  # among the names of a module: it may have any
_JS_IMPORT = re.compile(r"\bimport\s*\{([^{}]{0,2000})\}\s*from\s*[\"']([^\"'\n]{1,500})[\"']")
_JS_EXPORT = re.compile(
    r"^export\s+(?:default\s+)?(?:async\s+)?(?:abstract\s+)?"
    r"(?:function\s*\*?|class|const|let|var|enum|interface|type)\s+([\w$]+)",
    re.MULTILINE,
)
_JS_LIST = re.compile(r"^export\s*\{([^{}]{0,2000})\}", re.MULTILINE)
_JS_ALL = re.compile(r"^export\s*\*|\bexport\s+(?:const|let|var)\s*[\[{]", re.MULTILINE)
_SCRIPTS = ("javascript", "typescript", "tsx")


def lacking(tests: Sequence[FileText], read: _Read, paths: Paths, new: Sequence[str]) -> Lacking:
    """The names that these tests import from modules of the project, or use as their attributes,
    and that the modules lack. `new` are the paths of modules that are not there yet."""
    wanted: list[tuple[str, str]] = []
    for test in tests:
        language = syntax.language(test.path)
        if language == "python":
            wanted += _python_uses(test.text, lambda parts: _python_module(parts, paths, new))
        elif language in _SCRIPTS:
            wanted += _script_uses(test, paths, new)
    names: dict[str, frozenset[str]] = {}
    for path, _ in wanted:
        if path not in names:
            names[path] = _names_of(read(path))
    return tuple(
        (path, name) for path, name in dict.fromkeys(wanted)
        if name not in names[path] and _ALL not in names[path]
    )  # fmt: skip


def sentence(lacks: Lacking) -> str:
    """The names that each module lacks, in words; empty where none does."""
    by_path: dict[str, list[str]] = {}
    for path, name in lacks:
        by_path.setdefault(path, []).append(f"`{name}`")
    lines = []
    for path, names in by_path.items():
        listed = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
        lines.append(f"The tests need {listed} in `{path}`.\n")
    return "".join(lines)


def _names_of(document: FileText | None) -> frozenset[str]:
    """The names at the top of a module."""
    if document is None:
        return frozenset()
    if syntax.language(document.path) == "python":
        try:
            tree = syntax_tree(document.text)
        except (SyntaxError, RecursionError):
            return frozenset([_ALL])
        return frozenset(_python_names(tree.body))
    text = document.text
    if _JS_ALL.search(text):
        return frozenset([_ALL])
    listed = [_parts(match[1], last=True) for match in _JS_LIST.finditer(text)]
    return frozenset([*_JS_EXPORT.findall(text), *(name for some in listed for name in some)])


def _python_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield _ALL if node.name == "__getattr__" else node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name.asname or name.name).partition(".")[0] for name in node.names)
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id
                elif isinstance(inner, ast.alias):
                    yield (inner.asname or inner.name).partition(".")[0]
                elif isinstance(inner, ast.FunctionDef | ast.ClassDef):
                    yield inner.name


def _python_uses(text: str, find: Callable[[Sequence[str]], str]) -> Iterator[tuple[str, str]]:
    """The modules and names that a test imports or uses. `find` gives the path of a module."""
    try:
        tree = syntax_tree(text)
    except (SyntaxError, RecursionError):
        return
    modules: dict[str, str] = {}  # names of the test that are modules, and their paths
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if path := find(name.name.split(".")):
                    modules[name.asname or name.name] = path
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            parts = node.module.split(".")
            package = find(parts)
            for name in node.names:
                if inner := find([*parts, name.name]):
                    modules[name.asname or name.name] = inner
                elif package and name.name != "*":
                    yield package, name.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            path = modules.get(_dotted(node.value), "")
            if path and not node.attr.startswith("__"):
                folder = path.removesuffix("__init__.py") if path.endswith("__init__.py") else ""
                if not (folder and find([*folder.split("/")[:-1], node.attr])):
                    yield path, node.attr


def _dotted(node: ast.expr) -> str:
    """A name with its attributes as a text; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before and f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _python_module(parts: Sequence[str], paths: Paths, new: Sequence[str]) -> str:
    """The path of a module of the project; empty where it is another one."""
    name = "/".join(parts)
    for path in (f"{name}.py", f"{name}/__init__.py"):
        known = paths.exact(path) or paths.resolve(path)
        if known and f"/{known}".endswith(f"/{path}"):
            return known
    return next((path for path in new if f"/{path}".endswith(f"/{name}.py")), "")


def _script_uses(test: FileText, paths: Paths, new: Sequence[str]) -> Iterator[tuple[str, str]]:
    for match in _JS_IMPORT.finditer(test.text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(test.path), match[2]))
        path = paths.exact(place) or (place if place in new else "")
        if match[2].startswith(".") and path:
            yield from ((path, name) for name in _parts(match[1]))


def _parts(text: str, last: bool = False) -> list[str]:
    """The names of a list such as ``a, b as c``, those before or behind ``as``."""
    parts = [part.removeprefix("type ").split(" as ") for part in text.split(",") if part.strip()]
    return [names[-1 if last else 0].strip() for names in parts]
