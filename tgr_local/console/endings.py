"""Signals that end the program or stop it for a while: the terminal is then as it was before."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGBREAK")
"""SIGBREAK is what Ctrl-Break and a console that is closed send on Windows."""
_AS_BEFORE = b"\x1b[?25h\x1b[?2004l"  # the cursor, and no marks around what is pasted


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, SIGTERM, SIGHUP and SIGQUIT raise SystemExit in the main thread, with 128 and the
    number of the signal, so that everything that was begun is ended as after an error: a
    conversation is saved, the terminal gets its settings back. Another one ends the process at
    once. A signal that is ignored, as after nohup, stays so."""
    restore, came = restorer(), 0

    def at_once(number: int, _: FrameType | None) -> None:
        restore()
        os._exit(128 + number)

    def first(number: int, _: FrameType | None) -> None:
        nonlocal came
        came = number
        for handled in handlers:
            signal.signal(handled, at_once)
        raise SystemExit(128 + number)

    handlers = _handle(ENDING, first)
    try:
        yield
    finally:
        if came:  # whatever became of the exception, on a terminal that is gone
            restore()
            _tell(f"tgr-local: ended by {signal.Signals(came).name}")
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
        if came:
            raise SystemExit(128 + came)


@contextlib.contextmanager
def stopped_by_signals(leave: Callable[[], object], enter: Callable[[], object]) -> Iterator[None]:
    """Inside, Ctrl-Z calls `leave` before the process stops, and `enter` once it goes on in the
    foreground."""

    def stop(number: int, _: FrameType | None) -> None:
        leave()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns when the process goes on
        signal.signal(number, stop)
        if _is_in_foreground():
            enter()

    handlers = _handle(("SIGTSTP",), stop)
    try:
        yield
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)


def restorer() -> Callable[[], None]:
    """A function that gives the terminal the settings that it has now. It never fails."""
    settings = None
    if termios is not None and os.isatty(0):
        with contextlib.suppress(termios.error):
            settings = termios.tcgetattr(0)

    def restore() -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            if os.isatty(1):
                os.write(1, _AS_BEFORE)
        if settings is not None and _is_in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, settings)

    return restore


def _handle(names: tuple[str, ...], handler: Any) -> dict[int, Any]:
    """Sets the handler of the signals that are handled by default, in the main thread alone;
    returns the handlers of before, by signal."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    handlers = {number: was for number, was in handlers.items() if was is signal.SIG_DFL}
    for number in handlers:
        signal.signal(number, handler)
    return handlers


def _is_in_foreground() -> bool:
    """Whether the terminal may be set: a process in the background would be stopped for it."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # it is not the terminal of this session, which stops nobody
        return True


def _tell(text: str) -> None:
    """Prints the last line, and drops what a terminal that is gone cannot take."""
    for stream, more in ((sys.stdout, ""), (sys.stderr, f"{text}\n")):
        try:
            stream.write(more)
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
