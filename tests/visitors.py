"""Threads that wait for their turn: each asks, begins, and stays until it is let go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from surroundings import HANG

from tgr_local.engine import Cancel


class Asked(Cancel):
    """A flag that tells when its owner has asked for a turn, and has one or waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def is_set(self) -> bool:
        self.asked.set()
        return super().is_set()


class Visitor:
    """A thread in the block that ``enter(cancel)`` opens, or before it. It has asked when made."""

    def __init__(self, enter: Callable[[Cancel], AbstractContextManager[object]]) -> None:
        self._cancel, self._enter = Asked(), enter
        self._begun, self._may_leave = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._cancel.asked.wait(HANG)

    def _run(self) -> None:
        try:
            with self._enter(self._cancel):
                self._begun.set()
                assert self._may_leave.wait(HANG)
        except BaseException as error:
            self.error = error

    def begins(self, seconds: float = HANG) -> bool:
        """Whether it begins within this time."""
        return self._begun.wait(seconds)

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    def cancel(self) -> None:
        """Cancels it, and waits until it is gone."""
        self._cancel.cancel()
        self._end()

    def leave(self) -> None:
        """Lets it leave the block, and waits until it has. Raises its error."""
        self._may_leave.set()
        self._end()
        if self.error:
            raise self.error

    def _end(self) -> None:
        self._thread.join(HANG)
        assert not self._thread.is_alive(), "a visitor hangs"
