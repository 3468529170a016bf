"""Work in threads, read by coroutines: how much runs, how much waits, and when it is cancelled.

A job's work is a generator of items. It runs in a thread as soon as one is free; its items are
queued for the coroutine that reads them, so a slow client delays nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tgr_local.engine import Cancel
from tgr_local.errors import CancelledError
from tgr_local.server.errors import ApiError, api_error

Work = Callable[[Cancel], Generator[Any, None, None]]

_GRACE = 4.0  # seconds after the limit of the reply itself, before its job is cancelled
_END = object()


class Jobs:
    """The work of all requests: at most `max_running` at a time, and `max_queue` in waiting."""

    def __init__(self, max_running: int, max_queue: int, seconds: float) -> None:
        self._max_running, self._max_queue = max_running, max_queue
        self._seconds = seconds
        self._executor = ThreadPoolExecutor(max_running, thread_name_prefix="request")
        self._jobs: set[Job] = set()
        self._mean_seconds = 1.0
        self._closing = False

    @property
    def running(self) -> int:
        # a copy, since other threads ask while jobs come and go
        return sum(job.started is not None for job in tuple(self._jobs))

    @property
    def waiting(self) -> int:
        return len(self._jobs) - self.running

    def submit(self, work: Work) -> Job:
        """Starts the work, or queues it. Raises ApiError when the queue is full."""
        if self._closing:
            raise ApiError(503, "the server is shutting down")
        if len(self._jobs) >= self._max_running + self._max_queue:
            seconds = min(60, math.ceil(self._mean_seconds * (1 + self._max_queue)))
            raise ApiError(
                429,
                f"the queue is full: {self._max_running} requests run and {self._max_queue} wait; "
                f"try again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )
        job = Job(work, self._seconds)
        self._jobs.add(job)
        future = self._executor.submit(job.run)
        job.queued_as(future)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _soon(loop, self._done, job))
        return job

    def _done(self, job: Job) -> None:
        self._jobs.discard(job)
        if job.started is not None:
            took = time.monotonic() - job.started
            self._mean_seconds += (took / self._max_running - self._mean_seconds) / 10

    def stop(self) -> None:
        """Cancels all jobs and accepts no more."""
        self._closing = True
        for job in list(self._jobs):
            job.end(ApiError(503, "the server is shutting down", code="cancelled"))

    def close(self) -> None:
        """Stops, and waits until the last thread has ended."""
        self.stop()
        self._executor.shutdown(wait=True)


class Job:
    """One request's work."""

    def __init__(self, work: Work, seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._cancel = Cancel()
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Any] = asyncio.Queue()
        self._next: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._future: Future[None] | None = None
        self._why: ApiError | None = None
        self.is_taken_over = False
        """Whether another coroutine than the submitting one reads and ends it."""
        self._created = time.monotonic()
        self.started: float | None = None
        """When its thread began, by time.monotonic; None while it is queued."""

    @property
    def age(self) -> float:
        """Seconds since it was submitted."""
        return time.monotonic() - self._created

    @property
    def seconds_queued(self) -> float:
        return (self.started or time.monotonic()) - self._created

    def queued_as(self, future: Future[None]) -> None:
        self._future = future

    def taken_over(self) -> Job:
        """This job, for another coroutine to read and to end."""
        self.is_taken_over = True
        return self

    def run(self) -> None:
        """The work itself, in its thread."""
        self.started = time.monotonic()
        _soon(self._loop, self._set_timer)
        try:
            if self._cancel.is_set():
                raise CancelledError("cancelled")
            with contextlib.closing(self._work(self._cancel)) as items:
                for item in items:
                    self._put(item)
            self._put(_END)
        except BaseException as error:
            self._put(error)

    def end(self, why: ApiError) -> None:
        """Cancels the work; its reader gets the error `why`."""
        if self._why is None:
            self._why = why
        self._cancel.cancel()
        if self._timer:
            self._timer.cancel()
        if self._future and self._future.cancel():  # had not begun
            self._work = _nothing  # the executor keeps the job in its queue, but not the prompt
            self._put(CancelledError("cancelled"))

    async def watch(self, receive: Callable[[], Any]) -> None:
        """Cancels the work when the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(ApiError(499, "the client disconnected"))

    async def first(self, seconds: float | None) -> Any:
        """The first item, or None if there is none after `seconds`. Raises ApiError."""
        if not await self._wait(seconds):
            return None
        return self._taken()

    async def items(self, ping_seconds: float) -> AsyncIterator[Any]:
        """The items as they come, and None after every `ping_seconds` without one. Raises ApiError
        if the work ended early."""
        while True:
            if not await self._wait(ping_seconds):
                yield None
                continue
            item = self._taken()
            if item is _END:
                return
            yield item

    async def _wait(self, seconds: float | None) -> bool:
        if self._next is None:
            self._next = asyncio.ensure_future(self._items.get())
        done, _ = await asyncio.wait({self._next}, timeout=seconds)
        return bool(done)

    def _taken(self) -> Any:
        assert self._next is not None
        item, self._next = self._next.result(), None
        if item is _END and self._timer:
            self._timer.cancel()
        if isinstance(item, BaseException):
            raise self._why or api_error(item) from item
        return item

    def _set_timer(self) -> None:
        if self._seconds and self._why is None:
            message = f"the request ran for {self._seconds:g} s, the limit here"
            why = ApiError(503, message, code="timeout")
            self._timer = self._loop.call_later(self._seconds + _GRACE, self.end, why)

    def _put(self, item: Any) -> None:
        _soon(self._loop, self._items.put_nowait, item)


def _nothing(_: Cancel) -> Generator[Any, None, None]:
    yield from ()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *args)
