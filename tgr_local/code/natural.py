"""Edits in an answer as a code model writes it anyway: prose, and fenced blocks of code.

In: an answer, the documents that it may change. Out: the changes. A block is a whole file, or
functions, methods and classes of one: they take the place of those with their names, and what a
file has not yet is added to it. Their names come from the outline of the block, as those of a file
do. A block without names takes the place of the lines between its first and its last line.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tgr_local.code.edits import Change, Document, EditError
from tgr_local.code.edits.blocks import cleaned
from tgr_local.code.edits.document import joined, lines_of
from tgr_local.code.edits.function import in_place
from tgr_local.code.outline import Definition, outline
from tgr_local.code.syntax import fence_name, python_error

_FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_OTHER = frozenset(
    ["bash", "sh", "shell", "console", "text", "txt", "output", "plaintext", "log", "diff", "pycon"]
)
_PATH = re.compile(r"[\w./+@-]*[\w+-]\.\w{1,5}")
_SEARCH = re.compile(
    r"^<{5,9} SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} REPLACE[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_LEFT_OUT = re.compile(
    r"^[ \t]*(?:#|//|/\*|<!--|--|;|\()?[ \t]*(?:\.\.\.|…).*$|"
    r"^[ \t]*(?:#|//|/\*|<!--|--|;|\()[ \t]*(?:the )?(?:rest of (?:the )?|existing |other |"
    r"remaining |previous |all (?:the )?lines of (?:the )?(?:new )?|your )"
    r"(?:code|file|class|methods?|functions?|implementation|module)"
    r"(?: (?:here|unchanged|goes here|as before|(?:remains?|stays?) (?:the same|unchanged)))?"
    r"[ \t.)]*(?:\*/|-->)?$",
    re.IGNORECASE | re.MULTILINE,
)
"""A line that stands for others: "# ... existing code ...", "(all lines of the file)"."""
_BEHIND = re.compile(
    r"(?:assert|print|import unittest|if __name__|# ?(?:tests?|examples?)\b)", re.I
)
"""What small models write behind the code, often without an end."""
_SHARE = 0.6
"""Of a file's lines that a block without names has at least where it is the whole file."""


@dataclass(frozen=True)
class Code:
    """A fenced block of an answer."""

    before: str
    """The last line of the prose before it."""
    info: str
    """What follows its fence."""
    text: str
    is_closed: bool = True

    @property
    def language(self) -> str:
        return re.split(r"[\s:{]", self.info, maxsplit=1)[0].lower()

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def read_answer(answer: str, documents: Sequence[Document]) -> tuple[Change, ...]:
    """The changes that an answer makes, one for each document that it changes.

    Raises EditError for one that has no code, or none that has a place in the documents.
    """
    found = codes(answer)
    texts = {one.path: one.text for one in documents}
    why = "the answer has no code"
    n_placed = 0
    for code in found:
        try:
            path, text = _placed(code, [Document(path, text) for path, text in texts.items()])
        except EditError as error:
            why = str(error)
            continue
        texts[path] = text
        n_placed += 1
    if not n_placed:
        raise EditError(why)
    return tuple(
        Change(one.path, one.text, texts[one.path])
        for one in documents
        if texts[one.path] != one.text
    )


def is_whole(answer: str, documents: Sequence[Document]) -> bool:
    """Whether an answer so far changes all of the documents already, and its last line ends a
    block, or begins with calls and tests behind the code, so that what would follow is no edit."""
    line = answer.rstrip("\n").rpartition("\n")[2]
    if not _closes(line, "```") and not _closes(line, "~~~"):
        if not _BEHIND.match(line) or any(line in one.text for one in documents):
            return False
        answer = answer[: -len(line)].rstrip("\n")  # its line may be unfinished
    elif sum(bool(_FENCE.match(one)) for one in answer.split("\n")) % 2:
        return False
    try:
        return len(read_answer(answer, documents)) == len(documents)
    except EditError:
        return False


def codes(answer: str) -> list[Code]:
    """The fenced blocks of an answer but those of commands and outputs; the whole answer where it
    has no fence and is Python."""
    lines, _ = lines_of(answer)
    found: list[Code] = []
    at, before, fenced = 0, "", False
    while at < len(lines):
        opens = _FENCE.match(lines[at])
        if opens is None:
            before = lines[at].strip() or before
            at += 1
            continue
        indent, fence, info = opens.groups()
        end = at + 1
        while end < len(lines) and not _closes(lines[end], fence):
            end += 1
        fenced = True
        body = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end])
        code = Code(before, info.strip(), f"{body}\n", end < len(lines))
        if code.language not in _OTHER and body.strip():
            found.append(code)
        at, before = end + 1, ""
    if not fenced and _outline_of("x.py", answer):
        found.append(Code("", "python", answer))
    return found


def _closes(line: str, fence: str) -> bool:
    line = line.strip(" \t>")
    return line.startswith(fence) and not line.strip(fence[0])


def _check_whole(new: str, old: str) -> None:
    """Raises EditError for code with a line that stands for others, which `old` does not have."""
    for found in _LEFT_OUT.finditer(new):
        if found[0].strip() not in old:
            raise EditError(f"the answer leaves out lines: {found[0].strip()!r:.60}")


# ---- the place of a block ----


def _placed(code: Code, documents: Sequence[Document]) -> tuple[str, str]:
    """The path and the new text of the document that a block changes. Raises EditError."""
    named = _named(code)
    own = [one for one in documents if named and _is_named(one.path, named)]
    if named and not own:
        raise EditError(f"the answer changes {named!r:.80}, which is not open")
    text = code.text
    comment = code.first_line
    if named and named == _comment_path(comment) and not own[0].text.startswith(comment):
        text = text.partition("\n")[2].lstrip("\n")
    text = _dedented(text)
    if (own or documents)[0].text.count("\n\t") and "\n\t" not in text:
        text = _with_tabs(text)

    if not code.is_closed and python_error(text):
        text = _finished(text)

    def n_shared(one: Document) -> int:
        return len(_names(one.path, text) & _names(one.path, one.text))

    scored = sorted(own or documents, key=n_shared, reverse=True)
    for document in scored:
        made = _merged(document, text, is_own=bool(own) or len(documents) == 1)
        if made is not None:
            return document.path, made
    if scored[0].path.endswith(".py") and (error := python_error(text)):
        raise EditError(f"the answer has a syntax error, in line {error}")
    raise EditError("the answer has code that has no place in the open files")


def _finished(text: str) -> str:
    """Python code that was cut off, without the statement at its top that lacks its end."""
    starts = [found.start() for found in re.finditer(r"^(?=[^\s)\]}#])", text, re.MULTILINE)]
    return text[: starts[-1]] if starts else text


def _dedented(text: str) -> str:
    return textwrap.dedent(text) if text[:1] in " \t" else text


def _with_tabs(text: str) -> str:
    """Code with tabs in the place of the spaces that indent it."""
    steps = {len(found) for found in re.findall(r"^ +(?=\S)", text, re.MULTILINE) if found}
    unit = min(steps, default=4)

    def tabs(found: re.Match[str]) -> str:
        n, rest = divmod(len(found[0]), unit)
        return "\t" * n + " " * rest

    return re.sub(r"^ +", tabs, text, flags=re.MULTILINE)


def _named(code: Code) -> str:
    """The file that a block names as a whole line before it, behind its fence or in its first
    comment; empty without one."""
    _, _, rest = code.info.partition(":" if ":" in code.info else " ")
    for text in (rest, code.before, _comment_path(code.first_line)):
        name = cleaned(text.strip().removesuffix(":"))
        name = re.sub(r"^(?:file|filename|path)\s*[:=]?\s*", "", name, flags=re.IGNORECASE)
        name = name.strip("`'\"* ")
        if _PATH.fullmatch(name) and fence_name(name):
            return name
    return ""


def _comment_path(line: str) -> str:
    found = re.match(r"^\s*(?:#|//|/\*|<!--|--|;)\s*([\w./+@-]+\.\w{1,5})\s*(?:\*/|-->)?\s*$", line)
    return found[1] if found else ""


def _is_named(path: str, name: str) -> bool:
    name = name.removeprefix("./")
    return path == name or path.endswith(f"/{name}") or name.endswith(f"/{path}")


def _outline_of(path: str, text: str) -> tuple[Definition, ...]:
    return tuple(one for one in outline(Document(path, text)).definitions if one.exact)


def _names(path: str, text: str) -> frozenset[str]:
    return frozenset(one.name for one in _outline_of(path, text))


# ---- a block in its document ----


def _merged(document: Document, text: str, is_own: bool) -> str | None:
    """The text of the document with a block; None where the block has no place in it."""
    path, old = document.path, document.text
    if found := _SEARCH.findall(text):
        return _replaced(old, found)
    if not old:
        return text if is_own else None
    mine, theirs = _outline_of(path, old), _outline_of(path, text)
    if theirs and (mine or is_own):
        if _is_whole(old, text, mine, theirs):
            _check_whole(text, old)
            return text
        return _exchanged(document, text, mine, theirs, is_own)
    if is_own and not theirs:
        share = len(text.splitlines()) / max(1, len(old.splitlines()))
        if share >= _SHARE:
            _check_whole(text, old)
            return text
    return _between(old, text)


def _replaced(old: str, found: Sequence[tuple[str, str]]) -> str | None:
    for quoted, new in found:
        at = f"\n{old}".find(f"\n{quoted}")
        if not quoted or at < 0:
            return None
        old = old[:at] + new + old[at + len(quoted) :]
    return old


def _is_whole(old: str, new: str, mine: Sequence[Definition], theirs: Sequence[Definition]) -> bool:
    """Whether a block has all that a file defines, and what else stands at its top."""
    if not {one.name for one in mine} <= {one.name for one in theirs} or not mine:
        return False
    before, after = _bound(old), _bound(new)
    if before and after is not None:
        return set(before) <= set(after)
    within = {n for one in mine for n in range(one.first, one.last + 1)}
    lines = enumerate(old.split("\n"), 1)
    others = [line.strip() for n, line in lines if n not in within and line.strip()]
    return sum(line in new for line in others) >= _SHARE * len(others)


def _bound(text: str) -> dict[str, tuple[int, int, str]] | None:
    """The names that imports and assignments at the top of Python code bind, with their lines and
    what they are; None where Python cannot read it."""
    if (tree := _parsed(text)) is None:
        return None
    bound: dict[str, tuple[int, int, str]] = {}
    for node in tree.body:
        place = (node.lineno, node.end_lineno or node.lineno)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                bound[alias.asname or alias.name] = (*place, "import")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                bound[ast.unparse(target)] = (*place, "value")
    return bound


def _parsed(text: str) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@dataclass
class _Patch:
    """Lines that take the place of others."""

    first: int
    """From 1."""
    last: int
    """One less than `first` where lines are put before it."""
    new: list[str] = field(default_factory=list)


def _exchanged(
    document: Document,
    text: str,
    mine: Sequence[Definition],
    theirs: Sequence[Definition],
    is_own: bool,
) -> str | None:
    """The document with the definitions of a block in the place of its own."""
    old, _ = lines_of(document.text)
    new, _ = lines_of(text)
    times = Counter(one.name for one in mine)
    known = {one.name: one for one in mine if times[one.name] == 1}
    exchanged: dict[int, _Patch] = {}  # by the first line: of two versions the last one counts
    added: dict[str, Definition] = {}
    done: set[str] = set()
    for one in theirs:
        if times[one.name] > 1 or any(one.name.startswith(f"{name}.") for name in done):
            continue
        place = known.get(one.name) or _method(one, known)
        if place is not None and one.kind == "class" and place.kind == "class":
            own = {n for n in known if n.startswith(f"{one.name}.")}
            if not own <= {other.name for other in theirs}:
                continue  # its methods one by one
        if place is not None:
            done.add(one.name)
            lines = in_place(
                "\n".join(new[one.first - 1 : one.last]), old[place.first - 1 : place.last]
            )
            exchanged[place.first] = _Patch(place.first, place.last, lines)
        else:
            added[one.name] = one
            done.add(one.name)
    is_test = any(part.startswith("test") for part in document.path.split("/"))
    more = [one for one in added.values() if is_test or not one.name.startswith("test_")]
    patches = list(exchanged.values())
    if not patches and not (more and is_own):
        return None
    patches += _added(document, new, mine, more, patches)
    patches += _bound_patches(document.text, text, theirs)
    for patch in patches:
        _check_whole("\n".join(patch.new), document.text)
    for patch in sorted(patches, key=lambda one: (one.first, one.last), reverse=True):
        old[patch.first - 1 : patch.last] = patch.new
    return joined(old, document)


def _method(one: Definition, known: dict[str, Definition]) -> Definition | None:
    """The method that a function at the top of a block stands for, where one alone has its name."""
    found = [name for name in known if name.rpartition(".")[2] == one.name and "." in name]
    return known[found[0]] if len(found) == 1 and one.depth == 0 else None


def _added(
    document: Document,
    new: Sequence[str],
    mine: Sequence[Definition],
    added: Sequence[Definition],
    patches: Sequence[_Patch],
) -> list[_Patch]:
    """New methods at the end of their class; other definitions before the first that changes, or
    at the end."""
    old, _ = lines_of(document.text)
    classes = {one.name: one for one in mine if one.kind == "class"}
    tops = sorted(one.first for one in mine if one.depth == 0)
    found = []
    for one in added:
        lines = list(new[one.first - 1 : one.last])
        within = classes.get(one.name.rpartition(".")[0])
        if within is not None:
            found.append(_Patch(within.last + 1, within.last, ["", *lines]))
        elif "." in one.name:
            continue
        elif patches:
            first = min(patch.first for patch in patches)
            at = max((top for top in tops if top <= first), default=first)
            found.append(_Patch(at, at - 1, [*lines, "", ""]))
        else:
            while old and not old[-1].strip():
                old.pop()
            found.append(_Patch(len(old) + 1, len(old), ["", "", *lines]))
    return found


def _bound_patches(old: str, new: str, theirs: Sequence[Definition]) -> list[_Patch]:
    """Imports and values of a block that its definitions need, in Python."""
    before, after = _bound(old), _bound(new)
    if before is None or after is None:
        return []
    lines, olds = new.split("\n"), old.split("\n")
    used = frozenset(
        re.findall(r"\w+", "\n".join("\n".join(lines[o.first - 1 : o.last]) for o in theirs))
    )
    n_imports = max((last for _, last, kind in before.values() if kind == "import"), default=0)
    if not n_imports and (tree := _parsed(old)) is not None and ast.get_docstring(tree) is not None:
        n_imports = tree.body[0].end_lineno or 0
    found: list[_Patch] = []
    for name, (first, last, kind) in after.items():
        text = lines[first - 1 : last]
        if name in before:
            place = before[name]
            if kind == place[2] == "value" and olds[place[0] - 1 : place[1]] != text:
                found.append(_Patch(place[0], place[1], text))
        elif name.partition(".")[0] in used or name == "*":
            patch = _Patch(n_imports + 1, n_imports, text)
            if patch not in found:
                found.append(patch)
    return found


def _between(old: str, text: str) -> str | None:
    """The text with the lines of a block in the place of those from its first to its last line,
    where each of these two is there once."""
    lines = old.split("\n")
    new = text.strip("\n").split("\n")
    stripped = [line.strip() for line in lines]
    ends = [
        stripped.index(one.strip()) for one in (new[0], new[-1]) if stripped.count(one.strip()) == 1
    ]
    if len(new) < 2 or len(ends) < 2 or ends[0] >= ends[1]:
        return None
    first, last = ends
    made = in_place("\n".join(new), lines[first : last + 1])
    _check_whole("\n".join(made), old)
    return "\n".join([*lines[:first], *made, *lines[last + 1 :]])
