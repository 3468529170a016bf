"""Texts that a person names or pipes: bytes that must be UTF-8, and not too many."""

from __future__ import annotations

import codecs
import os

from tgr_local.system import paths
from tgr_local.system.errors import TgrError
from tgr_local.system.files import utf8_text

MAX_FILE_BYTES = 16 << 20  # of a text before a question


def decode_utf8(data: bytes, source: str, offset: int = 0) -> str:
    """Bytes as text, without a byte order mark at the beginning of the source. TgrError names
    `source` and the invalid byte, if `data` begins at `offset`."""
    try:
        return data.decode("utf-8") if offset else utf8_text(data)
    except UnicodeDecodeError as error:
        position = offset + error.start
        is_utf16 = not offset and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = "; it is UTF-16 by its first bytes: save it as UTF-8" if is_utf16 else ""
        if os.name == "nt" and source == "stdin" and not hint:
            hint = "; a console sends UTF-8 after: chcp 65001"
        raise TgrError(
            f"{source} is not UTF-8 text: invalid byte at offset {position}{hint}"
        ) from None


def read_file(name: str) -> str:
    """The text in a file. ValueError for a name that is not a file or for one that is too long,
    TgrError for a file that is not text, OSError as `open` raises it."""
    if not name:
        raise ValueError("the name of the file is empty; name a text file")
    path = paths.expanded("the file", name)
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    check_size(str(path), path.stat().st_size)
    return decode_utf8(path.read_bytes(), str(path))


def check_size(name: str, n_bytes: int) -> None:
    """Raises ValueError for a text that is too long to be put before a question."""
    if n_bytes > MAX_FILE_BYTES:
        raise ValueError(f"{name} has {n_bytes} bytes, but may have {MAX_FILE_BYTES}; shorten it")
