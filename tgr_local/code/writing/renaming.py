"""Renames a name in all files where a task asks for nothing else: no model is needed for that.

In: the task, the paths that may be changed, their texts. Out: the changed files. A name is renamed
where it is an identifier, in the syntax tree of tree-sitter or by Python's tokenizer. In comments,
docstrings and documentation it is renamed as a whole word where it can mean nothing else. Names of
other libraries stay, as far as imports tell. Nothing is run. Two things of one name get the new
name both.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tgr_local.code.edits import Change, FileText, syntax
from tgr_local.code.reading import evidence
from tgr_local.code.writing import renaming_python

_KIND = (
    r"(?:function|method|class|variable|constant|parameter|argument|attribute|field|property|"
    r"struct|type|interface|enum|trait|name|identifier|helper)"
)
_QUOTE, _NAME = r"[`'\"]?", r"(?:[A-Za-z_$][\w$]{0,99}\.)?[A-Za-z_$][\w$]{0,99}"
_TASK = re.compile(
    rf"\s*(?:please\s+)?rename\s+(?:the\s+)?(?:{_KIND}\s+)?{_QUOTE}(?P<old>{_NAME})(?:\(\))?{_QUOTE}"
    rf"(?:\s+{_KIND})?\s+(?:to|into|as)\s+{_QUOTE}(?P<new>{_NAME})(?:\(\))?{_QUOTE}(?P<rest>[^\w$.].*|\.?)",
    re.IGNORECASE | re.DOTALL,
)
_EVERYWHERE = re.compile(
    r"(?:[\s,.;!]|\b(?:everywhere|throughout|in|all|the|every|whole|entire|project|code|codebase|"
    r"repository|files?|folder|its|and|of|callers?|calls?|uses?|usages?|references?|docs?|"
    r"documentation|docstrings?|comments?|tests?|too|also|update|adapt|please|including)\b)*",
    re.IGNORECASE,
)
_EXCLUDED = re.compile(r"\b(?:but|except|excluding|not|without|other than)\b", re.IGNORECASE)
_NO_PATH = {
    "and", "but", "except", "excluding", "file", "files", "folder", "for", "in", "not", "or",
    "other", "than", "the", "without",
}  # fmt: skip
_DOCUMENTS = (".md", ".rst", ".txt", ".adoc")
_HISTORY = re.compile(r"(?:change|history|news|license|licence|copying)", re.IGNORECASE)
_TEMPLATES = (".html", ".htm", ".jinja", ".jinja2", ".j2", ".tmpl", ".erb", ".hbs", ".ejs")
_PLACEHOLDER = re.compile(r"\{\{.{0,2000}?\}\}|\{%.{0,2000}?%\}|<%.{0,2000}?%>", re.DOTALL)
_SCRIPTS = ("javascript", "typescript", "tsx")
_FOREIGN_SCRIPT = re.compile(
    r"""\b(?:import|const|let|var)\s+([^;=]{1,500}?)\s*(?:\bfrom\s*|=\s*require\(\s*)"""
    r"""["'](?![./~]|@/)[^"'\n]{1,200}["']"""
)
_GO_IMPORT = re.compile(r'^\s*(?:import\s+)?(?:(\w+)\s+)?"([\w./-]{1,200})"\s*$', re.MULTILINE)
_GO_MODULE = re.compile(r"^module\s+(\S+)", re.MULTILINE)
_DEFINED = re.compile(r"\bfunction\s+(\w{1,99})|\b(\w{1,99})\s*(?:=|\([^()\n]{0,500}\)\s*\{)")
_BEFORE = 200  # bytes before a name in which its owner stands
_MOST_FILES, _MOST_TEXT = 5000, 16 << 20
_MOST_NODES = 1 << 20
_AROUND = 4  # nodes around a name that tell what it is


@dataclass(frozen=True)
class Rename:
    """A name of the code, and the one that a task asks for in its place."""

    old: str
    new: str
    excluded: tuple[str, ...] = ()
    """Files, folders or file names in which the name stays; "tests" stands for all tests."""
    has_tests: bool = False
    """Whether the task mentions tests as a place in which to rename."""


def asked(task: str) -> Rename | None:
    """The rename that is all a task asks for; None for another task."""
    if len(task) > 1000 or not (match := _TASK.fullmatch(task)):
        return None
    (old_of, _, old), (new_of, _, new) = (match[key].rpartition(".") for key in ("old", "new"))
    if old == new or new_of not in ("", old_of):
        return None
    rest, excluded = match["rest"], ()
    if words := _EXCLUDED.search(rest):
        names = re.findall(r"[\w./-]*\w", rest[words.start() :])
        excluded = tuple(name for name in names if name.lower() not in _NO_PATH)
        rest = rest[: words.start()]
        if not excluded:
            return None
    if not _EVERYWHERE.fullmatch(rest):
        return None
    return Rename(old, new, excluded, bool(re.search(r"\btests?\b", rest, re.IGNORECASE)))


def renamed(
    wish: Rename,
    paths: Sequence[str],
    read: Callable[[str], FileText | None],
    keeps: Callable[[str], bool],
) -> tuple[Change, ...]:
    """The files in which a rename changes something. None where the new name is in the code
    already, where a place that the task excludes is unknown, or where the project is too large.
    `keeps` tells which files must not be changed."""
    documents: list[FileText] = []
    n_left = _MOST_TEXT
    for path in paths if len(paths) <= _MOST_FILES else ():
        if (document := read(path)) is not None:
            n_left -= len(document.text)
            if n_left < 0:
                return ()
            if wish.old in document.text or wish.new in document.text:
                documents.append(document)
    if any(not _is_known(name, paths) for name in wish.excluded):
        return ()
    documents = [
        each for each in documents if not _is_out(each.path, wish) and not keeps(each.path)
    ]
    if any(_has(each, wish.new) for each in documents):
        return ()
    go = read("go.mod") if "go.mod" in paths else None
    module = _GO_MODULE.search(go.text) if go else None
    parts = renaming_python.owners(wish.old, documents)
    changes, is_code = [], False
    for document in documents:
        after = _in(document, wish, paths, parts, module[1] if module else "")
        if after is not None and after != document.text:
            is_code = is_code or bool(syntax.language(document.path))
            changes.append(Change(document.path, document.text, after))
    return tuple(changes) if is_code else ()


def _is_known(name: str, paths: Sequence[str]) -> bool:
    return name.lower() in ("test", "tests") or any(_names(name, path) for path in paths)


def _names(name: str, path: str) -> bool:
    """Whether a name is that of a file or of a folder around it."""
    name = name.strip("/")
    return path == name or path.startswith(f"{name}/") or path.rpartition("/")[2] == name


def _is_out(path: str, wish: Rename) -> bool:
    tests = any(name.lower() in ("test", "tests") for name in wish.excluded)
    return (tests and evidence.is_test(path)) or any(_names(n, path) for n in wish.excluded)


def _has(document: FileText, name: str) -> bool:
    """Whether a file of code has an identifier."""
    language = syntax.language(document.path)
    if not language or name not in document.text:
        return False
    if language == "python":
        return renaming_python.has(name, document.text)
    return any(part == "code" for *_, part in _leaves(document.text, language, name))


def _in(
    document: FileText, wish: Rename, paths: Sequence[str], owners: frozenset[str], module: str
) -> str | None:
    """The text of a file after a rename; None where it cannot be read or has none."""
    text, ending = document.text, posixpath.splitext(document.path)[1].lower()
    if wish.old not in text:
        return None
    language = syntax.language(document.path)
    if language == "python":
        return renaming_python.renamed(text, wish.old, wish.new, paths, owners)
    if language:
        return _in_code(text, language, wish, module)
    if ending in _DOCUMENTS and not _HISTORY.match(posixpath.basename(document.path)):
        return renaming_python.in_prose(text, wish.old, wish.new)
    if ending in _TEMPLATES:
        word = re.compile(rf"(?<![\w$]){re.escape(wish.old)}(?![\w$])")
        return _PLACEHOLDER.sub(lambda part: word.sub(lambda _: wish.new, part[0]), text)
    return None


def _in_code(text: str, language: str, wish: Rename, module: str) -> str | None:
    """A text of another language than Python after a rename."""
    foreign = _foreign(text, language, module)
    if wish.old in foreign:
        return None
    source, at, parts = text.encode("utf-8", "surrogatepass"), 0, []
    for start, end, kind in _leaves(text, language, wish.old):
        piece = source[start:end].decode("utf-8", "surrogatepass")
        if kind == "code" and foreign:
            before = source[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
            if _owner(before) in foreign:
                continue
        if kind == "comment":
            new = renaming_python.in_prose(piece, wish.old, wish.new)
        else:
            new = piece.replace(wish.old, wish.new)
        parts += [source[at:start].decode("utf-8", "surrogatepass"), new]
        at = end
    return "".join([*parts, source[at:].decode("utf-8", "surrogatepass")])


def _owner(before: str) -> str:
    """The last name in a text that ends with a dot or two colons; empty without one."""
    before = before.rstrip()
    for sign in ("?.", ".", "::"):
        if before.endswith(sign):
            return re.split(r"\W", before.removesuffix(sign).rstrip())[-1]
    return ""


def _foreign(text: str, language: str, module: str) -> frozenset[str]:
    """The names in a file that stand for other libraries or are imported from them."""
    if language in _SCRIPTS:
        said = " ".join(_FOREIGN_SCRIPT.findall(text))
        return frozenset(re.findall(r"[\w$]+", re.sub(r"[\w$]+\s+as\s+|[\w$]+\s*:", " ", said)))
    if language != "go":
        return frozenset()
    return frozenset(
        alias or re.sub(r"/v\d+$", "", path).rpartition("/")[2]
        for alias, path in _GO_IMPORT.findall(text)
        if not (module and (path == module or path.startswith(f"{module}/")))
    )


def _leaves(text: str, language: str, name: str) -> Iterator[tuple[int, int, str]]:
    """The identifiers of a name in a text, comments with it, and strings that look it up: their
    bytes from and to, and "code", "comment" or "text". None where tree-sitter is not here."""
    source, wanted = text.encode("utf-8", "surrogatepass"), name.encode()
    own = frozenset(filter(None, sum(_DEFINED.findall(text), ())))
    root = syntax.tree(text, language)
    # each node with those around it, the nearest first: asking for them takes as long as it is deep
    todo: list[tuple[Any, tuple[Any, ...]]] = [(root, ())] if root is not None else []
    for _ in range(_MOST_NODES):
        if not todo:
            return
        node, around = todo.pop()
        if node.children and "comment" not in node.type:
            inner = (node, *around[: _AROUND - 1])
            todo += [(child, inner) for child in reversed(node.children)]
            continue
        said = source[node.start_byte : node.end_byte]
        if "comment" in node.type:
            if wanted in said:
                yield node.start_byte, node.end_byte, "comment"
        elif said == wanted and node.is_named and not syntax.is_text(node.type):
            called = _gets_key(node, around)
            words = re.findall(r"\w+", called.text.decode("utf-8", "replace")) if called else []
            if not words or words[-1] in own:
                yield node.start_byte, node.end_byte, "code"
        elif (said == wanted and _looks_up(around)) or (
            node.type == "simple_symbol" and said == b":" + wanted
        ):
            yield node.start_byte, node.end_byte, "text"


def _looks_up(around: Sequence[Any]) -> bool:
    """Whether a text is a string that is the name of a member: ``box["name"]``."""
    return len(around) > 1 and around[1].type in ("subscript_expression", "element_reference")


def _gets_key(node: Any, around: Sequence[Any]) -> Any:
    """The name of the function that gets an object of which a node is a key; None for other
    nodes."""
    types = [each.type for each in around]
    if types[:3] != ["pair", "object", "arguments"] or len(around) < _AROUND:
        return None
    called = around[3].child_by_field_name("function")
    if around[0].child_by_field_name("key") != node or called is None:
        return None
    if called.type == "member_expression":
        return called.child_by_field_name("property")
    return called if called.type == "identifier" else None
