"""Ctrl-C: the first one stops what is under way, the second one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def twice_ends() -> Iterator[None]:
    """Inside, the first SIGINT raises KeyboardInterrupt in the main thread, and another one ends
    the process without waiting for anything. An accepted edit is whole or not there even then."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def second(number: int, frame: FrameType | None) -> None:
        if os.isatty(1):
            os.write(1, _SHOW_CURSOR)
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
