"""Imports that an edit of Python code needs and lacks, as editors add them.

In: a change, the documents that are open. Out: the change with the import statements for the names
that it uses and nothing defines: as another document imports them, or from Python's own library.
Small models change a function and forget the top of the file.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from types import ModuleType

from tgr_local.code.edits import Change, FileText
from tgr_local.code.edits.function import parsed

_WHOLE = (
    "abc", "base64", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools",
    "json", "logging", "math", "operator", "os", "pathlib", "random", "re", "shutil", "statistics",
    "string", "struct", "sys", "tempfile", "textwrap", "time", "typing", "uuid",
)  # fmt: skip
"""Modules of Python's library that do nothing when they are imported."""
_NAMES_OF = ("collections", "typing", "dataclasses", "functools", "itertools", "math", "datetime")
"""Modules whose names are imported alone: names that begin with a capital letter, and `_CALLED`
where they are called; the others are common names of something else."""
_CALLED = frozenset((
    "accumulate", "cache", "cached_property", "cast", "ceil", "chain", "cmp_to_key", "comb",
    "combinations", "dataclass", "defaultdict", "deque", "factorial", "field", "floor", "gcd",
    "groupby", "isclose", "islice", "lcm", "lru_cache", "namedtuple", "overload", "partial",
    "permutations", "reduce", "sqrt", "timedelta", "wraps", "zip_longest",
))  # fmt: skip
_ALWAYS = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__path__", "__spec__"}


def add_imports(changes: Sequence[Change], documents: Sequence[FileText]) -> tuple[Change, ...]:
    """The changes with the imports that they lack, as far as these are known."""
    return tuple(
        dataclasses.replace(change, after=_with_imports(change, documents))
        if change.path.endswith(".py") and change.after else change
        for change in changes
    )  # fmt: skip


def _with_imports(change: Change, documents: Sequence[FileText]) -> str:
    tree = parsed(change.after)
    old_tree = parsed(change.before)
    if tree is None or old_tree is None or _has_star(tree):
        return change.after
    lines = [
        line
        for name in sorted(_undefined_names(tree) - _undefined_names(old_tree))
        if (line := _statement(name, change.path, documents, tree))
    ]
    if not lines:
        return change.after
    return _insert_lines(change.after, tree, list(dict.fromkeys(lines)))


def _undefined_names(tree: ast.Module) -> set[str]:
    """Names that are read and that nothing in the file gives a value, in any scope."""
    read: set[str] = set()
    known = set(_ALWAYS)
    unread = _annotations(tree)
    for node in ast.walk(tree):
        if node in unread:
            continue
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else known).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
        elif isinstance(node, ast.alias):
            known.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            known.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            known.add(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            known.update(node.names)
    return read - known


def _annotations(tree: ast.Module) -> set[ast.AST]:
    """Returns the nodes that are not evaluated in a file that imports annotations from
    __future__."""
    if not any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body):
        return set()
    annotations: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(node.returns)
    return {below for a in annotations if a is not None for below in ast.walk(a)}


def _statement(name: str, path: str, documents: Sequence[FileText], tree: ast.Module) -> str:
    """The import of a name; empty where none is known, or several."""
    trees = (parsed(d.text) for d in documents if d.path != path and d.path[-3:] == ".py")
    imports = {line for t in trees if t is not None for line in _import_lines(t, name, path)}
    if imports:
        return imports.pop() if len(imports) == 1 else ""
    attributes = _attributes(tree, name)
    if name in _WHOLE and attributes:
        module = importlib.import_module(name)
        if name == "os" or all(_has(module, attribute) for attribute in attributes):
            return f"import {name}"
        inner = getattr(module, name, None)  # such as datetime.datetime
        return f"from {name} import {name}" if all(hasattr(inner, a) for a in attributes) else ""
    # a variable of some other meaning may have such a name
    if not name[0].isupper() and name not in _CALLED & _called_names(tree):
        return ""
    module_name = next((known for known in _NAMES_OF if name in _module_names(known)), "")
    return f"from {module_name} import {name}" if module_name else ""


def _import_lines(tree: ast.Module, name: str, path: str) -> Iterator[str]:
    """The statements at the top of a file that import a name, as they would import it alone in the
    file `path`. Relative ones mean something else in another folder."""
    module_name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) != name:
                    continue
                said = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
                module = alias.name if isinstance(node, ast.Import) else node.module or ""
                if f".{module_name}".endswith(f".{module}"):
                    continue  # the file itself
                if isinstance(node, ast.Import):
                    yield f"import {said}"
                elif not node.level and module != "__future__":
                    yield f"from {module} import {said}"


def _attributes(tree: ast.Module, name: str) -> set[str]:
    """The attributes of a name that are read, as of a module."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == name}


def _has(module: ModuleType, name: str) -> bool:
    """Whether a module has a name without another import."""
    return hasattr(module, name) and not isinstance(getattr(module, name), ModuleType)


def _called_names(tree: ast.Module) -> set[str]:
    """Names that are called, or that decorate."""
    expressions: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            expressions.append(node.func)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            expressions += node.decorator_list
    return {expression.id for expression in expressions if isinstance(expression, ast.Name)}


def _module_names(module: str) -> Collection[str]:
    imported = importlib.import_module(module)
    names = getattr(imported, "__all__", None) or vars(imported)
    return [name for name in names if name[0] != "_"]


def _has_star(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree))


def _insert_lines(text: str, tree: ast.Module, imports: list[str]) -> str:
    """The text with import statements behind the first ones at its top, else behind the docstring,
    else behind the first comments."""
    lines, body = text.split("\n"), tree.body
    has_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    first = takewhile(
        lambda node: isinstance(node, ast.Import | ast.ImportFrom), body[has_docstring:]
    )
    if ends := [node.end_lineno or 0 for node in first]:
        at, new = ends[-1], imports
    elif has_docstring:
        at, new = body[0].end_lineno or 0, ["", *imports]
    else:
        at = next((i for i, line in enumerate(lines) if line[:1] != "#"), 0)
        new = [*imports, *[""] * (2 - (not lines[at]))]
    return "\n".join([*lines[:at], *new, *lines[at:]])
