"""Work in threads. Nothing that the window calls here waits, so its event loop is never blocked."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal

from tgr_local import TgrError

BATCH_MS = 30
"""Time between two batches: many events cost one signal, and are drawn once."""
_MOST_THREADS = 256  # they wait for the engine, not for a processor
_running: set[Task] = set()  # else a thread may delete the task that nobody else knows any more


class Task(QObject):
    """Calls `work(post)` in a thread; `post` takes any object. Signals come in the thread that made
    the task, where a timer looks for them."""

    posted = Signal(list)
    """Objects that were posted, in their order."""
    finished = Signal(object, object)
    """After these: what the work returned, and the exception that ended it; one of them is None."""

    _ended = Signal()

    def __init__(self, work: Callable[[Callable[[Any], None]], Any]) -> None:
        super().__init__()
        self._work = work
        self._items: deque[Any] = deque()
        self._end: tuple[Any, Exception | None] | None = None
        self._timer = QTimer(self, interval=BATCH_MS, timeout=self._look)
        self._ended.connect(self._look)  # at once, so that a reply that is stopped ends at once

    def start(self) -> None:
        """Qt's pool does not wait until the thread runs, as threading.Thread.start does."""
        pool = QThreadPool.globalInstance()
        pool.setMaxThreadCount(_MOST_THREADS)
        pool.start(self._run)
        self._timer.start()
        _running.add(self)

    def _run(self) -> None:
        try:
            self._end = self._work(self._items.append), None
        except Exception as error:
            self._end = None, error
        self._ended.emit()

    def _look(self) -> None:
        end = self._end  # before the items, which are complete if it is there
        if batch := [self._items.popleft() for _ in range(len(self._items))]:
            self.posted.emit(batch)
        if end and self._timer.isActive():
            self._timer.stop()
            _running.discard(self)
            self.finished.emit(*end)


def message_of(error: Exception) -> str:
    """An error as a sentence for the user, which those of tgr_local are already."""
    if isinstance(error, TgrError | ValueError | OSError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error} (a bug; the terminal shows where)"
