"""Renames a name in all files where a task asks for nothing else: no model is needed for that.

In: the task, the paths that may be changed, their texts. Out: the changed files. A name is renamed
where it is an identifier, in the syntax tree of tree-sitter or by Python's tokenizer. In comments,
docstrings and documentation it is renamed as a whole word where it can mean nothing else. Names of
other libraries stay, as far as imports tell. Nothing is run. Two things of one name get the new
name both.
"""

from __future__ import annotations

import bisect
import itertools
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tgr_local.code.edits import Change, FileText, syntax
from tgr_local.code.reading import evidence
from tgr_local.code.writing import renaming_foreign, renaming_python

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
_IN_PARTS = re.compile(
    r"\W*in\b(?:\W|\b(?:the|all|of|its|and|tests?|docs?|documentation|docstrings?|comments?)\b)*",
    re.IGNORECASE,
)
"""The words of a task that is for some parts of the project alone."""
_EXCLUDED = re.compile(r"\b(?:but|except|excluding|not|without|other than)\b", re.IGNORECASE)
_NO_PATH = {
    "and", "but", "except", "excluding", "file", "files", "folder", "for", "in", "not", "or",
    "other", "than", "the", "without",
}  # fmt: skip
_DOCUMENTS = (".md", ".rst", ".txt", ".adoc")
_HISTORY = re.compile(r"(?:change|history|news|license|licence|copying)", re.IGNORECASE)
_TEMPLATES = (".html", ".htm", ".jinja", ".jinja2", ".j2", ".tmpl", ".erb", ".hbs", ".ejs")
_PLACEHOLDER = re.compile(
    r"\{\{(?:(?!\{\{|\}\}).){0,2000}\}\}|\{%(?:(?!\{%|%\}).){0,2000}%\}|<%(?:(?!<%|%>).){0,2000}%>",
    re.DOTALL,
)
_DEFINED = re.compile(r"\bfunction\s+(\w{1,99})|\b(\w{1,99})\s*(?:=|\([^()\n]{0,500}\)\s*\{)")
_GO_MODULE = re.compile(r"^module\s+(\S+)", re.MULTILINE)
_BEFORE = 200  # bytes before a name in which its owner stands
_MOST_FILES, _MOST_TEXT, _MOST_NAMED = 5000, 16 << 20, 2 << 20
_MOST_NODES = 1 << 20
_IN_BRACKETS = ("bracket_index_expression", "element_reference", "subscript_expression")
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
    if not _EVERYWHERE.fullmatch(rest) or _IN_PARTS.fullmatch(rest):
        return None
    return Rename(old, new, excluded, bool(re.search(r"\btests?\b", rest, re.IGNORECASE)))


def renamed(
    wish: Rename,
    paths: Sequence[str],
    read: Callable[[str], FileText | None],
    keeps: Callable[[str], bool],
) -> tuple[Change, ...]:
    """The files in which a rename changes something. None where the new name is in the code
    already, where the old one is that of a file too, where a place that the task excludes is
    unknown, where a file that may have the name cannot be read, or where the project is too large.
    `keeps` tells which files must not be changed."""
    documents: list[FileText] = []
    unread: set[str] = set()  # languages of files that may have the name
    n_left = _MOST_TEXT
    for path in paths if len(paths) <= _MOST_FILES else ():
        if (document := read(path)) is None:
            unread.add(syntax.language(path))
            continue
        n_left -= len(document.text)
        if n_left < 0:
            return ()
        if wish.old in document.text or wish.new in document.text:
            documents.append(document)
    if sum(len(each.text) for each in documents) > _MOST_NAMED:
        return ()
    if any(not _is_known(name, paths) for name in wish.excluded):
        return ()
    documents = [
        each for each in documents if not _is_out(each.path, wish) and not keeps(each.path)
    ]
    if any(_has(each, wish.new) for each in documents) or _is_file(wish.old, paths, documents):
        return ()
    go = read("go.mod") if "go.mod" in paths else None
    module = _GO_MODULE.search(go.text) if go else None
    parts = renaming_python.owners(wish.old, documents)
    changes, languages = [], set()
    for document in documents:
        after = _in(document, wish, paths, parts, module[1] if module else "")
        if after is None:
            return ()
        if after != document.text:
            languages.add(syntax.language(document.path))
            changes.append(Change(document.path, document.text, after))
    return tuple(changes) if any(languages) and not languages & unread - {""} else ()


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
    leaves = _leaves(document.text, language, name)
    return leaves is None or any(part == "code" for *_, part in leaves)


def _is_file(name: str, paths: Sequence[str], documents: Sequence[FileText]) -> bool:
    """Whether a name is also that of a file or folder, by which the code finds that."""
    if not (endings := {path.rpartition(".")[2] for path in paths if name in _parts(path)}):
        return False
    word = re.escape(name)
    module = re.compile(rf"\bmod\s{{1,99}}{word}\s{{0,99}};")
    kinds = rf"(?:class|interface|trait|enum|record)\s{{1,99}}{word}\b"
    of_java = re.compile(rf"\bpublic\s[\w\s]{{0,99}}\b{kinds}|\bpublic\s{{1,99}}{kinds}")
    of_php = re.compile(rf"\b{kinds}")
    for document in documents:
        ending, text = document.path.rpartition(".")[2], document.text
        if ending in ("py", "pyi") and renaming_python.imports(name, text):
            return True
        pattern = {"rs": module, "java": of_java, "php": of_php}.get(ending)
        if pattern and (ending == "rs" or ending in endings) and pattern.search(text):
            return True
    return False


def _parts(path: str) -> list[str]:
    """The names of the folders of a file, and its own without what follows a dot."""
    return [part.partition(".")[0] for part in path.split("/")]


def _in(
    document: FileText, wish: Rename, paths: Sequence[str], owners: frozenset[str], module: str
) -> str | None:
    """The text of a file after a rename, the same where it has none; None where it cannot be
    read."""
    text, ending = document.text, posixpath.splitext(document.path)[1].lower()
    word = re.compile(rf"(?<![\w$]){re.escape(wish.old)}(?![\w$])")
    if not word.search(text):
        return text
    language = syntax.language(document.path)
    if language == "python":
        return renaming_python.renamed(text, wish.old, wish.new, paths, owners)
    if language:
        return _in_code(text, language, wish, renaming_foreign.names(text, language, paths, module))
    if ending in _DOCUMENTS and not _HISTORY.match(posixpath.basename(document.path)):
        return renaming_python.in_prose(text, wish.old, wish.new)
    if ending in _TEMPLATES:
        return _PLACEHOLDER.sub(lambda part: word.sub(lambda _: wish.new, part[0]), text)
    return text


def _in_code(text: str, language: str, wish: Rename, foreign: frozenset[str]) -> str | None:
    """A text of another language than Python after a rename."""
    if wish.old in foreign:
        return text
    if (leaves := _leaves(text, language, wish.old)) is None:
        return None
    word = re.compile(rf"(?<![\w$]){re.escape(wish.old)}(?![\w$])")
    in_format = re.compile(rf"(?<=(?<!\{{)\{{){re.escape(wish.old)}(?=[:}}])")
    source, at, parts = text.encode("utf-8", "surrogatepass"), 0, []
    for start, end, kind in leaves:
        piece = source[start:end].decode("utf-8", "surrogatepass")
        before = source[max(0, start - _BEFORE) : start].decode("utf-8", "ignore")
        if kind == "code" and renaming_foreign.is_theirs(before, foreign, language):
            continue
        if kind == "comment":
            new = renaming_python.in_prose(piece, wish.old, wish.new)
        elif kind == "format":
            new = in_format.sub(lambda _: wish.new, piece)
        else:
            new = word.sub(lambda _: wish.new, piece)
        parts += [source[at:start].decode("utf-8", "surrogatepass"), new]
        at = end
    return "".join([*parts, source[at:].decode("utf-8", "surrogatepass")])


def _leaves(text: str, language: str, name: str) -> list[tuple[int, int, str]] | None:
    """The identifiers of a name in a text, comments with it, strings and macros that look it up,
    and formats of Rust: their bytes from and to, and "code", "comment", "text" or "format". None
    where it cannot be read to its end."""
    source, wanted = text.encode("utf-8", "surrogatepass"), name.encode()
    own = frozenset(itertools.chain.from_iterable(_DEFINED.findall(text)))
    places = [match.start() for match in re.finditer(re.escape(wanted), source)]
    if (root := syntax.tree(text, language)) is None:
        return None
    leaves: list[tuple[int, int, str]] = []
    # each node with those around it, the nearest first: asking for them takes as long as it is deep
    todo: list[tuple[Any, tuple[Any, ...]]] = [(root, ())]
    for _ in range(_MOST_NODES):
        if not todo:
            return leaves
        node, around = todo.pop()
        if "comment" not in node.type and (children := node.children):
            inner = (node, *around[: _AROUND - 1])
            todo += [(child, inner) for child in reversed(children) if _holds(child, places)]
            continue
        said = source[node.start_byte : node.end_byte]
        kind = ""
        if "comment" in node.type:
            kind = "comment"
        elif node.type == "preproc_arg":  # what a macro of C is replaced by
            kind = "text"
        elif said == wanted and node.is_named and not syntax.is_text(node.type):
            called = _gets_key(node, around)
            words = re.findall(r"\w+", called.text.decode("utf-8", "replace")) if called else []
            kind = "code" if not words or words[-1] in own else ""
        elif (said == wanted and _looks_up(around)) or _is_marked(node.type, said, wanted):
            kind = "text"
        elif language == "rust" and any(each.type == "token_tree" for each in around):
            kind = "format" if node.type == "string_content" else ""
        if kind:
            leaves.append((node.start_byte, node.end_byte, kind))
    return None


def _holds(node: Any, places: Sequence[int]) -> bool:
    """Whether one of the places, in their order, is in a node."""
    i = bisect.bisect_left(places, node.start_byte)
    return i < len(places) and places[i] < node.end_byte


def _is_marked(node_type: str, said: bytes, wanted: bytes) -> bool:
    """Whether a node of Ruby is a name behind its mark: a symbol, or a variable of an object, which
    `attr_reader` finds by the name."""
    mark = {"simple_symbol": b":", "instance_variable": b"@"}.get(node_type)
    return mark is not None and said == mark + wanted


def _looks_up(around: Sequence[Any]) -> bool:
    """Whether a text is a string that is the name of a member: ``box["name"]``."""
    return len(around) > 1 and around[1].type in _IN_BRACKETS


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
