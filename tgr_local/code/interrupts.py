"""Ctrl-C: the first one stops what is under way, the second one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

_AS_BEFORE = b"\x1b[?25h\x1b[?2004l"  # the cursor, and no marks around what is pasted


def twice_ends() -> AbstractContextManager[None]:
    """Inside, the first SIGINT raises KeyboardInterrupt in the main thread, and another one ends
    the process without waiting for anything. An accepted edit is whole or not there even then."""
    restore = _restorer()

    def second(*_: object) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            restore()
            os.write(2, b"\ntgr-local: ended\n")
        os._exit(130)

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, second)
        raise KeyboardInterrupt

    return _handled(lambda before: first)


def ignored_once() -> AbstractContextManager[None]:
    """Inside, the first SIGINT does nothing: for what takes a moment and must not stop halfway.
    Another one does what it would have done without this."""
    return _handled(lambda before: lambda *_: signal.signal(signal.SIGINT, before))


@contextlib.contextmanager
def _handled(make: Callable[[Any], Callable[..., object]]) -> Iterator[None]:
    """Inside, SIGINT has the handler that `make` makes, which is called with the one of before;
    where it cannot have one, outside of the main thread, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, make(before))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _restorer() -> Callable[[], None]:
    """A function that gives the terminal the settings that it has now."""
    settings = termios.tcgetattr(0) if termios and os.isatty(0) else None

    def restore() -> None:
        if os.isatty(1):
            os.write(1, _AS_BEFORE)
        if settings is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, settings)

    return restore
