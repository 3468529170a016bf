"""Fair steps: nobody starves, whatever the size of a batch; nothing here depends on the time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import EXACT, greedy_task
from gguf_models import N_PLAIN
from threads import in_threads

from tgr_local.engine import Engine, Output, Session, Task
from tgr_local.options.config import EngineConfig


def text(seed: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, N_PLAIN, n)]


@pytest.fixture
def made(model: Callable[..., Path]) -> Callable[..., Engine]:
    """Makes an engine that remembers nothing."""
    return lambda **options: Engine(
        model(), EngineConfig(**EXACT | {"prefix_cells": 0, "n_ctx": 8192} | options)
    )


def write(engine: Engine, session: Session, n: int, news: Callable[[int], None]) -> Output:
    """Writes n tokens; `news` gets the number of each step's."""
    task = greedy_task(engine, session.sequence(), [1], n_generate=n)
    return session.run([task], on_tokens=lambda new: news(len(new[0][0])))[0]


def test_a_prompt_leaves_steps_for_a_writer(made: Callable[..., Engine]) -> None:
    """A prompt of 2,000 tokens would fit into four batches; a writer beside it gets far more."""
    with made(step_seconds=0.001) as engine:
        started, seen = threading.Event(), [0]
        during: list[int] = []
        with engine.session(4000, 1) as writer, engine.session(2000, 1) as reader:
            sequence = reader.sequence()

            def news(n: int) -> None:
                seen[0] += n
                started.set()
                if during and seen[0] > during[0] + 20:
                    raise RuntimeError("enough")

            def read() -> None:
                assert started.wait(60)
                during.append(seen[0])
                reader.run([Task(sequence, text(1, 2000))])
                during.append(seen[0])

            _, error = in_threads(lambda: write(engine, writer, 3900, news), read)
            assert error is None
            assert during[1] - during[0] >= 20


@pytest.mark.parametrize("n_batch", [1, 2, 4])
def test_writers_beyond_the_batch_all_go_on(made: Callable[..., Engine], n_batch: int) -> None:
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


def test_readers_and_writers_share_a_batch_of_one(made: Callable[..., Engine]) -> None:
    """Two prompts of 300 tokens beside a text, one token a step: they end at nearly one time."""
    with made(n_batch=1, n_ubatch=1) as engine:
        started, ended = threading.Event(), []
        written = [0]
        with engine.session(8000, 3) as session:
            tasks = [
                greedy_task(engine, session.sequence(), text(i, 300), n_generate=1)
                for i in range(2)
            ]

            def news(n: int) -> None:
                written[0] += n
                started.set()
                if len(ended) == 2:
                    raise RuntimeError("enough")

            def note(new: list[Any]) -> None:
                ended.extend(written[0] for tokens, _ in new if tokens)

            def read() -> None:
                assert started.wait(60)
                session.run(tasks, on_tokens=note)

            writing, error = in_threads(lambda: write(engine, session, 6000, news), read)
            assert error is None
            assert "enough" in str(writing)
            assert ended[0] >= 300, "one of three is the writer's"
            assert ended[1] - ended[0] <= 150


def test_a_short_prompt_ends_before_a_long_one_that_came_first(
    made: Callable[..., Engine],
) -> None:
    with made(n_batch=16, n_ubatch=16) as engine, engine.session(3000, 2) as session:
        long, short = session.sequence(), session.sequence()
        begun, ended = threading.Event(), []

        def read_long() -> None:
            begun.set()
            session.run([Task(long, text(1, 2500))])
            ended.append("long")

        def read_short() -> None:
            assert begun.wait(60)
            session.run([Task(short, text(2, 64))])
            ended.append("short")

        assert in_threads(read_long, read_short) == [None, None]
        assert ended == ["short", "long"]


def test_a_lockstep_group_alone_has_the_same_batches(made: Callable[..., Engine]) -> None:
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
