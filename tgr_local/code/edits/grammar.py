"""Makes the grammar of an answer in a form of edits, for a model that has learnt the form.

In: documents, a form. Out: GBNF. Blocks follow each other in the order of the files and their
lines, and no two blocks change the same lines. So the changes of every complete answer apply. The
name of a rule is a letter and a number, from 0::

    b  blocks, beginning with this one or a later one
    a  the rest after a block: the end, or blocks beginning with this one
    c  a line that begins like the closing marker and then differs from it
"""

from __future__ import annotations

from collections.abc import Sequence

from tgr_local.code.edits import function
from tgr_local.code.edits.blocks import fence_for
from tgr_local.code.edits.document import FileText
from tgr_local.code.edits.forms import Format, chosen_functions, open_documents
from tgr_local.code.edits.function import Function
from tgr_local.code.edits.syntax import fence_name
from tgr_local.generation.schemas import grammar

_MOST = 1 << 18  # bytes of a grammar that the engine reads
_CONTROL = "".join(chr(i) for i in (*range(9), *range(11, 32), 127))

_Fenced = tuple[str, int]
"""The lines before the new text of a block, and the number of the first block that may follow."""


def edit_grammar(
    documents: Sequence[FileText],
    format: Format,
    *,
    functions: Sequence[Function] | None = None,
) -> str:
    """Returns the grammar of an answer that changes these files. `functions` are those that it may
    change; None = those of Python files.

    The new text of a block has no control characters except tabs, line ends and those in the
    document. It ends at the first line that begins with the closing marker.
    Raises ValueError for paths that are not of files in one folder, for texts that are too long,
    and for a form that finds nothing to change.
    """
    open_files = open_documents(documents, format)
    if not open_files:
        raise ValueError("no file is open that an edit could change; open one")
    fence = fence_for(document.text for document in open_files)
    if format == "file":
        rules = _fenced(_whole_files(open_files, fence))
    else:
        rules = _fenced(
            _whole_functions(chosen_functions(open_files, functions), open_files, fence)
        )
    rules += ["root ::= b0", r'end ::= "\n"? "\n"?', r'gap ::= "\n" "\n"?']
    grammar = "\n".join([*rules, *_text(open_files, fence)])
    if (size := len(grammar.encode())) > _MOST:
        raise ValueError(
            f"the grammar of these edits has {size} bytes, but may have {_MOST}; open fewer or "
            "smaller files"
        )
    return grammar


def _whole_files(documents: Sequence[FileText], fence: str) -> list[_Fenced]:
    """Returns the blocks of files."""
    return [(_opening(d.path, d.path, fence), i) for i, d in enumerate(documents, 1)]


def _whole_functions(
    functions: Sequence[Function], documents: Sequence[FileText], fence: str
) -> list[_Fenced]:
    """Returns the blocks of functions. None follows one that it stands in, or that stands in it."""
    order = {document.path: i for i, document in enumerate(documents)}
    in_order = sorted(functions, key=lambda func: (order[func.path], func.first, -func.last))
    blocks = []
    for i, func in enumerate(in_order, 1):
        later = (j for j in range(i, len(in_order)) if _is_behind(in_order[j], func))
        opening = _opening(function.head(func), func.path, fence)
        blocks.append((opening, next(later, len(in_order))))
    return blocks


def _is_behind(later: Function, earlier: Function) -> bool:
    return later.path != earlier.path or later.first > earlier.last


def _opening(head: str, path: str, fence: str) -> str:
    return f"{head}\n{fence}{fence_name(path)}\n"


def _fenced(blocks: Sequence[_Fenced]) -> list[str]:
    """Returns the rules of blocks."""
    rules, n = [], len(blocks)
    for i, (opening, following) in enumerate(blocks):
        later = f" | b{i + 1}" if i + 1 < n else ""
        rules.append(f"b{i} ::= {_literal(opening)} text a{following}{later}")
    followed = sorted({following for _, following in blocks})
    return rules + [_after(i, f"b{i}" if i < n else "") for i in followed]


def _after(number: int, following: str) -> str:
    return f"a{number} ::= end" + (f" | gap ({following})" if following else "")


def _text(documents: Sequence[FileText], closing: str) -> list[str]:
    """Returns the rules of free lines up to one that begins with `closing`."""
    free = "\\n" + "".join(
        f"\\x{ord(c):02X}" for c in _CONTROL if not any(c in d.text for d in documents)
    )
    rules = [f"text ::= c0* {_literal(closing)}", f'rest ::= [^{free}]* "\\n"']
    for i, c in enumerate(closing):
        on = f' | "{c}" c{i + 1}' if i + 1 < len(closing) else ""
        rules.append(f'c{i} ::= "\\n" | [^{c}{free}] rest{on}')
    return rules


def _literal(text: str) -> str:
    return grammar.literal(text).replace("\n", "\\n").replace("\0", "\\x00")
