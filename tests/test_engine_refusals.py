"""What the engine refuses, with which message; a refusal changes nothing."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from engines import ENDLESS, EXACT, vectors
from fixture_types import Load, Model
from gguf_models import N_VOCAB

from tgr_local.engine import Cancel, Engine, Sampling, Task
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError, CapacityError, TgrError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feed": []}, "feed is empty"),
        ({"feed": [N_VOCAB]}, f"token {N_VOCAB}, but the vocabulary ends at {N_VOCAB - 1}"),
        ({"feed": [-1]}, "token -1"),
        ({"feed": [2**40]}, "tokens"),
        ({"history": [N_VOCAB], "n_generate": 1}, f"history holds token {N_VOCAB}"),
        ({"feed": np.array([2**32])}, "tokens"),
        ({"feed": [1.5]}, "tokens"),
        ({"feed": "abc"}, "tokens"),
        ({"feed": [[1, 2]]}, "tokens"),
        ({"n_generate": -1}, "n_generate is -1"),
        ({"n_generate": 2**31}, "n_generate"),
        ({"n_generate": 1, "n_top": -1}, "n_top is -1"),
        ({"n_generate": 1, "n_top": N_VOCAB + 1}, f"n_top is {N_VOCAB + 1}"),
        ({"feed_states": "some"}, "feed_states is 'some'"),
        ({"seed": -1}, "seed"),
        ({"n_generate": 1, "sampling": Sampling(grammar="root = x")}, "grammar does not parse"),
        ({"n_generate": 1, "sampling": Sampling(logit_bias=((9999, 1.0),))}, "token 9999"),
    ],
)
def test_bad_tasks_are_value_errors_and_change_nothing(
    engine: Engine, options: dict[str, Any], message: str
):
    with engine.session(16, 1) as session:
        sequence = session.sequence()
        with pytest.raises(ValueError, match=message):
            session.run([Task(sequence, **{"feed": [1]} | options)])
        assert len(sequence) == 0 and engine.stats().n_jobs == 0
        session.run([Task(sequence, [1])])


def test_running_no_tasks_returns_nothing(engine: Engine):
    with engine.session(8, 1) as session:
        assert session.run([], deadline=0.1) == []


def test_two_tasks_on_one_sequence_are_refused(engine: Engine):
    with engine.session(16, 1) as session:
        sequence = session.sequence()
        with pytest.raises(ValueError, match="same sequence"):
            session.run([Task(sequence, [1]), Task(sequence, [2])])


def test_a_sequence_in_a_running_job_is_left_alone(engine: Engine):
    cancel = Cancel()
    with engine.session(ENDLESS, 2) as session:
        sequence = session.sequence()
        task = Task(sequence, [1], n_generate=ENDLESS, ignore_eog=True)
        started = threading.Event()

        def work() -> None:
            with pytest.raises(CancelledError):
                session.run([task], on_tokens=lambda _: started.set(), cancel=cancel)

        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        touches = (
            sequence.fork,
            lambda: sequence.truncate(0),
            lambda: sequence.shift(0, 1),
            lambda: session.run([task]),
        )
        for touch in touches:
            with pytest.raises(TgrError, match="running job"):
                touch()
        cancel.cancel()
        thread.join()
        assert engine.stats().n_sequences == 1


def test_handles_of_others_are_refused(engine: Engine, model: Model, load: Load):
    other_engine = load(model())
    with (
        engine.session(16, 1) as mine,
        engine.session(16, 1) as other,
        other_engine.session(16, 1) as foreign,
    ):
        sequence = mine.sequence()
        for stranger in (other, foreign):
            with pytest.raises((TgrError, ValueError), match="another session"):
                mine.run([Task(stranger.sequence(), [1])])
            with pytest.raises((TgrError, ValueError), match="another session"):
                injection = stranger.injection(vectors()[0])
                mine.run([Task(sequence, [1], injection=injection)])
        assert len(sequence) == 0


def test_dropped_handles_are_refused_and_leave_nothing(engine: Engine):
    with engine.session(16, 2) as session:
        sequence, injection = session.sequence(), session.injection(vectors()[0])
        injection.drop()
        injection.drop()
        with pytest.raises(TgrError, match="injection was dropped"):
            session.run([Task(sequence, [1], injection=injection)])
        sequence.drop()
        sequence.drop()
        uses = (
            sequence.fork,
            lambda: sequence.truncate(0),
            lambda: sequence.shift(0, 1),
            lambda: len(sequence),
            lambda: session.run([Task(sequence, [1])]),
        )
        for use in uses:
            with pytest.raises(TgrError, match="sequence was dropped"):
                use()
        assert engine.stats().n_sequences == 0


def test_a_closed_session_is_refused(engine: Engine):
    session = engine.session(16, 2)
    sequence = session.sequence()
    session.close()
    session.close()
    uses = (
        session.sequence,
        lambda: session.injection(vectors()[0]),
        session.peak_cells,
        sequence.fork,
        lambda: session.run([Task(sequence, [1])]),
    )
    for use in uses:
        with pytest.raises(TgrError, match="the session is closed"):
            use()


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 63), (2, 64, 1)])
def test_vectors_of_another_shape_are_refused(engine: Engine, shape: tuple[int, ...]):
    with (
        engine.session(8, 1) as session,
        pytest.raises(ValueError, match=r"vectors have shape .* must have \(2, 64\)"),
    ):
        session.injection(np.zeros(shape))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_vectors_that_are_not_finite_are_refused(engine: Engine, bad: float):
    injection = np.zeros((2, 64))
    injection[1, 5] = bad
    with engine.session(8, 1) as session, pytest.raises(ValueError, match="not finite"):
        session.injection(injection)


def test_an_injection_that_overflows_fails_its_own_job_only(engine: Engine):
    with engine.session(16, 2) as session:
        calm, drowned = session.sequence(), session.sequence()
        injection = session.injection(np.full((2, 64), 3e38))
        with pytest.raises(TgrError, match="not finite"):
            session.run([Task(drowned, [1], n_generate=2, injection=injection)])
        assert len(session.run([Task(calm, [1], n_generate=2, ignore_eog=True)])[0].tokens) == 2


@pytest.mark.parametrize("size", [(-1, 1), (8, -1), (2**40, 1), (8, 2**40)])
def test_impossible_reservations_are_refused(engine: Engine, size: tuple[int, int]):
    with pytest.raises((ValueError, CapacityError)):
        engine.session(*size)


def test_bad_text_is_refused(engine: Engine):
    with pytest.raises(ValueError, match="not valid Unicode at character 2"):
        engine.tokenize("ab\ud800")
    for token in (-1, N_VOCAB, 2**32):
        with pytest.raises(ValueError, match="token"):
            engine.detokenize([token])


def test_a_closed_engine_is_refused(model: Model):
    engine = Engine(model(), EngineConfig(**EXACT))
    session = engine.session(16, 1)
    sequence, injection = session.sequence(), session.injection(vectors()[0])
    engine.close()
    engine.close()
    uses = (
        engine.stats,
        lambda: engine.session(8, 1),
        lambda: engine.tokenize("hello"),
        lambda: engine.detokenize([1]),
        lambda: engine.chat_prompt([{"role": "user", "content": "hello"}]),
        lambda: engine.lockstep_group(2),
        session.sequence,
        sequence.fork,
        lambda: session.injection(vectors()[0]),
        lambda: session.run([Task(sequence, [1], n_generate=1, sampling=Sampling(top_k=3))]),
    )
    for use in uses:
        with pytest.raises(TgrError, match="the engine is closed"):
            use()
    for free in (sequence.drop, injection.drop, session.close):
        free()
    assert engine.n_vocab == N_VOCAB  # what was read from the file stays known
