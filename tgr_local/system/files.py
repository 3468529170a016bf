"""Files, where systems differ: flags of `os.open`, a lock on an open file, the mark before a text.

Windows has no such flags, locks parts of files, neither renames nor removes an open file, and its
programs begin UTF-8 with a byte order mark.
"""

from __future__ import annotations

import os
import sys
from typing import IO, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Refuses a link; 0 where the system cannot."""
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
"""Does not wait for the other end of a pipe; 0 where the system cannot."""


def utf8_text(data: bytes) -> str:
    """The bytes of a file as text, without one byte order mark at the beginning. Raises
    UnicodeDecodeError, whose positions count the mark."""
    return data.decode("utf-8").removeprefix("\ufeff")


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to read its bytes; follows no link, and waits for no pipe. Raises OSError."""
    # by an opener, since open() does not close a descriptor that it is given and cannot use
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | NOFOLLOW | NONBLOCK))


def lock(descriptor: int) -> None:
    """Locks an open file, until it is closed or its process ends. Raises BlockingIOError if it is
    locked already."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        _lock_far_byte(descriptor)


def _lock_far_byte(descriptor: int) -> None:
    # Windows refuses to read what is locked: so it is a byte that no file has
    if sys.platform != "win32":
        raise NotImplementedError
    import ctypes
    import msvcrt

    exclusive, at_once = 2, 1
    overlapped = (ctypes.c_uint32 * 8)(*[0] * 5, 0x7FFFFFFF)  # the sixth: the place's high part
    handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))
    lock_file = ctypes.WinDLL("kernel32").LockFileEx
    if not lock_file(handle, exclusive | at_once, 0, 1, 0, ctypes.byref(overlapped)):
        raise BlockingIOError


def before_move(file: IO[bytes]) -> None:
    """Closes a file that is about to be renamed or removed, where an open one cannot be."""
    if os.name == "nt":
        file.close()
