"""A file's bytes ↔ its text: encoding, byte order mark, line ends.

In: bytes. Out: a text with "\\n" at the end of each line, and the style that turns such a text into
bytes again, in which untouched lines have the bytes that they had. It does not know files.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections import Counter
from dataclasses import dataclass

from tgr_local.code.edits.document import n_equal
from tgr_local.system.errors import TgrError

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"),
          (codecs.BOM_UTF16_BE, "utf-16-be"))  # fmt: skip
_DECLARATION = re.compile(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")  # PEP 263
_DECLARABLE = re.compile(
    r"utf-8|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gbk|gb2312|gb18030|big5|euc_\w+|shift_jis"
)
"""Codecs without state and without surprises, by Python's names for them."""
_LINE_END = re.compile(r"\r\n|\n|\r")
_LONGEST_DIFF = 4000  # lines compared, which takes quadratic time


class StyleError(TgrError):
    """Bytes that are no text, or a text that the encoding of its file cannot represent."""


@dataclass(frozen=True)
class ByteStyle:
    """Style in which a file writes its text as bytes."""

    encoding: str = "utf-8"
    """Python's name of the codec. latin-1 where the bytes are neither UTF-8 nor what they declare:
    it gives every byte back."""
    mark: bytes = b""
    """The byte order mark."""
    line_end: str = "\n"
    """The end of most lines."""
    ends: tuple[str, ...] = ()
    """The end of each line that has one; empty where all of them are `line_end`."""


def decode(data: bytes) -> tuple[str, ByteStyle]:
    """The text of a file, and its style. Raises StyleError for bytes that are no text."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", ""))
    if data.startswith(codecs.BOM_UTF32_LE):
        raise StyleError("it is in UTF-32, which is not supported")
    body = data[len(mark) :]
    if not encoding.startswith("utf-16") and b"\0" in body:
        raise StyleError("it is a binary file (it holds NUL bytes)")
    tried = [encoding] if encoding else [_declared(body), "utf-8"]
    for codec in tried:
        if codec and (text := _exact(body, codec)) is not None:
            break
    else:
        if mark:
            raise StyleError(f"its byte order mark says {encoding}, but it is not")
        text, codec = body.decode("latin-1"), "latin-1"
    ends = _LINE_END.findall(text)
    line_end = max(Counter(ends).items(), key=lambda item: item[1])[0] if ends else "\n"
    text = _plain(text)
    mixed = tuple(ends) if len(set(ends)) > 1 else ()
    return text, ByteStyle(codec, mark, line_end, mixed)


def encode(old_text: str, new_text: str, style: ByteStyle) -> bytes:
    """Returns the bytes of `new_text`, in the style that `decode` found for `old_text`. Old lines
    that are still there keep their bytes, unless the text declares another encoding than before.
    Raises StyleError for a character that the encoding lacks."""
    new_text = _plain(new_text)
    if "\0" in new_text:
        raise StyleError("the new text holds a NUL character")
    encoding = style.encoding
    if not style.mark and _head_declares(new_text) != _head_declares(old_text):
        encoding = _head_declares(new_text) or "utf-8"
    lines = new_text.split("\n")
    ends = _ends(old_text, lines, style) if style.ends else [style.line_end] * (len(lines) - 1)
    text = "".join(line + end for line, end in zip(lines, [*ends, ""], strict=True))
    try:
        return style.mark + text.encode(encoding)
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise StyleError(
            f"the new text holds {letter!a}, which {encoding}, the encoding of the file, lacks; "
            "save the file as UTF-8 first"
        ) from None


def _exact(data: bytes, codec: str) -> str | None:
    """The text, if the codec gives exactly these bytes back."""
    try:
        text = data.decode(codec)
        return text if text.encode(codec) == data else None
    except (UnicodeError, ValueError):
        return None


def _declared(data: bytes) -> str:
    """The codec that one of the first two lines declares; empty for none that is known."""
    for line in data[:2000].splitlines()[:2]:
        if match := _DECLARATION.match(line):
            try:
                name = codecs.lookup(match[1].decode("ascii")).name
            except (LookupError, UnicodeError, ValueError):
                return ""
            return name if _DECLARABLE.fullmatch(name) else ""
    return ""


def _head_declares(text: str) -> str:
    return _declared(text[:2000].encode("utf-8", "replace"))


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _ends(old_text: str, lines: list[str], style: ByteStyle) -> list[str]:
    """The line ends of the new lines: an old line keeps its own; a new line has that of the line
    which it replaces or follows."""
    old = old_text.split("\n")
    had = [*style.ends, style.line_end][: len(old)]
    ends: list[str] = []
    for tag, i1, i2, j1, j2 in _blocks(old, lines):
        near = had[i1:i2] or had[max(0, i1 - 1) : i1] or [style.line_end]
        n_more = max(0, j2 - j1 - len(near))
        ends += had[i1:i2] if tag == "equal" else [*near[: j2 - j1], *near[-1:] * n_more]
    return ends[:-1]


def _blocks(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """The blocks of `difflib` that make `new` of `old`; a middle that is long is one block."""
    n = n_equal(old, new)
    m = n_equal(old[n:][::-1], new[n:][::-1])
    i, j = len(old) - m, len(new) - m
    if max(i, j) - n > _LONGEST_DIFF:
        middle = [("replace", n, i, n, j)]
    else:
        matcher = difflib.SequenceMatcher(None, old[n:i], new[n:j], autojunk=False)
        middle = [(t, a + n, b + n, c + n, d + n) for t, a, b, c, d in matcher.get_opcodes()]
    return [("equal", 0, n, 0, n), *middle, ("equal", i, len(old), j, len(new))]
