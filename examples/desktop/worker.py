"""Work in threads. Nothing that the window calls here waits, so its event loop is never blocked."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal

from tgr_local import TgrError

BATCH_MS = 16
"""Time between two batches: many events cost one signal, and are drawn once."""
_MOST_THREADS = 256  # they wait for the engine, not for a processor
_NO_THREAD = ("can't start new thread", "Resource temporarily unavailable")  # in Python, in C++


class Task(QObject):
    """Calls `work(post)` in a thread; `post` takes any object. Signals come in the thread that made
    the task, where a timer looks for them. `work` must hold no widget: else the last one who knows
    the widget may be the thread, which would delete it."""

    posted = Signal(list)
    """Objects that were posted, in their order."""
    finished = Signal(object, object)
    """After these: what the work returned, and the exception that ended it; one of them is None."""

    def __init__(self, work: Callable[[Callable[[Any], None]], Any]) -> None:
        super().__init__()
        self._work = work
        self._items: deque[Any] = deque()
        self._ends: list[tuple[Any, Exception | None]] = []
        self._timer = QTimer(self, interval=BATCH_MS, timeout=self._look)

    def start(self) -> None:
        """Qt's pool does not wait until the thread runs, as threading.Thread.start does."""
        work, items, ends = self._work, self._items, self._ends

        def run() -> None:
            try:
                ends.append((work(items.append), None))
            except Exception as error:
                ends.append((None, error))

        pool = QThreadPool.globalInstance()
        pool.setMaxThreadCount(_MOST_THREADS)
        pool.start(run)
        self._timer.start()

    def _look(self) -> None:
        has_ended = bool(self._ends)  # before the items, which are complete if it has
        if batch := [self._items.popleft() for _ in range(len(self._items))]:
            self.posted.emit(batch)
        if has_ended:
            self._timer.stop()
            self.finished.emit(*self._ends[0])


def message_of(error: Exception) -> str:
    """An error as a sentence for the user, which those of tgr_local are already."""
    if isinstance(error, TgrError | ValueError | OSError):
        return str(error)
    if isinstance(error, MemoryError) or str(error) in _NO_THREAD:
        return "there is no more memory, or no room for another thread; end other programs"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error} (a bug; the terminal shows where)"
