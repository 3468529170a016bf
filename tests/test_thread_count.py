"""How many threads a step takes while other programs want the cores (csrc/thread_count.h)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engines import DEVICE, EXACT

from tgr_local import load
from tgr_local.engine import Task
from tgr_local.options.config import EngineConfig

testing = pytest.importorskip("tgr_testing", reason="the build has no tgr_testing (TGR_PEER=1)")

OFTEN = 10  # cores lost in a step


def run(
    count: object, seconds: Callable[[int], float], n: int, tokens: int = 8, lost: int = OFTEN
) -> list[int]:
    """The threads of n steps that take `seconds` with so many threads."""
    used = []
    for _ in range(n):
        used.append(count.next(tokens))
        count.took(seconds(used[-1]), lost)
    return used


def test_all_threads_while_nobody_takes_a_core() -> None:
    count = testing.ThreadCount(8, True)
    assert set(run(count, lambda n: 0.05 * n, 500, lost=0)) == {8}


def test_fewer_where_they_are_faster() -> None:
    count = testing.ThreadCount(8, True)
    used = run(count, lambda n: 0.01 + 0.005 * abs(n - 2), 400)
    assert count.now() == 2
    assert used.count(2) > 250


def test_all_where_fewer_are_no_faster() -> None:
    count = testing.ThreadCount(8, True)
    used = run(count, lambda n: 0.2 / n, 2000)
    assert count.now() == 8
    assert used.count(8) > 1800  # the trials become rarer


def test_all_again_once_the_machine_is_free() -> None:
    count = testing.ThreadCount(4, True)
    run(count, lambda n: 0.01 * n, 300)
    assert count.now() == 1
    run(count, lambda n: 0.04 / n, 3000, lost=0)
    assert count.now() == 4


def test_a_long_step_has_all_threads_and_says_nothing() -> None:
    count = testing.ThreadCount(4, True)
    assert set(run(count, lambda n: 0.1 * n, 200, tokens=512)) == {4}
    assert count.now() == 4


def test_a_trial_compares_steps_of_one_size_only() -> None:
    count = testing.ThreadCount(4, True)
    for i in range(
        2000
    ):  # steps of 1 token take a tenth of the time of those of 8, whatever the threads
        tokens = (1, 8)[i % 2]
        count.next(tokens)
        count.took(0.01 * tokens, OFTEN)
    assert count.now() == 4


def test_a_number_that_a_person_chose_holds() -> None:
    count = testing.ThreadCount(4, False)
    assert set(run(count, lambda n: 0.1 * n, 300)) == {4}


@pytest.mark.skipif(bool(DEVICE), reason="threads of the CPU")
def test_the_numbers_do_not_depend_on_the_threads() -> None:
    found = []
    for n_threads in (1, 2, 3):
        exact = {**EXACT, "n_threads": n_threads}
        with load(config=EngineConfig(**exact)) as engine, engine.session(200, 1) as session:
            assert engine.stats().n_threads == n_threads
            (output,) = session.run(
                [Task(session.sequence(), list(range(40, 140)), feed_logprobs=True)]
            )
            found.append(np.asarray(output.feed_logprobs))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
