"""Names that tests use and the modules of the project lack.

In: texts of tests and of modules. Out: each module with the names that it lacks. A failing import
reports only the first missing name, so all names are read from the code. Nothing is run.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from tgr_local.code.edits import FileText, syntax
from tgr_local.code.reading.evidence import Paths
from tgr_local.system.python_source import syntax_tree

Lacking = tuple[tuple[str, str], ...]
"""Pairs of a module's path and a name that it does not have, each once."""
_Read = Callable[[str], FileText | None]
_Names = Callable[[str], frozenset[str]]
_ALL = "*"  # among the names of a module: it may have any
_MOST_TOLD = 40  # names in a prompt
_DEEPEST = 8  # parts of a module's name
_DYNAMIC = ("globals", "vars", "exec", "modules", "__getattr__")  # such a module may have any name
_ABSENT_WITHIN = {"raises", "assertRaises", "assertRaisesRegex", "suppress"}
_JS_IMPORT = re.compile(
    r"^[ \t]*import\s*\{([^{}]*)\}\s*from\s*[\"']([^\"'\n]{1,500})[\"']", re.MULTILINE
)
_JS_EXPORT = re.compile(
    r"\bexport\s+(?:default\s+)?(?:declare\s+)?(?:async\s+)?(?:abstract\s+)?"
    r"(?:function(?:\s*\*\s*|\s+)|(?:class|(?:const\s+)?enum|interface|type|namespace)\s+)([\w$]+)"
)
_JS_VALUES = re.compile(
    r"\bexport\s+(?:declare\s+)?(?:const|let|var)\s((?:[^\n;]*,[ \t]*\n)*[^\n;]*)"
)
_JS_LIST = re.compile(r"\bexport\s*(?:type\s*)?\{([^{}]*)\}")
_JS_ALL = re.compile(
    r"\bexport\s*(?:\*|=|import\b)|\bexport\s+(?:const|let|var)\s*[\[{]|\bexports\b"
)
_JS_DEFAULT = re.compile(r"\bexport\s+default\b")
_JS_WORD = re.compile(r"[\w$]+")
_SCRIPTS = ("javascript", "typescript", "tsx")


def lacking(tests: Sequence[FileText], read: _Read, paths: Paths, new: Sequence[str]) -> Lacking:
    """The names that these tests import from modules of the project, or use as their attributes,
    and that the modules lack. `new` are the paths of modules that are not there yet."""
    names_of_module: dict[str, frozenset[str]] = {}

    def names(path: str) -> frozenset[str]:
        if path not in names_of_module:  # a file that is not text may have any name
            names_of_module[path] = frozenset([] if path in new else [_ALL])
            if (document := read(path)) is not None:
                names_of_module[path] = _names_of(document)
        return names_of_module[path]

    wanted_names: list[tuple[str, str]] = []
    for test in tests:
        language = syntax.language(test.path)
        if language == "python":
            wanted_names += _python_uses(
                test.text, lambda parts: _python_module(parts, paths, new), names
            )
        elif language in _SCRIPTS:
            wanted_names += _script_uses(test, paths, new)
    return tuple(
        (path, name) for path, name in dict.fromkeys(wanted_names)
        if name not in names(path) and _ALL not in names(path)
    )  # fmt: skip


def sentence(lacks: Lacking) -> str:
    """The names that each module lacks, in words; empty where none does."""
    by_path: dict[str, list[str]] = {}
    for path, name in lacks[:_MOST_TOLD]:
        by_path.setdefault(path, []).append(f"`{name}`")
    lines = []
    for path, names in by_path.items():
        listed = " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
        lines.append(f"The tests need {listed} in `{path}`.\n")
    return "".join(lines)


def _names_of(document: FileText) -> frozenset[str]:
    """The names at the top of a module, and perhaps more."""
    text = document.text
    if syntax.language(document.path) == "python":
        try:
            return frozenset(_python_names(syntax_tree(text)))
        except SyntaxError:
            return frozenset([_ALL])
    lists = [match[1] for match in _JS_LIST.finditer(text)]
    if _JS_ALL.search(text) or any("/*" in listed for listed in lists):
        return frozenset([_ALL])
    names = {name for listed in lists for name in _parts(listed, last=True)}
    names.update(_JS_EXPORT.findall(text), ["default"] if _JS_DEFAULT.search(text) else [])
    return frozenset(names.union(*(_JS_WORD.findall(line) for line in _JS_VALUES.findall(text))))


def _python_names(tree: ast.Module) -> Iterator[str]:
    below: list[ast.AST] = [tree]
    while below:
        node = below.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        yield from _bound(node)
        below += ast.iter_child_nodes(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        name = node.id if isinstance(node, ast.Name) else ""
        name = node.attr if isinstance(node, ast.Attribute) else name
        bound = [*_bound(node), getattr(node, "name", None), name]
        if any(word in bound for word in _DYNAMIC):
            yield _ALL


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a node binds by itself."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _python_uses(
    text: str, find: Callable[[Sequence[str]], str], names: _Names
) -> Iterator[tuple[str, str]]:
    """The modules and names that a test imports or uses. `find` gives the path of a module."""
    try:
        nodes = list(_needed(syntax_tree(text)))
    except SyntaxError:
        return
    modules: dict[str, str] = {}  # names of the test that are modules, and their paths
    others: set[str] = set()  # names of the test that may be something else
    for node in nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                bound, path = name.asname or name.name, find(name.name.split("."))
                if modules.setdefault(bound, path) != path:
                    others.add(bound)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module and not node.level else []
            package = find(parts) if parts else ""
            for name in node.names:
                inner = find([*parts, name.name]) if parts else ""
                if inner and package and {name.name, _ALL} & names(package):
                    inner = ""  # what the package has under that name need not be the module
                bound = name.asname or name.name
                if modules.setdefault(bound, inner) != inner:
                    others.add(bound)
                if package and not inner and not name.name.startswith("__") and name.name != "*":
                    yield package, name.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            others.add(node.name)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
        else:
            others.update(_bound(node) if not isinstance(node, ast.alias) else ())
    uses = [
        (path, node) for node in nodes if isinstance(node, ast.Attribute)
        if (said := _dotted(node.value)) and said.partition(".")[0] not in others
        if (path := modules.get(said, ""))
    ]  # fmt: skip
    given = {(path, node.attr) for path, node in uses if not isinstance(node.ctx, ast.Load)}
    for path, node in uses:
        folder = path.removesuffix("__init__.py") if path.endswith("__init__.py") else ""
        if node.attr.startswith("__") or (path, node.attr) in given:
            continue
        if not (folder and find([*folder.split("/")[:-1], node.attr])):
            yield path, node.attr


def _needed(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a test, without code in `try` and code for type checkers."""
    below: list[ast.AST] = [tree]
    while below:
        node = below.pop()
        yield node
        inner = list(ast.iter_child_nodes(node))
        if (
            (isinstance(node, ast.Try) and node.handlers)
            or (
                isinstance(node, ast.With)
                and _ABSENT_WITHIN & _words(i.context_expr for i in node.items)
            )
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in _words([node.test]))
        ):
            skipped = node.body
        else:
            skipped = []
        ids = set(map(id, skipped))
        below += [child for child in reversed(inner) if id(child) not in ids]


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    inner = [part for node in nodes for part in ast.walk(node)]
    return {part.id for part in inner if isinstance(part, ast.Name)} | {
        part.attr for part in inner if isinstance(part, ast.Attribute)
    }


def _dotted(node: ast.expr) -> str:
    """A name with its attributes as a text; empty for other expressions, and for longer names than
    a module has."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _python_module(parts: Sequence[str], paths: Paths, new: Sequence[str]) -> str:
    """The path of a module of the project; empty where it is another one."""
    name = "/".join(parts)
    for path in (f"{name}.py", f"{name}/__init__.py"):
        if exact := paths.exact(path):
            return exact
        known = "" if parts[0] in sys.stdlib_module_names else paths.resolve(path)
        if known.endswith(f"/{path}") and not paths.exact(f"{known.removesuffix(path)}__init__.py"):
            return known
    return next((path for path in new if f"/{path}".endswith(f"/{name}.py")), "")


def _script_uses(test: FileText, paths: Paths, new: Sequence[str]) -> Iterator[tuple[str, str]]:
    for match in _JS_IMPORT.finditer(test.text):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(test.path), match[2]))
        path = paths.exact(place) or (place if place in new else "")
        if match[2].startswith(".") and path and "/*" not in match[1]:
            yield from ((path, name) for name in _parts(match[1]))


def _parts(text: str, last: bool = False) -> list[str]:
    """The names of a list such as ``a, b as c``, those before or behind ``as``."""
    names = []
    for part in "\n".join(line.partition("//")[0] for line in text.split("\n")).split(","):
        words = part.split()
        if len(words) in (2, 4) and words[0] == "type":
            del words[0]
        if words and len(words) in (1, 3) and _JS_WORD.fullmatch(words[-1 if last else 0]):
            names.append(words[-1 if last else 0])
    return names
