"""Finds edits that delete without being asked to: they empty a file or remove most of its words.
Also edits that change code where the task asks for docstrings alone.

In: the changes of a candidate, the task. Out: one sentence, or nothing. Tests cannot find this: a
test that does not use a file passes without it. Only code that can run counts, not comments,
strings that stand alone, or code below ``if False`` or behind a ``return``. Of 8,000 changes in the
history of this project one in 200 kept less than half of a file's words; all of them moved,
replaced or removed parts of the file.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tgr_local.code.edits import Change
from tgr_local.code.edits.document import lines_of
from tgr_local.code.edits.function import definitions_in, parsed
from tgr_local.code.judging.comments import living

_ASKED = re.compile(
    r"\b(?:remov|delet|drop|strip|shorten|trim|reduc|simplif|rewrit|re-writ|replac|split|"
    r"mov(?:e|ing)\b|extract|translat|convert|port\b|migrat|restructur|refactor|scratch\b|"
    r"start over|summar|condens|shrink|minif|merg|inlin|dedup|discard|erase|prune|get rid|stub|"
    r"entfern|l(?:ö|oe)sch|k(?:ü|ue)rz|ersetz|umschreib|supprim|effac|remplac|elimin|borra|reemplaz)",
    re.IGNORECASE,
)
"""Words of a task that allow removing parts of a file."""
_NAME = r"[\w./-]{0,80}\w\.\w{1,8}\b|Makefile\b"
_FILE = rf"(?:(?:file|document|contents?|text|lines|code|everything|it)\b|{_NAME})"
_NOT_A_PART = (
    r"(?!\s+(?:with|that|which|who|where|whose|containing|contains?|matching|like|after|before|"
    r"below|above|between|behind|about|starting|beginning|but|except|else|other|unused|to|at|"
    r"lines?|of\s+(?:the\s+)?\w+\s+(?!file|document))\b)"
)
_ALL_OF = r"(?:(?:out|the|this|that|all|of|its|whole|entire)\s+)"
_EMPTY = re.compile(
    rf"\b(?:empty|clear|truncate|blank|wipe|leere?|vide[rz]?)\s+"
    rf"(?:{_ALL_OF}+{_FILE}|(?:die|diese|le|ce|la)\s+(?:Datei|fichier|{_NAME})|{_NAME}|"
    rf"(?:everything|it)\b){_NOT_A_PART}"
    rf"|\b(?:remov|delet|drop|eras|discard|clear|wip|cut|strip|get rid|entfern|l(?:ö|oe)sch|"
    rf"supprim|effac|elimin|borra)\w*\s+(?:of\s+)?(?:everything\b|alles\b|(?:the\s+)?contents?\s+of\s+"
    rf"{_ALL_OF}*{_FILE}|(?:the\s+)?(?:whole|entire|all)\s+(?:(?:of|the|its)\s+)*{_FILE})"
    rf"{_NOT_A_PART}"
    rf"|\b(?:an?|as)\s+(?:empty|blank)\s+(?:file|document)\b"
    rf"|(?:\b(?:make|leave)\s+{_ALL_OF}*(?:file|document|{_NAME})|(?:\b(?:file|document)|{_NAME})\s+"
    rf"(?:should|must|shall|has\s+to)\s+be)\s+(?:empty|blank)\b(?!\s+\w)",
    re.IGNORECASE,
)
"""Words of a task that allow emptying a file, and not only a line or a list in it."""
_DOCSTRINGS = re.compile(
    r"(?:please\s+)?(?:add|write|improve|complete|correct|fix|update|translate|shorten|reword|rewrite)\s+"
    r"(?:(?:an?|the|all|its|their|any|missing|new|short|brief|better|clear|good|proper|one-line|"
    r"\w+-style|english|module|class|function|method|of|docstrings?)\s+){0,6}docstrings?"
    r"(?:\s+(?:to|for|of|in|on|into|everywhere)\b(?:(?!\b(?:and|then|but|so)\b)[^;:\n.]|\.(?=\w))*)?"
    r"[.!]?\s*",
    re.IGNORECASE,
)
"""A task about docstrings and nothing else."""
_NOTHING = re.compile(r"\b(?:None|nothing|no-?op|disabl\w*|ignor\w*|skip\w*)\b", re.IGNORECASE)
"""Words of a task that allow a function without effect."""
_WORD = re.compile(r"\w+")
_FEW, _MANY = 6, 20
"""Numbers of words: a file with fewer than `_FEW` may lose all of them, a file with fewer than
`_MANY` most of them."""
_OF_FEW, _OF_MANY, _OF_CODE = 0.25, 0.5, 0.25
"""The smallest share of the words that an edit must keep. It is lower for code, since a rewritten
function uses other names."""
_TAIL = 2  # last lines of a file that an edit does not leave out


def loss(changes: Sequence[Change], task: str) -> str:
    """The first deletion that the task does not ask for, in one sentence; empty without one. Where
    the task is about docstrings, a change of code counts too."""
    may_lose = bool(_ASKED.search(task))
    if _DOCSTRINGS.fullmatch(task.strip()) and (path := _changed_code(changes)):
        return f"it changes code of {path}, and the task is about docstrings"
    for change in changes:
        if not change.before.strip():
            continue
        if not change.after.strip():
            if _EMPTY.search(task):
                continue
            return f"it empties {change.path}, and the task does not say so"
        if not may_lose and (reason := _loss(change, bool(_NOTHING.search(task)))):
            return f"{reason}; a task that may do so says remove or rewrite"
    return ""


def _changed_code(changes: Sequence[Change]) -> str:
    """The first Python file of which more changes than docstrings; empty without one."""
    for change in changes:
        if not change.path.endswith((".py", ".pyi")):
            continue
        old, new = (_without_docstrings(parsed(text)) for text in (change.before, change.after))
        if old and new and old != new:
            return change.path
    return ""


def _without_docstrings(tree: ast.Module | None) -> str:
    """The code of a tree as a text; empty without a tree, or where it is too deep for one."""
    if tree is None:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
            # a docstring may take the place of a body that does nothing
            node.body = [part for part in node.body if not isinstance(part, ast.Pass)]
    try:
        return ast.dump(tree)
    except RecursionError:
        return ""


def _loss(change: Change, may_do_nothing: bool) -> str:
    old_tree = parsed(change.before) if change.path.endswith((".py", ".pyi")) else None
    new_tree = parsed(change.after) if old_tree is not None else None
    is_code = old_tree is not None and new_tree is not None
    if old_tree is not None and new_tree is not None:
        if stub := _stub(old_tree, new_tree, may_do_nothing):
            return f"it leaves {stub} in {change.path} without a body"
        old_words, new_words = _code_words(old_tree), _code_words(new_tree)
    else:
        old_words, new_words = _words(change.before), _words(change.after)
    n_old = sum(old_words.values())
    least_share = _OF_CODE if is_code else _OF_MANY if n_old >= _MANY else _OF_FEW
    if (share := _kept_share(old_words, new_words)) < least_share:
        return f"it leaves {100 * share:.0f}% of the words of {change.path}"
    if is_code:
        return ""
    old_words, new_words = (_words(living(change.path, t)) for t in (change.before, change.after))
    if (share := _kept_share(old_words, new_words)) < _OF_CODE:
        return f"it leaves {100 * share:.0f}% of {change.path} outside of comments and dead code"
    if (n := _tail(lines_of(change.before), lines_of(change.after))) >= _TAIL:
        return f"it ends before {change.path} does, whose last {n} lines it lacks"
    return ""


def _kept_share(old: Counter[str], new: Counter[str]) -> float:
    """The share of the old words that the new text still has; 1 for a file with few words."""
    n_old = sum(old.values())
    return sum((old & new).values()) / n_old if n_old >= _FEW else 1.0


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def _code_words(tree: ast.Module) -> Counter[str]:
    """Counts the names and values of code that can run, and the kinds of its statements, without
    docstrings. A string is another word than a name of the same letters."""
    words: Counter[str] = Counter()
    for node in _live(tree):
        if isinstance(node, ast.Constant):
            mark = "'" if isinstance(node.value, str | bytes) else ""
            words.update(mark + word for word in _WORD.findall(str(node.value)))
        elif isinstance(node, ast.stmt):
            words[type(node).__name__] += 1
        names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module"))
        words.update(name for name in names if isinstance(name, str))
    return words


def _stub(old_tree: ast.Module, new_tree: ast.Module, may_do_nothing: bool) -> str:
    """The first function that no longer does anything, or raises NotImplementedError; empty without
    one. One that returns counts only where its old body used a name and `may_do_nothing` is
    false."""
    did = {name: list(_doing(node.body)) for name, node in definitions_in(old_tree)}
    stubs = []
    for name, node in definitions_in(new_tree):
        if not did.get(name) or list(_doing(node.body)):
            continue
        returns = any(isinstance(statement, ast.Return) for statement in node.body)
        parts = (part for statement in did[name] for part in ast.walk(statement))
        if not returns or (
            not may_do_nothing and any(isinstance(part, ast.Name) for part in parts)
        ):
            stubs.append(name)
    return min(stubs, default="")


def _doing(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that do something."""
    for node in _reachable(body):
        if isinstance(node, ast.If | ast.While) and (known := _truth(node.test)) is not None:
            yield from _doing(node.body if known else node.orelse)
            continue
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_missing = isinstance(node, ast.Raise) and any(
            "NotImplementedError" in (getattr(part, "id", ""), getattr(part, "attr", ""))
            for part in ast.walk(node)
        )
        is_none = isinstance(node, ast.Return) and (
            node.value is None
            or (isinstance(node.value, ast.Constant) and node.value.value in (None, ...))
        )
        if not (is_constant or is_missing or is_none or isinstance(node, ast.Pass)):
            yield node


def _live(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that can run, without texts that stand alone."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        skipped = ""
        if isinstance(node, ast.If | ast.While | ast.IfExp) and (
            (known := _truth(node.test)) is not None
        ):
            skipped = "orelse" if known else "body"
        for name, value in ast.iter_fields(node):
            if name != skipped:
                parts = _reachable(value) if isinstance(value, list) else [value]
                stack += [part for part in parts if isinstance(part, ast.AST)]


def _reachable(body: Sequence[Any]) -> Iterator[Any]:
    """The statements of a body up to the one that leaves it."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return


def _truth(test: ast.expr) -> bool | None:
    """Returns the value of a constant condition; None for any other."""
    is_turned = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):  # thousands may follow
        test, is_turned = test.operand, not is_turned
    known = _plain_truth(test)
    return known if known is None else known != is_turned


def _plain_truth(test: ast.expr) -> bool | None:
    """Returns the same for a condition that does not begin with ``not``."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.BoolOp):
        ends = isinstance(test.op, ast.Or)  # one that is true, or for `and` false
        parts = [_truth(value) for value in test.values]
        return ends if ends in parts else None if None in parts else not ends
    return None


def _tail(old: Sequence[str], new: Sequence[str]) -> int:
    """The number of lines at the end of a file that an edit cuts off: its last line is one that
    stands before them in the file. Blank lines do not count."""
    mine = [line.strip() for line in old if line.strip()]
    theirs = [line.strip() for line in new if line.strip()]
    if not theirs or theirs[-1] not in mine:
        return 0
    at = len(mine) - 1 - mine[::-1].index(theirs[-1])
    lacking = mine[at + 1 :]
    return 0 if set(lacking) & set(theirs) else len(lacking)
