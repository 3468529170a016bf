"""A flag that ends work from another thread, or asks it to answer now."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from tgr_local.system.errors import CancelledError


class Cancel:
    """A flag that ends running work from another thread; with a parent, also when that one does.

    A thread that waits for something else registers with `watched`, which calls it.
    """

    def __init__(self, parent: Cancel | None = None) -> None:
        self._cancelled = self._answer = False
        self._parent = parent
        self._lock = threading.RLock()  # a signal handler may cancel
        self._watchers: dict[object, Callable[[], object]] = {}

    def cancel(self) -> None:
        """Ends the work that watches this flag at its next decoded token, in prefill too."""
        self._cancelled = True
        self._call_watchers()

    def is_set(self) -> bool:
        return self._cancelled or (self._parent is not None and self._parent.is_set())

    def check(self, why: str = "cancelled") -> None:
        """Raises CancelledError, which says why, once the flag is set."""
        if self.is_set():
            raise CancelledError(why)

    def answer_now(self) -> None:
        """Makes the replies that watch this flag end their thinking and begin the answer. The
        current chunk ends at its next token (without `stop_early`, at its last one) and is kept. A
        reply that is in its answer already is not changed."""
        self._answer = True
        self._call_watchers()

    def answers_now(self) -> bool:
        return self._answer or (self._parent is not None and self._parent.answers_now())

    @contextlib.contextmanager
    def watched(self, call: Callable[[], object]) -> Iterator[None]:
        """Inside, every `cancel` and `answer_now` of this flag or a parent also calls ``call()``,
        in the same thread. It must be quick, and may be called late or twice. A flag that was set
        before does not call it, so check the flag inside."""
        key, line = object(), list(self._line())
        try:
            for flag in line:
                with flag._lock:
                    flag._watchers[key] = call
            yield
        finally:
            for flag in line:
                with flag._lock:
                    flag._watchers.pop(key, None)

    def _line(self) -> Iterator[Cancel]:
        flag: Cancel | None = self
        while flag is not None:
            yield flag
            flag = flag._parent

    def _call_watchers(self) -> None:
        with self._lock:
            calls = list(self._watchers.values())
        for call in calls:
            call()


def check_cancelled(cancel: Cancel | None, why: str = "cancelled") -> None:
    """Calls `Cancel.check` where there may be no flag."""
    if cancel:
        cancel.check(why)


@contextlib.contextmanager
def watched(cancel: Cancel | None, call: Callable[[], object]) -> Iterator[None]:
    """`Cancel.watched` for an optional flag."""
    with cancel.watched(call) if cancel else contextlib.nullcontext():
        yield
