"""What an edit takes away that nobody asked for: a file that it empties, or most of its words.

In: the changes of a candidate, the task. Out: one sentence, or nothing. Tests that do not read a
file pass without it, so they cannot tell. Of 8,000 changes in the history of this project one in
200 kept less than half of a file's words; all of those move, replace or remove parts of it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tgr_local.code.edits import Change
from tgr_local.code.edits.document import lines_of
from tgr_local.code.edits.function import definitions_in, parsed

_ASKED = re.compile(
    r"\b(?:remov|delet|drop|strip|shorten|trim|reduc|simplif|rewrit|re-writ|replac|split|"
    r"mov(?:e|ing)\b|extract|translat|convert|port\b|migrat|restructur|refactor|scratch\b|"
    r"start over|summar|condens|shrink|minif|merg|inlin|dedup|discard|erase|prune|get rid|stub|"
    r"entfern|l(?:ö|oe)sch|k(?:ü|ue)rz|ersetz|umschreib|supprim|effac|remplac|elimin|borra|reemplaz)",
    re.IGNORECASE,
)
"""In a task: that parts of a file may go."""
_EMPTY = re.compile(
    r"\b(?:empty|clear|truncate|blank|everything|leere?|vide[rz]?)\b"
    r"|\b(?:whole|entire|all)\b.{0,20}\b(?:file|contents?|text|lines|code)\b"
    r"|\bcontents? of\b",
    re.IGNORECASE,
)
"""In a task that asks to remove: that nothing may be left."""
_WORD = re.compile(r"\w+")
_FEW, _MANY = 6, 20
"""Words: a smaller file may change altogether; one of less than `_MANY` nearly so."""
_OF_FEW, _OF_MANY, _OF_CODE = 0.25, 0.5, 0.25
"""Share of the words that an edit leaves at least. Code, without its comments, says the same in
other words."""
_TAIL = 2  # last lines of a file that an edit does not leave out


def loss(changes: Sequence[Change], task: str) -> str:
    """The first loss of an edit that the task does not ask for, in one sentence; empty without
    one."""
    asked = bool(_ASKED.search(task))
    for change in changes:
        if not change.before.strip():
            continue
        if not change.after.strip():
            if _EMPTY.search(task):
                continue
            return f"it empties {change.path}, and the task does not say so"
        if not asked and (found := _loss(change)):
            return f"{found}; a task that may do so says remove or rewrite"
    return ""


def _loss(change: Change) -> str:
    before = parsed(change.before) if change.path.endswith((".py", ".pyi")) else None
    after = parsed(change.after) if before is not None else None
    is_code = before is not None and after is not None
    if before is not None and after is not None:
        if stubs := sorted(_stubs(after) & _written(before)):
            return f"it leaves {stubs[0]} in {change.path} without a body"
        old, new = _code_words(before), _code_words(after)
    else:
        old, new = _words(change.before), _words(change.after)
    n_old = sum(old.values())
    kept = sum((old & new).values()) / max(n_old, 1)
    least = _OF_CODE if is_code else _OF_MANY if n_old >= _MANY else _OF_FEW
    if n_old >= _FEW and kept < least:
        return f"it leaves {100 * kept:.0f}% of the words of {change.path}"
    if not is_code and (n := _tail(lines_of(change.before), lines_of(change.after))) >= _TAIL:
        return f"it ends before {change.path} does, whose last {n} lines it lacks"
    return ""


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text))


def _code_words(tree: ast.Module) -> Counter[str]:
    """The names and values of code, and the kinds of its statements; nothing of docstrings."""
    found: Counter[str] = Counter()
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(node.value) for node in statements if isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            found.update(_WORD.findall(str(node.value)))
        elif isinstance(node, ast.stmt):
            found[type(node).__name__] += 1
        names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module"))
        found.update(name for name in names if isinstance(name, str))
    return found


def _stubs(tree: ast.Module) -> set[str]:
    """The functions that do nothing but raise NotImplementedError, or nothing at all."""
    return {name for name, node in definitions_in(tree) if not list(_doing(node.body))}


def _written(tree: ast.Module) -> set[str]:
    """The functions that do something."""
    return {name for name, node in definitions_in(tree) if list(_doing(node.body))}


def _doing(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for one in body:
        is_constant = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        is_missing = isinstance(one, ast.Raise) and "NotImplementedError" in ast.dump(one)
        if not (is_constant or is_missing or isinstance(one, ast.Pass)):
            yield one


def _tail(old: Sequence[str], new: Sequence[str]) -> int:
    """The last lines with text of a file that an edit lacks, where its own last line stands before
    them in the file."""
    mine = [line.strip() for line in old if line.strip()]
    theirs = [line.strip() for line in new if line.strip()]
    if not theirs or theirs[-1] not in mine:
        return 0
    at = len(mine) - 1 - mine[::-1].index(theirs[-1])
    left = mine[at + 1 :]
    return 0 if set(left) & set(theirs) else len(left)
