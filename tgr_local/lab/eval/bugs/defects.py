"""Defects: small changes of a correct function's text, by kind.

In: Python source. Out: edits, each a span of the text and its replacement. Formatting stays as it
is, because only the span of a syntax node is replaced. Whether an edit changes the results is for
`checks.py` to find out.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from tgr_local.system.python_source import syntax_tree

OPERATORS = {
    "+": ("-",), "-": ("+",), "*": ("+", "//"), "//": ("%", "*"), "%": ("//",), "**": ("*",),
}  # fmt: skip
COMPARISONS = {
    "<": ("<=", ">"), "<=": ("<", ">="), ">": (">=", "<"), ">=": (">", "<="), "==": ("!=",),
    "!=": ("==",), "in": ("not in",), "not in": ("in",), "is": ("is not",), "is not": ("is",),
}  # fmt: skip
CALLS = {
    "min": ("max",), "max": ("min",), "sum": ("len", "max"), "len": ("sum", "max"),
    "upper": ("lower",), "lower": ("upper",), "abs": ("int",),
    "startswith": ("endswith",), "endswith": ("startswith",),
    "isdigit": ("isalpha",), "isalpha": ("isdigit",), "keys": ("values",), "values": ("keys",),
    "sorted": ("list",), "append": ("remove",), "isupper": ("islower",), "title": ("lower",),
    "str": ("len",), "ord": ("len",), "int": ("len",), "set": ("list",), "list": ("set",),
}  # fmt: skip
KINDS = (
    "operator", "comparison", "condition", "constant", "initial", "off_by_one", "variable",
    "missing_return", "early_return", "arguments", "index", "missing_update", "call", "branch",
)  # fmt: skip

WEIGHTS = {"missing_return": 0.4, "variable": 0.7}


@dataclass(frozen=True)
class Defect:
    """One edit: `text[start:end]` becomes `new`."""

    kind: str
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        """The text with the defect."""
        return text[: self.start] + self.new + text[self.end :]


class _ParsedText:
    """A text with its syntax tree and the places of nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = syntax_tree(text)
        self.lines = text.split("\n")
        self.starts = [0, *accumulate(len(line) + 1 for line in self.lines)]
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node in the text; ASCII only."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> Defect:
        return Defect(kind, *self.span(node), new)

    def between(
        self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> Iterator[Defect]:
        """The replacement of an operator between two nodes."""
        start, end = self.span(left)[1], self.span(right)[0]
        at = self.text.find(old, start, end)
        if at >= 0:
            yield Defect(kind, at, at + len(old), new)

    def without(self, kind: str, node: ast.stmt) -> Iterator[Defect]:
        """The removal of a statement of one line that is not the only one of its block."""
        parent = self.parents[node]
        blocks = [getattr(parent, name, []) for name in ("body", "orelse")]
        is_alone = any(node in block and len(block) == 1 for block in blocks)
        if not is_alone and node.lineno == node.end_lineno:
            yield Defect(kind, self.starts[node.lineno - 1], self.starts[node.lineno], "")

    def function(self, node: ast.AST) -> ast.FunctionDef | None:
        """The function that a node is in."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def in_loop(self, node: ast.AST) -> bool:
        """Whether a node is in a loop's body."""
        while node in self.parents and not isinstance(node, ast.FunctionDef):
            node = self.parents[node]
            if isinstance(node, ast.For | ast.While):
                return True
        return False


def defects(text: str) -> list[Defect]:
    """All defects that the text can get; some do not change any result."""
    source = _ParsedText(text)
    possible: list[Defect] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.expr):
            possible += _of_expression(source, node)
        elif isinstance(node, ast.stmt):
            possible += _of_statement(source, node)
    return possible


def draw(rng: random.Random, text: str, n: int = 6) -> list[Defect]:
    """Up to `n` defects of a text, of different kinds. All kinds are equally likely, except those
    that nearly every function can have."""
    by_kind: dict[str, list[Defect]] = {}
    for defect in defects(text):
        by_kind.setdefault(defect.kind, []).append(defect)
    kinds = sorted(by_kind, key=lambda kind: rng.random() ** (1 / WEIGHTS.get(kind, 1.0)))
    kinds.reverse()
    return [rng.choice(by_kind[kind]) for kind in kinds[:n]]


def _of_expression(source: _ParsedText, node: ast.expr) -> Iterator[Defect]:
    if isinstance(node, ast.BinOp):
        yield from _of_operation(source, node)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        old = _symbol(node.ops[0])
        for new in COMPARISONS.get(old, ()):
            yield from source.between("comparison", node.left, node.comparators[0], old, new)
    elif isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from source.between("condition", node.values[0], node.values[1], old, new)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.replace("condition", node, source.of(node.operand))
    elif isinstance(node, ast.Constant):
        yield from _of_constant(source, node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _of_name(source, node)
    elif isinstance(node, ast.Call):
        yield from _of_call(source, node)
    elif isinstance(node, ast.Subscript):
        yield from _of_subscript(source, node)


def _of_operation(source: _ParsedText, node: ast.BinOp) -> Iterator[Defect]:
    old = _symbol(node.op)
    for new in OPERATORS.get(old, ()):
        yield from source.between("operator", node.left, node.right, old, new)
    left, right = source.of(node.left), source.of(node.right)
    if old in ("-", "//", "%", "**") or "'" in left + right:
        simple = not any(isinstance(side, ast.BinOp) for side in (node.left, node.right))
        if simple:
            yield source.replace("arguments", node, f"{right} {old} {left}")
    if old in "+-" and isinstance(node.right, ast.Constant) and node.right.value == 1:
        yield source.replace("off_by_one", node, left)


def _symbol(operator: ast.AST) -> str:
    names: dict[type[ast.AST], str] = {
        ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
        ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
        ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
    }  # fmt: skip
    return names.get(type(operator), "")


def _of_constant(source: _ParsedText, node: ast.Constant) -> Iterator[Defect]:
    value, parent = node.value, source.parents[node]
    if isinstance(parent, ast.Expr | ast.Slice | ast.Subscript):
        return
    kind = "constant"
    if isinstance(parent, ast.Assign | ast.arg) and not source.in_loop(node):
        kind = "initial"
    if value is True or value is False:
        yield source.replace(kind, node, str(not value))
    elif isinstance(value, int):
        for new in {value + 1, max(0, value - 1), 0, 1} - {value}:
            yield source.replace(kind, node, str(new))
    elif isinstance(value, str) and len(value) < 2:
        yield source.replace(kind, node, "' '" if value != " " else "''")


def _of_name(source: _ParsedText, node: ast.Name) -> Iterator[Defect]:
    function, parent = source.function(node), source.parents[node]
    if function is None or (isinstance(parent, ast.Call) and parent.func is node):
        return
    if isinstance(parent, ast.Attribute) and node.id == "self":
        return
    variables = {arg.arg for arg in function.args.args} - {"self", node.id}
    variables |= {
        name.id
        for name in ast.walk(function)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store) and name.id != node.id
    }
    for name in sorted(variables - {"_"}):
        yield source.replace("variable", node, name)


def _of_call(source: _ParsedText, node: ast.Call) -> Iterator[Defect]:
    if len(node.args) >= 2:
        first, second = node.args[:2]
        start, end = source.span(first)[0], source.span(second)[1]
        middle = source.text[source.span(first)[1] : source.span(second)[0]]
        yield Defect("arguments", start, end, source.of(second) + middle + source.of(first))
    if isinstance(node.func, ast.Name):
        for new in CALLS.get(node.func.id, ()):
            yield source.replace("call", node.func, new)
        if node.func.id == "range":
            yield from _of_range(source, node)
    elif isinstance(node.func, ast.Attribute):
        end = source.span(node.func)[1]
        for new in CALLS.get(node.func.attr, ()):
            yield Defect("call", end - len(node.func.attr), end, new)


def _of_range(source: _ParsedText, node: ast.Call) -> Iterator[Defect]:
    last = node.args[-1] if len(node.args) < 3 else node.args[1]
    text = source.of(last)
    if isinstance(last, ast.BinOp):
        yield source.replace("off_by_one", last, source.of(last.left))
    else:
        for new in (f"{text} - 1", f"{text} + 1"):
            yield source.replace("off_by_one", last, new)
    if len(node.args) == 1:
        yield source.replace("off_by_one", last, f"1, {text}")
    elif isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, int):
        yield source.replace("off_by_one", node.args[0], str(node.args[0].value + 1))


def _of_subscript(source: _ParsedText, node: ast.Subscript) -> Iterator[Defect]:
    index = node.slice
    if isinstance(index, ast.Slice):
        for bound in (index.lower, index.upper):
            if bound is not None and not isinstance(bound, ast.BinOp | ast.UnaryOp):
                number = isinstance(bound, ast.Constant) and isinstance(bound.value, int)
                text = source.of(bound)
                new = str(int(text) + 1) if number else f"{text} - 1"
                yield source.replace("index", bound, new)
        return
    text = source.of(index)
    if text in ("0", "1", "-1"):
        yield source.replace("index", index, {"0": "1", "1": "0", "-1": "0"}[text])
        yield source.replace("index", index, {"0": "-1", "1": "-1", "-1": "-2"}[text])
    elif isinstance(index, ast.Name) and isinstance(node.ctx, ast.Load):
        for new in (f"{text} - 1", "0"):
            yield source.replace("index", index, new)
    elif isinstance(index, ast.BinOp):
        yield source.replace("index", index, source.of(index.left))


def _of_statement(source: _ParsedText, node: ast.stmt) -> Iterator[Defect]:
    if isinstance(node, ast.AugAssign):
        yield from _of_update(source, node)
    if isinstance(node, ast.Return) and node.value is not None:
        yield from _of_return(source, node)
    elif isinstance(node, ast.If | ast.While):
        yield from _of_test(source, node)
    is_update = isinstance(node, ast.AugAssign | ast.Assign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )
    function = source.function(node)
    if is_update and (source.in_loop(node) or (function and function.name != "__init__")):
        yield from source.without("missing_update", node)


def _of_update(source: _ParsedText, node: ast.AugAssign) -> Iterator[Defect]:
    old = _symbol(node.op)
    start, end = source.span(node.target)[1], source.span(node.value)[0]
    at = source.text.find(f"{old}=", start, end)
    for new in OPERATORS.get(old, ()):
        yield Defect("operator", at, at + len(old), new)
    yield Defect("operator", at, at + len(old) + 1, "=")


def _of_return(source: _ParsedText, node: ast.Return) -> Iterator[Defect]:
    assert node.value is not None
    function = source.function(node)
    if function is None:
        return
    if function.body[-1] is node:
        yield from source.without("missing_return", node)
        loops = [n for n in function.body[:-1] if isinstance(n, ast.For | ast.While)]
        if loops and function.body[-2] is loops[-1]:
            start = source.span(node)[0]
            depth = 8 if loops[-1].body[-1].col_offset > 8 else 4
            yield Defect("early_return", start, start, " " * depth)
    if isinstance(node.value, ast.Name | ast.BinOp | ast.Call):
        yield source.replace("missing_return", node, source.of(node.value))


def _of_test(source: _ParsedText, node: ast.If | ast.While) -> Iterator[Defect]:
    if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield source.replace("condition", node.test, f"not {source.of(node.test)}")
    if isinstance(node, ast.If) and node.orelse and not isinstance(node.orelse[0], ast.If):
        mine, alternative = node.body[0], node.orelse[0]
        if len(node.body) == len(node.orelse) == 1:
            middle = source.text[source.span(mine)[1] : source.span(alternative)[0]]
            start, end = source.span(mine)[0], source.span(alternative)[1]
            yield Defect("branch", start, end, source.of(alternative) + middle + source.of(mine))
