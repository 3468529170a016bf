"""The place of a block of code in a document.

In: a document, the code. Out: the document's new text. A block is the whole file, or has functions,
methods and classes. They replace the definitions of the same names in the file; new ones are added.
The names are found as in a file, by the block's outline. A block without definitions replaces the
lines of the file from the block's first line to its last one.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence

from tgr_local.code.edits import Change, EditError, FileText
from tgr_local.code.edits.document import Patch, joined, lines_of, patched
from tgr_local.code.edits.function import in_place, parsed, replacing
from tgr_local.code.edits.syntax import Definition, python_error
from tgr_local.code.reading import evidence
from tgr_local.code.reading.outline import outline

_LEFT_OUT = re.compile(
    r"(?:\.\.\.|…) ?(?:#.*)?|(?:#|//|/\*|<!--|--|;) ?(?:\.\.\.|…).*|"
    r"(?:(?:#|//|/\*|<!--|--|;) ?[(\[]?|[(\[])(?:the )?(?:rest of (?:the )?|existing |other |"
    r"remaining |previous |all (?:the )?lines of (?:the )?(?:new )?|your )"
    r"(?:code|file|class|methods?|functions?|implementation|module)"
    r"(?: (?:here|unchanged|goes here|as before|(?:remains?|stays?) (?:the same|unchanged)))?"
    r"[ .)\]]*(?:\*/|-->)?|"
    r"(?=[#/<;(\[.…-])(?:#|//|/\*|<!--|--|;)? ?[(\[<]?(?:\.\.\.|…)? ?[(\[<]? ?(?:"
    r"(?:the )?(?:rest of (?:the |your |this )?(?:existing )?|existing )"
    r"(?:code|file|class|document|text|function|method|module|content|implementation)"
    r"(?: (?:here|unchanged|as before|(?:remains?|stays?) (?:the same|unchanged)))?|"
    r"unchanged(?: code)?|(?:the )?same as (?:before|above)|keep the rest as (?:it )?(?:is|before)|"
    r"no changes below)"
    r"[ .)\]>]*(?:\.\.\.|…)? ?[)\]]?(?:\*/|-->)?",
    re.IGNORECASE,
)
"""A placeholder for omitted lines: "# ... existing code ...", "(all lines of the file)"."""
_SELF = re.compile(r"\((?:self|cls)\b")
_SHARE = 0.6
"""Code without definitions counts as the whole file if it has at least this share of the file's
lines."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Bound = dict[str, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign]


def merge_block(document: FileText, text: str, is_own: bool, is_cut: bool = False) -> str | None:
    """The text of the document with a block; None where the block has no place in it. `is_own`
    where it can belong to no other document. `is_cut` where the block has lost its end: then it is
    no whole file. Raises EditError for code that leaves lines out."""
    path, old = document.path, document.text
    if "<<<<< SEARCH" in text:
        return _replace_quotes(old, text)
    if not old.strip():
        return text if is_own and not is_cut else None
    if path.endswith(".py") and python_error(old):  # its names are not known
        if not is_own or is_cut or not is_long(text, old):
            return _replace_between(old, text)
        return _check_whole(text, old)
    mine = tuple(d for d in outline(document).definitions if not d.is_test)
    theirs = _definitions(path, text)
    if theirs and (mine or is_own):
        if not is_cut and _is_whole(old, text, mine, theirs):
            return _drop_calls(_check_whole(text, old), document)
        return _exchange(document, text, mine, theirs, is_own)
    if is_own and not theirs and (rebound := _only_bound(document, text)) is not None:
        return rebound
    if is_own and not theirs and not mine and not is_cut:
        new = {line.strip() for line in text.split("\n")}
        olds = [line.strip() for line in old.split("\n") if line.strip()]
        if sum(line in new for line in olds) >= _SHARE * len(olds):
            return _check_whole(text, old)
    return _replace_between(old, text)


def is_long(text: str, old: str) -> bool:
    """Whether code has about as many lines as a file, or more."""
    return len(text.splitlines()) >= _SHARE * len(old.splitlines())


def names(path: str, text: str) -> frozenset[str]:
    """Returns the names that code defines."""
    return frozenset(d.name for d in _definitions(path, text))


def statements(tree: ast.Module) -> list[ast.stmt]:
    """Returns the statements at a module's top, but for imports, values, definitions and its
    docstring."""
    plain = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, *_Definition.__args__)
    texts = [n for n in tree.body if isinstance(n, ast.Expr)]
    texts = [n for n in texts if isinstance(n.value, ast.Constant)]
    return [n for n in tree.body if not isinstance(n, plain) and n not in texts]


def keep_docstring(change: Change) -> Change:
    """A change of a Python file with the module's docstring, where it has lost that."""
    if not change.path.endswith((".py", ".pyi")):
        return change
    old, new = parsed(change.before), parsed(change.after)
    if old is None or ast.get_docstring(old) is None or new is None or not new.body:
        return change
    if ast.get_docstring(new) is not None:
        return change
    text, lines = old.body[0], lines_of(change.after)
    docstring = lines_of(change.before)[text.lineno - 1 : text.end_lineno]
    head = _head(new, lines)
    rest = "\n".join(lines[head:]).lstrip("\n")
    after = "\n".join([*lines[:head], *docstring, "", rest])
    return Change(change.path, change.before, after + "\n" * change.after.endswith("\n"))


def _definitions(path: str, text: str) -> tuple[Definition, ...]:
    definitions = outline(FileText(path, text)).definitions
    return tuple(d for d in definitions if d.exact and not d.is_test)


def _check_whole(new: str, old: str) -> str:
    """`new`. Raises EditError where it has a line that stands for others, which `old` has not."""
    for line in new.split("\n"):
        if line and len(line) < 200 and _LEFT_OUT.fullmatch(line.strip()) and line not in old:
            raise EditError(f"the answer leaves out lines: {line.strip()!r:.60}")
    return new


def _replace_quotes(old: str, text: str) -> str | None:
    """The text with the lines that SEARCH and REPLACE blocks quote exchanged."""
    quoted: list[str] | None = None
    new: list[str] | None = None
    n_done = 0
    old = old if old.endswith("\n") else f"{old}\n"
    for line in text.split("\n"):
        if re.match(r"<{5,9} SEARCH", line):
            quoted, new = [], None
        elif quoted is not None and new is None and re.fullmatch(r"={5,9}", line.strip()):
            new = []
        elif quoted is not None and new is not None and re.match(r">{5,9} REPLACE", line):
            quote = "".join(f"{line}\n" for line in quoted)
            at = f"\n{old}".find(f"\n{quote}") if quote else -1
            if at < 0:
                return None
            old = old[:at] + "".join(f"{line}\n" for line in new) + old[at + len(quote) :]
            quoted, n_done = None, n_done + 1
        elif new is not None:
            new.append(line)
        elif quoted is not None:
            quoted.append(line)
    return old if n_done else None


# ---- whole files ----


def _is_whole(old: str, new: str, mine: Sequence[Definition], theirs: Sequence[Definition]) -> bool:
    """Whether a block has all definitions of a file, and its other statements at the top level."""
    if not mine or not {d.name for d in mine} <= {d.name for d in theirs}:
        return False
    old_tree, new_tree = parsed(old), parsed(new)
    if old_tree is not None and new_tree is not None:
        known = {ast.dump(n) for n in statements(new_tree)}
        if not all(ast.dump(n) in known for n in statements(old_tree)):
            return False
        if not all(_class_names(old, d.name) <= _class_names(new, d.name) for d in mine):
            return False
        if bound := _bound(old_tree.body):
            return set(bound) <= set(_bound(new_tree.body))
    within = {n for d in mine for n in range(d.first, d.last + 1)}
    lines = enumerate(old.split("\n"), 1)
    outside = [line.strip() for n, line in lines if n not in within and line.strip()]
    return sum(line in new for line in outside) >= _SHARE * len(outside)


def _class_names(text: str, name: str) -> set[str]:
    """The names that a class at the top of Python code binds beside its methods."""
    body = tree.body if (tree := parsed(text)) else []
    classes = [n for n in body if isinstance(n, ast.ClassDef) and n.name == name]
    return set(_bound(classes[-1].body)) if classes else set()


def _drop_calls(new: str, old: FileText) -> str:
    """A whole file without the tests and prints at its end that the old one did not have."""
    old_tree, new_tree = parsed(old.text), parsed(new)
    if old_tree is None or new_tree is None or evidence.is_test(old.path):
        return new
    used = Counter(re.findall(r"\w+", new))
    known = {ast.dump(node) for node in old_tree.body}
    lines = new.split("\n")
    for node in reversed(new_tree.body):
        if not _is_check(node, used) or ast.dump(node) in known:
            return "\n".join(lines).rstrip("\n") + "\n" if len(lines) < new.count("\n") else new
        lines = lines[
            : min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        ]
    return new


def _is_check(node: ast.stmt, used: Counter[str]) -> bool:
    """Whether a statement at the top of a module tests it or shows what it does. `used` counts the
    words of the module."""
    if isinstance(node, ast.Expr):
        return ast.dump(node).startswith("Expr(value=Call(func=Name(id='print'")
    if isinstance(node, ast.Import):
        return all(name.name in ("unittest", "pytest") for name in node.names)
    if isinstance(node, _Definition):
        return node.name.startswith(("test_", "Test")) and used[node.name] == 1
    return isinstance(node, ast.Assert)


# ---- parts ----


def _exchange(
    document: FileText,
    text: str,
    mine: Sequence[Definition],
    theirs: Sequence[Definition],
    is_own: bool,
) -> str | None:
    """The document with the definitions of a block in the place of its own."""
    new = lines_of(text)
    exchanged: dict[int, Patch] = {}  # by the first line: of two versions the last one counts
    added: dict[str, Definition] = {}
    handled: set[str] = set()
    places = _places(mine, theirs)
    for entry, place in zip(theirs, places, strict=True):
        if any(entry.name.startswith(f"{name}.") for name in handled):
            continue
        if place is not None and entry.kind == "class" and place.kind == "class":
            own_members = {n.name for n in mine if n.name.startswith(f"{entry.name}.")}
            has_all = own_members <= {n.name for n in theirs}
            if not has_all or not _class_names(document.text, entry.name) <= _class_names(
                text, entry.name
            ):
                continue  # its methods one by one
        place = place or _renamed(document, mine, theirs, entry, new)
        if place is None:
            if entry.depth == 0 and _SELF.search(entry.signature):
                raise EditError(f"the answer has a method {entry.name!r:.60}, but not its class")
            added[entry.name] = entry
        else:
            code = _check_whole("\n".join(new[entry.first - 1 : entry.last]), document.text)
            is_short = entry.name == place.name.rpartition(".")[2] != place.name
            if is_short and _is_other(document, place, entry, code):
                raise EditError(f"the answer has a method {entry.name!r:.60}, but not its class")
            exchanged[place.first] = replacing(document, place.first, place.last, code)
        handled.add(entry.name)
    used = Counter(re.findall(r"\w+", text))
    if not evidence.is_test(document.path):
        added = {n: d for n, d in added.items() if not n.startswith("test_") or used[n] > 1}
    if not exchanged and not (added and is_own):
        return None
    first = min(exchanged, default=0)
    after = patched(
        document,
        [
            *_bound_patches(document, text, theirs),
            *_add(document, new, mine, list(added.values()), first),
            *exchanged.values(),
        ],
    )
    return _drop_imports(document, text, after)


def _renamed(
    document: FileText,
    mine: Sequence[Definition],
    theirs: Sequence[Definition],
    entry: Definition,
    new: Sequence[str],
) -> Definition | None:
    """Returns the old function or class that a new one renames: it has the same code under another
    name, and is not in the block."""
    known, old = {d.name for d in theirs}, lines_of(document.text)
    name = re.compile(rf"\b{re.escape(entry.name)}\b")
    code = new[entry.first - 1 : entry.last]
    for other in mine:
        is_gone = other.kind == entry.kind and not other.depth and other.name not in known
        if (
            is_gone
            and [name.sub(other.name, line) for line in code] == (old[other.first - 1 : other.last])
        ):
            return other
    return None


def _drop_imports(document: FileText, block: str, after: str) -> str:
    """A Python file without the imports of a name that it used before and no longer uses, where the
    block imports another name from the same module."""
    tree, its = parsed(after), parsed(block)
    if not document.path.endswith(".py") or tree is None or its is None:
        return after
    used, before = (Counter(re.findall(r"\w+", text)) for text in (after, document.text))
    modules = {(n.module, n.level) for n in its.body if isinstance(n, ast.ImportFrom)}
    lines = lines_of(after)
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and (node.module, node.level) in modules:
            bound = [alias.asname or alias.name for alias in node.names]
            if all(used[name] == 1 < before[name] for name in bound) and bound != ["*"]:
                del lines[node.lineno - 1 : node.end_lineno]
    return joined(lines, document)


def _places(mine: Sequence[Definition], theirs: Sequence[Definition]) -> list[Definition | None]:
    """Returns for each definition of a block the one that it replaces, or None. Of several with one
    name, as properties have, the nth replaces the nth where there are as many. A function at the
    top of a block may replace a method, where only one method has its name and both have ``self``
    or neither."""
    times, known = Counter(d.name for d in theirs), Counter(d.name for d in mine)
    n_seen: Counter[str] = Counter()
    ends = Counter(d.name.rpartition(".")[2] for d in theirs)
    places: list[Definition | None] = []
    for entry in theirs:
        same = [o for o in mine if o.name == entry.name]
        nth = n_seen[entry.name]
        n_seen[entry.name] += 1
        short = [
            o for o in mine
            if "." in o.name and o.name.rpartition(".")[2] == entry.name
            and bool(_SELF.search(o.signature)) == bool(_SELF.search(entry.signature))
        ]  # fmt: skip
        if known[entry.name] > 1:
            if times[entry.name] != known[entry.name]:
                raise EditError(f"{entry.name!r:.60} is there several times; the answer has others")
            places.append(same[nth])
        elif same:
            places.append(same[0])
        elif entry.depth == 0 and len(short) == 1 and ends[entry.name] == times[entry.name]:
            places.append(short[0])
        else:
            places.append(None)
    return places


def _is_other(document: FileText, place: Definition, entry: Definition, code: str) -> bool:
    """Whether a method that is written without its class does not belong at `place`: it has other
    parameters than the method there, and none of its lines."""
    if place.signature == entry.signature:
        return False
    old = lines_of(document.text)[place.first - 1 : place.last]
    return {line.strip() for line in old if line.strip()}.isdisjoint(
        line.strip() for line in code.split("\n")
    )


def _add(
    document: FileText,
    new: Sequence[str],
    mine: Sequence[Definition],
    added: Sequence[Definition],
    changed: int,
) -> list[Patch]:
    """Patches that add new methods at the end of their class, and other definitions before the line
    `changed`, the first that is exchanged, or at the end where that is 0."""
    old = lines_of(document.text)
    classes = {d.name: d for d in mine if d.kind == "class"}
    tops = sorted(d.first for d in mine if d.depth == 0)
    patches: list[Patch] = []
    for entry in added:
        lines = list(new[entry.first - 1 : entry.last])
        _check_whole("\n".join(lines), document.text)
        within = classes.get(entry.name.rpartition(".")[0])
        if within is not None:
            patches.append((range(within.last, within.last), ["", *lines]))
        elif "." in entry.name:
            continue
        elif changed:
            at = max((top for top in tops if top <= changed), default=changed)
            patches.append((range(at - 1, at - 1), [*lines, "", ""]))
        else:
            end = len(old)
            while end and not old[end - 1].strip():
                end -= 1
            patches.append((range(end, end), ["", "", *lines]))
    return patches


# ---- imports and values ----


def _bound(body: Sequence[ast.stmt]) -> _Bound:
    """The names that imports and assignments bind, each with its statement."""
    bound: _Bound = {}
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                bound |= {part.id: node for part in parts if isinstance(part, ast.Name)}
    return bound


def _only_bound(document: FileText, text: str) -> str | None:
    """The document with a block that has nothing but imports and values at its top."""
    tree = parsed(text) if document.path.endswith(".py") else None
    if tree is None or not tree.body or statements(tree) or not _bound(tree.body):
        return None
    return patched(document, _bound_patches(document, text, ()))


def _bound_patches(document: FileText, text: str, theirs: Sequence[Definition]) -> list[Patch]:
    """The imports of a Python block, and the values that stand before its definitions, as far as
    the definitions need them, or all where there are none."""
    tree, after = parsed(document.text), parsed(text)
    if tree is None or after is None:
        return []
    lines, old = text.split("\n"), lines_of(document.text)
    first = min((d.first for d in theirs), default=len(lines))
    code = "\n".join("\n".join(lines[d.first - 1 : d.last]) for d in theirs)
    used = set(re.findall(r"\w+", code))
    old_bound, bound = _bound(tree.body), _bound(after.body)
    values = {n for n, node in bound.items() if not _imports(node) and node.lineno < first}
    for name in reversed([n for n in bound if n in values]):
        if not theirs or name in used or name in old_bound:
            used |= set(re.findall(r"\w+", ast.dump(bound[name])))
    head = _head(tree, old)
    n_imports = max((n.end_lineno or 0 for n in tree.body if _imports(n)), default=head)
    tops = [n for n in tree.body if isinstance(n, _Definition)]
    plain = [n for n in old_bound.values() if not tops or n.lineno < tops[0].lineno]
    n_values = max((n.end_lineno or 0 for n in plain), default=n_imports)
    patches: dict[int, Patch] = {}
    for name, node in bound.items():
        new = lines[node.lineno - 1 : node.end_lineno]
        wanted = not theirs or name.partition(".")[0] in used or name == "*"
        if _imports(node):
            future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            at = head if future else n_imports
            if (wanted or future) and not _is_same(name, old_bound.get(name), node):
                patches[node.lineno] = (range(at, at), new)
        elif name in values and name in old_bound:
            place = old_bound[name]
            if not _imports(place) and ast.dump(place) != ast.dump(node):
                last = place.end_lineno or place.lineno
                patches[node.lineno] = (range(place.lineno - 1, last), new)
        elif name in values and wanted:
            at = max(n_values, n_imports)
            patches[node.lineno] = (range(at, at), new)
    return list(patches.values())


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_same(name: str, old: ast.stmt | None, new: ast.stmt) -> bool:
    """Whether two imports bind a name to the same thing."""

    def source(node: ast.stmt | None) -> tuple[object, ...]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            return ()
        alias = next(a for a in node.names if (a.asname or a.name) == name)
        return (getattr(node, "module", ""), getattr(node, "level", 0), alias.name)

    return bool(source(old)) and source(old) == source(new)


def _head(tree: ast.Module, lines: Sequence[str]) -> int:
    """The last line of a module's first comments and its docstring."""
    if tree.body and ast.get_docstring(tree) is not None:
        return tree.body[0].end_lineno or 0
    return next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))


def _replace_between(old: str, text: str) -> str | None:
    """The text with a block in the place of the lines from the block's first line to its last one,
    where each of these two occurs once."""
    lines = old.split("\n")
    new = text.strip("\n").split("\n")
    stripped = [line.strip() for line in lines]
    ends = [new[0].strip(), new[-1].strip()]
    if len(new) < 2 or any(stripped.count(end) != 1 for end in ends):
        return None
    first, last = map(stripped.index, ends)
    if first >= last:
        return None
    block = in_place(_check_whole("\n".join(new), old), lines[first : last + 1])
    return "\n".join([*lines[:first], *block, *lines[last + 1 :]])
