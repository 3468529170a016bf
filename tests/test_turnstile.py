"""The turnstile: units in the order in which they were asked for, to the large ones too."""

from __future__ import annotations

import random
import threading

import pytest
from threads import in_threads
from visitors import Asked, Visitor

from tgr_local.engine import Cancel
from tgr_local.system.errors import CancelledError
from tgr_local.system.turnstile import Turnstile


def visit(turnstile: Turnstile, weight: int = 1) -> Visitor:
    return Visitor(lambda cancel: turnstile.taken(cancel, weight))


def test_a_place_is_waited_for_until_the_flag_is_set():
    turnstile = Turnstile(2)
    with turnstile.taken():
        with turnstile.taken():
            visitors = [visit(turnstile) for _ in range(3)]
            visitors[1].cancel()
            assert isinstance(visitors[1].error, CancelledError)
            assert not any(visitor.has_begun for visitor in visitors)
        assert visitors[0].begins() and not visitors[2].has_begun
    assert visitors[2].begins()
    for visitor in (visitors[0], visitors[2]):
        visitor.leave()


def test_whoever_releases_a_place_and_asks_again_does_not_overtake():
    turnstile = Turnstile(1)
    with turnstile.taken():
        first = visit(turnstile)
    again = visit(turnstile)
    assert first.begins() and not again.has_begun
    first.leave()
    assert again.begins()
    again.leave()


def test_later_small_ones_do_not_overtake_a_large_one():
    turnstile = Turnstile(10)
    running = visit(turnstile, 6)
    large, *small = visit(turnstile, 9), visit(turnstile, 1), visit(turnstile, 1)
    assert not any(visitor.begins(0.02) for visitor in (large, *small))  # though 4 are free
    running.leave()
    assert large.begins() and small[0].begins() and not small[1].has_begun
    large.leave()
    assert small[1].begins()
    for visitor in small:
        visitor.leave()


def test_small_ones_go_on_at_once_when_a_large_one_is_cancelled():
    turnstile = Turnstile(10)
    running = visit(turnstile, 6)
    large, *small = visit(turnstile, 9), visit(turnstile, 1), visit(turnstile, 3)
    large.cancel()
    assert isinstance(large.error, CancelledError)
    assert all(visitor.begins() for visitor in small)
    for visitor in (running, *small):
        visitor.leave()


def test_more_units_than_there_are_would_wait_for_ever():
    turnstile = Turnstile(10)
    with pytest.raises(ValueError, match="11 units, but the turnstile has 10"):
        turnstile.taken(Cancel(), 11).__enter__()
    with turnstile.taken(weight=10):
        nobody = visit(turnstile, 0)
    assert nobody.begins()
    nobody.leave()


def test_a_set_flag_takes_nothing():
    turnstile, cancel = Turnstile(2), Asked()
    cancel.cancel()
    with pytest.raises(CancelledError), turnstile.taken(cancel, 2):
        pass
    with pytest.raises(KeyError), turnstile.taken(Asked(), 2):
        raise KeyError
    with turnstile.taken(weight=2):
        pass


@pytest.mark.parametrize("seed", range(4))
def test_no_unit_is_given_twice_or_lost(seed: int):
    turnstile, lock, units = Turnstile(10), threading.Lock(), [0]

    def visits(seed: int) -> int:
        draw, n_cancelled = random.Random(seed), 0
        for _ in range(200):
            weight, cancel = draw.randint(0, 10), Cancel()
            canceller = threading.Thread(target=cancel.cancel)
            if draw.random() < 0.3:
                canceller.start()
            try:
                with turnstile.taken(cancel, weight):
                    with lock:
                        units[0] += weight
                        assert units[0] <= 10
                    with lock:
                        units[0] -= weight
            except CancelledError:
                n_cancelled += 1
        return n_cancelled

    results = in_threads(*[lambda i=i: visits(4 * seed + i) for i in range(4)])
    assert all(isinstance(result, int) for result in results), results
    with turnstile.taken(weight=10):
        pass
