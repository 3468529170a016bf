"""Consoles and pipes of Windows: escape sequences, UTF-8, and the end of a pipe."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


def prepare() -> None:
    """Has consoles read escape sequences, and pipes and files take every character. Does nothing on
    another system."""
    if sys.platform != "win32":
        return
    import ctypes

    kernel = ctypes.WinDLL("kernel32")
    stdout, stderr, processed, wrapped, escapes = -11, -12, 1, 2, 4
    for stream in (stdout, stderr):
        kernel.SetConsoleMode(kernel.GetStdHandle(stream), processed | wrapped | escapes)
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout = to_pipe(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8")


def to_pipe(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The stream as UTF-8, with a BrokenPipeError where the reader of a pipe has ended."""
    stream.flush()
    return io.TextIOWrapper(io.BufferedWriter(_Pipe(stream)), "utf-8", "replace")


class _Pipe(io.RawIOBase):
    """The file of a stream. Windows calls a pipe whose reader has ended an invalid argument."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream = stream  # which would close the file when it goes

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: Any) -> int:
        try:
            return os.write(self.fileno(), data)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
