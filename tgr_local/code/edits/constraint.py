"""Turns open files and a format into the constraint of an answer, and reads its edits.

The format ``file`` is the whole text of a file, fenced below its path; the other two have modules
of their own. In: documents, a format. Out: an `EditConstraint` for the engine; from an answer the
changes. Every answer that was written under the constraint to its end can be read, and its changes
apply.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from tgr_local.code.edits import function, replace
from tgr_local.code.edits.blocks import Block, Markers, fenced, nth
from tgr_local.code.edits.document import (
    Change,
    Document,
    EditError,
    Patch,
    indented_as,
    lines_of,
    patched,
)
from tgr_local.code.edits.function import Function
from tgr_local.code.edits.syntax import fence_name
from tgr_local.engine import EditConstraint, Opening

Format = Literal["file", "function", "replace"]
FORMATS: tuple[Format, ...] = ("file", "function", "replace")

_CONTROL = "".join(chr(i) for i in (*range(1, 9), *range(11, 32), 127))


def constraint(
    documents: Sequence[Document],
    format: Format,
    *,
    new_paths: Sequence[str] = (),
    functions: Sequence[Function] | None = None,
) -> EditConstraint:
    """Returns the constraint of an answer that changes these files. `new_paths` are files that it
    may add, but for the format ``function``. `functions` are those that it may change; None = those
    of Python files.

    The new text has no control characters but tabs and line ends, and those that a document has.
    Raises ValueError for paths that are not of files in one folder, texts that are too long (one
    megabyte together), and a format that finds nothing to change.
    """
    every = _every(documents, format, new_paths)
    markers = Markers.of(every)
    quotes = format == "replace"
    if format == "function":
        files = {document.path: i for i, document in enumerate(every)}
        openings = [
            Opening(_fenced(function.head(one), one.path, markers), files[one.path], one.first - 1,
                    one.last)
            for one in _functions(every, functions)
        ]  # fmt: skip
    else:
        openings = [
            Opening(f"{one.path}\n{markers.search}\n", i, quotes=True)
            if quotes else Opening(_fenced(one.path, one.path, markers), i)
            for i, one in enumerate(every)
        ]  # fmt: skip
    return EditConstraint(
        files=tuple(document.text if quotes else "" for document in every),
        openings=tuple(openings),
        closing=markers.replace if quotes else markers.fence,
        separator=f"{markers.separator}\n",
        again=f"{markers.search}\n" if quotes else "",
        banned="".join(c for c in _CONTROL if not any(c in one.text for one in every)),
    )


def _fenced(head: str, path: str, markers: Markers) -> str:
    """The lines before the new text of a block, without quoted lines."""
    return f"{head}\n{markers.fence}{fence_name(path)}\n"


def read_edits(
    answer: str,
    documents: Sequence[Document],
    format: Format,
    *,
    new_paths: Sequence[str] = (),
    functions: Sequence[Function] | None = None,
) -> tuple[Change, ...]:
    """The changes that an answer makes, one for each file that it changes, in the order of the
    documents; new files come last. The arguments are those of `constraint`.

    Raises EditError for an answer that has no edits, or some that do not apply.
    """
    every = _every(documents, format, new_paths)
    markers = Markers.of(every)
    places = {}
    if format == "replace":
        blocks = replace.blocks(answer, every, markers)
    elif format == "file":
        blocks = fenced(answer, {one.path: one.path for one in every}, markers.fence)
    else:
        places = {function.head(one): one for one in _functions(every, functions)}
        blocks = fenced(answer, {name: name for name in places}, markers.fence)
    if not blocks:
        raise EditError(f"the answer has no edit in the format {format!r}")
    by_path = {one.path: one for one in every}
    quotes = {path: replace.Places(one) for path, one in by_path.items() if format == "replace"}
    edits: dict[str, list[Patch]] = {}
    for number, block in enumerate(blocks, 1):
        place = places.get(block.head)
        path = place.path if place else block.head
        own = edits.setdefault(path, [])
        if format == "replace":
            own.append((quotes[path].take(block, number), block.new))
        else:
            own.append(_whole(block, number, by_path[path], place, [lines for lines, _ in own]))
    changes = []
    for document in every:
        if document.path in edits:
            after = patched(document, edits[document.path])
            if after != document.text or document.path in new_paths:
                changes.append(Change(document.path, document.text, after))
    return tuple(changes)


def _whole(
    block: Block, number: int, document: Document, place: Function | None, used: Sequence[range]
) -> Patch:
    """The lines of a file or function that a block replaces, and the new ones."""
    text = indented_as(document.text, "\n".join(block.new))
    if place is None:
        taken, again = range(len(lines_of(document.text))), bool(used)
        new = text.split("\n") if block.new else []
    else:
        taken, new = function.replacing(document, place.first, place.last, text)
        again = any(_meet(taken, one) for one in used)
    if again:
        raise EditError(f"{nth(number)} changes {block.head} again, or a part of it")
    return taken, new


def _meet(a: range, b: range) -> bool:
    return a.start < b.stop and b.start < a.stop


def _functions(documents: Sequence[Document], given: Sequence[Function] | None) -> list[Function]:
    if given is not None:
        found = function.checked(given, documents)
    else:
        python = [one for one in documents if one.path.endswith((".py", ".pyi"))]
        found = [one for document in python for one in function.functions_of(document)]
    if not found:
        raise ValueError("the open files have no functions; use the format file or replace")
    return found


def _every(
    documents: Sequence[Document], format: Format, new_paths: Sequence[str]
) -> list[Document]:
    """The documents and the new files. Raises ValueError."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r:.40}, but must be one of {', '.join(FORMATS)}")
    new = [] if format == "function" else [Document(path, "") for path in new_paths]
    every = [*documents, *new]
    seen: set[str] = set()
    for document in every:
        check_path(document.path)
        if document.path in seen:
            raise ValueError(f"{document.path} is open twice")
        seen.add(document.path)
        try:
            document.text.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{document.path} has characters that are no valid Unicode; leave it out"
            ) from None
    return every


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
