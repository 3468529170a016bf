"""Work in threads of its own: several pieces at once, or one whose results are streamed."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

from tgr_local.engine import Cancel, Workers, awaited_by, awaiting, start_thread
from tgr_local.system.errors import CancelledError, TgrError

_Event = TypeVar("_Event")
_Result = TypeVar("_Result")


def in_threads(
    n: int, work: Callable[[int, Cancel], _Result], cancel: Cancel | None = None
) -> list[_Result]:
    """The results of ``work(0, stop)`` to ``work(n - 1, stop)``, each called in its own thread; a
    single one in this thread.

    Each call must end when `stop` is set, which `cancel` and the failure of another call do. That
    failure is raised here.
    """
    stop, line = Cancel(cancel), awaiting()
    if n == 1:
        return [work(0, stop)]
    results: dict[int, _Result] = {}
    failures: list[BaseException] = []

    def run(number: int) -> None:
        with awaited_by(line):
            try:
                results[number] = work(number, stop)
            except BaseException as error:
                failures.append(error)
                stop.cancel()

    workers = Workers()
    try:
        for number in range(n):
            workers.start(functools.partial(run, number))
        workers.wait()
    finally:
        stop.cancel()
        workers.wait()
    if failures:
        try:
            raise min(failures, key=lambda error: isinstance(error, CancelledError))
        finally:
            failures.clear()  # else its frame and it keep each other, and what they know
    return [results[number] for number in range(n)]


def streamed(
    work: Callable[[Callable[[_Event], None], Cancel], None], cancel: Cancel | None = None
) -> Generator[_Event, None, None]:
    """The events of `work`, which runs in its own thread, as they come.

    ``work(on_event, stop)`` calls `on_event` with each event, and must end when `stop` is set,
    which closing the iterator and `cancel` do. Its errors are raised here. A forked child, which
    does not have that thread, gets a TgrError.
    """
    stop, process = Cancel(cancel), os.getpid()
    # Ctrl-C cannot leave it locked
    events: queue.SimpleQueue[_Event | _ThreadEnd] = queue.SimpleQueue()
    line = awaiting()

    def run() -> None:
        try:
            with awaited_by(line):
                work(events.put, stop)
            events.put(_ThreadEnd(None))
        except BaseException as error:
            events.put(_ThreadEnd(error))

    thread: threading.Thread | None = None
    event: _Event | _ThreadEnd | None = None
    try:
        thread = start_thread(run)
        while not isinstance(event := events.get(), _ThreadEnd):
            yield event
            if os.getpid() != process:
                raise TgrError(
                    "the stream and its engine stayed in the process that this one was forked "
                    "from; load it again here"
                )
        if event.error:
            raise event.error
    finally:
        stop.cancel()
        if thread:
            thread.join()
        event = None  # else an error and its frame keep each other, and the engine
        while not events.empty():
            events.get()


@dataclass(frozen=True)
class _ThreadEnd:
    error: BaseException | None
