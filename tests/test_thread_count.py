"""The threads of an engine; tests/native/threads.cpp has how many a step takes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from engines import DEVICE, EXACT

from tgr_local import load
from tgr_local.engine import Task
from tgr_local.options.config import EngineConfig


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
