"""Places for work that only a few may do at a time; a wait for one can be cancelled."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from tgr_local.system.errors import CancelledError


class Flag(Protocol):
    """Something that can cancel a wait, such as `engine.Cancel`."""

    def is_set(self) -> bool: ...
    def watched(
        self, call: Callable[[], object], /
    ) -> contextlib.AbstractContextManager[object]: ...


class _Waiter:
    """One wait for a place."""

    def __init__(self) -> None:
        self.has_place = False
        self.called: queue.SimpleQueue[None] = queue.SimpleQueue()


class FairSlots:
    """`n` places, given in the order in which they were asked for."""

    def __init__(self, n: int) -> None:
        self._n_free = n  # 0 while somebody waits
        self._queue: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, cancel: Flag | None = None) -> Iterator[None]:
        """A place for the ``with`` block. Raises CancelledError if `cancel` is set first."""
        self._take(cancel)
        try:
            yield
        finally:
            self._give_back()

    def _take(self, cancel: Flag | None) -> None:
        turn = _Waiter()
        with self._lock:
            if self._n_free:
                self._n_free -= 1
                turn.has_place = True
            else:
                self._queue.append(turn)
        try:
            call = functools.partial(turn.called.put, None)
            with cancel.watched(call) if cancel else contextlib.nullcontext():
                while not (turn.has_place or (cancel and cancel.is_set())):
                    turn.called.get()
            if cancel and cancel.is_set():
                raise CancelledError("cancelled while waiting for its turn")
        except BaseException:
            self._leave(turn)
            raise

    def _leave(self, turn: _Waiter) -> None:
        with self._lock:
            if not turn.has_place:
                self._queue.remove(turn)
                return
        self._give_back()

    def _give_back(self) -> None:
        """The place goes to who has waited longest."""
        with self._lock:
            if not self._queue:
                self._n_free += 1
                return
            turn = self._queue.popleft()
            turn.has_place = True
        turn.called.put(None)
