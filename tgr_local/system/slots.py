"""Places for work that only a few may do at a time; a wait for one can be cancelled."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from tgr_local.errors import CancelledError


class Flag(Protocol):
    """Something that can cancel a wait, such as `engine.Cancel`."""

    def is_set(self) -> bool: ...
    def watched(
        self, call: Callable[[], object], /
    ) -> contextlib.AbstractContextManager[object]: ...


class Slots:
    """`n` places, given in the order in which they were asked for."""

    def __init__(self, n: int) -> None:
        self._n_free = n
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, cancel: Flag | None = None) -> Iterator[None]:
        """A place for the ``with`` block. Raises CancelledError if `cancel` is set first."""
        with cancel.watched(self._wake) if cancel else contextlib.nullcontext(), self._changed:
            turn = object()
            self._queue.append(turn)
            try:
                while not (self._n_free > 0 and self._queue[0] is turn):
                    if cancel and cancel.is_set():
                        raise CancelledError("cancelled while waiting for its turn")
                    self._changed.wait()
                if cancel and cancel.is_set():
                    raise CancelledError("cancelled while waiting for its turn")
                self._n_free -= 1
            finally:
                self._queue.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._n_free += 1
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
