"""Results that must be equal: together and alone, whole and in pieces, forked and decoded again,
ours and llama.cpp's."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engines import (
    DEVICE,
    EXACT,
    GREEDY,
    ROUNDING,
    TOKENS,
    assert_same,
    distributions,
    greedy_task,
    rows_to_compare,
    vectors,
    written,
)
from fixture_types import Load, Model
from gguf_models import N_PLAIN
from plain_llama import llama_cpp_output
from reference import Reference, log_softmax
from threads import wait_until

import tgr_local
from tgr_local.engine import Engine, Injection, Sampling, Session, Task
from tgr_local.engine.native import native
from tgr_local.options.config import EngineConfig

LONG = [int(t) for t in np.random.default_rng(7).integers(0, N_PLAIN, 45)]

WARM = Sampling(temperature=0.8)

Available = Callable[[int], None]


@pytest.fixture
def available() -> Iterator[Available]:
    """Sets the bytes of RAM that the engine takes for available."""
    yield native.pretend_available
    native.pretend_available(None)


# --- one batch ---


@pytest.mark.parametrize("n_others", [1, 7, 63])
def test_greedy_text_does_not_depend_on_what_else_runs(engine: Engine, n_others: int):
    rng = np.random.default_rng(n_others)
    with engine.session(4000, n_others + 2) as session:
        alone = session.run([greedy_task(engine, session.sequence(), TOKENS, n_generate=24)])[0]
        others = [
            Task(
                session.sequence(),
                rng.integers(0, N_PLAIN, rng.integers(1, 30)).tolist(),
                n_generate=int(rng.integers(1, 32)),
                seed=i,
            )
            for i in range(n_others)
        ]
        mine = greedy_task(engine, session.sequence(), TOKENS, n_generate=24)
        beside = session.run([*others, mine])[-1]
    assert_same(beside, alone)


def test_batch_size_moves_nothing_on_a_q8_file_without_flash_attention(model: Model, load: Load):
    """llama.cpp multiplies quantised rows one by one: the same bits in every batch. (With flash
    attention its F16 sums are cut differently; log-probabilities move by 0.1 there.)"""
    engine = load(model(dtype="Q8_0"), type_k="f16", type_v="f16")
    with engine.session(512, 9) as session:
        alone = session.run([greedy_task(engine, session.sequence(), TOKENS)])[0]
        mine = greedy_task(engine, session.sequence(), TOKENS)
        others = [Task(session.sequence(), TOKENS[:i], n_generate=12) for i in range(1, 8)]
        assert_same(session.run([mine, *others])[0], alone, bound=0)


# --- llama.cpp itself ---


@pytest.mark.parametrize("n_batch", [512, 16])
@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize(("cache", "flash"), [("f32", "off"), ("f16", "off"), ("f16", "on")])
def test_no_injection_and_a_zero_injection_are_llama_cpp_itself(
    model: Model, load: Load, use_products: Callable[[str], None],
    cache: str, flash: str, dtype: str, n_batch: int,
) -> None:  # fmt: skip
    """Our attention of a few tokens sums in another order than llama.cpp's: 3e-6. F16 weights round
    what they multiply, and a sum may fall on the other side. llama.cpp's flash attention adds up in
    F16, which Q8_0 weights make larger; ours adds up in F32. Without our products of Q8_0 weights,
    whose other order moves numbers across the rounding of the next product."""
    use_products("ggml")
    path = model(dtype=dtype)
    engine = load(
        path, type_k=cache, type_v=cache, flash_attn=flash, n_batch=n_batch, n_ubatch=n_batch
    )
    text, logprobs = llama_cpp_output(
        path, LONG, 8, cache={"f32": 0, "f16": 1}[cache], flash=flash == "on", n_batch=n_batch
    )
    with engine.session(256, 2) as session:
        zero = session.injection(np.zeros((2, 64)))
        plain = session.run([greedy_task(engine, session.sequence(), LONG)])[0]
        injected = session.run([greedy_task(engine, session.sequence(), LONG, injection=zero)])[0]
    if flash == "on":
        bound = {"F32": 2e-2, "F16": 2e-2, "Q8_0": 0.2}[dtype]
    else:
        bound = 5e-3 if dtype == "F16" else 2 * ROUNDING if dtype == "Q8_0" and DEVICE else ROUNDING
        assert DEVICE or plain.tokens.tolist() == text
    same = rows_to_compare(plain.tokens, text)  # a choice may turn
    np.testing.assert_allclose(distributions(plain)[:same], logprobs[:same], atol=bound, rtol=0)
    assert_same(injected, plain, bound=0)


@pytest.mark.skipif(native.products_name() == "ggml", reason="the processor has none of ours")
@pytest.mark.skipif(DEVICE == "gpu", reason="our products are those of a processor")
def test_the_engine_uses_our_products_and_agrees_with_ggmls(
    model: Model, load: Load, use_products: Callable[[str], None]
):
    # an output of an odd number of rows: of fours ggml for ARM has products with the bits of ours
    path, found = model(dtype="Q8_0", n_extra=1), {}
    for kind in ("ggml", "avx2", "best"):
        use_products(kind)
        options = {"n_generate": 12, "sampling": GREEDY, "ignore_eog": True}
        found[kind] = written(load(path), list(range(5, 40)), **options).logprobs
    np.testing.assert_array_equal(found["best"], found["avx2"])
    assert 0 < np.abs(found["best"] - found["ggml"]).max() < 0.2


@pytest.mark.skipif(native.products_name() == "ggml", reason="the processor has none of ours")
@pytest.mark.skipif(DEVICE == "gpu", reason="our products are those of a processor")
@pytest.mark.parametrize("kind", ["avx2", "best"])
def test_interleaved_weights_have_the_bits_of_those_in_the_file(
    model: Model, load: Load, use_products: Callable[[str], None], available: Available, kind: str
):
    """Those of a file that is read instead of mapped stay as they are."""
    available(1 << 40)
    use_products(kind)
    path, options = model(dtype="Q8_0"), {"n_generate": 12, "sampling": GREEDY, "ignore_eog": True}
    in_file, mapped = load(path, use_mmap=False), load(path)
    wait_until(lambda: mapped.stats().interleaved_bytes > 0)
    assert in_file.stats().interleaved_bytes == 0
    for n_fed in (1, 35, 120):
        feed = [5 + i % 40 for i in range(n_fed)]
        interleaved = written(mapped, feed, **options)
        plain = written(in_file, feed, **options)
        np.testing.assert_array_equal(interleaved.logprobs, plain.logprobs)
        assert interleaved.tokens.tolist() == plain.tokens.tolist()


def test_weights_are_not_interleaved_where_others_need_the_memory(
    model: Model, load: Load, available: Available
):
    available(1 << 30)
    engine = load(model(dtype="Q8_0"))
    written(engine, TOKENS, n_generate=8)
    time.sleep(0.1)  # the engine is idle, and could go on
    assert engine.stats().interleaved_bytes == 0


# --- pieces, forks, truncation ---


@pytest.mark.parametrize("injected", [False, True])
def test_a_long_prompt_equals_the_same_in_pieces(model: Model, load: Load, injected: bool):
    small = load(model(), n_batch=16, n_ubatch=16)
    large, reference = load(model()), Reference(model())
    added = vectors()[0] if injected else None
    kept: dict[str, Any] = {"feed_states": "all", "feed_logprobs": True}

    def with_injection(session: Session) -> Injection | None:
        return None if added is None else session.injection(added)

    with small.session(256, 2) as session:
        injection = with_injection(session)
        cut, bare = (
            session.run(
                [greedy_task(small, session.sequence(), LONG, injection=injection, **options)]
            )[0]
            for options in (kept, {})
        )
    assert_same(bare, cut)  # though most of its micro-batches have no output
    with large.session(256, 1) as session:
        sequence, injection = session.sequence(), with_injection(session)
        pieces = []
        for at in range(0, 40, 5):
            pieces += session.run(
                [Task(sequence, LONG[at : at + 5], injection=injection, feed_states="all")]
            )
        rest = session.run(
            [greedy_task(large, sequence, LONG[40:], injection=injection, feed_states="all")]
        )[0]
    assert_same(cut, rest)
    states = np.concatenate([piece.feed_states for piece in [*pieces, rest]])
    np.testing.assert_allclose(cut.feed_states, states, atol=ROUNDING, rtol=0)
    everywhere = None if added is None else np.tile(added, (len(LONG), 1, 1))
    wanted = reference.forward(LONG, everywhere)
    np.testing.assert_allclose(cut.feed_states, wanted.states, atol=1e-4, rtol=0)
    logprobs = log_softmax(wanted.logits)[range(len(LONG) - 1), LONG[1:]]
    np.testing.assert_allclose(cut.feed_logprobs, logprobs, atol=1e-4, rtol=0)


def test_more_sequences_than_a_batch_holds_take_turns(model: Model, load: Load):
    outputs = []
    for n_batch in (512, 4):
        engine = load(model(), n_batch=n_batch, n_ubatch=min(n_batch, 512))
        with engine.session(512, 12) as session:
            tasks = [greedy_task(engine, session.sequence(), LONG[i : i + 5]) for i in range(12)]
            outputs.append(session.run(tasks))
    for ours, theirs in zip(*outputs, strict=True):
        assert_same(ours, theirs)


def test_micro_batches_do_not_change_outputs(model: Model, load: Load):
    """Several sequences, some injected, spread over micro-batches of 16 in batches of 64."""
    outputs = []
    for n_batch, n_ubatch in ((512, 512), (64, 16)):
        engine = load(model(), n_batch=n_batch, n_ubatch=n_ubatch)
        with engine.session(512, 5) as session:
            injections = [
                None,
                *(session.injection(injection) for injection in vectors(2)),
                None,
                None,
            ]
            tasks = [
                greedy_task(
                    engine, session.sequence(), LONG[i : i + 9 * (i + 1)], injection=injection,
                    feed_states="all", norms=True,
                )
                for i, injection in enumerate(injections)
            ]  # fmt: skip
            outputs.append(session.run(tasks))
    for ours, theirs in zip(*outputs, strict=True):
        assert_same(ours, theirs)
        np.testing.assert_allclose(ours.feed_states, theirs.feed_states, atol=ROUNDING, rtol=0)
        np.testing.assert_allclose(ours.norms, theirs.norms, rtol=1e-5)


def test_a_fork_keeps_the_cells_of_an_injected_sequence(engine: Engine):
    with engine.session(256, 4) as session:
        injection = session.injection(vectors()[0])
        first, second = session.sequence(), session.sequence()
        session.run([Task(s, TOKENS, injection=injection) for s in (first, second)])
        fork = first.fork()
        plain = session.run([greedy_task(engine, fork, [5])])[0]
        steered = session.run([greedy_task(engine, second, [5])])[0]
        untouched = session.run([greedy_task(engine, session.sequence(), [*TOKENS, 5])])[0]
    assert_same(plain, steered)
    assert np.abs(distributions(plain) - distributions(untouched)).max() > 0.1


def test_truncate_and_feed_again_equals_fresh(engine: Engine):
    with engine.session(256, 2) as session:
        injection = session.injection(vectors()[0])
        sequence, fork = session.sequence(), None
        session.run([Task(sequence, LONG[:20])])
        fork = sequence.fork()
        session.run([Task(sequence, TOKENS, n_generate=9, injection=injection)])
        sequence.truncate(20)
        again = session.run([greedy_task(engine, sequence, LONG[20:])])[0]
        sequence.truncate(0)
        fresh = session.run([greedy_task(engine, sequence, LONG)])[0]
        assert_same(again, fresh)
        assert_same(session.run([greedy_task(engine, fork, LONG[20:])])[0], fresh)


def test_a_session_starts_from_nothing(engine: Engine):
    outputs = []
    for _ in range(2):
        with engine.session(64, 2) as session:
            session.injection(1e3 * vectors()[0])
            sequence = session.sequence()
            outputs += session.run([greedy_task(engine, sequence, TOKENS)])
            session.run([Task(session.sequence(), LONG[:9])])
    assert_same(*outputs, bound=0)


# --- seeds ---


def test_seeds_repeat_and_change(engine: Engine):
    def text(seed: int, sampling: Sampling = WARM) -> list[int]:
        options = {"n_generate": 20, "sampling": sampling, "ignore_eog": True}
        return written(engine, TOKENS, seed=seed, **options).tokens.tolist()

    assert text(1) == text(1) != text(2)
    assert len({tuple(text(2**60 + i)) for i in range(20)}) == 20
    assert text(2**32 + 1) != text(1)
    assert text(2**63) != text(2**64 - 1)
    assert text(1, GREEDY) == text(2, GREEDY)


def test_equal_seeds_in_one_batch_draw_alike(engine: Engine):
    with engine.session(256, 4) as session:
        tasks = [
            Task(session.sequence(), TOKENS, n_generate=20, seed=seed, ignore_eog=True)
            for seed in (1, 2, 1, 2)
        ]
        one, two, same, other = (o.tokens.tolist() for o in session.run(tasks))
    assert one == same != two == other


# --- shifts ---


@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_a_shifted_layer_is_one_that_never_read_the_removed_tokens(
    model: Model, load: Load, arch: str
):
    """Keys and values of a first layer depend on a token and its position alone, so with one layer
    a shift equals decoding what is left. Forks made before share the unmoved tokens, forks made
    after the moved ones."""
    engine = load(model(arch, n_layer=1))
    with engine.session(512, 5) as session:
        shifted, fresh = session.sequence(), session.sequence()
        session.run([Task(shifted, LONG), Task(fresh, LONG[:5] + LONG[12:])])
        shifted.shift(5, 12)
        assert len(shifted) == len(LONG) - 7 == engine.stats().cells_used // 2
        early, late = shifted.fork(), shifted.fork()
        wanted, *found = session.run(
            [greedy_task(engine, sequence, [5]) for sequence in (fresh, shifted, early, late)]
        )
    for ours in found:
        assert_same(ours, wanted)


def test_a_shift_leaves_forks_and_neighbours_alone(engine: Engine):
    with engine.session(512, 6) as session, engine.session(100, 1) as other:
        neighbour, prefix = other.sequence(), session.sequence()
        other.run([Task(neighbour, LONG)])
        session.run([Task(prefix, LONG[:10])])
        fork, moved, twin = prefix.fork(), prefix.fork(), prefix.fork()
        session.run([Task(fork, LONG[10:]), Task(moved, LONG[10:]), Task(twin, LONG[10:])])
        before = session.run([greedy_task(engine, fork, [5])])[0]
        fork.truncate(len(LONG))
        # removes shared tokens too: the fork keeps them
        moved.shift(3, 12)
        moved.shift(3, 4)
        moved.shift(len(moved) - 2, len(moved))  # the end is cut off
        moved.shift(4, 4)
        assert len(moved) == len(LONG) - 12
        after = session.run([greedy_task(engine, fork, [5])])[0]
        beside = other.run([greedy_task(engine, neighbour, [5])])[0]
        shifted = session.run([greedy_task(engine, moved, [5])])[0]
    assert_same(after, before)
    assert_same(beside, before)
    assert np.abs(distributions(shifted)[0] - distributions(before)[0]).max() > 0.01


def test_a_shift_is_not_lost_with_a_cancelled_job(engine: Engine):
    """Cells that wait to be moved are all moved, however the next decode ends."""
    with engine.session(25_000, 3) as session:
        whole, cut = session.sequence(), session.sequence()
        outputs = []
        for sequence in (whole, cut):
            session.run([Task(sequence, LONG)])
            sequence.shift(2, 9)
            if sequence is cut:
                third = session.sequence()
                session.run([Task(third, [1] * 20_000)], deadline=0.001)
                third.drop()
            outputs += session.run([greedy_task(engine, sequence, [5])])
    assert_same(*outputs)


# --- threads; tests/native/threads.cpp has how many a step takes ---


@pytest.mark.skipif(bool(DEVICE), reason="threads of the CPU")
@pytest.mark.parametrize("flash", ["off", "on"])
def test_the_numbers_do_not_depend_on_the_threads(flash: str):
    found = []
    for n_threads in (1, 2, 3):
        exact = {**EXACT, "n_threads": n_threads, "flash_attn": flash}
        with (
            tgr_local.load(config=EngineConfig(**exact)) as engine,
            engine.session(200, 1) as session,
        ):
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
def test_an_engine_whose_threads_nobody_chose_begins_with_all():
    with tgr_local.load(config=EngineConfig(n_threads=0)) as engine:
        assert engine.stats().n_threads == engine.n_threads
