"""Reads the edits of an answer in the usual style of code models: prose and fenced blocks of code.

In: an answer, the documents that it may change. Out: the changes. Which document a block belongs
to is found here, its place in the document by merging.py.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.code.edits import Change, EditError, FileText
from tgr_local.code.edits.blocks import cleaned
from tgr_local.code.edits.document import indented_as, joined, lines_of
from tgr_local.code.edits.function import parsed
from tgr_local.code.edits.syntax import fence_name, python_error
from tgr_local.code.reading import evidence
from tgr_local.code.writing.merging import is_long, merge_block, names, statements

_FENCE = re.compile(r"([ \t>]*)(`{3,}|~{3,})([^`]*)")
_OTHER = frozenset(
    ["bash", "sh", "shell", "console", "text", "txt", "output", "plaintext", "log", "diff", "pycon"]
)
_PATH = re.compile(r"[\w./+@-]*[\w+-]\.\w{1,5}")
_COMMENT = re.compile(r"(?:#|//|/\*|<!--|--|;) ?([\w./+@-]{1,200}\.\w{1,5}) ?(?:\*/|-->)?")
_COMMENT_LINE = re.compile(r"[ \t]*(?:#|//)")
_STATEMENT = re.compile(r"^(?=[^\s)\]}#])(?!(?:else|elif|except|finally)\b)", re.MULTILINE)
"""The beginning of a statement at the top of Python code."""
_NO_END = "the answer has no end; --max-tokens allows a longer one"
_BEHIND = re.compile(r"assert\b|print\(")
"""Lines that small models write after the code, often without an end."""
_ENOUGH_PROSE = 2
"""Lines of prose behind a function after which no other block is waited for."""


@dataclass(frozen=True)
class FencedBlock:
    """A fenced block of an answer."""

    line_before: str
    """The last line of the prose before it."""
    info: str
    """Text after its fence."""
    text: str
    is_closed: bool = True
    n_behind: int = 0
    """Lines of prose that follow it."""

    @property
    def language(self) -> str:
        return re.split(r"[\s:{]", self.info, maxsplit=1)[0].lower()

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0].strip()


def read_answer(
    answer: str, documents: Sequence[FileText], is_cut: bool = False
) -> tuple[Change, ...]:
    """The changes that an answer makes, one for each document that it changes. `is_cut`: the answer
    ended at a limit, so an incomplete part at its end is ignored.

    Raises EditError for one that has no code, or none that has a place in the documents.
    """
    texts = {document.path: document.text for document in documents}
    why, n_placed = "the answer has no code", 0
    for code in codes(answer):
        try:
            current_documents = [FileText(path, text) for path, text in texts.items()]
            placed = _place(
                code, current_documents, is_cut and (not code.is_closed or code.text == answer)
            )
        except EditError as error:
            why = str(error)
            continue
        if placed is not None:
            texts[placed[0]] = placed[1]
            n_placed += 1
    if not n_placed:
        raise EditError(why)
    pairs = ((d, joined(lines_of(texts[d.path]), d)) for d in documents)
    return tuple(Change(d.path, d.text, text) for d, text in pairs if text != d.text)


def is_whole(answer: str, documents: Sequence[FileText]) -> bool:
    """Whether the answer so far changes all documents and its edit is complete: a whole file has
    ended, or prose or calls follow the code."""
    blocks = codes(answer)
    if not blocks:
        return False
    last = blocks[-1]
    if not last.is_closed:
        line = answer.rstrip("\n").rpartition("\n")[2]
        if not _BEHIND.match(line) or not all(_has_no_calls(document) for document in documents):
            return False
        answer = answer.rstrip("\n").rpartition("\n")[0]
    elif last.n_behind < _ENOUGH_PROSE and (
        last.n_behind or not any(is_long(last.text, document.text) for document in documents)
    ):
        return False
    try:
        return len(read_answer(answer, documents)) == len(documents)
    except EditError:
        return False


def _has_no_calls(document: FileText) -> bool:
    """Whether a document is Python that does nothing at its top, and no test."""
    tree = parsed(document.text) if document.path.endswith(".py") else None
    if tree is None or not tree.body or evidence.is_test(document.path):
        return False
    return not statements(tree)


def codes(answer: str) -> list[FencedBlock]:
    """The fenced blocks of an answer; the whole answer where it has no fence and is Python."""
    lines = lines_of(answer)
    blocks: list[FencedBlock] = []
    at, line_before = 0, ""
    while at < len(lines):
        opens = _FENCE.fullmatch(lines[at].rstrip())
        if opens is None:
            line_before = lines[at].strip() or line_before
            at += 1
            continue
        indent, fence, info = opens.groups()
        end = at + 1
        while end < len(lines) and (not lines[end].strip() or _COMMENT_LINE.match(lines[end])):
            end += 1
        if end < len(lines) and info.strip() and lines[end].strip() == lines[at].strip():
            # the fence is written twice, with nothing but a file's name between
            between = [line.strip(" \t#/:") for line in lines[at + 1 : end] if line.strip()]
            at, line_before = end, (between or [line_before])[-1]
            continue
        end = at + 1
        while end < len(lines) and not _closes(lines[end], fence, indent):
            end += 1
        behind = end + 1
        while behind < len(lines) and not _FENCE.fullmatch(lines[behind].rstrip()):
            behind += 1
        n_behind = sum(bool(line.strip()) for line in lines[end + 1 : behind])
        body = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end])
        if body.strip():
            code = FencedBlock(line_before, info.strip(), f"{body}\n", end < len(lines), n_behind)
            blocks.append(code)
        at, line_before = end + 1, ""
    if not blocks and not python_error(answer) and names("x.py", answer):
        blocks.append(FencedBlock("", "python", answer))
    return blocks


def _closes(line: str, fence: str, indent: str) -> bool:
    """Whether a line closes a fence, as in Markdown: one that is indented further is text of the
    block."""
    within = len(line) - len(line.lstrip(" \t")) - len(indent.rpartition(">")[2].lstrip())
    line = line.strip(" \t>")
    return within < 4 and line.startswith(fence) and not line.strip(fence[0])


def _place(
    code: FencedBlock, documents: Sequence[FileText], is_cut: bool
) -> tuple[str, str] | None:
    """The path and the new text of the document that a block changes; None for commands and
    outputs. `is_cut` where the block has no end. Raises EditError."""
    named_path = _block_name(code, documents)
    named_documents = [d for d in documents if named_path and _is_named(d.path, named_path)]
    if not named_documents and code.language in _OTHER - {fence_name(d.path) for d in documents}:
        return None
    if named_path and not named_documents:
        raise EditError(f"the answer changes {named_path!r:.80}, which is not open")
    text = code.text
    if (
        named_documents
        and named_path == _comment_path(code)
        and code.first_line not in named_documents[0].text
    ):
        text = text.partition("\n")[2].lstrip("\n")
    text = textwrap.dedent(text) if text[:1] in " \t" else text
    text = indented_as((named_documents or documents)[0].text, text)
    is_python = any(d.path.endswith((".py", ".pyi")) for d in named_documents or documents)
    if is_cut and not is_python and "<<<<< SEARCH" not in text:
        raise EditError(_NO_END)
    if is_cut or (not code.is_closed and python_error(text)):
        text = _drop_unfinished(text)
        if not text.strip():
            raise EditError(_NO_END)

    lines = {line.strip() for line in text.split("\n")}

    def likely(document: FileText) -> tuple[int, bool, int, int]:
        theirs, mine = names(document.path, text), names(document.path, document.text)
        ends = (
            {name.rpartition(".")[2] for name in definition_names}
            for definition_names in (theirs, mine)
        )
        n_ends = len(set.intersection(*ends))  # methods without their class
        is_named = document.path.rpartition("/")[2] in code.line_before
        # of two files with a method of that name, the one whose lines it has
        n_lines = len(lines & {line.strip() for line in document.text.split("\n")})
        return len(theirs & mine), is_named, n_ends, n_lines

    scored = sorted(named_documents or documents, key=likely, reverse=True)
    first: EditError | None = None
    for document in scored:
        try:
            new_text = merge_block(
                document, text, bool(named_documents) or len(documents) == 1, is_cut
            )
        except EditError as why:
            if likely(document)[0]:
                raise  # it is meant for this file
            first = first or why
            continue
        if new_text is not None:
            return document.path, new_text
    if first is not None:
        raise first
    if scored[0].path.endswith(".py") and (error := python_error(text)):
        raise EditError(f"the answer has a syntax error, in line {error}")
    raise EditError(
        _NO_END if is_cut else "the answer has code that has no place in the open files"
    )


def _block_name(code: FencedBlock, documents: Sequence[FileText]) -> str:
    """The file that a block names as a whole line before it, behind its fence or in its first
    comment; empty without one."""
    _, _, after_language = code.info.partition(":" if ":" in code.info else " ")
    for text in (after_language, code.line_before, _comment_path(code)):
        name = cleaned(text[:300].strip().removesuffix(":"))
        name = re.sub(r"^(?:\d+[.)] ?|(?:file|filename|path)[:= ]+)", "", name, flags=re.IGNORECASE)
        name = name.strip("`'\"* ")
        is_open = any(_is_named(document.path, name) for document in documents)
        if _PATH.fullmatch(name) and (is_open or fence_name(name)):
            return name
    return ""


def _comment_path(code: FencedBlock) -> str:
    match = _COMMENT.fullmatch(code.first_line)
    return match[1] if match else ""


def _is_named(path: str, name: str) -> bool:
    name = name.removeprefix("./")
    return path == name or path.endswith(f"/{name}") or name.endswith(f"/{path}")


def _drop_unfinished(text: str) -> str:
    """Python code that was cut off, without the statement at its top that lacks its end."""
    starts = [match.start() for match in _STATEMENT.finditer(text)]
    while len(starts) > 1 and text.startswith("@", starts[-2]):  # decorators of the last one
        starts.pop()
    return text[: starts[-1]] if starts else text
