"""Deadlocks between threads that hold cache reservations and wait for more.

A `Wait` is a thread that asked an engine for a reservation, a `Reservation` what an open session
holds. A wait is deadlocked when every reservation that blocks it is used by a thread that is
itself deadlocked. Of the deadlocked waits whose thread could free a reservation, the latest one is
withdrawn. This module does not read the cache: an engine tells it which sessions block a wait.

There is no polling: a thread that may have completed a cycle calls `search`. That is a thread
that begins to wait, closes a session, leaves a group, or begins work in a group.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class _Here(threading.local):
    def __init__(self) -> None:
        self.me = object()  # a thread's ident may be given to a later thread
        self.line: frozenset[object] = frozenset([self.me])


_here = _Here()


def awaiting() -> frozenset[object]:
    """This thread and those that wait for it."""
    return _here.line


@contextlib.contextmanager
def awaited_by(line: frozenset[object]) -> Iterator[None]:
    """Inside, the threads of `line` wait for this thread, so it must not wait for them. `line` is
    what `awaiting` returned in the thread that started this one."""
    outer_line, _here.line = _here.line, line | {_here.me}
    try:
        yield
    finally:
        _here.line = outer_line


@dataclass(eq=False)
class Reservation:
    """Holdings of an open session, and the thread that used it last."""

    n_cells: int
    n_seqs: int
    group: object = None
    job: Any = None
    """The last job; ``job.wait(0.0)`` is true when it is over."""
    user: object = field(default_factory=lambda: _here.me)
    line: frozenset[object] = field(default_factory=awaiting)

    def use(self) -> None:
        """Makes this thread the user."""
        self.user, self.line = _here.me, _here.line

    @property
    def is_idle(self) -> bool:
        job = self.job
        return job is None or bool(job.wait(0.0))


@dataclass(eq=False)
class Wait:
    """This thread's wait for a reservation."""

    reservations: Mapping[int, Reservation]
    """Reservations of open sessions of the engine, by session; shared by all its waits."""
    blockers: Callable[[], list[int]]
    """The sessions of which at least one must close first; empty while the wait is for other
    participants to ask. One that was just admitted may be missing from `reservations`."""
    is_cancelled: Callable[[], bool]
    line: frozenset[object] = field(default_factory=awaiting)
    withdraw: Callable[[], object] = lambda: None
    """Ends the wait of the thread, with `is_withdrawn` set."""
    is_withdrawn: bool = False


_lock = threading.RLock()
_waits: list[Wait] = []  # the latest last


def forget_all() -> None:
    """Forgets all waits in a forked child, which has none of the waiting threads."""
    global _lock
    _lock = threading.RLock()
    _waits.clear()


@contextlib.contextmanager
def registered(wait: Wait) -> Iterator[None]:
    """Inside, `search` considers the wait, now first of all."""
    _waits.append(wait)
    try:
        search()
        yield
    finally:
        with contextlib.suppress(ValueError):
            _waits.remove(wait)
        search()  # a group goes on without a participant whose wait was cancelled


def search() -> None:
    """Withdraws a wait of every deadlock, which then counts as ended."""
    if not _waits:
        return
    with _lock:
        while (wait := _latest_deadlocked()) is not None:
            with contextlib.suppress(ValueError):
                _waits.remove(wait)
            wait.is_withdrawn = True
            wait.withdraw()


def _latest_deadlocked() -> Wait | None:
    """The wait to withdraw, if there is a deadlock."""
    waits = deadlocked(list(_waits), _all_reservations)
    if not any(_could_free(wait, waits) for wait in waits):
        return None
    # the engines are asked last, because that takes longer; their answers are the newest
    asked: dict[Wait, list[Reservation | None]] = {
        wait: [wait.reservations.get(session) for session in wait.blockers()] for wait in waits
    }
    waits = deadlocked(waits, asked.__getitem__)
    return next((wait for wait in reversed(waits) if _could_free(wait, waits)), None)


def _all_reservations(wait: Wait) -> list[Reservation | None]:
    return list(wait.reservations.values())


def _could_free(wait: Wait, waits: list[Wait]) -> bool:
    """Whether its thread holds a reservation of any engine that the waits are for."""
    return any(
        held.user in wait.line for other in waits for held in _all_reservations(other) if held
    )


def deadlocked(
    waits: list[Wait], in_the_way: Callable[[Wait], list[Reservation | None]]
) -> list[Wait]:
    """Returns the deadlocked waits: the largest set in which every wait is blocked, and only by
    reservations whose threads are themselves in a wait of the set."""
    waits = [wait for wait in waits if not wait.is_cancelled()]
    # work of a group stops while one of its sessions is idle, and so does the thread that runs it
    grouped = {held for wait in waits for held in _all_reservations(wait) if held and held.group}
    idle = {held for held in grouped if held.is_idle}
    while True:
        stuck = frozenset[object]().union(*(wait.line for wait in waits))
        stopped = {held.group for held in idle if held.user in stuck}
        stuck = stuck.union(*(held.line for held in grouped - idle if held.group in stopped))
        remaining = [
            wait
            for wait in waits
            if (them := in_the_way(wait)) and all(held and held.user in stuck for held in them)
        ]
        if len(remaining) == len(waits):
            return remaining
        waits = remaining
