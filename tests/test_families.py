"""Every supported family of models passes the identities that Qwen3 passes: ours and llama.cpp's,
forked and decoded again, steered together and alone, with texts longer than a sliding window."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import (
    DEVICE,
    KEEPING,
    assert_same,
    distributions,
    greedy_task,
    is_free,
    rows_to_compare,
    vectors,
)
from families import FAMILIES, ROUNDED, Family, gemma2, gemma3, gpt_oss
from gguf_models import N_PLAIN
from method_runs import PROMPT, SMALL, spent, steps_of, text_of
from numpy.typing import NDArray
from plain_llama import llama_cpp_output

from tgr_local.engine import Engine, Output, Task
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import TgrError

LONG = [int(t) for t in np.random.default_rng(7).integers(0, N_PLAIN, 45)]
BOUND = 1e-4  # of log-probabilities


class Model:
    """A family's file, loaded."""

    def __init__(self, family: Family, path: Path) -> None:
        self.family, self.path = family, family.write(path)
        self.engine = Engine(self.path, EngineConfig(**KEEPING))

    def assert_same(self, ours: Output, theirs: Output) -> None:
        assert_same(ours, theirs, bound=self.family.rounding)

    def vectors(self, n: int) -> NDArray[Any]:
        return vectors(n, n_layer=self.family.n_layer, d=self.engine.n_embd)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def loaded(request, tmp_path_factory: Any) -> Iterator[Model]:
    model = Model(request.param, tmp_path_factory.mktemp("families") / "model.gguf")
    yield model
    model.engine.close()


@pytest.fixture
def model(loaded: Model) -> Iterator[Model]:
    yield loaded
    assert is_free(loaded.engine)


def llama_cpp_rows(path: Path, n: int) -> NDArray[np.float64]:
    """The unpatched library's log-probabilities [n, n_vocab] while it continues LONG greedily."""
    return llama_cpp_output(path, LONG, n, cache=0, flash=False, n_batch=512, swa_full=False)[1]


def test_without_an_injection_it_is_llama_cpp_itself(model: Model):
    wanted = llama_cpp_rows(model.path, 8)
    with model.engine.session(256, 2) as session:
        zero = session.injection(np.zeros((model.family.n_layer, model.engine.n_embd)))
        plain = session.run([greedy_task(model.engine, session.sequence(), LONG)])[0]
        injected = session.run(
            [greedy_task(model.engine, session.sequence(), LONG, injection=zero)]
        )[0]
    likeliest = wanted.argmax(axis=1)
    assert DEVICE or plain.tokens.tolist() == likeliest.tolist()
    same = rows_to_compare(plain.tokens, likeliest)
    bound = ROUNDED.get(model.family.name, BOUND)
    np.testing.assert_allclose(distributions(plain)[:same], wanted[:same], atol=bound, rtol=0)
    model.assert_same(injected, plain)


def test_a_remembered_prefix_equals_a_prefill(model: Model):
    """Also where only the whole of it can be used, as in the next turn of a chat."""
    turns = [LONG[:40], LONG + LONG[:30], LONG + LONG[:30] + LONG[10:40]]
    engine = model.engine

    def write(text: list[int], *, reuse: bool) -> tuple[Output, Output]:
        with engine.session(400, 1, prompt=text[:-1] if reuse else ()) as session:
            sequence = session.sequence()
            (reading,) = session.run([Task(sequence, text[:-1], reuse=reuse)])
            if reuse:
                session.remember(sequence)
            (written,) = session.run([greedy_task(engine, sequence, text[-1:])])
        return reading, written

    for i, text in enumerate(turns):
        _, fresh = write(text, reuse=False)
        first, one = write(text, reuse=True)
        again, other = write(text, reuse=True)
        assert first.n_reused == (len(turns[i - 1]) - 1 if i else 0)
        assert (again.n_reused, again.n_decoded) == (len(text) - 1, 0)
        model.assert_same(one, fresh)
        model.assert_same(other, fresh)


@pytest.mark.parametrize("first", ["fork", "original", "together"])
def test_a_fork_equals_a_prefill(model: Model, first: str):
    """Whoever goes on first, and though the original was forked twice."""
    with model.engine.session(512, 5) as session:
        original, other = session.sequence(), session.sequence()
        session.run([Task(original, LONG[:30]), Task(other, LONG[5:20])])
        fork = original.fork()
        grandchild = fork.fork()
        fresh = session.run([greedy_task(model.engine, session.sequence(), LONG)])[0]
        order = [fork, original] if first == "fork" else [original, fork]
        tasks = [greedy_task(model.engine, one, LONG[30:]) for one in order]
        if first == "together":
            forked = session.run(tasks)
        else:
            forked = [session.run([task])[0] for task in tasks]
        original.drop()
        forked += session.run([greedy_task(model.engine, grandchild, LONG[30:])])
        session.run([greedy_task(model.engine, other, LONG[20:])])
    for output in forked:
        model.assert_same(output, fresh)


def test_injections_in_one_batch_equal_each_alone(model: Model):
    engine, k = model.engine, 4
    with engine.session(512, k + 1) as session:
        prefix = session.sequence()
        session.run([Task(prefix, LONG)])
        injections = [session.injection(injection) for injection in model.vectors(k)]

        def tasks() -> list[Task]:
            return [
                greedy_task(engine, prefix.fork(), [5], injection=injection)
                for injection in injections
            ]

        together = session.run(tasks())
        alone = [session.run([task])[0] for task in tasks()]
    for ours, theirs in zip(together, alone, strict=True):
        model.assert_same(ours, theirs)
    first = [distributions(output)[0] for output in together]
    assert min(np.abs(one - first[0]).max() for one in first[1:]) > 0.01


def test_an_injection_after_any_layer_has_an_effect_on_its_text_alone(model: Model):
    engine, n_layer = model.engine, model.family.n_layer
    with engine.session(512, n_layer + 2) as session:
        plain = session.run([greedy_task(engine, session.sequence(), LONG)])[0]
        tasks = [greedy_task(engine, session.sequence(), LONG)]
        for layer in range(n_layer):
            rows = np.zeros((n_layer, engine.n_embd), np.float32)
            rows[layer] = model.vectors(1)[0, layer]
            injection = session.injection(rows)
            tasks.append(greedy_task(engine, session.sequence(), LONG, injection=injection))
        beside, *steered = session.run(tasks)
    model.assert_same(beside, plain)
    for output in steered:
        assert np.abs(distributions(output)[0] - distributions(plain)[0]).max() > 0.01


def test_texts_of_different_lengths_in_one_batch_equal_each_alone(model: Model):
    """In several jobs, so that prompts and single tokens share batches."""
    engine, n = model.engine, 5
    with engine.session(1024, 2 * n) as session:
        injections = [None, *(session.injection(rows) for rows in model.vectors(n - 1))]

        def task(i: int) -> Task:
            return greedy_task(
                engine, session.sequence(), LONG[: 9 * (i + 1)], injection=injections[i],
                n_generate=4 * (n - i), norms=True,
            )  # fmt: skip

        together = session.run([task(i) for i in range(n)])
        alone = [session.run([task(i)])[0] for i in range(n)]
    for ours, theirs in zip(together, alone, strict=True):
        model.assert_same(ours, theirs)
        np.testing.assert_allclose(ours.norms, theirs.norms, rtol=1e-4)


def test_a_prompt_in_pieces_equals_the_whole(model: Model):
    with model.engine.session(256, 2) as session:
        whole = session.run([greedy_task(model.engine, session.sequence(), LONG)])[0]
        sequence = session.sequence()
        for at in range(0, 40, 8):
            session.run([Task(sequence, LONG[at : at + 8])])
        pieces = session.run([greedy_task(model.engine, sequence, LONG[40:])])[0]
    model.assert_same(pieces, whole)


def test_what_a_family_keeps_of_a_text(model: Model):
    engine, family = model.engine, model.family
    assert engine.rolls_back != family.recurrent
    assert (engine.state_bytes > 0) == family.recurrent
    assert (engine.cell_bytes > 1) == family.attention
    assert engine.n_seq_max >= 10
    with engine.session(256, 2) as session:
        sequence = session.sequence()
        session.run([Task(sequence, LONG)])
        if engine.rolls_back:
            sequence.truncate(20)
            fresh = session.run([greedy_task(engine, session.sequence(), LONG)])[0]
            model.assert_same(session.run([greedy_task(engine, sequence, LONG[20:])])[0], fresh)
        else:
            with pytest.raises(TgrError, match="roll"):
                sequence.truncate(20)
            with pytest.raises(TgrError, match="recurrent"):
                sequence.shift(2, 9)


@pytest.mark.parametrize("method", ["base", "markov"])
def test_chunks_are_what_the_model_writes_after_what_is_retained(model: Model, method: str):
    """A reset goes back to the query and the newest chunk, whatever the model's memory is."""
    steps = steps_of(model.engine, method)
    assert len(steps) > 1
    text: list[int] = []
    for step in steps:
        tokens = [int(token) for token in step.tokens]
        context = PROMPT + text
        with model.engine.session(256, 1) as session:
            task = Task(session.sequence(), context + tokens, feed_logprobs=True)
            fresh = session.run([task])[0].feed_logprobs[len(context) - 1 :]
        np.testing.assert_allclose(step.logprobs, fresh, atol=max(BOUND, model.family.rounding))
        text = tokens if method == "markov" else text + tokens


def test_a_search_runs_to_its_end(model: Model):
    before = model.engine.stats().n_positions
    steps = steps_of(model.engine, "tgr-latent", dataclasses.replace(SMALL, n_candidates=8))
    assert steps[-1].finish is not None and len(text_of(steps)) > SMALL.chunk_len
    assert all(step.candidates and len(step.candidates.anchors) == 8 for step in steps[1:])
    assert model.engine.stats().n_positions - before == spent(steps)


@pytest.mark.parametrize("write", [gemma2, gemma3, gpt_oss])
def test_the_prompt_is_longer_than_the_window(tmp_path, write: Any):
    """Else the tests above would not see whether the window is kept."""
    rows = [llama_cpp_rows(write(tmp_path / f"{window}.gguf", window), 1) for window in (12, 64)]
    assert np.abs(rows[0] - rows[1]).max() > 0.01
