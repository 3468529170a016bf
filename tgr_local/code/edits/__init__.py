"""Turns an answer's text into changed files, and makes the constraint under which such an answer is
written.

constraint.py  constraint, read_edits: the three formats, from documents to changes; the format file
function.py    the format function; Function: where one stands in a file
replace.py     the format replace
blocks.py      Block: one edit as the answer has it; Markers: the lines between its parts, fences
document.py    Document: a file's text; Change: its text before and after; EditError
syntax.py      languages by file name; definitions in a syntax tree
"""

from tgr_local.code.edits.blocks import Markers, fence_for
from tgr_local.code.edits.constraint import FORMATS, Format, constraint, read_edits
from tgr_local.code.edits.document import Change, Document, EditError
from tgr_local.code.edits.function import Function, functions_of

__all__ = [
    "FORMATS",
    "Change",
    "Document",
    "EditError",
    "Format",
    "Function",
    "Markers",
    "constraint",
    "fence_for",
    "functions_of",
    "read_edits",
]
