"""Turns an answer's text into changed files, and makes the grammar that such an answer follows.

forms.py       read_edits: reads the changes from an answer in one of two forms; the form `file`
function.py    the form `function`; Function: the name and the lines of a function
grammar.py     edit_grammar: GBNF of the answers in a form
blocks.py      EditBlock: one edit as the answer has it; fence_for: the lines around its text
document.py    FileText: a file's text; Change: its text before and after; EditError
inner_tests.py tests in files of the code: Rust's modules of tests, examples in docstrings
syntax.py      languages by file name; definitions in a syntax tree
"""

from tgr_local.code.edits.blocks import fence_for
from tgr_local.code.edits.document import Change, EditError, FileText
from tgr_local.code.edits.forms import FORMATS, Format, read_edits
from tgr_local.code.edits.function import Function, functions_of
from tgr_local.code.edits.grammar import edit_grammar

__all__ = [
    "FORMATS",
    "Change",
    "EditError",
    "FileText",
    "Format",
    "Function",
    "edit_grammar",
    "fence_for",
    "functions_of",
    "read_edits",
]
