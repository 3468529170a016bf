"""Ctrl-C: the first one stops what is under way, the second one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

_AS_BEFORE = b"\x1b[?25h\x1b[?2004l"  # the cursor, and no marks around what is pasted


@contextlib.contextmanager
def twice_ends() -> Iterator[None]:
    """Inside, the first SIGINT raises KeyboardInterrupt in the main thread, and another one ends
    the process without waiting for anything. An accepted edit is whole or not there even then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    restore = _restorer()

    def second(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            restore()
            os.write(2, b"\ntgr-local: ended\n")
        os._exit(130)

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, second)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, first)
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


@contextlib.contextmanager
def ignored_once() -> Iterator[None]:
    """Inside, the first SIGINT does nothing: for what takes a moment and must not stop halfway.
    Another one does what it would have done without this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
