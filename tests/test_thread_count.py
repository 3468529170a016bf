"""How many threads a step takes while other programs want the cores (csrc/thread_count.h)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from engines import DEVICE, EXACT

from tgr_local import load
from tgr_local.engine import Task
from tgr_local.options.config import EngineConfig

MIXED = (1, 1, 1, 5, 1, 1, 9, 1, 2, 1, 3)  # tokens of the steps of several clients
Make = Callable[[int, bool], Any]


@pytest.fixture
def make() -> Make:
    testing = pytest.importorskip("tgr_testing", reason="the build has no tgr_testing (TGR_PEER=1)")
    made: Make = testing.ThreadCount
    return made


def run(
    count: Any,
    seconds: Callable[[int], float],
    n: int,
    sizes: Sequence[int] = (8,),
    busy: bool = True,
    noise: float = 0,
) -> list[int]:
    """The threads of n steps that take ``seconds(threads)`` and a tenth more for each token."""
    rng = np.random.default_rng(0)
    used = []
    for i in range(n):
        tokens = sizes[i % len(sizes)]
        used.append(count.next(tokens))
        factor = (1 + tokens / 10) * (1 + noise * float(rng.normal()))
        time = seconds(used[-1]) * max(factor, 0.1)
        count.took(time, round(1 + 200 * time) if busy else 0)  # cores lost meanwhile
    return used


def test_all_threads_while_nobody_takes_a_core(make: Make) -> None:
    count = make(8, True)
    assert set(run(count, lambda n: 0.05 * n, 500, busy=False)) == {8}


@pytest.mark.parametrize("sizes", [(8,), (1, 2), MIXED])
@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1])
def test_fewer_where_they_are_faster(make: Make, sizes: Sequence[int], seconds: float) -> None:
    count = make(8, True)
    used = run(count, lambda n: seconds * (1 + abs(n - 2)), 3000, sizes)
    assert count.now() == 2
    assert used.count(2) > 2400


@pytest.mark.parametrize("sizes", [(8,), (1, 2), MIXED])
@pytest.mark.parametrize("seconds", [0.01, 0.1, 1.0])
def test_all_where_fewer_are_no_faster(make: Make, sizes: Sequence[int], seconds: float) -> None:
    count = make(8, True)
    used = run(count, lambda n: seconds * 8 / n, 3000, sizes)
    assert count.now() == 8
    assert used.count(8) > 2850  # trials are rare


def test_noise_alone_changes_little(make: Make) -> None:
    count = make(16, True)
    used = run(count, lambda n: 0.002 * 16 / n, 20_000, noise=0.3)
    assert used.count(16) > 19_000


@pytest.mark.parametrize("half", [1.0, 1.5])
def test_all_again_once_the_machine_is_free(make: Make, half: float) -> None:
    count = make(2, True)
    run(count, lambda n: 0.01 * n, 300)
    assert count.now() == 1
    run(count, lambda n: 0.01 * (half if n == 1 else 1), 3000, busy=False)
    assert count.now() == 2


def test_a_long_step_has_all_threads_and_says_nothing(make: Make) -> None:
    count = make(4, True)
    assert set(run(count, lambda n: 0.1 * n, 200, (512,))) == {4}
    assert count.now() == 4


def test_steps_of_other_sizes_are_not_compared(make: Make) -> None:
    count = make(4, True)  # a block has steps of 1 token, or of 20, which take three times as long
    run(count, lambda n: 0.01, 4000, (1, 1, 1, 1, 20, 20, 20, 20))
    assert count.now() == 4


def test_a_number_that_a_person_chose_holds(make: Make) -> None:
    count = make(4, False)
    assert set(run(count, lambda n: 0.1 * n, 300)) == {4}


@pytest.mark.skipif(bool(DEVICE), reason="threads of the CPU")
@pytest.mark.parametrize("flash", ["off", "on"])
def test_the_numbers_do_not_depend_on_the_threads(flash: str) -> None:
    found = []
    for n_threads in (1, 2, 3):
        exact = {**EXACT, "n_threads": n_threads, "flash_attn": flash}
        with load(config=EngineConfig(**exact)) as engine, engine.session(200, 1) as session:
            assert engine.stats().n_threads == n_threads
            sequence = session.sequence()
            outputs = [
                session.run([Task(sequence, list(range(at, at + 20)), feed_logprobs=True)])[0]
                for at in range(40, 140, 20)
            ]
            found.append(np.concatenate([np.asarray(one.feed_logprobs) for one in outputs]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.skipif(sys.platform != "linux" or bool(DEVICE), reason="only there they adapt")
def test_an_engine_whose_threads_nobody_chose_begins_with_all() -> None:
    with load(config=EngineConfig(n_threads=0)) as engine:
        assert engine.stats().n_threads == engine.n_threads
