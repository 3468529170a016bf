"""What an answer of edits may be, written plainly: by trying every way to read its beginning."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from tgr_local.engine import EditConstraint, Opening

NO, BEGINNING, WHOLE = range(3)
"""What a text is of an answer."""
Used = frozenset[tuple[int, int]]
"""Lines that were replaced: a file and the number of its line."""


@dataclass(frozen=True)
class PlainEdits:
    """A slow checker of the same language as csrc/edits.cpp."""

    edits: EditConstraint
    unspelled: bytes = b""
    """Bytes that no token has: no line with one can be quoted."""

    def may_begin(self, text: bytes) -> bool:
        """Whether an answer may begin so."""
        return self._block(text, frozenset(), None) != NO

    def may_end(self, text: bytes) -> bool:
        """Whether this is a whole answer."""
        return self._block(text, frozenset(), None) == WHOLE

    # --- the parts ---

    def _lines(self, file: int) -> list[bytes]:
        text = self.edits.files[file]
        lines = text.split("\n")
        return [f"{line}\n".encode() for line in (lines if lines[-1] else lines[:-1])]

    def _block(self, text: bytes, used: Used, file: int | None) -> int:
        openings = list(self.edits.openings)
        if file is not None and self.edits.again:
            openings.append(Opening(self.edits.again, file, quotes=True))
        for one in openings:
            taken = {(one.file, line) for line in range(one.first, one.end)}
            n_lines = max(1, len(self._lines(one.file)))
            if not one.quotes and not taken.isdisjoint(used):
                continue
            if one.quotes and not any(self._is_left(one.file, i, used) for i in range(n_lines)):
                continue
            begin = one.text.encode()
            if begin.startswith(text):
                return BEGINNING
            if text.startswith(begin):
                rest = text[len(begin) :]
                if one.quotes:
                    return self._quote(rest, used, one.file)
                return self._new(rest, used | taken, one.file)
        return NO

    def _is_left(self, file: int, line: int, used: Used) -> bool:
        """Whether a line can be quoted; an empty file counts as one line."""
        text = b"".join(self._lines(file)[line : line + 1])
        return (file, line) not in used and not set(text) & set(self.unspelled)

    def _quote(self, text: bytes, used: Used, file: int) -> int:
        separator, lines = self.edits.separator.encode(), self._lines(file)
        if not lines:
            if separator.startswith(text):
                return BEGINNING
            rest = text.removeprefix(separator)
            return self._new(rest, used | {(file, 0)}, file) if rest != text else NO
        for first in range(len(lines)):
            for end in range(first + 1, len(lines) + 1):
                if not self._is_left(file, end - 1, used):
                    break
                whole = b"".join(lines[first:end]) + separator
                if whole.startswith(text):
                    return BEGINNING
                if text.startswith(whole):  # the first such lines that are left
                    taken = {(file, line) for line in range(first, end)}
                    return self._new(text[len(whole) :], used | taken, file)
        return NO

    def _new(self, text: bytes, used: Used, file: int) -> int:
        closing, at = self.edits.closing.encode(), 0
        while not text[at:].startswith(closing):
            end = text.find(b"\n", at)
            if end < 0:
                return BEGINNING if self._is_text(text, whole=False) else NO
            at = end + 1
        if not self._is_text(text[:at], whole=True):
            return NO
        rest = text[at + len(closing) :]
        if rest in (b"", b"\n", b"\n\n"):
            return WHOLE
        for between in (b"\n\n", b"\n"):
            if rest.startswith(between):
                return self._block(rest[len(between) :], used, file)
        return NO

    def _is_text(self, text: bytes, *, whole: bool) -> bool:
        if any(c.encode() in text for c in (*self.edits.banned, "\0")):
            return False
        try:
            codecs.getincrementaldecoder("utf-8")("strict").decode(text, final=whole)
        except UnicodeDecodeError:
            return False
        return True
