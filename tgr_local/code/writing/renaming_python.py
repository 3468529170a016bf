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
    "attrgetter": slice(None), "cast": slice(1), "delattr": slice(2), "getattr": slice(2),
    "getfixturevalue": slice(1), "hasattr": slice(2), "methodcaller": slice(1),
    "namedtuple": slice(1, 2), "object": slice(2), "parametrize": slice(1), "patch": slice(1),
    "setattr": slice(2), "usefixtures": slice(None),
}  # fmt: skip
"""Functions that take names as strings, and in which arguments; `object` is of `mock.patch`."""
_NAMES = re.compile(r"[\w.,\s]+")
"""A text of names: of a module and its member, or of several parameters."""
_EXPORTS = {"__all__", "__match_args__", "__slots__"}
_PLAIN_TEXTS = {"Annotated", "Literal"}
"""Types whose strings are no types."""
_COPIES = {"__init__", "cls", "replace"}
"""Functions that take the parameters of a class."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LIKE_CODE = re.compile(r"\w_\w|[a-z][A-Z]|\d|^_")
_NO_FILE = (
    r"(?!\.(?:adoc|cpp|css|go|html?|java|jsx?|json|md|php|pyi?|rb|rs|rst|sh|toml|tsx?|txt|ya?ml)\b)"
)
"""Follows a name that is not that of a file."""
_LONGEST = 5000  # characters of a line; columns are counted in each
_PIECE = re.compile(r"\w+|![rsa](?=[:}])|'[^']*'|\"[^\"]*\"|.", re.DOTALL)
_Place = tuple[int, int]
"""Line, from 1, and column in bytes."""


def in_prose(text: str, old: str, new: str) -> str:
    """Prose after a rename: whole words where the name looks like code, else only where it is
    quoted, called, or named as what it is."""
    word = re.escape(old) + _NO_FILE
    if _LIKE_CODE.search(old):
        return re.sub(rf"(?<![\w$/]){word}(?![\w$])", lambda _: new, text)
    pattern = (
        rf"(?P<before>`(?:\w+\.)?|\b(?:function|method|class|constant|variable|parameter) +){word}"
        rf"(?![\w$])|(?<![\w$/]){word}(?=\()"
    )
    return re.sub(pattern, lambda match: (match["before"] or "") + new, text)


def has(name: str, text: str) -> bool:
    """Whether a name is an identifier of a text."""
    for token in _tokens(text):
        said = token.string
        if said == name and token.type == tokenize.NAME:
            return True
        if name in said and _is_format(token) and _in_holes(said, name, "", set()) != said:
            return True
    return False


def _is_format(token: tokenize.TokenInfo) -> bool:
    """Whether a token is a whole formatted string, as before Python 3.12."""
    return token.type == tokenize.STRING and "f" in token.string[:2].lower()


def imports(name: str, text: str) -> bool:
    """Whether a text imports a module of a name, or may."""
    tree = parsed(text)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Import | ast.ImportFrom) and name in _imported(node):
            return True
    return False


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The parts of the names of what a statement imports."""
    paths = [each.name for each in node.names]
    paths += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [part for path in paths for part in path.split(".")]


def owners(name: str, documents: Iterable[FileText]) -> frozenset[str]:
    """The functions and classes of the project that have a parameter or a field of a name."""
    takers: set[str] = set()
    others: list[tuple[str, str]] = []  # of a name, another one that takes the same
    for document in documents:
        tree = parsed(document.text) if document.path.endswith((".py", ".pyi")) else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, _FUNCTIONS) and name in _parameters(node):
                takers.add(node.name)
            elif isinstance(node, ast.ClassDef):
                inits = [part for part in node.body if isinstance(part, _FUNCTIONS)]
                if name in map(_field, node.body) or any(
                    part.name in ("__init__", "__new__") and name in _parameters(part)
                    for part in inits
                ):
                    takers.add(node.name)
                others += [(_last_name(base), node.name) for base in node.bases]
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
                takers |= set(
                    map(_last_name, node.targets if name in _parameters(node.value) else [])
                )
            elif isinstance(node, ast.ImportFrom):
                others += [(each.name, each.asname) for each in node.names if each.asname]
    n_before = -1
    while n_before < len(takers):
        n_before = len(takers)
        takers |= {other for name_before, other in others if name_before in takers}
    return frozenset(takers | _COPIES) if takers else frozenset()


def _field(node: ast.stmt) -> str:
    """The name of a field of a class; empty for other statements of its body."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):  # such as attr.ib()
        return _last_name(node.targets[0])
    return _last_name(node.target) if isinstance(node, ast.AnnAssign) else ""


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    parts = node.args
    return {each.arg for each in (*parts.posonlyargs, *parts.args, *parts.kwonlyargs)}


def renamed(
    text: str, old: str, new: str, paths: Sequence[str], owners: frozenset[str]
) -> str | None:
    """A text of Python after a rename, the same where it imports the name from another library;
    None where it cannot be parsed. A keyword argument is renamed where one of `owners` gets it."""
    lines = text.split("\n")
    if (tree := parsed(text)) is None or max(map(len, lines)) > _LONGEST:
        return None
    foreign, names = _foreign(tree, paths)
    if old in names:
        return text
    docstrings, lookups, keywords = set(_docstrings(tree)), set(_lookups(tree, old)), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and owners.isdisjoint(
            map(_last_name, [node.func, *node.args])  # also ``partial(function, name=1)``
        ):
            keywords |= {(k.lineno, k.col_offset) for k in node.keywords if k.arg == old}
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    parts, at, before, is_theirs = [], 0, "", False
    for token in _tokens(text):
        (row, column), said, after = token.start, token.string, token.string
        if not said.strip():  # also the end of the text, which has no line
            continue
        place = (row, len(lines[row - 1][:column].encode("utf-8", "surrogatepass")))
        if token.type == tokenize.NAME:
            is_member = before == "."
            if said == old and not (is_member and is_theirs) and place not in keywords:
                after = new
            is_theirs = said in foreign or (is_member and is_theirs)
        elif token.type == tokenize.COMMENT or place in docstrings:
            after = in_prose(said, old, new)
        elif token.type == tokenize.STRING and place in lookups:
            after = re.sub(rf"(?<=\W){re.escape(old)}\b", lambda _: new, said)
        elif _is_format(token):
            after = _in_holes(said, old, new, foreign)
        if after != said:
            first = starts[row - 1] + column
            parts += [text[at:first], after]
            at = starts[token.end[0] - 1] + token.end[1]
        if token.type != tokenize.COMMENT:
            if token.type != tokenize.NAME and said != ".":
                is_theirs = said[-1] in "'\""  # a method of texts
            before = said
    return "".join([*parts, text[at:]])


def _in_holes(said: str, old: str, new: str, foreign: set[str]) -> str:
    """A formatted string after a rename in its expressions, not in its texts and formats."""
    parts, i = [], 0
    holes: list[int] = []  # brackets that are open in each expression, -1 in a format
    chain: list[str] = []
    while i < len(said):
        is_code = bool(holes) and holes[-1] >= 0
        match = _PIECE.match(said, i)
        piece = match[0] if is_code and match else said[i]
        if not holes and piece in "{}" and said[i : i + 2] == 2 * piece:
            piece *= 2
        elif not is_code:
            if piece == "{":
                holes.append(0)
            elif piece == "}" and holes:
                holes.pop()
        elif piece in "([{":
            holes[-1] += 1
        elif piece == "}" and not holes[-1]:
            holes.pop()
        elif piece in ")]}":
            holes[-1] -= 1
        elif piece == ":" and not holes[-1]:
            holes[-1] = -1
        i += len(piece)
        chain = [*chain, piece] if re.match(r"[\w.]", piece) else []
        is_theirs = chain[-2:-1] == ["."] and not foreign.isdisjoint(chain)
        parts.append(new if is_code and piece == old and not is_theirs else piece)
    return "".join(parts)


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a text, as far as it can be read."""
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError):
        return


def _foreign(tree: ast.Module, paths: Sequence[str]) -> tuple[set[str], set[str]]:
    """The names that stand for modules of other libraries, and the names imported from them."""
    parts = {part.removesuffix(".py") for path in paths for part in path.split("/")}
    modules, names = set(), set()

    def is_own(module: str | None) -> bool:
        rest = (module or "").partition(".")[2].replace(".", "/")
        # the folder may be a package, whose name is not known
        return _top(module) in parts or (
            "__init__.py" in paths and bool({f"{rest}.py", f"{rest}/__init__.py"} & set(paths))
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign = [each for each in node.names if not is_own(each.name)]
            modules |= {each.asname or _top(each.name) for each in foreign}
            names |= {_top(each.name) for each in foreign}
        elif isinstance(node, ast.ImportFrom) and not node.level and not is_own(node.module):
            names |= {_top(node.module), *(each.name for each in node.names)}
            modules |= {_top(node.module), *(each.asname or each.name for each in node.names)}
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
    """The places of strings that look the name up, export it, or have it in a type."""
    for node in ast.walk(tree):
        values: list[ast.AST | None] = []
        if isinstance(node, ast.Call):
            called = _last_name(node.func)
            if called in _LOOKUPS:
                values += node.args[_LOOKUPS[called]]
            elif isinstance(node.func, ast.Attribute) and _last_name(node.func.value) in _EXPORTS:
                values += node.args
            values += [k.value for k in node.keywords if called == "TypeVar" and k.arg == "bound"]
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values += [node.value] if any(_last_name(to) in _EXPORTS for to in targets) else []
        for value, text in _strings(values):
            if _NAMES.fullmatch(text) and name in re.findall(r"\w+", text):
                yield value.lineno, value.col_offset
        types = [getattr(node, each, None) for each in ("annotation", "returns")]
        for value, _ in _strings([each for each in types if isinstance(each, ast.expr)]):
            yield value.lineno, value.col_offset


def _strings(nodes: list[ast.AST | None]) -> Iterator[tuple[ast.Constant, str]]:
    """The strings in some nodes, not those of calls, nor those of types that are no types."""
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, node.value
        is_other = isinstance(node, ast.Call) or (
            isinstance(node, ast.Subscript) and _last_name(node.value) in _PLAIN_TEXTS
        )
        if node is not None and not is_other:
            nodes += ast.iter_child_nodes(node)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
