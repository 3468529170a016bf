"""Work in threads, read by coroutines: how much runs, how much waits, and when it is cancelled.

A job's work makes items. It runs in a thread as soon as one is free; its items are queued for the
coroutine that reads them, so a slow client delays nobody else. Items of all jobs that come at about
the same time wake the event loop once.

Jobs that wait are in the executor's queue, in the order of arrival: at a `Turnstile`, each would
wait in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tgr_local.engine import Cancel, require_address_space
from tgr_local.server.errors import ApiError, api_error
from tgr_local.server.lease import Lease
from tgr_local.server.loaded import LoadedModel
from tgr_local.system.errors import CancelledError

Put = Callable[[Any], None]
Work = Callable[[Cancel, Put], None]
"""Function of a job, called with a flag that ends it and a function that takes each item."""


_GRACE = 4.0  # seconds after the limit of the reply itself, before its job is cancelled
_END = object()


class Jobs:
    """The work of all requests: at most `max_running` at a time, and `max_queue` in waiting."""

    def __init__(self, max_running: int, max_queue: int, seconds: float) -> None:
        self._max_running, self._max_queue = max_running, max_queue
        self.seconds = seconds
        """The longest that a job may run; 0 = no limit."""
        self._executor = ThreadPoolExecutor(max_running, thread_name_prefix="request")
        self._jobs: set[Job] = set()
        self._mailbox: _Mailbox | None = None
        self._mean_seconds = 1.0
        self._closing = False

    @property
    def running(self) -> int:
        # a copy, since other threads ask while jobs come and go
        return sum(job.started is not None for job in tuple(self._jobs))

    @property
    def waiting(self) -> int:
        return len(self._jobs) - self.running

    def submit(self, work: Work, lease: Lease | None = None) -> Job:
        """Starts the work when its lease is granted, which ends with it, and a thread is free.
        Raises ApiError when the queue is full, or too little address space is left."""
        if self._closing:
            raise ApiError(503, "the server is shutting down")
        try:
            require_address_space()
        except MemoryError as error:
            raise api_error(error) from None
        if len(self._jobs) >= self._max_running + self._max_queue:
            seconds = min(60, math.ceil(self._mean_seconds * (1 + self._max_queue)))
            raise ApiError(
                429,
                f"the queue is full: {self._max_running} requests run and {self._max_queue} wait; "
                f"try again in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )
        if self._mailbox is None:
            self._mailbox = _Mailbox()
        job = Job(work, self, self._mailbox, lease)
        self._jobs.add(job)
        if lease:
            lease.then(lambda: self._decided(job, lease.error))
        else:
            self._begin(job)
        return job

    def _decided(self, job: Job, error: ApiError | None) -> None:
        job.waits = False
        if error:
            job.put(error)
            self.done(job)
        else:
            self._begin(job)

    def _begin(self, job: Job) -> None:
        future = job.future = self._executor.submit(job.run)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _soon(loop, self.done, job))

    def done(self, job: Job) -> None:
        """The job has ended, or will never begin."""
        self._jobs.discard(job)
        if job.lease:
            job.lease.end()
        if job.started is not None:
            took = time.monotonic() - job.started
            self._mean_seconds += (took / self._max_running - self._mean_seconds) / 10

    def fail(self, model: LoadedModel, why: ApiError) -> None:
        """Ends the jobs of a model; their readers do not wait for the threads."""
        for job in list(self._jobs):
            if job.lease and job.lease.pooled.model is model:
                job.end(why)
                job.put(CancelledError("cancelled"))

    def stop(self) -> None:
        """Cancels all jobs and accepts no more."""
        self._closing = True
        for job in list(self._jobs):
            job.end(ApiError(503, "the server is shutting down", code="cancelled"))

    def close(self) -> None:
        """Stops, and waits until the last thread has ended."""
        self.stop()
        self._executor.shutdown(wait=True)


class _Mailbox:
    """Carries items from the threads of jobs to the event loop that it was made in."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._posts: deque[tuple[Job, Any]] = deque()
        self._called = False  # and has not begun to deliver

    def post(self, job: Job, item: Any) -> None:
        """Delivers an item to a job. Any thread."""
        self._posts.append((job, item))
        if not self._called:
            self._called = True
            _soon(self.loop, self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before the first item is taken: a later one calls again
        woken: dict[Job, None] = {}
        while self._posts:
            job, item = self._posts.popleft()
            job.items.append(item)
            woken[job] = None
        for job in woken:
            job.wake()


class Job:
    """One request's work."""

    def __init__(self, work: Work, jobs: Jobs, mailbox: _Mailbox, lease: Lease | None) -> None:
        self._work, self._jobs = work, jobs
        self._cancel = Cancel()
        self._mailbox = mailbox
        self._loop = mailbox.loop
        self.items: deque[Any] = deque()
        """Items that are delivered, and not yet read."""
        self._reader: asyncio.Future[None] | None = None  # waits for an item
        self._timer: asyncio.TimerHandle | None = None
        self.future: Future[None] | None = None
        """Future of the job in the executor's queue."""
        self._why: ApiError | None = None
        self.lease = lease
        self.waits = lease is not None
        """Whether its lease is not decided."""
        self.is_taken_over = False
        """Whether another coroutine than the submitting one reads and ends it."""
        self._created = time.monotonic()
        self.started: float | None = None
        """Start time of its thread, by time.monotonic; None while it is queued."""

    @property
    def seconds_queued(self) -> float:
        return (self.started or time.monotonic()) - self._created

    def run(self) -> None:
        """The work itself, in its thread."""
        self.started = time.monotonic()
        _soon(self._loop, self._set_timer)
        try:
            self._cancel.check()
            self._work(self._cancel, self.put)
            self.put(_END)
        except BaseException as error:
            self.put(error)

    def end(self, why: ApiError) -> None:
        """Cancels the work; its reader gets the error `why`."""
        if self._why is None:
            self._why = why
        self._cancel.cancel()
        if self._timer:
            self._timer.cancel()
        if self.waits or (self.future and self.future.cancel()):  # had not begun
            # the executor keeps the job in its queue, but not the prompt
            self._work = lambda *_: None
            self.put(CancelledError("cancelled"))
        if self.waits:
            self.waits = False
            self._jobs.done(self)

    async def watch(self, receive: Callable[[], Any]) -> None:
        """Cancels the work when the client disconnects."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end(ApiError(499, "the client disconnected"))

    async def first(self, seconds: float | None) -> Any:
        """The first item, or None if there is none after `seconds`. Raises ApiError."""
        return self._taken() if await self._wait(seconds) else None

    async def batches(self, ping_seconds: float) -> AsyncIterator[list[Any]]:
        """The items as they come, all that are there at a time, and an empty list after every
        `ping_seconds` without one. Raises ApiError if the work ended early."""
        while True:
            await self._wait(ping_seconds)
            batch: list[Any] = []
            while self.items:
                try:
                    item = self._taken()
                except ApiError:
                    if batch:
                        yield batch
                    raise
                if item is _END:
                    if batch:
                        yield batch
                    return
                batch.append(item)
            yield batch

    async def _wait(self, seconds: float | None) -> bool:
        """Waits for an item, at most `seconds`. Whether there is one."""
        if not self.items:
            self._reader = self._loop.create_future()
            timer = None if seconds is None else self._loop.call_later(seconds, self.wake)
            try:
                await self._reader
            finally:
                self._reader = None
                if timer:
                    timer.cancel()
        return bool(self.items)

    def wake(self) -> None:
        """Lets the reader look again. In the event loop."""
        if self._reader and not self._reader.done():
            self._reader.set_result(None)

    def _taken(self) -> Any:
        item = self.items.popleft()
        if item is _END and self._timer:
            self._timer.cancel()
        if isinstance(item, BaseException):
            raise self._why or api_error(item) from item
        return item

    def _set_timer(self) -> None:
        if self._jobs.seconds and self._why is None:
            message = f"the request ran for {self._jobs.seconds:g} s, the limit here"
            why = ApiError(503, message, code="timeout")
            self._timer = self._loop.call_later(self._jobs.seconds + _GRACE, self.end, why)

    def put(self, item: Any) -> None:
        self._mailbox.post(self, item)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(call, *args)
