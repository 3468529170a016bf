"""The threads of the program. Each does one thing and posts what comes of it as Qt signals.

Nothing that the window calls here waits, so its event loop is never blocked.
"""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal

from tgr_local import (
    Cancel,
    CancelledError,
    Engine,
    EngineConfig,
    Event,
    ModelError,
    SearchConfig,
    TgrError,
    generate,
)
from tgr_local.engine import check_memory

BATCH_MS = 30
"""Time between two batches of events: a token more often than that is drawn with others."""
_MOST_THREADS = 256


def start(work: Callable[[], None]) -> None:
    """Calls `work` in a thread. Unlike threading.Thread.start, Qt's pool does not wait until the
    thread runs, which takes long on a busy machine."""
    pool = QThreadPool.globalInstance()
    pool.setMaxThreadCount(_MOST_THREADS)
    pool.start(work)


def join_all(seconds: float = 5.0) -> None:
    """Waits for every thread, at the end of the program: none may post a signal after that."""
    QThreadPool.globalInstance().waitForDone(int(1000 * seconds))


def message_of(error: Exception) -> str:
    """An error as a sentence for the user. The errors of tgr_local are sentences already."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, TgrError | ValueError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return "There is not enough memory; close other programs, or choose a smaller model."
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error} (this is a bug; the terminal shows where)"


class ReplyWorker(QObject):
    """Writes one reply in a thread. `batch` has its events, `finished` its end."""

    batch = Signal(list)
    """Events of `tgr_local.Event`, every `BATCH_MS` at most."""
    finished = Signal(object, object)
    """The `Reply`, of a cancelled one what there is, or None; the error, or None."""
    _posted = Signal()
    _ended = Signal()

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Mapping[str, str]],
        config: SearchConfig,
        method: str,
    ) -> None:
        super().__init__()
        self._work = (engine, list(messages), config, method)
        self._cancel = Cancel()
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._reply, self._error = None, None
        self._timer = QTimer(self, singleShot=True, interval=BATCH_MS, timeout=self._flush)
        self._posted.connect(self._timer.start)  # in the window's thread: signals change threads
        self._ended.connect(self._end)

    def start(self) -> None:
        start(self._run)

    def cancel(self) -> None:
        """Ends the reply at its next decoded token; `finished` follows."""
        self._cancel.cancel()

    def answer_now(self) -> None:
        """Ends the thinking; the answer follows."""
        self._cancel.answer_now()

    # --- in the thread ---

    def _run(self) -> None:
        engine, messages, config, method = self._work
        try:
            self._reply = generate(
                engine, messages, config, method=method, on_event=self._post, cancel=self._cancel
            )
        except CancelledError as error:  # by `cancel`, or because the engine was closed
            self._reply = error.reply
        except Exception as error:
            self._error = error
        self._ended.emit()

    def _post(self, event: Event) -> None:
        with self._lock:
            self._events.append(event)
            is_first = len(self._events) == 1
        if is_first:
            self._posted.emit()

    # --- in the window's thread ---

    def _flush(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        if events:
            self.batch.emit(events)

    def _end(self) -> None:
        self._timer.stop()
        self._flush()
        self.finished.emit(self._reply, self._error)


class Loader(QObject):
    """Loads a model in a thread, and closes the engine before it."""

    loaded = Signal(object)
    """The `Engine`."""
    failed = Signal(str, bool)
    """Why not, or empty if it was cancelled; whether the old engine is closed."""

    def __init__(self, path: Path, config: EngineConfig, old: Engine | None) -> None:
        super().__init__()
        self.path, self.config, self._old = path, config, old
        self._cancel = Cancel()

    def start(self) -> None:
        start(self._run)

    def cancel(self) -> None:
        self._cancel.cancel()

    def _run(self) -> None:
        is_closed = False
        try:
            fits_beside = check_memory(self.path, self.config).fits
            if self._old and not fits_beside:
                self._old.close()
                is_closed = True
            engine = Engine(self.path, self.config, cancel=self._cancel)
        except CancelledError:
            self.failed.emit("", is_closed)
        except Exception as error:
            name = "" if isinstance(error, ModelError | OSError) else f"{self.path.name}: "
            self.failed.emit(name + message_of(error), is_closed)
        else:
            if self._old:
                self._old.close()  # which ends its replies
            gc.freeze()  # else a full collection, which may come in any thread, takes 25 ms
            self.loaded.emit(engine)
