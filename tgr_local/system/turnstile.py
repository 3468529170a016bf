"""A turnstile for work of which only so much may run at a time; a wait can be cancelled."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Iterator

from tgr_local.system.cancel import Cancel, check_cancelled, watched


class _Visitor:
    """Somebody who wants units of a turnstile, or has them."""

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.is_in = False
        self.called: queue.SimpleQueue[None] = queue.SimpleQueue()  # a signal handler may call


class Turnstile:
    """`n` units, given in the order in which they were asked for: nobody overtakes a visitor who
    waits for more of them than are free."""

    def __init__(self, n: int) -> None:
        self._n, self._n_free = n, n
        self._queue: deque[_Visitor] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, cancel: Cancel | None = None, weight: int = 1) -> Iterator[None]:
        """Takes `weight` units for the ``with`` block. Raises CancelledError if `cancel` is set
        first, and ValueError for more units than there are."""
        if weight > self._n:
            raise ValueError(f"asked for {weight} units, but the turnstile has {self._n}")
        visitor = _Visitor(weight)
        try:
            with self._lock:
                self._queue.append(visitor)
                self._let_in()
            call = functools.partial(visitor.called.put, None)
            with watched(cancel, call):
                while not (visitor.is_in or (cancel and cancel.is_set())):
                    visitor.called.get()
            check_cancelled(cancel, "cancelled while waiting for its turn")
            yield
        finally:
            with self._lock:
                if visitor.is_in:
                    self._n_free += weight
                elif visitor in self._queue:  # an interrupt may come before
                    self._queue.remove(visitor)
                self._let_in()

    def _let_in(self) -> None:
        """Lets in those who are first and fit. The caller holds the lock."""
        while self._queue and self._queue[0].weight <= self._n_free:
            visitor = self._queue.popleft()
            self._n_free -= visitor.weight
            visitor.is_in = True
            visitor.called.put(None)
