"""The flag that ends work: whom it calls, and that waits of every kind end with it at once."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time

import pytest
from engines import ENDLESS, TOKENS, is_free
from fixture_types import Load, Model
from surroundings import HANG
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Task, watched
from tgr_local.system.errors import CancelledError


def test_a_flag_calls_whoever_watches_it_or_one_below():
    above = Cancel()
    flag, called = Cancel(above), list[str]()
    with flag.watched(lambda: called.append("outer")):
        with flag.watched(lambda: called.append("inner")):
            above.answer_now()
            assert flag.answers_now() and not flag.is_set()
        flag.cancel()
        assert called == ["outer", "inner", "outer"]
        assert flag.is_set() and not above.is_set()
        above.cancel()
    above.cancel()
    flag.cancel()
    assert called == ["outer", "inner", "outer", "outer"]
    with watched(None, lambda: called.append("nobody")):
        pass


def test_a_watcher_is_forgotten_after_an_error():
    above, called = Cancel(), list[int]()
    with contextlib.suppress(KeyError), Cancel(above).watched(lambda: called.append(1)):
        raise KeyError
    above.cancel()
    assert called == []


def test_a_signal_handler_may_cancel():
    """Also while this thread is inside the flag: it does not wait for itself."""
    flag, called = Cancel(), list[int]()
    before = signal.signal(signal.SIGALRM, lambda *_: flag.cancel())
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        with flag.watched(lambda: called.append(1)):
            while len(called) < 100:
                with flag.watched(lambda: None):
                    pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert flag.is_set()


def test_no_watcher_is_lost_between_threads():
    """Each thread watches, looks, and waits: it is called, or saw the flag."""

    def one(seed: int) -> int:
        draw = random.Random(seed)
        for _ in range(300):
            flag, woken = Cancel(Cancel()), threading.Event()
            setter = threading.Thread(target=flag.cancel)
            setter.start()
            if draw.random() < 0.5:
                time.sleep(0)
            with flag.watched(woken.set):
                assert flag.is_set() or woken.wait(HANG)
            setter.join()
        return seed

    assert in_threads(*[lambda i=i: one(i) for i in range(4)]) == [0, 1, 2, 3]


@pytest.mark.parametrize("reads", [False, True])
def test_a_run_in_any_thread_ends_with_its_flag(model: Model, load: Load, reads: bool):
    engine = load(model(), n_ctx=4 * ENDLESS)
    flags = [Cancel(Cancel()) for _ in range(4)]
    started = threading.Barrier(5)

    def run(flag: Cancel) -> None:
        with engine.session(ENDLESS, 1) as session:
            task = Task(session.sequence(), TOKENS[:2], n_generate=ENDLESS - 8, ignore_eog=True)
            started.wait()
            session.run([task], cancel=flag, on_tokens=(lambda fresh: None) if reads else None)

    def cancel() -> None:
        started.wait()
        wait_until(lambda: engine.stats().n_jobs == 4)
        for flag in flags:
            flag.cancel()

    *ended, _ = in_threads(*[lambda flag=flag: run(flag) for flag in flags], cancel)
    assert [type(one) for one in ended] == [CancelledError] * 4
    assert is_free(engine)


def test_a_deadline_ends_a_run_in_any_thread(model: Model, load: Load):
    engine = load(model(), n_ctx=ENDLESS + 256)

    def run() -> str:
        with engine.session(ENDLESS, 1) as session:
            task = Task(session.sequence(), TOKENS[:2], n_generate=ENDLESS - 8, ignore_eog=True)
            return session.run([task], deadline=time.monotonic() + 0.2)[0].finish

    assert [run(), *in_threads(run)] == ["cancelled", "cancelled"]


def test_a_wait_for_a_reservation_ends_with_its_flag(model: Model, load: Load):
    engine = load(model(), n_ctx=256)
    flags = [Cancel() for _ in range(8)]

    def ask(flag: Cancel) -> None:
        engine.session(256, 1, cancel=flag).close()

    def cancel() -> None:
        wait_until(lambda: engine.stats().n_waiting == 8)
        for flag in flags[:-1]:
            flag.cancel()
        wait_until(lambda: engine.stats().n_waiting == 1)
        holding.close()

    holding = engine.session(200, 1)
    *ended, last, _ = in_threads(*[lambda flag=flag: ask(flag) for flag in flags], cancel)
    assert [type(one) for one in ended] == [CancelledError] * 7
    assert last is None and is_free(engine)
