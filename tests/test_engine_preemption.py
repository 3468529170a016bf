"""Preemptible sessions take cells as they write, and the newest gives them to older ones. What is
read again is what was there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from engines import EXACT, GREEDY, TOKENS, text
from fixture_types import Load
from gguf_models import write_mamba

from tgr_local.engine import Cancel, Engine, Output, Sampling, Session, Task
from tgr_local.lab.bench import shapes
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, CapacityError

N = 700  # tokens of a text: more than twice what a session takes at a time
SAMPLING = Sampling(0.8, top_k=30, repeat_penalty=1.1)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Any:
    """A model whose tokens have the same bits in every batch."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    shapes.write(path, shapes.SHAPES["tiny"], "q8_0")
    return path


def opened(path: Any, **options: Any) -> Engine:
    return Engine(path, EngineConfig(**EXACT | {"prefix_cells": 4096} | options))


def task(session: Session, seed: int, **options: Any) -> Task:
    fixed: dict[str, Any] = {"n_generate": N, "sampling": SAMPLING, "seed": seed}
    return Task(session.sequence(), text(seed, 40), reuse=True, ignore_eog=True, **fixed | options)


def write(engine: Engine, seed: int, **options: Any) -> Output:
    with engine.session(40 + N, 1, prompt=text(seed, 40), preemptible=True) as session:
        return session.run([task(session, seed, **options)])[0]


def at_once(write_one: Callable[[int], Output], n: int) -> list[Output]:
    outputs: dict[int, Output] = {}

    def run(seed: int) -> None:
        outputs[seed] = write_one(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [outputs[seed] for seed in range(n)]


@pytest.mark.parametrize(("n_ctx", "drafts"), [(1024, True), (2048, False)])
def test_texts_that_give_way_are_those_that_are_written_alone(
    quantized: Any, n_ctx: int, drafts: bool
):
    engine = opened(quantized, n_ctx=n_ctx)
    assert engine.repeats
    alone = [write(engine, seed) for seed in range(5)]
    assert engine.stats().n_preemptions == 0
    together = at_once(lambda seed: write(engine, seed, drafts=drafts), 5)
    stats = engine.stats()
    assert stats.n_preemptions > 0 and stats.n_read_again > 0
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.logprobs.tolist() == theirs.logprobs.tolist()
        assert ours.n_decoded + ours.n_reused == 40 + N - 1, "what is read again does not count"
    assert stats.cells_used == stats.cells_reserved == stats.n_sessions == 0
    engine.close()


def test_texts_of_one_prompt_share_it_and_give_way(quantized: Any):
    engine = opened(quantized, n_ctx=3072)
    prompt = text(3, 300)

    def write_one(seed: int) -> Output:
        with engine.session(300 + N, 1, prompt=prompt, preemptible=True) as session:
            barrier.wait(60)
            one = Task(
                session.sequence(), prompt, reuse=True, n_generate=N, sampling=SAMPLING, seed=seed,
                ignore_eog=True,
            )  # fmt: skip
            return session.run([one])[0]

    barrier = threading.Barrier(1)
    alone = [write_one(seed) for seed in range(5)]
    engine.close()
    engine = opened(quantized, n_ctx=3072)
    barrier = threading.Barrier(5)
    together = at_once(write_one, 5)
    stats = engine.stats()
    assert stats.n_preemptions > 0
    assert [one.tokens.tolist() for one in together] == [one.tokens.tolist() for one in alone]
    assert sum(one.n_reused for one in together) >= 4 * 299, "the prompt was read once"
    assert stats.cells_used == stats.cells_reserved == 0
    engine.close()


def test_more_texts_run_at_a_time_than_would_fit_with_all_that_they_may_need(quantized: Any):
    engine = opened(quantized, n_ctx=2048)
    barrier = threading.Barrier(6)

    def write_little(seed: int) -> Output:
        with engine.session(2000, 1, prompt=text(seed, 40), preemptible=True) as session:
            barrier.wait(60)  # all are admitted
            return session.run([task(session, seed, n_generate=50)])[0]

    assert all(len(one.tokens) == 50 for one in at_once(write_little, 6))
    assert engine.stats().n_preemptions == 0
    engine.close()


def test_a_session_without_work_gives_its_cells_to_one_that_writes(quantized: Any):
    engine = opened(quantized, n_ctx=1024)
    with engine.session(900, 1, preemptible=True) as idle:
        first = task(idle, 1, n_generate=600)
        begun = idle.run([first])[0]
        alone = write(engine, 2)  # in the same thread: nobody else could free a cell
        assert engine.stats().n_preemptions == 1
        assert len(first.sequence) == 40 + 599
        newest = begun.tokens.tolist()[-1:]
        more = idle.run([Task(first.sequence, newest, n_generate=30, sampling=GREEDY)])[0]
        assert len(first.sequence) == 40 + 600 + 29
    assert alone.tokens.tolist() == write(engine, 2).tokens.tolist()
    with engine.session(900, 1) as session:
        whole = [*text(1, 40), *begun.tokens.tolist()]
        expected = session.run([Task(session.sequence(), whole, n_generate=30, sampling=GREEDY)])[0]
    assert more.tokens.tolist() == expected.tokens.tolist()
    engine.close()


def test_a_preempted_sequence_can_be_cut_and_goes_on(quantized: Any):
    engine = opened(quantized, n_ctx=1024)
    with engine.session(900, 1, preemptible=True) as idle:
        first = task(idle, 1, n_generate=500)
        begun = idle.run([first])[0].tokens.tolist()
        write(engine, 2)
        assert engine.stats().n_preemptions == 1
        first.sequence.truncate(40 + 99)
        assert len(first.sequence) == 40 + 99
        more = idle.run([Task(first.sequence, begun[99:100], n_generate=20, sampling=GREEDY)])[0]
    with engine.session(900, 1) as session:
        whole = [*text(1, 40), *begun[:100]]
        expected = session.run([Task(session.sequence(), whole, n_generate=20, sampling=GREEDY)])[0]
    assert more.tokens.tolist() == expected.tokens.tolist()
    engine.close()


def test_a_waiting_text_can_be_cancelled_and_closed(quantized: Any):
    engine = opened(quantized, n_ctx=1024)
    cancels = [Cancel() for _ in range(4)]
    ends: list[str] = []

    def run(seed: int) -> None:
        try:
            with engine.session(1000, 1, preemptible=True, cancel=cancels[seed]) as session:
                one = task(session, seed, n_generate=900)
                session.run([one], cancel=cancels[seed])
            ends.append("written")
        except CancelledError:
            ends.append("cancelled")

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while engine.stats().n_preemptions == 0 and any(thread.is_alive() for thread in threads):
        pass
    for cancel in cancels[1:]:
        cancel.cancel()
    for thread in threads:
        thread.join()
    assert "written" in ends and len(ends) == 4
    stats = engine.stats()
    assert stats.cells_used == stats.cells_reserved == stats.n_sessions == stats.n_jobs == 0
    engine.close()


def test_sessions_of_fixed_size_keep_their_cells(quantized: Any):
    engine = opened(quantized, n_ctx=2048)
    with engine.session(1000, 2) as fixed:
        kept = fixed.sequence()
        fixed.run([Task(kept, text(9, 200))])
        at_once(lambda seed: write(engine, seed), 4)
        assert engine.stats().n_preemptions > 0
        assert len(kept) == 200
        assert fixed.peak_cells() == 200
        with pytest.raises(CapacityError, match="this thread itself holds"):
            engine.session(1500, 1, preemptible=True)  # beside the fixed one it might not end
    engine.close()


def test_it_writes_no_more_than_it_asked_for(quantized: Any):
    engine = opened(quantized, n_ctx=1024)
    with (
        engine.session(100, 1, preemptible=True) as session,
        pytest.raises(CapacityError, match="needs 139 cache cells, but the session reserved 100"),
    ):
        session.run([task(session, 1, n_generate=100)])
    with engine.session(100, 1, preemptible=True) as session:
        sequence = session.sequence()
        session.run([Task(sequence, TOKENS)])
        with pytest.raises(CapacityError, match="reserved 1 sequences"):
            sequence.fork()
    engine.close()


def test_a_model_that_cannot_roll_back_reserves_all(load: Load, tmp_path):
    engine = load(write_mamba(tmp_path / "mamba.gguf"), n_ctx=1024)
    assert not engine.rolls_back
    with engine.session(900, 1, preemptible=True) as session:
        assert engine.stats().cells_reserved == 900
        session.run([Task(session.sequence(), TOKENS, n_generate=4)])
