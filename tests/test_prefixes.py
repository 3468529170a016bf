"""Remembered prefixes: what is reused is what would have been decoded, and nothing else is."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines import EXACT, KEEPING, ROUNDING, assert_same, exact, greedy_task, text, vectors
from fixture_types import Load, Model
from gguf_models import N_PLAIN
from numpy.typing import NDArray
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Output, Session, Task
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, CapacityError

N_LAYER, N_EMBD = 2, 64


@pytest.fixture
def engine(model: Model) -> Iterator[Engine]:
    with Engine(model(), EngineConfig(**KEEPING)) as made:
        yield made


@pytest.fixture(scope="module")
def fresh(model: Model) -> Iterator[Engine]:
    """An engine that remembers nothing."""
    with Engine(model(), EngineConfig(**EXACT)) as made:
        yield made


def read(session: Session, prompt: list[int], **options: Any) -> tuple[Any, Output]:
    """A sequence with the prompt in it, and the output of reading it."""
    sequence = session.sequence()
    return sequence, session.run([Task(sequence, prompt, reuse=True, **options)])[0]


def answer(
    engine: Engine, prompt: list[int], *, remember: bool = True, n: int = 8
) -> tuple[Output, Output]:
    """The outputs of reading a prompt without its last token, and of writing after it."""
    n_cells = len(prompt) + n
    with engine.session(n_cells, 2, prompt=prompt[:-1]) as session:
        sequence, reading = read(session, prompt[:-1])
        (written,) = session.run([greedy_task(engine, sequence, prompt[-1:], n_generate=n)])
        if remember:
            session.remember(sequence)
    return reading, written


def test_the_next_turn_reads_only_what_is_new(engine: Engine, fresh: Engine):
    conversation = text(2, 60)
    for turn in range(5):
        before = len(conversation) if turn else 0
        conversation += text(10 + turn, 20)
        reading, written = answer(engine, conversation)
        assert_same(written, answer(fresh, conversation)[1])
        if turn:
            assert reading.n_decoded <= len(conversation) - before
        conversation += written.tokens.tolist()
    assert engine.stats().n_prefixes == 1, "each turn replaces the one before"


def test_branches_of_a_conversation_share_their_beginning(engine: Engine, fresh: Engine):
    system = text(3, 80)
    for i in range(4):
        prompt = system + text(30 + i, 30)
        reading, written = answer(engine, prompt)
        assert reading.n_reused == (80 if i else 0) or reading.n_reused > 80
        assert_same(written, answer(fresh, prompt)[1])
    assert engine.stats().n_prefixes == 4
    assert engine.stats().cells_remembered < 4 * 110, "the beginning is there once"


def test_requests_that_arrive_together_read_their_beginning_once(engine: Engine, fresh: Engine):
    system = text(4, 200)
    prompts = [system + text(40 + i, 5 + i % 7) for i in range(32)]
    engine.grow_cache(300, 32)
    before = engine.stats().n_positions
    results = in_threads(*[lambda prompt=p: answer(engine, prompt) for p in prompts])
    decoded = engine.stats().n_positions - before
    assert all(not isinstance(result, BaseException) for result in results), results
    assert decoded <= 200 + sum(len(p) - 200 + 7 for p in prompts)
    for prompt, (_, written) in zip(prompts, results, strict=True):
        assert_same(written, answer(fresh, prompt)[1])


def test_the_reader_may_be_cancelled_while_others_wait(engine: Engine, fresh: Engine):
    prompt = text(5, 400)
    engine.grow_cache(500, 2)
    with engine.session(500, 1) as first, engine.session(500, 1) as second:

        def leave() -> None:
            with pytest.raises(RuntimeError, match="enough"):
                first.run(
                    [Task(first.sequence(), prompt, reuse=True, n_generate=50)], on_tokens=_fail
                )

        def follow() -> Output:
            return read(second, prompt[:-1])[1]

        _, reading = in_threads(leave, follow)
        assert reading.n_reused + reading.n_decoded == 399
    _, written = answer(engine, prompt)
    assert_same(written, answer(fresh, prompt)[1])


def _fail(_: list[list[int]]) -> None:
    raise RuntimeError("enough")


def test_norms_of_reused_tokens_count(engine: Engine, fresh: Engine):
    prompt = text(6, 300)

    def norms(some: Engine, n: int) -> tuple[Output, NDArray[np.float64]]:
        with some.session(400, 1, prompt=prompt[:n], norms=True) as session:
            sequence, output = read(session, prompt[:n], norms=True)
            session.remember(sequence)
        return output, output.norms

    for n in (150, 150, 290, 64, 33, 300):
        output, ours = norms(engine, n)
        _, theirs = norms(fresh, n)
        np.testing.assert_array_equal(ours[1], theirs[1])
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    assert output.n_reused == 290


def test_a_prompt_without_norms_does_not_serve_one_that_needs_them(engine: Engine):
    prompt = text(7, 50)
    answer(engine, prompt)
    with engine.session(60, 1, prompt=prompt[:-1], norms=True) as session:
        _, output = read(session, prompt[:-1], norms=True)
    assert (output.n_reused, output.n_decoded) == (0, 49)


def test_what_a_search_steered_is_not_remembered(engine: Engine):
    prompt = text(9, 40)
    with engine.session(100, 2) as session:
        sequence, _ = read(session, prompt)
        injection = session.injection(vectors(n_layer=N_LAYER, d=N_EMBD)[0])
        (written,) = session.run(
            [greedy_task(engine, sequence, [1], n_generate=20, injection=injection)]
        )
        session.remember(sequence)
    longer = [*prompt, 1, *written.tokens.tolist()]
    reading, _ = answer(engine, longer)
    assert reading.n_reused == 40


def test_shifted_tokens_are_not_remembered(engine: Engine):
    prompt = text(10, 60)
    with engine.session(100, 1) as session:
        sequence, _ = read(session, prompt)
        sequence.shift(20, 30)
        session.remember(sequence)
    reading, _ = answer(engine, prompt[:20] + prompt[30:])
    assert reading.n_reused == 20


def test_zero_cells_remember_nothing_and_share_nothing(fresh: Engine):
    prompt = text(11, 60)
    for _ in range(2):
        assert answer(fresh, prompt)[0].n_reused == 0
    assert fresh.stats().n_prefixes == fresh.stats().cells_remembered == 0


def test_many_conversations_stay_within_the_bound(model: Model):
    with Engine(model(), EngineConfig(**KEEPING | {"prefix_cells": 500})) as engine:
        sizes = set()
        for i in range(60):
            answer(engine, text(100 + i, 60))
            stats = engine.stats()
            assert stats.cells_remembered <= 500 + 70
            if i > 20:
                sizes.add(stats.n_ctx)
        assert len(sizes) == 1, "the cache does not grow any more"
        assert answer(engine, text(159, 60))[0].n_reused == 59, "the latest are there"
        assert answer(engine, text(100, 60))[0].n_reused == 0, "the oldest are not"


def test_the_longest_is_kept_beside_the_others(model: Model):
    """An agent's next request begins with its last one, however long that was."""
    with Engine(model(), EngineConfig(**KEEPING | {"prefix_cells": 150})) as engine:
        prompt = text(191, 300)
        answer(engine, prompt)
        for i in range(2):
            answer(engine, text(192 + i, 60))
        assert answer(engine, [*prompt, 1, 2, 3])[0].n_reused >= 300
        for i in range(6):
            answer(engine, text(194 + i, 60))
        assert engine.stats().cells_remembered <= 150 + 60 + 10, "the oldest went, long or not"
        assert answer(engine, text(199, 60))[0].n_reused == 59


def test_a_fixed_cache_drops_prefixes_for_reservations(model: Model):
    with Engine(model(), EngineConfig(**KEEPING, n_ctx=512)) as engine:
        for i in range(10):
            answer(engine, text(200 + i, 60))
        with engine.session(engine.n_ctx, 1) as session:
            assert engine.stats().cells_remembered == 0
            read(session, text(210, engine.n_ctx))
        assert answer(engine, text(211, 60))[0].n_reused == 0


def test_a_session_reserves_only_what_is_not_there(model: Model):
    """Ten texts after one prompt of 400 tokens fit into 512 cells."""
    with Engine(model(), EngineConfig(**KEEPING, n_ctx=512)) as engine:
        prompt = text(12, 400)
        answer(engine, prompt, n=4)
        sessions = [engine.session(410, 1, prompt=prompt[:-1]) for _ in range(10)]
        for session in sessions:
            assert read(session, prompt[:-1])[1].n_decoded == 0
        for session in sessions:
            session.close()


@exact
def test_random_requests_equal_a_fresh_engine(model: Model, fresh: Engine):
    """Requests, forks, cancels and evictions in any order change no reply."""
    rng = np.random.default_rng(0)
    with Engine(model(), EngineConfig(**KEEPING | {"prefix_cells": 700})) as engine:
        texts = [text(300 + i, 150) for i in range(4)]
        for _ in range(150):
            base = texts[rng.integers(4)]
            prompt = base[: rng.integers(2, 150)] + text(
                int(rng.integers(5)), int(rng.integers(1, 40))
            )
            with engine.session(len(prompt) + 40, 3, prompt=prompt[:-1]) as session:
                sequence, _ = read(session, prompt[:-1])
                kind = rng.integers(4)
                fork = sequence.fork() if kind == 1 else sequence
                (ours,) = session.run([greedy_task(engine, fork, prompt[-1:], n_generate=4)])
                if kind == 2:
                    fork.truncate(int(rng.integers(1, len(prompt))))
                if kind != 3:
                    session.remember(fork)
            with fresh.session(len(prompt) + 4, 1) as session:
                sequence, _ = read(session, prompt[:-1])
                (theirs,) = session.run([greedy_task(fresh, sequence, prompt[-1:], n_generate=4)])
            assert_same(ours, theirs)


def test_plain_tokens_get_no_injection(engine: Engine):
    prompt = text(13, 12)
    states = []
    for steps in ([(prompt, 2)], [(prompt[:10], 0), (prompt[10:], 2)]):
        with engine.session(20, 2) as session:
            injection = session.injection(vectors(n_layer=N_LAYER, d=N_EMBD)[0])
            sequence = session.sequence()
            for feed, plain in steps:
                (output,) = session.run(
                    [Task(sequence, feed, injection=injection, plain=plain, feed_states="last")]
                )
            states.append(output.feed_states)
    with engine.session(20, 2) as session:
        injection = session.injection(vectors(n_layer=N_LAYER, d=N_EMBD)[0])
        sequence = session.sequence()
        session.run([Task(sequence, prompt[:10], injection=injection)])
        (output,) = session.run([Task(sequence, prompt[10:], feed_states="last")])
        states.append(output.feed_states)
    for one, other in itertools.pairwise(states):
        np.testing.assert_allclose(one, other, atol=ROUNDING)


def test_a_session_keeps_its_reservation_while_another_uses_its_cells(
    engine: Engine, fresh: Engine
):
    prompt, other = text(20, 61), text(21, 96)
    engine.grow_cache(110, 3)
    with engine.session(100, 2) as lender:
        first, _ = read(lender, prompt[:-1])
        with engine.session(70, 1, prompt=prompt[:-1]) as borrower:
            sequence, reading = read(borrower, prompt[:-1])
            assert reading.n_reused == 60
            first.drop()
            second, _ = read(lender, other[:-1])
            (ours,) = lender.run([greedy_task(engine, second, other[-1:], n_generate=5)])
            assert_same(ours, answer(fresh, other, n=5)[1])
            (written,) = borrower.run([greedy_task(engine, sequence, prompt[-1:])])
            assert_same(written, answer(fresh, prompt)[1])


def test_own_remembered_cells_count_when_they_are_reused(engine: Engine):
    prompt = text(22, 60)
    with engine.session(100, 2) as session:
        sequence, _ = read(session, prompt)
        session.remember(sequence)
        sequence.drop()
        tasks = [
            Task(session.sequence(), [*prompt, 1], reuse=True),
            Task(session.sequence(), text(23, 60)),
        ]
        with pytest.raises(CapacityError, match="needs 121 cache cells"):
            session.run(tasks)
        assert [len(task.sequence) for task in tasks] == [0, 0]
        session.run(tasks[:1])


def test_a_pinned_prefix_is_shared_when_it_is_remembered_no_longer(model: Model, load: Load):
    engine = load(model(), prefix_cells=4096, n_ctx=256)
    prompt = text(6, 80)
    with engine.session(140, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, [*prompt, *text(7, 50)])])
        session.remember(sequence)
    with engine.session(100, 1, prompt=prompt):  # reserves no cells for what it will reuse
        with engine.session(140, 1):  # takes those behind it
            assert engine.stats().n_prefixes == 0
        with engine.session(100, 1, prompt=prompt) as session:
            (output,) = session.run([Task(session.sequence(), [*prompt, 1], reuse=True)])
    assert (output.n_reused, output.n_decoded) == (80, 1)


def test_a_prompt_waits_for_one_that_began_first_in_a_later_session(model: Model, load: Load):
    """Nothing is read twice, whoever opened a session first."""
    engine = load(model(), prefix_cells=4096, n_ctx=4096, n_batch=16, n_ubatch=16)
    prompt = text(5, 1500)
    with engine.session(1600, 1) as earlier, engine.session(1600, 1) as later:
        begun = later.sequence()
        reader = threading.Thread(target=lambda: later.run([Task(begun, prompt, reuse=True)]))
        reader.start()
        while len(begun) == 0:
            pass
        (output,) = earlier.run([Task(earlier.sequence(), prompt, reuse=True)])
        reader.join()
    assert output.n_reused >= len(prompt) - 16
    assert output.n_decoded <= 16


def test_prefixes_stay_while_a_request_waits(engine: Engine):
    prompt = text(24, 100)
    engine.grow_cache(200, 2)
    answer(engine, prompt)
    with engine.session(60, 1) as open_one:
        cancel = Cancel()

        def ask() -> None:
            with pytest.raises(CancelledError):
                engine.session(engine.n_ctx, 1, cancel=cancel)

        def look() -> int:
            wait_until(lambda: engine.stats().n_waiting == 1)
            n_prefixes = engine.stats().n_prefixes
            cancel.cancel()
            return n_prefixes

        assert in_threads(ask, look) == [None, 1]
        open_one.close()
    assert answer(engine, prompt)[0].n_reused == 99


def test_a_pinned_prefix_outlives_the_growth_of_the_cache(model: Model, fresh: Engine):
    """Its own entry is dropped for a large request that begins alike; its cells are copied."""
    prompt = text(25, 80)
    with Engine(model(), EngineConfig(**EXACT | {"prefix_cells": 100})) as engine:
        with engine.session(4096, 2) as session:
            sequence = session.sequence()
            session.run([Task(sequence, prompt[:40])])
            between = sequence.fork()
            session.run([Task(between, text(26, 2960))])
            session.run([Task(sequence, prompt[40:])])  # far behind
            session.remember(sequence)
        similar = prompt[:40] + text(27, 20)
        with engine.session(4100, 1, prompt=similar[:-1]) as session:
            sequence, reading = read(session, similar[:-1])
            assert reading.n_reused == 40
            (ours,) = session.run([greedy_task(engine, sequence, similar[-1:])])
    assert_same(ours, answer(fresh, similar)[1])


def test_texts_that_differ_in_their_end_are_bounded_too(model: Model):
    """Each keeps a cell or two of its own, but all of its tokens."""
    common = text(28, 200)
    with Engine(model(), EngineConfig(**EXACT | {"prefix_cells": 300})) as engine:
        for i in range(80):
            answer(engine, [*common, i % N_PLAIN, 1], n=1)
        assert engine.stats().n_prefixes <= 16 * 300 // 200 + 1


def test_parts_of_a_reused_prompt_count_what_was_decoded(engine: Engine):
    prompt = text(29, 60)
    answer(engine, prompt)
    with engine.session(100, 1, prompt=prompt[:-1]) as session:
        task = Task(session.sequence(), prompt, reuse=True, n_generate=20, part=8, ignore_eog=True)
        parts = list(session.run_parts(task))
    assert [part.n_reused for part in parts] == [59, 0, 0]
    assert sum(part.n_decoded for part in parts) == 20
    assert min(part.n_decoded for part in parts) > 0
