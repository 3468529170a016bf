"""From an answer's text to changed files.

document.py    Document: a file's text; Change: its text before and after
"""

from tgr_local.code.edits.document import Change, Document

__all__ = ["Change", "Document"]
