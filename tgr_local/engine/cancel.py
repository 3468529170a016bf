"""A flag that ends work from another thread, or asks it to answer now."""

from __future__ import annotations

import threading


class Cancel:
    """A flag that ends running work from another thread; with a parent, also when that one does."""

    def __init__(self, parent: Cancel | None = None) -> None:
        self._event = threading.Event()
        self._answer = threading.Event()
        self._parent = parent

    def cancel(self) -> None:
        """Ends the work that watches this flag at its next decoded token, in prefill too."""
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set() or (self._parent is not None and self._parent.is_set())

    def answer_now(self) -> None:
        """Makes the replies that watch this flag close their thinking and answer. The chunk under
        way is kept and ends at its next token (without `stop_early`, at its last one). An answer
        under way goes on."""
        self._answer.set()

    def answers_now(self) -> bool:
        return self._answer.is_set() or (self._parent is not None and self._parent.answers_now())
