"""Ctrl-C: the first one stops what is under way, the second one ends the program at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tgr_local.console.endings import restorer


def twice_ends() -> AbstractContextManager[None]:
    """Inside, the first SIGINT raises KeyboardInterrupt in the main thread, and another one ends
    the process without waiting for anything. An accepted edit is whole or not there even then."""
    restore = restorer()

    def second(*_: object) -> None:
        restore()
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, b"\ntgr-local: ended\n")
        os._exit(130)

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, second)
        raise KeyboardInterrupt

    return _handling(lambda _: first)


def ignored_once() -> AbstractContextManager[None]:
    """Inside, the first SIGINT is ignored: for short work that must not stop halfway. A second one
    has its previous effect."""
    return _handling(lambda previous: lambda *_: signal.signal(signal.SIGINT, previous))


@contextlib.contextmanager
def _handling(make: Callable[[Any], Callable[..., object]]) -> Iterator[None]:
    """Inside, SIGINT has the handler that `make` returns for the previous handler. Outside of the
    main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, make(previous))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
