"""Who waits for whom: threads that hold cache room and wait for more must not wait for ever.

A `Wait` is a thread that asked an engine for room, a `Reservation` what it was granted. A wait is in vain
when every room that is in its way is used by a thread that itself waits in vain; of such waits the
latest one whose thread could give room back has to give up. Nothing here knows the cache: what is
in the way of a wait, its engine says.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class _Here(threading.local):
    def __init__(self) -> None:
        self.me = object()  # unlike an ident, never that of another thread that is over
        self.line: frozenset[object] = frozenset([self.me])


_here = _Here()


def awaiting() -> frozenset[object]:
    """This thread and those that wait for it."""
    return _here.line


@contextlib.contextmanager
def awaited_by(line: frozenset[object]) -> Iterator[None]:
    """Work in this thread that the threads of a `line` wait for, which `awaiting` gave the one that
    started it: this one must not wait for them."""
    before, _here.line = _here.line, line | {_here.me}
    try:
        yield
    finally:
        _here.line = before


@dataclass(eq=False)
class Reservation:
    """What a session was granted, and the thread that used it last."""

    n_cells: int
    n_seqs: int
    group: object = None
    job: Any = None
    """Work under way; ``job.wait(0.0)`` tells whether it is over."""
    user: object = field(default_factory=lambda: _here.me)
    line: frozenset[object] = field(default_factory=awaiting)

    def use(self) -> None:
        """This thread uses it from now on."""
        self.user, self.line = _here.me, _here.line

    @property
    def is_idle(self) -> bool:
        job = self.job
        return job is None or bool(job.wait(0.0))


@dataclass(eq=False)
class Wait:
    """This thread's wait for room."""

    rooms: Mapping[int, Reservation]
    """What the engine has granted: shared by all of its waits."""
    in_the_way: Callable[[], list[int]]
    """Keys of all rooms of which one at least must go first; none while it waits for others to ask.
    A key may be missing from `rooms`, while nobody has noted a grant."""
    is_over: Callable[[], bool]
    """Whether it was told to end."""
    line: frozenset[object] = field(default_factory=awaiting)


_lock = threading.RLock()
_waits: list[Wait] = []  # the latest last
_LOOK_SECONDS = 0.05  # between two looks at all waits
_next_look = 0.0
_suspects: frozenset[Wait] = frozenset()


def forget_all() -> None:
    """In a forked child, where none of the threads is that wait."""
    global _lock, _suspects
    _lock = threading.RLock()
    _suspects = frozenset()
    _waits.clear()


@contextlib.contextmanager
def noted(wait: Wait) -> Iterator[None]:
    _waits.append(wait)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            _waits.remove(wait)


def must_withdraw(wait: Wait) -> bool:
    """Whether nobody can make room but those who wait in vain, and this wait is the one to end. It
    counts as ended then."""
    global _next_look, _suspects
    with _lock:
        now = time.monotonic()
        if now >= _next_look:  # one look for all who wait
            _suspects = frozenset(_in_vain(list(_waits), lambda one: list(one.rooms.values())))
            _next_look = now + _LOOK_SECONDS
        if wait not in _suspects:
            return False
        waits = _in_vain(list(_waits), lambda one: list(one.rooms.values()))
        if wait not in waits or not _holds(wait, waits):
            return False
        # asks the engines, which takes longer: what they say is newer than what is noted here
        asked: dict[Wait, list[Any]] = {
            one: [one.rooms.get(key) for key in one.in_the_way()] for one in waits
        }
        waits = _in_vain(waits, asked.__getitem__)
        if [one for one in waits if _holds(one, waits)][-1:] != [wait]:
            return False
        _waits.remove(wait)
        return True


def _holds(wait: Wait, waits: list[Wait]) -> bool:
    """Whether its thread could give room back, of any engine that the waits are about."""
    return any(room.user in wait.line for one in waits for room in list(one.rooms.values()))


def _in_vain(waits: list[Wait], in_the_way: Callable[[Wait], list[Any]]) -> list[Wait]:
    """Those of the waits that nobody else will end: the largest set in which each has something in
    its way, all of which is used by threads that stand in the line of one of the set."""
    waits = [wait for wait in waits if not wait.is_over()]
    # work of a group stands still while a room of it is idle, and with it the thread that runs it
    rooms = {room for wait in waits for room in list(wait.rooms.values()) if room.group}
    idle = {room for room in rooms if room.is_idle}
    while True:
        stuck = frozenset[object]().union(*(wait.line for wait in waits))
        asleep = {room.group for room in idle if room.user in stuck}
        stuck = stuck.union(*(room.line for room in rooms - idle if room.group in asleep))
        still = [
            wait
            for wait in waits
            if (them := in_the_way(wait)) and all(room and room.user in stuck for room in them)
        ]
        if len(still) == len(waits):
            return still
        waits = still
