"""One engine under many threads: the same results, no endless wait, everything freed."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import EXACT, GREEDY, TOKENS, exact, held, is_free, vectors
from fixture_types import Load, Model
from surroundings import HANG
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Injection, Sequence, Session, Task
from tgr_local.generation import generate, generate_many, generate_steps, stream
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.system.errors import CancelledError, CapacityError, TgrError

WORDS = SearchConfig(chunk_len=10, max_chunks=2, n_candidates=3, rollout_len=4, temperature=0.0)


# --- together as alone ---


@pytest.mark.parametrize("method", ["tgr-latent", "markov", "base"])
@exact
def test_16_threads_get_what_each_gets_alone(engine: Engine, method: str):
    prompts = [f"{i} and " + "x" * i for i in range(16)]

    def reply(prompt: str) -> list[int]:
        return generate(engine, prompt, WORDS, method=method, raw=True).tokens

    alone = [reply(prompt) for prompt in prompts]
    together = in_threads(*[lambda p=prompt: reply(p) for prompt in prompts])
    assert together == alone
    assert is_free(engine)


def test_sessions_queue_when_cells_are_short_and_all_finish(model: Model, load: Load):
    engine = load(model(), n_ctx=256)

    def reply() -> list[int]:
        return generate(engine, "hello", WORDS, raw=True).tokens

    alone = reply()
    results: list[Any] = []
    with engine.session(240, 1):  # no other one fits
        together = threading.Thread(target=lambda: results.extend(in_threads(*[reply] * 24)))
        together.start()
        wait_until(lambda: engine.stats().n_waiting == 24)
    together.join()
    assert results == [alone] * 24
    assert is_free(engine)


def test_sessions_queue_for_sequences_too(model: Model, load: Load):
    engine = load(model(), n_seq_max=4)
    replies = in_threads(*[lambda: generate(engine, "hi", WORDS, raw=True).tokens] * 9)
    assert replies == replies[:1] * 9 and len(replies[0]) == 20
    assert is_free(engine)


def test_the_cache_grows_between_sessions_not_under_them(model: Model, load: Load):
    engine = load(model())
    with engine.session(200, 1) as small:
        sequence = small.sequence()
        small.run([Task(sequence, TOKENS)])
        thread = threading.Thread(target=lambda: engine.session(1000, 1).close())
        thread.start()
        wait_until(lambda: engine.stats().n_waiting == 1)
        assert engine.n_ctx == 256
        assert small.run([Task(sequence, [1], n_generate=2)])[0].n_decoded > 0
    thread.join(HANG)
    assert engine.n_ctx == 1024 and is_free(engine)


def test_a_long_request_is_not_overtaken_for_ever(model: Model, load: Load):
    engine = load(model(), n_ctx=256)
    order: list[str] = []
    first = engine.session(100, 1)

    def ask(name: str, n_cells: int) -> None:
        with engine.session(n_cells, 1):
            order.append(name)

    threads = []
    for name, n_cells in (("large", 250), ("small", 10)):
        threads.append(threading.Thread(target=ask, args=(name, n_cells)))
        threads[-1].start()
        wait_until(lambda: engine.stats().n_waiting == len(threads))
    first.close()
    for thread in threads:
        thread.join(HANG)
    assert order == ["large", "small"]


def test_a_withdrawn_request_admits_the_next_one(model: Model, load: Load):
    engine = load(model(), n_ctx=256)
    cancel = Cancel()
    with engine.session(100, 1):
        thread = threading.Thread(
            target=in_threads, args=[lambda: engine.session(250, 1, cancel=cancel)]
        )
        thread.start()
        wait_until(lambda: engine.stats().n_waiting == 1)
        cancel.cancel()
        thread.join(HANG)
        engine.session(100, 1).close()
    assert is_free(engine)


def test_a_reservation_admitted_after_the_cancel_is_freed(model: Model, load: Load):
    engine = load(model(), n_ctx=256)
    first = engine.session(256, 1)

    class Late(Cancel):
        def is_set(self) -> bool:
            first.close()
            wait_until(lambda: engine.stats().n_waiting == 0)
            return True

    with pytest.raises(CancelledError, match="waiting for a cache reservation"):
        engine.session(256, 1, cancel=Late())
    assert is_free(engine)


def test_a_request_that_is_garbage_is_withdrawn(engine: Engine):
    """As when Ctrl-C comes while the engine is being asked."""
    engine._native.open(64, 1, None, 0, [], b"", False)
    assert is_free(engine)


def test_cancelled_jobs_do_not_stop_others(engine: Engine):
    """A cancel interrupts the decode of its job. It interrupts the decode of others at most once,
    and never after its own job has ended."""
    stop = threading.Event()

    def read(session: Session) -> None:
        session.run([Task(session.sequence(), [1] * 1500)])

    def come_and_go(session: Session, n_generate: int) -> None:
        sequence = session.sequence()
        task = Task(sequence, [1] * 60, n_generate=n_generate, ignore_eog=True)
        job = session._submit([task])
        while not stop.is_set():
            job.cancel()
            if n_generate and job.wait(1.0):
                sequence.truncate(0)
                job = session._submit([task])
        job.cancel()

    for n_generate in (0, 100):
        engine.grow_cache(2000)
        stop.clear()
        with engine.session(1500, 1) as reader, engine.session(200, 1) as other:
            thread = threading.Thread(target=come_and_go, args=(other, n_generate))
            thread.start()
            try:
                assert in_threads(lambda session=reader: read(session)) == [None]
            finally:
                stop.set()
                thread.join()


def test_what_a_session_frees_is_free_at_once(engine: Engine):
    """Also while commands of others wait for the end of a decode."""
    stop = threading.Event()

    def decode(session: Session) -> None:
        sequence = session.sequence()
        while not stop.is_set():
            session.run([Task(sequence, [1] * 200)])
            sequence.truncate(0)

    def ask() -> None:
        while not stop.is_set():
            bool(engine.memory_layout)  # waits for the end of a decode

    def free(session: Session) -> None:
        try:
            for _ in range(300):
                injection, sequence = session.injection(some), session.sequence()
                session.run([Task(sequence, [1] * 8, injection=injection)])
                sequence.drop()
                injection.drop()
        finally:
            stop.set()

    some = vectors()[0]
    with engine.session(200, 1) as long, engine.session(8, 1) as short:
        work = [lambda: decode(long), ask, lambda: free(short)]
        assert in_threads(*work) == [None] * 3


# --- groups ---


def test_a_group_waits_for_its_participants_only(engine: Engine):
    group = engine.lockstep_group(2)
    with group.participant(0) as first, group.participant(1) as second:
        sessions = in_threads(
            lambda: engine.session(64, 1, participant=first),
            lambda: engine.session(64, 1, participant=second),
        )
        with sessions[0] as one, sessions[1] as two:
            done = threading.Event()

            def run() -> None:
                one.run([Task(one.sequence(), TOKENS, n_generate=4)])
                done.set()

            thread = threading.Thread(target=run)
            thread.start()
            # the other participant has no task: the group waits, other sessions go on
            with engine.session(64, 1) as session:
                assert session.run([Task(session.sequence(), TOKENS)])[0].n_decoded == 24
            assert not done.wait(0.05)
            two.run([Task(two.sequence(), TOKENS, n_generate=4)])
            two.close()
            thread.join(HANG)
            assert done.is_set()


def test_a_participant_waits_for_its_group_while_its_thread_holds_a_session(engine: Engine):
    """The cache has space for both, so this is not a deadlock."""
    group = engine.lockstep_group(2)

    def come_late() -> None:
        with group.participant(1) as participant:
            time.sleep(0.2)
            engine.session(8, 1, participant=participant).close()

    engine.grow_cache(512)
    with engine.session(8, 1), group.participant(0) as participant:
        thread = threading.Thread(target=come_late)
        thread.start()
        engine.session(8, 1, participant=participant).close()
        thread.join()


def test_an_incomplete_group_does_not_block_others(engine: Engine):
    group = engine.lockstep_group(3)
    cancel = Cancel()

    def wait_in_group() -> None:
        with group.participant(0) as participant, pytest.raises(CancelledError):
            engine.session(64, 1, participant=participant, cancel=cancel)

    thread = threading.Thread(target=wait_in_group)
    thread.start()
    wait_until(lambda: engine.stats().n_waiting == 1)
    assert len(generate(engine, "hello", WORDS, raw=True).tokens) > 0
    cancel.cancel()
    thread.join(HANG)
    assert not thread.is_alive()


def test_a_participant_has_one_session_at_a_time(engine: Engine):
    group = engine.lockstep_group(1)
    with group.participant(0) as participant, engine.session(8, 1, participant=participant):
        with pytest.raises(TgrError, match="participant 0 is not awaited"):
            engine.session(8, 1, participant=participant)
        with pytest.raises(TgrError, match="participant 1 is not awaited"):
            engine.session(8, 1, participant=group.participant(1))


# --- the end ---


def test_close_ends_everyone_with_cancelled_error(model: Model, load: Load):
    engine = load(model(), n_ctx=2048)
    endless = SearchConfig(chunk_len=500, max_chunks=1000, n_candidates=2, rollout_len=4)

    def late_close() -> None:
        wait_until(lambda: engine.stats().n_positions > 200 and engine.stats().n_waiting > 0)
        engine.close()

    methods = ("tgr-latent", "markov")
    work = [
        lambda m=method: generate(engine, "hi", endless, method=m, raw=True) for method in methods
    ]
    *results, closed = in_threads(*work * 4, late_close)
    assert closed is None
    assert [type(result) for result in results] == [CancelledError] * 8
    with pytest.raises(TgrError, match="closed"):
        engine.stats()


def test_many_threads_may_close(model: Model, load: Load):
    engine = load(model())
    assert in_threads(*[engine.close] * 8) == [None] * 8


def test_text_while_the_engine_closes(model: Model, load: Load):
    """The vocabulary is read outside the worker; it must not vanish under a reader."""
    for _ in range(5):
        engine = load(model())

        def read(engine: Engine = engine) -> None:
            while True:
                engine.detokenize(engine.tokenize("he said the thing"))

        def close(engine: Engine = engine) -> None:
            time.sleep(0.005)
            engine.close()

        *readers, closed = in_threads(read, read, read, close)
        assert closed is None
        assert [type(error) for error in readers] == [CancelledError] * 3


def test_an_engine_that_is_garbage_ends_its_worker(model: Model):
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("threads are counted in /proc")
    before = len(list(tasks.iterdir()))
    for _ in range(3):
        engine = Engine(model(), EngineConfig(**EXACT))
        session = engine.session(64, 1)
        session.run([Task(session.sequence(), TOKENS)])
        del engine, session
        gc.collect()
        wait_until(lambda: len(list(tasks.iterdir())) <= before)


# --- anything at any time ---


class Chaos:
    """Random work on one engine until `n_jobs` jobs have ended; equal greedy tasks must have equal
    answers."""

    def __init__(self, engine: Engine, n_jobs: int) -> None:
        self.engine, self.wanted = engine, n_jobs
        self.answers: dict[tuple[int, int], list[int]] = {}
        self.n_jobs = 0

    def work(self, seed: int) -> None:
        rng = random.Random(seed)
        while self.n_jobs < self.wanted:
            try:
                self.session(rng)
            except (CancelledError, CapacityError):
                continue

    def session(self, rng: random.Random) -> None:
        n_cells, cancel = rng.choice([20, 60, 120, 300]), Cancel()
        timer = threading.Timer(rng.uniform(0, 0.05), cancel.cancel)
        timer.start()
        try:
            with self.engine.session(n_cells, rng.randint(1, 5), cancel=cancel) as session:
                sequences: list[Sequence] = [session.sequence()]
                injections: list[Injection | None] = [None, session.injection(vectors()[0])]
                for _ in range(rng.randint(1, 12)):
                    self.move(rng, session, sequences, injections, cancel)
        finally:
            timer.cancel()

    def move(
        self, rng: random.Random, session: Any, sequences: list[Sequence],
        injections: list[Injection | None], cancel: Cancel,
    ) -> None:  # fmt: skip
        kind = rng.choice(
            ["run", "run", "run", "fork", "truncate", "shift", "drop", "direct", "answer"]
        )
        if kind == "fork" and sequences:
            sequences.append(rng.choice(sequences).fork())
        elif kind == "truncate" and sequences:
            sequence = rng.choice(sequences)
            sequence.truncate(rng.randint(0, len(sequence)))
        elif kind == "shift" and sequences:
            sequence = rng.choice(sequences)
            start, end = sorted(rng.randint(0, len(sequence)) for _ in range(2))
            with contextlib.suppress(TgrError):  # shared with a fork
                sequence.shift(start, end)
        elif kind == "drop" and sequences:
            sequence = sequences.pop(rng.randrange(len(sequences)))
            if rng.random() < 0.5:
                sequence.drop()
        elif kind == "direct" and len(injections) > 1:
            injections.pop()
        elif kind == "answer":
            self.answer(rng, session)
        elif sequences:
            tasks = [
                Task(
                    sequence, rng.choices(TOKENS, k=rng.randint(1, 20)),
                    n_generate=rng.randint(0, 20), injection=rng.choice(injections),
                    seed=rng.randrange(2**63), states=rng.random() < 0.3,
                    norms=rng.random() < 0.3, feed_logprobs=rng.random() < 0.3,
                )
                for sequence in rng.sample(sequences, rng.randint(1, len(sequences)))
            ]  # fmt: skip
            on_tokens = (lambda tokens: None) if rng.random() < 0.3 else None
            deadline = time.monotonic() + rng.uniform(0, 0.02) if rng.random() < 0.2 else None
            outputs = session.run(tasks, on_tokens=on_tokens, cancel=cancel, deadline=deadline)
            self.n_jobs += 1
            for task, output in zip(tasks, outputs, strict=True):
                assert len(output.tokens) == len(output.logprobs) <= task.n_generate
                assert np.isfinite(output.logprobs).all()

    def answer(self, rng: random.Random, session: Any) -> None:
        start, n = rng.randrange(10), rng.randint(1, 9)
        task = Task(
            session.sequence(), TOKENS[start : start + 8], n_generate=n, sampling=GREEDY,
            ignore_eog=True,
        )  # fmt: skip
        tokens = session.run([task])[0].tokens.tolist()
        assert self.answers.setdefault((start, n), tokens) == tokens


@pytest.mark.parametrize("n_ctx", [0, 512])
@exact
def test_random_work_from_many_threads_leaves_nothing(model: Model, load: Load, n_ctx: int):
    engine = load(model(), n_ctx=n_ctx, n_batch=64, n_ubatch=32, n_seq_max=24)
    chaos = Chaos(engine, n_jobs=300)
    results = in_threads(*[lambda seed=seed: chaos.work(seed) for seed in range(10)])
    assert results == [None] * 10
    assert is_free(engine), held(engine.stats())
    # and it still answers
    with engine.session(300, 1) as session:
        chaos.answer(random.Random(0), session)


def test_a_thread_never_waits_for_itself(model: Model, load: Load):
    engine = load(model())
    first = engine.session(256, 1)
    with pytest.raises(CapacityError, match="this thread itself"):
        engine.session(10_000, 1)
    first.close()
    with engine.session(10_000, 1):
        assert engine.n_ctx >= 10_000


def test_a_thread_never_waits_behind_one_that_waits_for_it(model: Model, load: Load):
    engine = load(model(), n_ctx=256)
    with engine.session(100, 1):
        other = threading.Thread(target=lambda: engine.session(250, 1).close())
        other.start()
        wait_until(lambda: engine.stats().n_waiting == 1)
        with pytest.raises(CapacityError, match="this thread itself"):
            engine.session(8, 1)
    other.join(HANG)
    assert is_free(engine)


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine, prompt, config: list(stream(engine, prompt, config, raw=True)),
        lambda engine, prompt, config: generate_many(engine, prompt, config, 2, raw=True),
    ],
    ids=["stream", "group"],
)
def test_replies_beside_an_open_search_of_the_same_thread_are_refused(
    model: Model, load: Load, ask: Callable[..., Any]
):
    engine, small = load(model()), SearchConfig(chunk_len=8, rollout_len=4)
    steps = generate_steps(engine, "hello", small, raw=True)
    next(steps)
    with pytest.raises(CapacityError, match="this thread itself"):
        ask(engine, "x" * 1000, small)
    steps.close()


def test_an_unknown_participant_is_refused(engine: Engine):
    with pytest.raises(ValueError, match="no participant 5"):
        engine.lockstep_group(2).participant(5).leave()
    assert engine.stats().n_jobs == 0
