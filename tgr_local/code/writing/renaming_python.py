"""Renames a name in a text of Python, and in prose about code.

In: a text, the old name and the new one. Out: the text after it. Names are tokens of Python's
tokenizer. The syntax tree tells which of them belong to other libraries, and which strings look up
the name.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence

from tgr_local.code.edits import FileText
from tgr_local.code.edits.function import parsed

_LOOKUPS = {
    "attrgetter", "delattr", "getattr", "hasattr", "methodcaller", "object", "setattr",
}  # fmt: skip
"""Functions that take the name of a member as a string; `object` is that of `mock.patch`."""
_COPIES = {"__init__", "cls", "replace"}
"""Functions that take the parameters of a class."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LIKE_CODE = re.compile(r"\w_\w|[a-z][A-Z]|\d|^_")
_LONGEST = 5000  # characters of a line; columns are counted in each
_HOLE = re.compile(r"\{[^{}]+\}")
_Place = tuple[int, int]
"""Line, from 1, and column in bytes."""


def in_prose(text: str, old: str, new: str) -> str:
    """Prose after a rename: whole words where the name looks like code, else only where it is
    quoted, called, or named as what it is."""
    word = re.escape(old)
    if _LIKE_CODE.search(old):
        return re.sub(rf"(?<![\w$]){word}(?![\w$])", lambda _: new, text)
    pattern = (
        rf"(?P<before>`(?:\w+\.)?|\b(?:function|method|class|constant|variable|parameter) +){word}"
        rf"(?![\w$])|(?<![\w$]){word}(?=\()"
    )
    return re.sub(pattern, lambda match: (match["before"] or "") + new, text)


def has(name: str, text: str) -> bool:
    """Whether a name is an identifier of a text."""
    return any(token.type == tokenize.NAME and token.string == name for token in _tokens(text))


def owners(name: str, documents: Iterable[FileText]) -> frozenset[str]:
    """The functions and classes of the project that have a parameter or a field of a name."""
    takers: set[str] = set()
    for document in documents:
        tree = parsed(document.text) if document.path.endswith((".py", ".pyi")) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, _FUNCTIONS) and name in _parameters(node):
                takers.add(node.name)
            elif isinstance(node, ast.ClassDef):
                inits = [part for part in node.body if isinstance(part, _FUNCTIONS)]
                fields = {
                    part.target.id for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                }  # fmt: skip
                if name in fields or any(
                    part.name in ("__init__", "__new__") and name in _parameters(part)
                    for part in inits
                ):
                    takers.add(node.name)
    return frozenset(takers | _COPIES) if takers else frozenset()


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    parts = node.args
    return {each.arg for each in (*parts.posonlyargs, *parts.args, *parts.kwonlyargs)}


def renamed(
    text: str, old: str, new: str, paths: Sequence[str], owners: frozenset[str]
) -> str | None:
    """A text of Python after a rename; None where it cannot be parsed, or imports the name from
    another library. A keyword argument is renamed where one of `owners` gets it."""
    lines = text.split("\n")
    if (tree := parsed(text)) is None or max(map(len, lines)) > _LONGEST:
        return None
    foreign, names = _foreign(tree, paths)
    if old in names:
        return None
    docstrings, lookups, keywords = set(_docstrings(tree)), set(_lookups(tree, old)), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) not in owners:
            keywords |= {(k.lineno, k.col_offset) for k in node.keywords if k.arg == old}
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    parts, at, before = [], 0, ["", ""]
    word = re.compile(rf"(?<![\w$]){re.escape(old)}(?![\w$])")
    for token in _tokens(text):
        (row, column), said, after = token.start, token.string, token.string
        if not said:  # the end of the text, which has no line
            continue
        place = (row, len(lines[row - 1][:column].encode("utf-8", "surrogatepass")))
        if token.type == tokenize.NAME:
            is_theirs = before[1] == "." and before[0] in foreign
            if said == old and not is_theirs and place not in keywords:
                after = new
        elif token.type == tokenize.COMMENT or place in docstrings:
            after = in_prose(said, old, new)
        elif token.type == tokenize.STRING and place in lookups:
            after = said.replace(old, new)
        elif token.type == tokenize.STRING and "f" in said[:2].lower():  # before Python 3.12
            after = _HOLE.sub(lambda part: word.sub(lambda _: new, part[0]), said)
        if after != said:
            first = starts[row - 1] + column
            parts += [text[at:first], after]
            at = starts[token.end[0] - 1] + token.end[1]
        if said.strip():
            before = [before[1], said]
    return "".join([*parts, text[at:]])


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a text, as far as it can be read."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def _foreign(tree: ast.Module, paths: Sequence[str]) -> tuple[set[str], set[str]]:
    """The names that stand for modules of other libraries, and the names imported from them."""
    own = {part.removesuffix(".py") for path in paths for part in path.split("/")}
    modules, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign = [each for each in node.names if _top(each.name) not in own]
            modules |= {each.asname or _top(each.name) for each in foreign}
        elif isinstance(node, ast.ImportFrom) and not node.level and _top(node.module) not in own:
            names |= {each.name for each in node.names}
            modules |= {each.asname or each.name for each in node.names}
    return modules, names


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _docstrings(tree: ast.Module) -> Iterator[_Place]:
    """The places of strings that are statements."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.col_offset


def _lookups(tree: ast.Module, name: str) -> Iterator[_Place]:
    """The places of strings that are the name, and by which it is looked up or exported."""
    for node in ast.walk(tree):
        values: Sequence[ast.expr] = ()
        if isinstance(node, ast.Call) and _last_name(node.func) in _LOOKUPS:
            values = node.args
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            exports = any(isinstance(to, ast.Name) and to.id == "__all__" for to in targets)
            if exports and isinstance(node.value, ast.List | ast.Tuple):
                values = node.value.elts
        for value in values:
            if isinstance(value, ast.Constant) and value.value == name:
                yield value.lineno, value.col_offset


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
