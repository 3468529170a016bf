"""What is typed while no line is read: it is not shown, and waits for the next prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

from tgr_local.console import live

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]


def is_interactive() -> bool:
    """Whether a person types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_ahead() -> AbstractContextManager[None]:
    """Inside, as while the model is loaded, what is typed and pasted on a terminal waits for the
    first prompt, and is not shown before."""
    return no_echo() if is_interactive() else contextlib.nullcontext()


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Typed and pasted text is not shown and waits for the next prompt; Ctrl-C interrupts as
    ever. On Windows what is typed meanwhile is shown."""
    if termios is None:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    changed[3] |= termios.NOFLSH  # else Ctrl-C discards the typed text
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    if live.is_live():
        print("\x1b[?2004h", end="", flush=True)  # bracketed paste: it arrives in one piece
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
