"""Tests that stand in a file of the code: modules and functions of tests in Rust, examples in the
docstrings of Python (doctest).

In: texts. Out: where such tests are, and a change without changes of them. An edit that changes
them would pass by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tgr_local.code.edits.document import Change, lines_of
from tgr_local.code.edits.function import in_place, parsed

_RUST_TESTS = re.compile(
    r"^[ \t]*(?:#\[cfg\(test\)\]\s{0,200}(?:#\[[^\]\n]{0,200}\]\s{0,200}){0,9}(?:pub\s{1,9})?mod\b"
    r"|#\[(?:\w{1,40}::){0,4}(?:test|rstest|quickcheck|test_case)\b[^\]\n]{0,200}\]\s{0,200}"
    r"(?:#\[[^\]\n]{0,200}\]\s{0,200}){0,9}(?:pub\s{1,9})?(?:async\s{1,9})?fn\b)[^{};]{0,500}\{",
    re.MULTILINE,
)
_RUST_SIGN = re.compile(
    r"\"(?:\\[\s\S]|[^\"\\])*(?:\"|\Z)|\br(?P<hashes>#{1,9})\"[\s\S]*?(?:\"(?P=hashes)|\Z)"
    r"|'(?:\\[^\n]{1,10}?|[^\\'\n])'|//[^\n]*|/\*[\s\S]*?(?:\*/|\Z)|[{}]"
)
RUST_TEST_FILE = re.compile(r"(?:^|/)tests?/|(?:^|[/_])tests?\.rs$")
_EXAMPLE = ">>> "
_ASKED = re.compile(
    r"\b(?:updat|chang|rewrit|adapt|extend|add|writ|renam|remov|delet)\w*\s+"
    r"(?:(?:the|all|its|some|more|new|unit|these|those)\s+){0,4}(?:tests?|doctests?|examples?)\b"
    r"|docstring",
    re.IGNORECASE,
)
"""Words of a task that allow changing such tests."""
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def ranges(path: str, text: str) -> list[tuple[int, int]]:
    """The tests in a file of Rust code, in characters from and to; none in other languages."""
    if not path.endswith(".rs") or RUST_TEST_FILE.search(path):
        return []
    places: list[tuple[int, int]] = []
    while begin := _RUST_TESTS.search(text, places[-1][1] if places else 0):
        depth, end = 1, len(text)
        for sign in _RUST_SIGN.finditer(text, begin.end()):
            depth += {"{": 1, "}": -1}.get(sign[0], 0)
            if not depth:
                end = sign.end()
                break
        places.append((begin.start(), end))
    return places


def lines(path: str, text: str) -> set[int]:
    """The lines of these tests, from 1."""
    return {
        n for start, end in ranges(path, text)
        for n in range(text.count("\n", 0, start) + 1, text.count("\n", 0, end) + 2)
    }  # fmt: skip


def keep_tests(change: Change, task: str) -> Change:
    """A change with the tests of the file as they were before, unless the task asks for others."""
    if _ASKED.search(task):
        return change
    if change.path.endswith(".rs"):
        after = _with_rust_tests(change)
    elif change.path.endswith((".py", ".pyi")) and _EXAMPLE in change.before:
        after = _with_examples(change)
    else:
        return change
    return Change(change.path, change.before, after)


def _with_rust_tests(change: Change) -> str:
    olds, news = (
        [text[start:end] for start, end in ranges(change.path, text)]
        for text in (change.before, change.after)
    )
    if not olds or set(olds) <= set(news):
        return change.after
    rest, at = [], 0
    for start, end in ranges(change.path, change.after):
        rest.append(change.after[at:start])
        at = end
    rest.append(change.after[at:])
    if len(olds) == len(news):
        return "".join(part for pair in zip(rest, [*olds, ""], strict=True) for part in pair)
    return "\n\n".join(["".join(rest).rstrip("\n"), *olds]) + "\n"


def _with_examples(change: Change) -> str:
    """The text after a change in which functions and classes have the docstrings with examples that
    they had before."""
    old_tree, new_tree = parsed(change.before), parsed(change.after)
    if old_tree is None or new_tree is None:
        return change.after
    old, new = lines_of(change.before), lines_of(change.after)
    places = dict(_documented(new_tree))
    patches: list[tuple[int, int, list[str]]] = []
    for name, node in _documented(old_tree):
        docstring = ast.get_docstring(node) or ""
        there = places.get(name)
        if _EXAMPLE not in docstring or there is None or not there.body:
            continue
        if ast.get_docstring(there) == docstring:
            continue
        text = old[node.body[0].lineno - 1 : node.body[0].end_lineno]
        first = there.body[0]
        has_own_line = not new[first.lineno - 1][: first.col_offset].strip()
        if has_own_line:
            end = (first.end_lineno or first.lineno) if ast.get_docstring(there) is not None else (
                first.lineno - 1)  # fmt: skip
            text = in_place("\n".join(text), [new[first.lineno - 1]])
            patches.append((first.lineno - 1, end, text))
    for start, end, text in sorted(patches, reverse=True):
        new[start:end] = text
    after = "\n".join(new) + "\n" * change.after.endswith("\n")
    return after if parsed(after) is not None else change.after


def _documented(tree: ast.Module) -> Iterator[tuple[str, _Documented]]:
    """The module, its classes and functions, with their names."""
    below: list[tuple[str, _Documented]] = [("", tree)]
    while below:
        name, node = below.pop()
        yield name, node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                below.append((f"{name}.{child.name}", child))
