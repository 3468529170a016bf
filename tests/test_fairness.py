"""Fair steps: nobody starves, whatever the size of a batch; nothing here depends on the time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engines import ENDLESS, EXACT, GREEDY, greedy_task, text
from fixture_types import Model
from surroundings import HANG
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Output, Sequence, Task
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError


@pytest.fixture
def made(model: Model) -> Callable[..., Engine]:
    """Makes an engine that remembers nothing."""
    return lambda **options: Engine(
        model(), EngineConfig(**EXACT | {"prefix_cells": 0, "n_ctx": 8192} | options)
    )


def write(sequence: Sequence, begun: threading.Event, cancel: Cancel) -> Output:
    """Writes more than anybody waits for."""
    task = Task(sequence, [1], n_generate=ENDLESS, sampling=GREEDY, ignore_eog=True)
    return sequence.session.run([task], on_tokens=lambda new: begun.set(), cancel=cancel)[0]


def test_a_prompt_leaves_steps_for_a_writer(made: Callable[..., Engine]):
    """A prompt of 2,000 tokens would fit into four batches; a text gets far more."""
    with made(step_seconds=0.001, n_ctx=ENDLESS + 2100) as engine:
        begun, cancel = threading.Event(), Cancel()
        with engine.session(ENDLESS + 10, 1) as writer, engine.session(2000, 1) as reader:
            written = writer.sequence()

            def read() -> int:
                assert begun.wait(HANG)
                before = len(written)
                reader.run([Task(reader.sequence(), text(1, 2000))])
                n = len(written) - before
                cancel.cancel()
                return n

            ended, n = in_threads(lambda: write(written, begun, cancel), read)
            assert isinstance(ended, CancelledError)
            assert n >= 20


@pytest.mark.parametrize("n_batch", [1, 2, 4])
def test_writers_beyond_the_batch_all_go_on(made: Callable[..., Engine], n_batch: int):
    """Ten texts through a batch of n_batch: none gets ahead by more than a turn."""
    with made(n_batch=n_batch, n_ubatch=n_batch) as engine, engine.session(500, 10) as session:
        counts = np.zeros(10, int)
        spreads: list[int] = []

        def news(new: list[Any]) -> None:
            for i, (tokens, _) in enumerate(new):
                counts[i] += len(tokens)
            spreads.append(int(counts.max() - counts.min()))

        tasks = [greedy_task(engine, session.sequence(), [i], n_generate=20) for i in range(10)]
        outputs = session.run(tasks, on_tokens=news)
        assert [len(output.tokens) for output in outputs] == [20] * 10
        # on_tokens may miss steps, but then no text is ahead for longer than the others read
        assert max(spreads[10 // n_batch + 10 :], default=0) <= 10


def test_readers_and_writers_share_a_batch_of_one(made: Callable[..., Engine]):
    """Two prompts of 300 tokens and a text, one token a step: they end at nearly one time."""
    with made(n_batch=1, n_ubatch=1, n_ctx=ENDLESS + 700) as engine:
        begun, cancel = threading.Event(), Cancel()
        with engine.session(ENDLESS + 610, 3) as session:
            written, *prompts = (session.sequence() for _ in range(3))
            tasks = [
                greedy_task(engine, sequence, text(i, 300), n_generate=1)
                for i, sequence in enumerate(prompts)
            ]
            lengths: list[tuple[int, int]] = []

            def note(new: list[Any]) -> None:
                """The lengths of the text and of the shorter prompt when the first one ends."""
                lengths.append((len(written), min(map(len, prompts))))

            def read() -> None:
                assert begun.wait(HANG)
                session.run(tasks, on_tokens=note)
                cancel.cancel()

            ended, error = in_threads(lambda: write(written, begun, cancel), read)
            assert error is None and isinstance(ended, CancelledError)
            assert lengths[0][0] >= 300, "one of three is the writer's"
            assert lengths[0][1] >= 150


def test_a_short_prompt_ends_before_a_long_one_that_came_first(made: Callable[..., Engine]):
    made_for = {"n_batch": 16, "n_ubatch": 16, "n_ctx": ENDLESS + 100}
    with made(**made_for) as engine, engine.session(ENDLESS + 100, 2) as session:
        long, short = session.sequence(), session.sequence()
        cancel = Cancel()

        def read_long() -> None:
            session.run([Task(long, [1] * ENDLESS)], cancel=cancel)

        def read_short() -> int:
            wait_until(lambda: len(long) > 0)
            session.run([Task(short, text(2, 64))])
            cancel.cancel()
            return len(short)

        ended, n = in_threads(read_long, read_short)
        assert isinstance(ended, CancelledError) and n == 64


def test_a_lockstep_group_alone_has_the_same_batches(made: Callable[..., Engine]):
    """No limit of time divides its prompts: all of them fit into as few decodes as they can."""
    for step_seconds in (0.001, 100.0):
        with made(step_seconds=step_seconds) as engine:
            group = engine.lockstep_group(2)

            def run(i: int, engine: Engine = engine, group: Any = group) -> None:
                with engine.session(700, 1, participant=group.participant(i)) as session:
                    session.run([Task(session.sequence(), text(i, 512))])

            before = engine.stats().n_decodes
            assert in_threads(lambda: run(0), lambda: run(1)) == [None, None]
            assert engine.stats().n_decodes - before == 2
