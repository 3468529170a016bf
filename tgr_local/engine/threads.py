"""Threads that use engines, at the end of the program and at a fork."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from tgr_local.engine import waits
from tgr_local.engine.native import native
from tgr_local.system.errors import CancelledError

_CLOSING_SECONDS = 2.0  # at most, from the end of the program to that of its threads
_SIGNAL_SECONDS = 0.1  # how often the main thread looks for Ctrl-C
_HUNG_SECONDS = 1.0  # how often other threads look whether their engine hangs


_engines: weakref.WeakSet[native.Engine] = weakref.WeakSet()
_inside: set[int] = set()  # threads in native code that takes long
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = False
HUNG: list[native.Engine] = []
"""Engines whose `close` was interrupted: their devices may never answer."""


def close_at_exit(engine: native.Engine) -> None:
    """Closes the engine when the program ends, unless it is garbage-collected before that."""
    _engines.add(engine)


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Starts `work` in a daemon thread. Raises MemoryError where the address space is too small,
    and CancelledError when the program is ending: some versions of Python crash if threads start or
    end then."""
    if _ending:
        raise CancelledError("the program is ending")
    native.require_address_space()
    thread = threading.Thread(target=work, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


class Workers:
    """Threads that end by themselves, and a wait for them that may be called again after Ctrl-C.

    Until Python 3.12 a `Thread.join` that Ctrl-C interrupts takes its thread for ended.
    """

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()  # Ctrl-C cannot leave it locked

    def start(self, work: Callable[[], None]) -> None:
        """Starts `work` as `start_thread` does. If Ctrl-C interrupts this, the thread may begin
        after `wait`: `work` must first look whether it was cancelled."""
        number = len(self._begun)

        def run() -> None:
            self._begun.add(number)
            try:
                work()
            finally:
                self._ended.add(number)
                self._news.put(None)

        start_thread(run)
        self._begun.add(number)

    def wait(self) -> None:
        """Waits until all have ended."""
        while self._begun - self._ended:
            self._news.get()


def patience(engine: native.Engine, deadline: float | None = None) -> float:
    """Seconds that a wait in native code for an engine may take: until the deadline, a time of
    time.monotonic, and a moment at most, in the main thread, which alone receives Ctrl-C, a short
    one. Raises CancelledError where the engine hangs."""
    if engine in HUNG:
        raise CancelledError("the engine was closed")
    is_main = threading.current_thread() is threading.main_thread()
    seconds = _SIGNAL_SECONDS if is_main else _HUNG_SECONDS
    return seconds if deadline is None else min(seconds, max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Makes the end of the program wait for this thread while the thread is in native code."""
    thread = threading.get_ident()
    nested = thread in _inside
    _inside.add(thread)
    try:
        yield
    finally:
        if not nested:
            _inside.discard(thread)


@atexit.register
def _close_all() -> None:
    # a thread that still waits in native code when the interpreter goes would abort the process
    global _ending
    _ending = True
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # native code would not notice Ctrl-C
    for engine in list(_engines):
        if engine not in HUNG:
            engine.close()
    deadline = time.monotonic() + _CLOSING_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError):  # the set changed meanwhile
            if not _inside and not any(thread.is_alive() for thread in list(_started)):
                break
        time.sleep(0.005)


def _after_fork() -> None:
    # the child has none of the threads, and engines without their worker
    _inside.clear()
    waits.forget_all()
    native.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
