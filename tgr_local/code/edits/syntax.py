"""Languages of files, and the definitions in them, found in the syntax trees of tree-sitter.

`tree-sitter-language-pack` is loaded on use. Its parsers are in the package: nothing is fetched.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Literal

from tgr_local.code.edits.document import n_equal
from tgr_local.console.wrap import shortened
from tgr_local.system.python_source import syntax_tree

LANGUAGES = {
    "bash": ".sh .bash", "c": ".c .h", "cpp": ".cc .cpp .cxx .hh .hpp .hxx", "csharp": ".cs",
    "go": ".go", "java": ".java", "javascript": ".js .mjs .cjs .jsx",
    "kotlin": ".kt .kts", "lua": ".lua", "php": ".php", "python": ".py .pyi", "ruby": ".rb",
    "rust": ".rs", "scala": ".scala", "swift": ".swift", "tsx": ".tsx", "typescript": ".ts .mts",
}  # fmt: skip
"""The endings of the files of each language that has an outline."""
_CERTAIN = {
    "go", "java", "javascript", "lua", "php", "ruby", "rust", "scala", "tsx", "typescript",
}  # fmt: skip
"""Languages whose parsers find no error in valid changes of files that had none: in none of 3,100
from the histories of ten projects. Those of the others do: macros of C, attributes of Kotlin."""
_AND = r"(?<!&)&(?!&|#?\w+;)"
_GAPS = {
    "java": r"\bimport\s+module\b|\d__|[;}]\s*(?:super|this)\s*\(", "javascript": _AND,
    "php": r"\b__halt_compiler\b", "ruby": r"\bdef\b.*\s=\s",
    "rust": r"\bsafe\s+(?:fn|static)\b", "scala": r"\bgiven\b", "tsx": _AND,
    "typescript": r"\bin\s+out\b|\bexport\s+type\s*\*",
}  # fmt: skip
"""Valid syntax that these parsers take for an error: of the newest versions of a language, and
``&`` between elements of JSX."""
_OTHER_FENCES = {
    "css": ".css", "dart": ".dart", "html": ".html", "json": ".json", "markdown": ".md",
    "sql": ".sql", "toml": ".toml", "xml": ".xml", "yaml": ".yml .yaml", "zig": ".zig",
}  # fmt: skip
_CLASSES = {
    "class", "class_declaration", "class_definition", "class_specifier", "enum_declaration",
    "enum_item", "impl_item", "interface_declaration", "mod_item", "module",
    "namespace_definition", "object_declaration", "object_definition", "protocol_declaration",
    "record_declaration", "struct_declaration", "struct_item", "struct_specifier",
    "trait_declaration", "trait_definition", "trait_item", "type_spec", "union_item",
}  # fmt: skip
_FUNCTIONS = {
    "constructor_declaration", "function_declaration", "function_definition", "function_item",
    "function_signature_item", "generator_function_declaration", "init_declaration", "method",
    "method_declaration", "method_definition", "singleton_method",
}  # fmt: skip
_VALUES = {"arrow_function", "function_expression", "function"}  # const f = () => …
_BODIES = {
    "block", "body_statement", "class_body", "compound_statement", "declaration_list",
    "enum_body", "enum_class_body", "enum_variant_list", "field_declaration_list",
    "function_body", "interface_body", "protocol_body", "statement_block", "template_body",
    "enum_member_declaration_list",
}  # fmt: skip
_TEST_CALL = re.compile(
    r"(?:\w{1,20}\.)?(?:(?P<suite>describe|suite|context)|test|it|specify)(?:\.\w{1,20})*(?:[(`]|\Z)"
)
"""The called name of a test, or of a group of tests, in JavaScript: ``it.only``, ``t.test``."""
_TEXTS = re.compile(r"string|char|regex|heredoc|jsx_text|raw_text")
"""Nodes whose text is taken as it is."""
_IMPORTS = {
    "import_declaration", "import_statement", "namespace_use_declaration", "package_clause",
    "package_declaration", "preproc_include", "use_declaration", "using_directive",
}  # fmt: skip
_TO_TOOLS = re.compile(
    r"@|\b(?:eslint|tslint|prettier|istanbul|c8|nolint|noqa|shellcheck|clang-format|go|type|pragma)\b"
)
"""Comments that change the result of a tool, such as `# type: ignore`."""
_CALLED = 99  # bytes of a call that are read for that
_WRAPPERS = {"decorated_definition", "export_statement", "template_declaration"}
_MOST_NODES, _DEEPEST = 200_000, 60
_STEPS_LEAST, _PART = 5000, 1 << 16
SIGNATURE, SUMMARY = 160, 100
"""The most characters of a definition's signature, and of its summary."""


@dataclass(frozen=True)
class Definition:
    """A class or a function of a file."""

    name: str
    """Name with those of the classes around it: ``Stack.push``."""
    kind: Literal["class", "function"]
    first: int
    """First line of the definition, counted from 1; decorators belong to it."""
    last: int
    """Last line of the definition."""
    signature: str
    """Signature in one line: ``def push(self, item: int) -> None``."""
    summary: str
    """The first line of its docstring or of the comment before it; empty without one."""
    depth: int = 0
    """The number of classes around it."""
    exact: bool = True
    """Whether its lines are known; not where it has a syntax error."""
    is_test: bool = False
    """Whether it is a test of JavaScript, a call such as ``test("adds", () => …)``, whose name is
    the words of the text; or a test of Rust in a file of the code."""


def language(path: str) -> str:
    """The language of a file by its ending; empty if it has no outline."""
    return _by_ending(False).get(PurePosixPath(path).suffix.lower(), "")


def fence_name(path: str) -> str:
    """Returns the language name after the fence of a file in Markdown."""
    return _by_ending(True).get(PurePosixPath(path).suffix.lower(), "")


@functools.cache
def _by_ending(all_of_them: bool) -> dict[str, str]:
    table = {**LANGUAGES, **_OTHER_FENCES} if all_of_them else LANGUAGES
    return {ending: name for name, endings in table.items() for ending in endings.split()}


@functools.cache
def problem() -> str:
    """Returns the reason why no file can be read here; empty if files can."""
    try:
        importlib.import_module("tree_sitter_language_pack")
    except ImportError:
        return "its outline needs tree-sitter: pip install 'tgr-local[code]'"
    return ""


def python_error(text: str) -> str:
    """Line and message of the syntax error of a Python text; empty without one."""
    try:
        syntax_tree(text)
    except SyntaxError as error:
        return f"{error.lineno}: {error.msg}"
    return ""


def text_error(path: str, text: str) -> str:
    """The first syntax error of a file, by the parser of its language; empty without one, or where
    Python has no parser for it."""
    ending = PurePosixPath(path).suffix.lower()
    if ending in (".py", ".pyi"):
        return python_error(text)
    try:
        if ending == ".json":
            json.loads(text)
        elif ending == ".ipynb" and not isinstance(json.loads(text)["cells"], list):
            return "1: it is no notebook: its cells are no list"
        elif ending == ".toml" and sys.version_info >= (3, 11):
            importlib.import_module("tomllib").loads(text)
    except json.JSONDecodeError as error:
        return f"{error.lineno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return f" {error}"
    except (KeyError, TypeError, IndexError):
        return "1: it is no notebook: it has no cells"
    return ""


def definitions(text: str, name: str) -> Iterator[Definition]:
    """The definitions in a text of a language, each class before its members; none where the text
    has so many syntax errors that parsing takes too long."""
    source = text.encode("utf-8", "replace")
    if (tree := _tree(source, name)) is None:
        return
    # (node, the classes around it, the node that begins its first line)
    todo: list[tuple[Any, tuple[str, ...], Any]] = [(tree.root_node, (), None)]
    for _ in range(_MOST_NODES):
        if not todo:
            return
        node, within, outer = todo.pop()
        if test := _test(node, within, source):
            yield test
            if test.kind == "class" and len(within) <= _DEEPEST:
                inside = (*within, test.name.rpartition(".")[2])
                todo += [(child, inside, None) for child in reversed(node.named_children)]
            continue
        kind, holder = _kind(node)
        if kind:
            own_name = _name(holder, source)
            if own_name:
                yield _definition(holder, (*within, own_name), kind, source, outer or node)
            within = (*within, own_name) if own_name else within
            if kind == "function" or len(within) > _DEEPEST:
                continue
        start = node if node.type in _WRAPPERS else None
        todo += [(child, within, start) for child in reversed(node.named_children)]


def words_of(title: str) -> str:
    """The words of the text that names a test, as the name of its definition has them."""
    return " ".join(re.findall(r"\w+", title))


def _test(node: Any, within: tuple[str, ...], source: bytes) -> Definition | None:
    """The test of JavaScript, or the group of tests as a class, that a call is; None for other
    nodes."""
    if node.type != "call_expression":
        return None
    called, inner = (node.child_by_field_name(name) for name in ("function", "arguments"))
    if called is None or inner is None:
        return None
    said = source[called.start_byte : min(called.end_byte, called.start_byte + _CALLED)]
    match = _TEST_CALL.match(said.decode("utf-8", "replace"))
    title, *others = inner.named_children or (node,)
    is_titled = title.type in ("string", "template_string")
    if not match or not is_titled or not any(other.type in _VALUES for other in others):
        return None
    text = source[title.start_byte : title.end_byte].decode("utf-8", "replace")
    signature = f"{match[0].rstrip('(`')}({text})"
    test = _definition(
        node, (*within, words_of(text) or "test"), "class" if match["suite"] else "function",
        source, node,
    )  # fmt: skip
    return replace(test, signature=shortened(signature, SIGNATURE), is_test=True)


def skeleton(text: str, name: str) -> str:
    """The syntax tree of a text, as a text without layout, comments and semicolons at the end of
    statements. Comments for a tool stay. Empty where the text has errors, or has no parser here."""
    source = text.encode("utf-8", "replace")
    if problem() or (tree := _tree(source, name)) is None or tree.root_node.has_error:
        return ""
    parts: list[str] = []
    todo: list[Any] = [tree.root_node]
    while todo and len(parts) < _MOST_NODES:
        node = todo.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        said = source[node.start_byte : node.end_byte].decode("utf-8", "replace")
        if "comment" in node.type:
            parts += [said] if _TO_TOOLS.search(said) else []
        elif not node.children or _TEXTS.search(node.type):
            parts += [] if said == ";" else [_with_one_quote(said, name)]
        else:
            parts.append(f"({node.type}")
            todo += [")", *reversed(node.children)]
    return "" if todo else "\n".join(parts)


def _with_one_quote(said: str, name: str) -> str:
    """A text of JavaScript in double quotes, where that says the same."""
    is_script = name in ("javascript", "typescript", "tsx")
    if is_script and said[:1] == "'" and not {"'", '"', "\\"} & set(said[1:-1]):
        return f'"{said[1:-1]}"'
    return said


def has_error(text: str, name: str) -> bool:
    """Whether a text of a language has a syntax error, as far as tree-sitter tells; not where its
    parsers are not here."""
    if not name or problem():
        return False
    tree = _tree(text.encode("utf-8", "replace"), name)
    return tree is None or bool(tree.root_node.has_error)


def new_error(path: str, before: str, after: str) -> str:
    """Line and message of a syntax error that a change brings into a file, as far as tree-sitter
    tells; empty without one. A file with an error before, or changed lines, may have syntax that
    the parser does not know. An error that is in no changed line does not count, nor one in a file
    that is so long that parsing it may take seconds."""
    name = language(path)
    is_known = name in _CERTAIN and before.strip() and max(len(before), len(after)) <= _PART
    if not is_known or problem() or has_error(before, name):
        return ""
    tree = _tree(after.encode("utf-8", "replace"), name, _STEPS_LEAST // 10, 25)
    if tree is None or not tree.root_node.has_error:
        return ""
    old, new = before.split("\n"), after.split("\n")
    first = n_equal(old, new)
    same = n_equal(old[first:][::-1], new[first:][::-1])
    if name in _GAPS and re.search(_GAPS[name], "\n".join(new[first : len(new) - same])):
        return ""
    line = _error_line(tree.root_node, first, max(first, len(new) - same - 1))
    return f"{line}: invalid syntax" if line else ""


def _error_line(root: Any, first: int, last: int) -> int:
    """The line, from 1, of the first error of a tree in the lines `first` to `last`, counted from
    0; 0 without one."""
    todo = [root]
    for _ in range(_MOST_NODES):
        if not todo:
            break
        node = todo.pop()
        start, end = node.start_point[0], node.end_point[0]
        if end < first or start > last:
            continue
        if node.is_error or node.is_missing:
            return int(max(start, first)) + 1
        todo += [child for child in reversed(node.children) if child.has_error]
    return 0


def tree(text: str, name: str) -> Any:
    """The root of the syntax tree of a text; None where parsers are not here, or where parsing
    takes too long."""
    if problem() or (parsed := _tree(text.encode("utf-8", "surrogatepass"), name)) is None:
        return None
    return parsed.root_node


def is_text(node_type: str) -> bool:
    """Whether the text of such nodes is taken as it is, as that of strings."""
    return bool(_TEXTS.search(node_type))


def fixed_ranges(text: str, name: str) -> list[tuple[int, int]]:
    """The ranges of comments and imports in a text of a language, in bytes from and to."""
    if problem() or (tree := _tree(text.encode("utf-8", "replace"), name)) is None:
        return []
    ranges: list[tuple[int, int]] = []
    todo = [tree.root_node]
    for _ in range(_MOST_NODES):
        if not todo:
            break
        node = todo.pop()
        if "comment" in node.type or node.type in _IMPORTS:
            ranges.append((node.start_byte, node.end_byte))
        else:
            todo += node.children
    return ranges


def _tree(source: bytes, name: str, least: int = _STEPS_LEAST, per_step: int = 10) -> Any:
    """Returns the tree-sitter tree of a text; None if parsing takes too many steps. Repairing
    errors may take a time quadratic in the length; a text without errors takes one step for some 50
    bytes."""
    pack: Any = importlib.import_module("tree_sitter_language_pack")
    steps = itertools.count()
    most = least + len(source) // per_step

    def part(at: int, _: object) -> bytes:
        return source[at : at + _PART]

    try:
        return pack.get_parser(name).parse(
            part, progress_callback=lambda *_: next(steps) > most
        )  # fmt: skip
    except ValueError:
        return None


def _kind(node: Any) -> tuple[Literal["class", "function", ""], Any]:
    """Returns the kind of a node's definition, and the node with its name and body."""
    if node.type in _FUNCTIONS:
        return "function", node
    if node.type in _CLASSES:
        has_body = node.type in ("type_spec", "module", "class") or _body(node) is not None
        return ("class", node) if has_body else ("", node)
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        if value is not None and value.type in _VALUES:
            return "function", node
    return "", node


def _name(node: Any, source: bytes) -> str:
    ident = node.child_by_field_name("name")
    if ident is None and node.type == "impl_item":
        ident = node.child_by_field_name("type")
    if ident is None and node.type in ("constructor_declaration", "init_declaration"):
        return "init"
    inner = node.child_by_field_name("declarator")
    while ident is None and inner is not None:  # C: the name is deep in the declarator
        deeper = inner.child_by_field_name("declarator")
        if deeper is None and inner.type.endswith(("identifier", "name")):
            ident = inner
        inner = deeper
    if ident is None:
        simple = ("identifier", "simple_identifier", "type_identifier")
        ident = next((child for child in node.named_children if child.type in simple), None)
    if ident is None:
        return ""
    return " ".join(source[ident.start_byte : ident.end_byte].decode("utf-8", "replace").split())


def _body(node: Any) -> Any:
    body = node.child_by_field_name("body")
    if body is not None:
        return body
    return next((child for child in node.named_children if child.type in _BODIES), None)


def _definition(
    node: Any,
    names: tuple[str, ...],
    kind: Literal["class", "function"],
    source: bytes,
    outer: Any,
) -> Definition:
    value = node.child_by_field_name("value") if node.type == "variable_declarator" else None
    body = _body(value if value is not None else node)
    end = body.start_byte if body is not None else node.end_byte
    signature = source[node.start_byte : end].decode("utf-8", "replace")
    if body is None:
        signature = signature.partition("\n")[0]
    signature = signature.strip().removesuffix("{").removesuffix(":").removesuffix("=>").strip()
    return Definition(
        ".".join(names),
        kind,
        outer.start_point[0] + 1,
        node.end_point[0] + 1,
        shortened(signature, SIGNATURE),
        shortened(_summary(outer, body, source), SUMMARY),
        len(names) - 1,
        not node.has_error,
    )


def _summary(outer: Any, body: Any, source: bytes) -> str:
    """The first line of a docstring in the body, or of a comment that ends above."""
    if body is not None and body.type == "block" and body.named_children:
        first = body.named_children[0]
        inner = first.named_children[0] if first.type == "expression_statement" else first
        if inner.type == "string":
            return _first_line(source[inner.start_byte : inner.end_byte])
    above = outer.prev_named_sibling
    lines: list[bytes] = []
    row = outer.start_point[0]
    while above is not None and "comment" in above.type and above.end_point[0] >= row - 1:
        lines.append(source[above.start_byte : above.end_byte])
        row, above = above.start_point[0], above.prev_named_sibling
    return _first_line(lines[-1]) if lines else ""


def _first_line(text: bytes) -> str:
    lines = text.decode("utf-8", "replace").split("\n")
    return next((words for line in lines if (words := line.strip().strip("/*#!-\"'").strip())), "")
