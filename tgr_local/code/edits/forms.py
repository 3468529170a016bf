"""Reads the edits of an answer in one of two forms.

The form ``file`` is the whole text of a file, fenced below its path; ``function`` has a module of
its own. In: an answer, documents, a form. Out: the changes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from tgr_local.code.edits import function
from tgr_local.code.edits.blocks import EditBlock, fence_for, fenced, nth
from tgr_local.code.edits.document import (
    Change,
    EditError,
    FileText,
    Patch,
    indented_as,
    lines_of,
    patched,
)
from tgr_local.code.edits.function import Function

Format = Literal["file", "function"]
FORMATS: tuple[Format, ...] = ("file", "function")


def read_edits(
    answer: str,
    documents: Sequence[FileText],
    format: Format,
    *,
    functions: Sequence[Function] | None = None,
) -> tuple[Change, ...]:
    """Returns the changes that an answer makes, one for each file that it changes, in the order of
    the documents. `functions` are those that it may change; None = those of Python files.

    Raises EditError for an answer that has no edits, or some that do not apply.
    """
    open_files = open_documents(documents, format)
    places = {}
    if format == "function":
        places = {function.head(func): func for func in chosen_functions(open_files, functions)}
    heads = places or [document.path for document in open_files]
    fence = fence_for(document.text for document in open_files)
    blocks = fenced(answer, {head: head for head in heads}, fence)
    if not blocks:
        raise EditError(f"the answer has no edit in the format {format!r}")
    by_path = {document.path: document for document in open_files}
    edits: dict[str, list[Patch]] = {}
    for number, block in enumerate(blocks, 1):
        place = places.get(block.head)
        path = place.path if place else block.head
        edits_of_file = edits.setdefault(path, [])
        edits_of_file.append(
            _whole(block, number, by_path[path], place, [lines for lines, _ in edits_of_file])
        )
    changes = []
    for document in open_files:
        if document.path in edits:
            after = patched(document, edits[document.path])
            if after != document.text:
                changes.append(Change(document.path, document.text, after))
    return tuple(changes)


def _whole(
    block: EditBlock, number: int, document: FileText, place: Function | None, used: Sequence[range]
) -> Patch:
    """The lines of a file or function that a block replaces, and the new ones."""
    text = indented_as(document.text, "\n".join(block.new))
    if place is None:
        replaced, again = range(len(lines_of(document.text))), bool(used)
        new = text.split("\n") if block.new else []
    else:
        replaced, new = function.replacing(document, place.first, place.last, text)
        again = any(_meet(replaced, earlier) for earlier in used)
    if again:
        raise EditError(f"{nth(number)} changes {block.head} again, or a part of it")
    return replaced, new


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def chosen_functions(
    documents: Sequence[FileText], wanted: Sequence[Function] | None
) -> list[Function]:
    """Returns the functions that an answer may change: those given, or without any those of Python
    files. Raises ValueError where there are none."""
    if wanted is not None:
        functions = function.check_functions(wanted, documents)
    else:
        python = [document for document in documents if document.path.endswith((".py", ".pyi"))]
        functions = [func for document in python for func in function.functions_of(document)]
    if not functions:
        raise ValueError("the open files have no functions; use the format file")
    return functions


def open_documents(documents: Sequence[FileText], format: Format) -> Sequence[FileText]:
    """Returns the documents, checked. Raises ValueError for a form that does not exist and for a
    document that cannot be edited."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r:.40}, but must be one of {', '.join(FORMATS)}")
    paths: set[str] = set()
    for document in documents:
        check_path(document.path)
        if document.path in paths:
            raise ValueError(f"{document.path} is open twice")
        paths.add(document.path)
        try:
            document.text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{document.path} has characters that are no valid Unicode; leave it out"
            ) from None
    return documents


def check_path(path: str) -> None:
    """Raises ValueError for a path that does not name a file in a folder, or cannot stand in a line
    of an answer."""
    parts = path.split("/")
    is_bad = (
        not path
        or path != path.strip()
        or any(
            part in ("", ".", "..") or len(part.encode(errors="replace")) > 255 for part in parts
        )
        or "\\" in path
        or bool(re.match(r"`{3}|<{7}|[A-Za-z]:", path))
        or any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in path)
    )
    if is_bad:
        raise ValueError(
            f"the path {path!r:.80} cannot be named in an edit; it must lead from the project's "
            'folder to a file, with "/" between its parts, on one line'
        )
