"""The same request has the same bits, whatever is remembered and whatever runs at the same time:
by default where all products are our own, with `reproducible` for every type of weights. The
expected ones come from an engine that remembers nothing and has one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import families
import numpy as np
import pytest
from engines import DEVICE, is_free, text
from fixture_types import Model
from threads import in_threads, wait_until

from tgr_local import SearchConfig, generate_many
from tgr_local.engine import Engine, Output, Sampling, Session, Task
from tgr_local.engine.native import native
from tgr_local.engine.prefix_files import load_prefix, save_prefix
from tgr_local.generation import generate
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import ModelError, PrefixError

pytestmark = pytest.mark.skipif(DEVICE == "gpu", reason="is for a CPU")

BLOCK = 64
OPTIONS: dict[str, Any] = {"reproducible": True, "n_threads": 1, "n_gpu_layers": 0}
SHAPE: dict[str, Any] = {"n_layer": 4, "n_embd": 256, "n_head": 8, "n_head_kv": 4, "n_ff": 512}
"""Large enough that another rounding shows in some reply of every type that has it."""
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")
"""Of weights: each has kernels of its own, most of ggml's others for few rows than for many."""
OURS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0") if native.products_name() != "ggml" else ()
"""Multiplied by our own, with the same bits for any number of rows."""


def whole(n: int, dtype: str) -> int:
    """Of n tokens those that are remembered and taken."""
    return n if dtype in OURS else n // BLOCK * BLOCK


def bits(output: Output) -> tuple[Any, ...]:
    return (
        output.tokens.tolist(), output.logprobs.tobytes(), output.states.tobytes(),
        output.top_ids.tobytes(), output.top_logprobs.tobytes(),
    )  # fmt: skip


def write(session: Session, sequence: Any, prompt: list[int], n: int = 12) -> Output:
    task = Task(
        sequence, prompt, reuse=True, n_generate=n, sampling=Sampling(temperature=1.0), seed=7,
        ignore_eog=True, states=True, n_top=20,
    )  # fmt: skip
    return session.run([task])[0]


def answer(engine: Engine, prompt: list[int], n: int = 12) -> Output:
    with engine.session(len(prompt) + n, 1, prompt=prompt) as session:
        sequence = session.sequence()
        output = write(session, sequence, prompt, n)
        session.remember(sequence)
    return output


@pytest.fixture
def pair(model: Model) -> Iterator[Callable[..., tuple[Engine, Engine]]]:
    """An engine that remembers, and one that does not, with weights of one type."""
    made: list[Engine] = []

    def engines(dtype: str, **options: Any) -> tuple[Engine, Engine]:
        for cells in (16384, 0):
            config = EngineConfig(**OPTIONS | {"prefix_cells": cells} | options)
            made.append(Engine(model(dtype=dtype, **SHAPE), config))
        return made[-2], made[-1]

    yield engines
    for engine in made:
        engine.close()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_repeated_request_has_the_same_bits(pair: Any, dtype: str):
    engine, fresh = pair(dtype)
    assert engine.repeats == (dtype in OURS)
    for n in (20, BLOCK, BLOCK + 1, 100, 3 * BLOCK, 211):
        prompt = text(n, n)
        expected = bits(answer(fresh, prompt))
        for turn in range(3):
            output = answer(engine, prompt)
            assert bits(output) == expected
            assert output.n_reused == (whole(n - 1, dtype) if turn else 0)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_prompt_that_goes_on_has_the_bits_of_one_that_is_read_whole(pair: Any, dtype: str):
    engine, fresh = pair(dtype)
    conversation = text(1, 90)
    for turn in range(5):
        conversation += text(10 + turn, 37)
        output = answer(engine, conversation)
        assert bits(output) == bits(answer(fresh, conversation))
        written = 0 if dtype in OURS else 12  # what a reply has written is read again
        assert output.n_reused == whole(len(conversation) - 38 - written, dtype) or turn == 0
        conversation += output.tokens.tolist()
    branch = conversation[:150] + text(2, 80)
    output = answer(engine, branch)
    assert bits(output) == bits(answer(fresh, branch))
    assert output.n_reused == whole(150, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_requests_beside_each_other_have_the_bits_of_one_alone(pair: Any, dtype: str):
    engine, fresh = pair(dtype)
    system = text(3, 130)
    prompts = [system[: 130 - 30 * (i % 3)] + text(30 + i, 5 + 11 * i) for i in range(8)]
    expected = [bits(answer(fresh, prompt, 30)) for prompt in prompts]
    engine.grow_cache(400, 8)
    for _ in range(2):
        outputs = in_threads(*[lambda p=p: answer(engine, p, 30) for p in prompts])
        assert [bits(output) for output in outputs] == expected


@pytest.mark.skipif(not OURS, reason="the processor has no AVX2")
@pytest.mark.parametrize("dtype", OURS)
@pytest.mark.parametrize("flash_attn", ["off", "on"])
def test_without_the_option_our_products_have_the_same_bits(pair: Any, dtype: str, flash_attn: str):
    """Prompts shorter and longer than a block of attention, taken whole and in part, alone and
    together, with two threads."""
    options = {"reproducible": False, "n_threads": 2, "flash_attn": flash_attn}
    engine, fresh = pair(dtype, **options)
    begun = text(3, 300)
    prompts = [begun[:n] + text(40 + n, m) for n, m in [(0, 5), (33, 90), (256, 1), (300, 400)]]
    expected = [bits(answer(fresh, prompt)) for prompt in prompts]
    engine.grow_cache(3000, 8)
    for turn in range(2):
        outputs = [answer(engine, prompt) for prompt in prompts]
        assert [bits(output) for output in outputs] == expected
        assert [output.n_reused > 0 for output in outputs[1:]] == [True] * 3 or turn == 0
    together = in_threads(*[lambda p=p: answer(engine, p) for p in prompts * 2])
    assert [bits(output) for output in together] == expected * 2


def test_what_was_read_between_two_blocks_is_no_block(pair: Any):
    engine, fresh = pair("F16")
    begun, more = text(15, 200), text(16, BLOCK)
    with engine.session(300, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, begun, reuse=True)])
        sequence.truncate(BLOCK + 20)
        session.run([Task(sequence, more)])
        session.remember(sequence)
    prompt = begun[: BLOCK + 20] + more + text(17, 30)
    output = answer(engine, prompt)
    assert output.n_reused == BLOCK
    assert bits(output) == bits(answer(fresh, prompt))


@pytest.mark.parametrize("dtype", ["F16", "Q4_1"])
def test_random_requests_in_a_small_cache(pair: Any, dtype: str):
    """Prefixes come and go, sessions wait for cells and get scattered ones."""
    engine, fresh = pair(dtype, n_ctx=1024)
    beginnings = [text(50 + i, 300) for i in range(3)]

    def prompts(thread: int) -> list[list[int]]:
        rng = np.random.default_rng([9, thread])
        some = []
        for _ in range(12):
            beginning = beginnings[int(rng.integers(3))][: int(rng.integers(1, 300))]
            some.append(beginning + text(int(rng.integers(1 << 30)), int(rng.integers(1, 60))))
        return some

    def work(thread: int) -> list[Output]:
        return [answer(engine, prompt, 5) for prompt in prompts(thread)]

    results = in_threads(*[lambda t=t: work(t) for t in range(4)])
    for thread, outputs in enumerate(results):
        for prompt, output in zip(prompts(thread), outputs, strict=True):
            assert bits(output) == bits(answer(fresh, prompt, 5))
    assert sum(output.n_reused for outputs in results for output in outputs) > 0
    assert is_free(engine)


def test_who_writes_is_not_held_up_by_a_long_prompt(pair: Any):
    """Sessions take turns: a reader's step is one block."""
    engine, _ = pair("F16")
    engine.grow_cache(3000, 2)
    with engine.session(300, 1) as writer, engine.session(2200, 1) as reader:
        seen: list[tuple[int, int]] = [(0, 0)]  # tokens written, positions decoded

        def written(news: list[Any]) -> None:
            seen.append((seen[-1][0] + len(news[0][0]), engine.stats().n_positions))

        def wait_and_read() -> Output:
            wait_until(lambda: len(seen) > 5)
            return reader.run([Task(reader.sequence(), text(4, 2000), reuse=True)])[0]

        def write_on() -> None:
            task = Task(writer.sequence(), text(5, 20), n_generate=250, ignore_eog=True)
            writer.run([task], on_tokens=written)

        in_threads(write_on, wait_and_read)
    begun, ended = (next(t for t, decoded in seen if decoded > n) for n in (500, 1500))
    assert ended - begun >= 1000 // BLOCK // 2, "the callback may see several steps as one"


def test_a_group_begins_with_all_of_its_sessions(pair: Any):
    """With a part of them it would have other batches than alone."""
    engine, _ = pair("F16", n_ctx=512)
    group = engine.lockstep_group(2)

    def take_part(index: int) -> list[int]:
        with engine.session(192, 1, participant=group.participant(index)) as session:
            return write(session, session.sequence(), text(13, 100)).tokens.tolist()

    with engine.session(256, 1) as before:

        def end_it() -> None:
            wait_until(lambda: engine.stats().n_waiting == 2)
            write(before, before.sequence(), text(14, 20))  # whoever could begin has begun then
            assert engine.stats().n_waiting == 2, "there was room for one of them"
            before.close()

        first, second, ended = in_threads(lambda: take_part(0), lambda: take_part(1), end_it)
    assert ended is None
    assert first == second


def test_a_group_waits_for_all_of_its_prompts(pair: Any):
    """One of them begins like a prompt that another session is reading."""
    engine, fresh = pair("F16")
    system = text(18, 1500)
    prompts = [system[:1200] + text(19, 20), text(20, 30)]

    def replies(some: Engine) -> list[Callable[[], Output]]:
        group = some.lockstep_group(2)

        def reply(index: int) -> Output:
            participant = group.participant(index)
            with some.session(1300, 1, participant=participant) as session:
                return write(session, session.sequence(), prompts[index], 30)

        return [lambda: reply(0), lambda: reply(1)]

    expected = [bits(output) for output in in_threads(*replies(fresh))]
    engine.grow_cache(5000, 1)
    with engine.session(1600, 1) as reader:
        before = engine.stats().n_positions

        def read() -> Output:
            return reader.run([Task(reader.sequence(), system, reuse=True)])[0]

        def later(reply: Callable[[], Output]) -> Output:
            wait_until(lambda: engine.stats().n_positions > before)
            return reply()

        _, *outputs = in_threads(read, *[lambda r=r: later(r) for r in replies(engine)])
    assert [bits(output) for output in outputs] == expected


@pytest.mark.parametrize("dtype", ["F16", "Q8_0"])
@pytest.mark.parametrize("method", ["base", "tgr-latent", "markov"])
def test_a_method_repeats_its_replies(model: Model, method: str, dtype: str):
    config = SearchConfig(
        chunk_len=16, rollout_len=4, n_candidates=3, max_tokens=48, temperature=1.0, seed=3
    )
    prompt = [{"role": "user", "content": "Why is the sky blue? " * 6}]

    def replies(engine: Engine) -> list[Any]:
        one = generate(engine, prompt, config, method=method)
        many = generate_many(engine, prompt, config, 3, method=method)
        return [
            (reply.tokens, [step.logprobs.tobytes() for step in reply.steps])
            for reply in (one, *many)
        ]

    path = model(dtype=dtype)
    with Engine(path, EngineConfig(**OPTIONS, prefix_cells=0)) as engine:
        expected = replies(engine)
    with Engine(path, EngineConfig(**OPTIONS)) as engine:
        assert replies(engine) == expected
        assert replies(engine) == expected
        assert engine.stats().n_prefixes > 0
        for result in in_threads(*[lambda: replies(engine)] * 3):
            assert result == expected


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_every_family_repeats(family: families.Family, tmp_path):
    path = family.write(tmp_path / "model.gguf")
    prompt = text(8, 300)
    with Engine(path, EngineConfig(**OPTIONS, prefix_cells=0)) as fresh:
        expected = bits(answer(fresh, prompt))
    with Engine(path, EngineConfig(**OPTIONS)) as engine:
        outputs = [answer(engine, prompt) for _ in range(3)]
    assert [bits(output) for output in outputs] == [expected] * 3
    assert outputs[1].n_reused >= 3 * BLOCK


def test_a_saved_prefix_has_the_same_bits(pair: Any, tmp_path):
    engine, fresh = pair("F16")
    prompt, path = text(11, 200), tmp_path / "prefix"
    expected = bits(answer(engine, prompt))
    saved = save_prefix(engine, prompt, path)
    assert saved and saved.tokens == prompt[: 3 * BLOCK]
    other, _ = pair("F16")
    load_prefix(other, path)
    output = answer(other, prompt)
    assert output.n_reused == 3 * BLOCK
    assert bits(output) == expected == bits(answer(fresh, prompt))


def test_a_prefix_that_was_read_in_other_batches_is_refused(pair: Any, model: Model, tmp_path):
    engine, _ = pair("F16")
    prompt, path = text(12, 200), tmp_path / "prefix"
    config = EngineConfig(**OPTIONS | {"reproducible": False})
    with Engine(model(dtype="F16", **SHAPE), config) as plain:
        answer(plain, prompt)
        save_prefix(plain, prompt, path)
    with pytest.raises(PrefixError, match="reproducible"):
        load_prefix(engine, path)


def test_what_cannot_be_reproducible_is_refused(model: Model):
    options = EngineConfig(**OPTIONS, n_seq_max=64, n_batch=64, n_ubatch=64)
    with pytest.raises(ModelError, match="n_seq_max is 64"):
        Engine(model(), options)
