"""Threads that hold cache reservations and wait for more: a deadlock ends with one CapacityError,
and no wait ends while another thread may still free a reservation."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from engines import TOKENS, is_free
from fixture_types import Load, Model
from method_runs import PAPER
from surroundings import HANG
from threads import in_threads, wait_until

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Task, waits
from tgr_local.engine.waits import Reservation, Wait
from tgr_local.generation import generate, generate_many
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import CancelledError, CapacityError

SMALL = SearchConfig(chunk_len=8, max_chunks=2, n_candidates=2, rollout_len=4, **PAPER)


@pytest.fixture
def engine_256(model: Model, load: Load) -> Engine:
    return load(model(), n_ctx=256)


# --- the rule, by hand ---


def wait_of(held: dict[int, Reservation], line: frozenset[object], ended: bool = False) -> Wait:
    return Wait(held, lambda: list(held), lambda: ended, line)


def reservation_of(user: object, **fields: Any) -> Reservation:
    return Reservation(1, 1, user=user, line=frozenset([user]), **fields)


def deadlocked(*asked: Wait) -> list[int]:
    found = waits.deadlocked(list(asked), lambda one: list(one.reservations.values()))
    return [asked.index(one) for one in found]


def test_only_a_closed_circle_is_deadlocked():
    a, b, c = (frozenset([name]) for name in "abc")
    held = {1: reservation_of("a"), 2: reservation_of("b")}
    assert deadlocked(wait_of(held, a)) == []  # b works
    assert deadlocked(wait_of(held, a), wait_of(held, b)) == [0, 1]
    assert deadlocked(wait_of(held, a), wait_of(held, c), wait_of(held, b)) == [0, 1, 2]
    assert deadlocked(wait_of(held, a), wait_of(held, b, ended=True)) == []
    assert deadlocked(wait_of(held, a | b)) == [0]  # b waits for a
    assert deadlocked(wait_of({}, a)) == []


def test_a_circle_may_go_through_several_engines():
    a, b = frozenset("a"), frozenset("b")
    one, other = {1: reservation_of("a")}, {1: reservation_of("b")}
    assert deadlocked(wait_of(other, a), wait_of(one, b)) == [0, 1]
    assert deadlocked(wait_of(other, a), wait_of(other, b)) == [0, 1]
    assert deadlocked(wait_of(other, a), wait_of({1: reservation_of("c")}, b)) == []


def test_work_of_a_group_stops_while_a_participant_is_deadlocked():
    class Running:
        def wait(self, seconds: float) -> bool:
            return False

    group = object()
    busy, idle = reservation_of("b", group=group, job=Running()), reservation_of("a", group=group)
    alone = reservation_of("b", group=object(), job=Running())
    assert deadlocked(wait_of({1: busy, 2: idle}, frozenset("a"))) == [0]
    assert deadlocked(wait_of({1: alone, 2: idle}, frozenset("a"))) == []


# --- as threads meet it ---


def ask_while_holding(engine: Engine, n: int, n_cells: int, n_seqs: int = 1) -> list[Any]:
    """n threads that open a session each, and when all have one, another inside it."""
    meet = threading.Barrier(n)
    order = itertools.count()

    def work() -> int:
        with engine.session(n_cells, n_seqs):
            meet.wait()
            with engine.session(n_cells, n_seqs):
                return next(order)

    return in_threads(*[work] * n)


def test_of_two_threads_that_wait_for_each_other_one_gets_an_error(engine_256: Engine):
    for _ in range(5):
        results = ask_while_holding(engine_256, 2, 120)
        (error,) = [result for result in results if isinstance(result, CapacityError)]
        assert "needs 120 cells and 1 sequences" in str(error)
        assert "240 of 256 cells and 2 of 256 sequences are held" in str(error)
        assert "120 cells and 1 sequences of them by this thread itself" in str(error)
        assert "close its 1 open sessions first, or set a larger n_ctx" in str(error)
        assert 0 in results
        assert is_free(engine_256)


def test_threads_wait_for_sequences_as_for_cells(model: Model, load: Load):
    engine = load(model(), n_seq_max=4)
    results = ask_while_holding(engine, 2, 8, n_seqs=2)
    assert sorted(type(result).__name__ for result in results) == ["CapacityError", "int"]
    assert is_free(engine)


def test_threads_that_wait_for_each_others_engines(model: Model, load: Load):
    first, second = load(model(), n_ctx=256), load(model(), n_ctx=256)
    meet = threading.Barrier(2)

    def work(one: Engine, other: Engine) -> str:
        with one.session(200, 1):
            meet.wait()
            with other.session(200, 1):
                return "had both"

    results = in_threads(lambda: work(first, second), lambda: work(second, first))
    (error,) = [result for result in results if isinstance(result, CapacityError)]
    assert "this thread's other reservations" in str(error)
    assert "had both" in results


def test_replies_inside_on_event_of_three_threads(engine_256: Engine):
    meet = threading.Barrier(3)
    needed = methods.get("tgr-latent").cells(engine_256, len(engine_256.tokenize("hi")) + 1, SMALL)

    def work() -> str:
        asked = []

        def on_event(event: object) -> None:
            if not asked:
                asked.append(event)
                meet.wait()
                generate(engine_256, "hi", SMALL, raw=True)

        with engine_256.session(256 // 3 - needed, 1):  # with the reply, a third of the cache
            generate(engine_256, "hi", SMALL, raw=True, on_event=on_event)
        return "done"

    results = in_threads(work, work, work)
    assert {type(result) for result in results} == {str, CapacityError}, results
    assert is_free(engine_256)


def test_a_participant_that_asks_for_a_second_session_is_refused(engine_256: Engine):
    """The others of its group wait meanwhile, so they do not count as working."""

    def on_event(number: int, event: object) -> None:
        if number == 0:
            engine_256.session(256, 1).close()

    with pytest.raises(CapacityError, match="by this thread itself"):
        generate_many(engine_256, "hi", SMALL, 2, raw=True, on_event=on_event)
    assert is_free(engine_256)


def test_no_wait_is_withdrawn_while_another_thread_works(engine_256: Engine):
    """Two wait for what they hold and a third one holds; when it is done, both can go on."""
    work = engine_256.session(100, 1)
    holding = threading.Barrier(3)

    def ask() -> str:
        with engine_256.session(50, 1):
            holding.wait()
            engine_256.session(70, 1).close()
        return "got it"

    def finish() -> None:
        holding.wait()
        wait_until(lambda: engine_256.stats().n_waiting == 2)
        sequence = work.sequence()
        for _ in range(40):  # long enough for every wait to look around
            work.run([Task(sequence, TOKENS[:2])])
            threading.Event().wait(0.01)
        work.close()

    assert in_threads(ask, ask, finish) == ["got it", "got it", None]


def test_a_wait_without_a_reservation_of_its_own_goes_on(engine_256: Engine):
    """The latest to ask holds nothing: its withdrawal would free nothing."""
    meet = threading.Barrier(2)

    def hold() -> str:
        with engine_256.session(120, 1):
            meet.wait()
            with engine_256.session(120, 1):
                wait_until(lambda: engine_256.stats().n_waiting > 0)
                return "got it"

    def come_late() -> str:
        wait_until(lambda: engine_256.stats().n_sessions == 2)
        engine_256.session(250, 1).close()
        return "came in"

    *held, late = in_threads(hold, hold, come_late)
    # one withdraws for the other; both do where the late one asked before them
    assert {type(one) for one in held if one != "got it"} == {CapacityError}
    assert late == "came in"


def test_a_wait_that_is_cancelled_breaks_the_circle(engine_256: Engine):
    cancel = Cancel()
    with engine_256.session(120, 1), pytest.raises(CapacityError, match="this thread itself"):
        engine_256.session(200, 1)
    cancel.cancel()
    with engine_256.session(120, 1), pytest.raises(CancelledError):
        engine_256.session(200, 1, cancel=cancel)
    assert is_free(engine_256)


def test_a_reservation_belongs_to_the_thread_that_uses_it(engine_256: Engine):
    """A thread of a pool opens it, another one works with it."""
    session = engine_256.session(200, 1)
    sequence = session.sequence()
    started, stop = threading.Event(), threading.Event()

    def use() -> None:
        with session:
            while not stop.is_set():
                session.run([Task(sequence, TOKENS[:1])])
                sequence.truncate(0)
                started.set()

    thread = threading.Thread(target=use)
    thread.start()
    assert started.wait(HANG)
    threading.Timer(0.3, stop.set).start()
    engine_256.session(200, 1).close()
    thread.join()
