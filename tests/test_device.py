"""The engine as a GPU runs it: Q4_K weights, flash attention, an F16 cache, all layers there, or
half of them.

`bench/gpu.sh --test` runs this on a GPU (TGR_TEST_DEVICE=gpu); elsewhere it runs on the CPU. What
was written, however its cells came about, must have the log-probabilities that the CPU gives the
same tokens, read in one piece with an F32 cache and without flash attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import DEVICE, ENDLESS, is_free, vectors
from numpy.typing import NDArray
from threads import in_threads, wait_until

from tgr_local.engine import Cancel, Engine, Sequence, Session, Task
from tgr_local.lab.bench import shapes
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import CancelledError

BOUND = 0.3  # a GPU rounds what Q4_K multiplies in blocks of 32, the CPU in blocks of 256
N = 16
TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 4000, 150)]
STEERS = vectors(3, d=256, strength=2.0)
Read = Callable[[Session, Sequence], object]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("models")))
        return shapes.model_file("tiny", "q4_k")


@pytest.fixture(
    scope="module",
    params=(pytest.param(-1, id="all"), pytest.param(2, id="half")) if DEVICE == "gpu" else (0,),
)
def layers(request) -> int:
    """Layers on the device; of the three there are, the output layer is one."""
    return int(request.param)


@pytest.fixture(scope="module")
def _engines(path: Path, layers: int) -> Iterator[tuple[Engine, Engine]]:
    common: dict[str, Any] = {"n_threads": 1, "prefix_cells": 1000}
    used = EngineConfig(flash_attn="on", n_gpu_layers=layers, n_batch=64, n_ubatch=64, **common)
    exact = EngineConfig(flash_attn="off", n_gpu_layers=0, type_k="f32", type_v="f32", **common)
    with Engine(path, used) as engine, Engine(path, exact) as plain:
        yield engine, plain


@pytest.fixture
def engine(_engines: tuple[Engine, Engine]) -> Iterator[Engine]:
    yield _engines[0]
    assert is_free(_engines[0])


@pytest.fixture
def plain(_engines: tuple[Engine, Engine]) -> Iterator[Engine]:
    yield _engines[1]
    assert is_free(_engines[1])


def write(
    session: Session, sequences: list[Sequence], steers: list[NDArray[np.float32] | None]
) -> list[tuple[list[int], NDArray[np.float32]]]:
    """The tokens that each sequence writes after the last one of TEXT, with log-probabilities."""
    injections = [None if one is None else session.injection(one) for one in steers]
    tasks = [
        Task(one, TEXT[-1:], n_generate=N, injection=injection, seed=i, ignore_eog=True)
        for i, (one, injection) in enumerate(zip(sequences, injections, strict=True))
    ]
    return [(output.tokens.tolist(), output.logprobs) for output in session.run(tasks)]


def read(
    plain: Engine, before: Read, tokens: list[int], steer: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """The log-probabilities of the same tokens on the CPU."""
    with plain.session(400, 1) as session:
        sequence = session.sequence()
        before(session, sequence)
        injection = None if steer is None else session.injection(steer)
        task = Task(sequence, TEXT[-1:] + tokens, injection=injection, feed_logprobs=True)
        return session.run([task])[0].feed_logprobs


def text(n: int) -> Read:
    return lambda session, sequence: session.run([Task(sequence, TEXT[:n])])


def check(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert np.abs(found - wanted).max() < BOUND


def test_the_layers_are_on_the_device(engine: Engine, layers: int):
    on_device = [not name.upper().startswith("CPU") for name in engine.devices()]
    n = 3 if layers < 0 else layers
    assert on_device == [False] * (3 - n) + [True] * n


def test_injections_states_and_norms_split_no_graph(engine: Engine):
    """Each further part of a graph is a copy to another device, and a wait for it."""

    def splits(steer: NDArray[np.float32] | None, n_generate: int, **options: Any) -> int:
        with engine.session(400, 2) as session:
            sequence = session.sequence()
            text(40)(session, sequence)
            injection = None if steer is None else session.injection(steer)
            feed = TEXT[40:80]
            task = Task(
                sequence,
                feed,
                n_generate=n_generate,
                injection=injection,
                ignore_eog=True,
                **options,
            )
            session.run([task])
        return engine.stats().n_splits

    for n_generate in (1, 4):  # the last graph reads the prompt, writes a token
        plain = splits(None, n_generate)
        assert plain >= 1
        assert splits(STEERS[0], n_generate) == plain
        assert splits(None, n_generate, states=True) == plain
        assert splits(STEERS[0], n_generate, states=True, norms=True) == plain


def test_other_tokens_before_would_be_noticed(engine: Engine, plain: Engine):
    """The bound of the other tests is small enough."""
    with engine.session(400, 1) as session:
        sequence = session.sequence()
        text(100)(session, sequence)
        ((tokens, logprobs),) = write(session, [sequence], [None])
    check(logprobs, read(plain, text(100), tokens))
    assert np.abs(logprobs - read(plain, text(101), tokens)).max() > 2 * BOUND
    assert np.abs(logprobs - read(plain, text(100), tokens, STEERS[0])).max() > 2 * BOUND


def test_eight_forks_some_with_injections(engine: Engine, plain: Engine):
    steers = [None, *STEERS, None, None, *STEERS[:2]]
    with engine.session(400, 12) as session:
        parent = session.sequence()
        text(120)(session, parent)
        forks = [parent.fork() for _ in steers]
        found = write(session, forks, steers)
        again = [parent.fork() for _ in steers[:3]]  # in cells that were used and freed
        for fork in forks:
            fork.drop()
        found += write(session, again, steers[:3])
    for (tokens, logprobs), steer in zip(found, steers + steers[:3], strict=True):
        check(logprobs, read(plain, text(120), tokens, steer))


def test_a_rollback_and_a_shift(engine: Engine, plain: Engine):
    def moved(session: Session, sequence: Sequence) -> None:
        text(130)(session, sequence)
        sequence.truncate(110)
        sequence.shift(20, 60)

    with engine.session(400, 1) as session:
        sequence = session.sequence()
        moved(session, sequence)
        assert len(sequence) == 70
        ((tokens, logprobs),) = write(session, [sequence], [STEERS[1]])
    check(logprobs, read(plain, moved, tokens, STEERS[1]))
    assert np.abs(logprobs - read(plain, text(70), tokens, STEERS[1])).max() > 2 * BOUND


def test_several_sessions_at_a_time(engine: Engine, plain: Engine):
    lengths = (10, 70, 140)

    def one(n: int) -> Any:
        with engine.session(400, 2) as session:
            sequences = [session.sequence(), session.sequence()]
            for sequence in sequences:
                text(n)(session, sequence)
            return write(session, sequences, [STEERS[0], None])

    for n, found in zip(lengths, in_threads(*(lambda n=n: one(n) for n in lengths)), strict=True):
        for (tokens, logprobs), steer in zip(found, [STEERS[0], None], strict=True):
            check(logprobs, read(plain, text(n), tokens, steer))


def test_a_cache_that_grows_keeps_what_is_remembered(engine: Engine, plain: Engine):
    with engine.session(200, 1) as session:
        sequence = session.sequence()
        text(100)(session, sequence)
        session.remember(sequence)
    before = engine.n_ctx
    engine.session(before + 500, 1).close()
    assert engine.n_ctx > before
    feed = TEXT[:100] + TEXT[-1:]
    with engine.session(400, 1, prompt=feed) as session:
        task = Task(session.sequence(), feed, n_generate=N, reuse=True, ignore_eog=True)
        output = session.run([task])[0]
    assert output.n_reused == 100
    check(output.logprobs, read(plain, text(100), output.tokens.tolist()))


def test_after_a_cancel_the_same_session_goes_on(engine: Engine, plain: Engine):
    cancel = Cancel()
    with engine.session(ENDLESS + 400, 2) as session:
        kept, ended = session.sequence(), session.sequence()
        text(90)(session, kept)
        start = engine.stats().n_positions
        task = Task(ended, TEXT, n_generate=ENDLESS, ignore_eog=True)

        def end() -> None:
            wait_until(lambda: engine.stats().n_positions > start + len(TEXT) + 5)
            cancel.cancel()

        raised, _ = in_threads(lambda: session.run([task], cancel=cancel), end)
        assert isinstance(raised, CancelledError)
        ended.drop()
        ((tokens, logprobs),) = write(session, [kept], [STEERS[2]])
    check(logprobs, read(plain, text(90), tokens, STEERS[2]))
