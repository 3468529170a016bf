"""Control vectors: the same as llama.cpp's, in its files, with or without a search; and the states
that they are made of."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pytest
from engines import is_free, written
from fixture_types import Load, Model
from gguf_models import N_PLAIN
from method_runs import PAPER, RESIDUAL
from numpy.typing import NDArray
from reference import Reference, log_softmax

from tgr_local import ControlVector, SearchConfig, generate
from tgr_local.apis.completions import completion_request, respond
from tgr_local.engine import Engine, Session, SteeredEngine, Task
from tgr_local.generation import query_tokens
from tgr_local.generation.control_vectors import hidden_states, steered, winning_control_vector
from tgr_local.system.errors import ModelError

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, N_PLAIN, 12)]
SMALL = SearchConfig(
    chunk_len=8, max_chunks=2, n_candidates=3, rollout_len=4, temperature=0.0, **RESIDUAL
)


def vectors(engine: Engine, seed: int = 0, size: float = 0.3) -> NDArray[np.float32]:
    shape = (engine.n_layer, engine.n_embd)
    return np.float32(size) * np.random.default_rng(seed).standard_normal(shape, np.float32)


def logprobs(engine: Engine, tokens: list[int]) -> NDArray[np.float32]:
    """[n - 1] of tokens[1:]."""
    return written(engine, tokens, feed_logprobs=True).feed_logprobs


def llama_cpp_logits(path: Path, tokens: list[int], data: NDArray[np.float32]) -> Any:
    """[n, n_vocab] with llama.cpp's own control vector; data [n_layer - 1, n_embd]."""
    llama = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
    )  # fmt: skip
    flat = np.ascontiguousarray(data).ravel()
    pointer = flat.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    n_layer = len(data) + 1
    failed = llama_cpp.llama_set_adapter_cvec(
        llama.ctx, pointer, flat.size, data.shape[1], 1, n_layer - 1
    )
    assert not failed
    llama.eval(tokens)
    return np.array(llama.scores[: len(tokens)])


@pytest.mark.parametrize("arch", ["qwen3", "llama"])
def test_a_control_vector_is_that_of_llama_cpp(model: Model, load: Load, arch: str):
    path = model(arch, n_layer=3)
    engine = load(path)
    vector = ControlVector(vectors(engine), layers=range(1, 3))
    made = logprobs(steered(engine, vector), TOKENS)
    expected = log_softmax(llama_cpp_logits(path, TOKENS, vector.added[1:]))
    wanted = [expected[i, token] for i, token in enumerate(TOKENS[1:])]
    np.testing.assert_allclose(made, wanted, atol=2e-5)
    assert np.abs(made - logprobs(engine, TOKENS)).max() > 0.1


def test_layer_0_is_injected_too_as_the_reference_does(engine: Engine, model: Model):
    vector = ControlVector(vectors(engine), scale=0.5)
    everywhere = np.broadcast_to(vector.added, (len(TOKENS), *vector.added.shape))
    expected = Reference(model()).forward(TOKENS, everywhere)
    made = hidden_states(steered(engine, vector), TOKENS)
    np.testing.assert_allclose(made, expected.states, atol=2e-5)


def test_hidden_states_are_those_of_the_reference(engine: Engine, model: Model):
    text = "hé 🦙 the"
    states = hidden_states(engine, text)
    assert states.shape == (len(engine.tokenize(text)), engine.n_embd)
    np.testing.assert_allclose(
        states, Reference(model()).forward(engine.tokenize(text)).states, atol=2e-5
    )
    for bad in ("", "a" * 5000):
        with pytest.raises(ValueError, match="must have between 1 and 4096"):
            hidden_states(engine, bad)


def test_control_vectors_combine_as_numbers_do(engine: Engine):
    a, b = (
        ControlVector(vectors(engine, 1)),
        ControlVector(vectors(engine, 2), scale=2.0, layers=[1]),
    )
    assert not b.added[0].any() and np.array_equal(b.added[1], 2 * b.vectors[1])
    np.testing.assert_allclose((a + b - a).added, b.added, atol=1e-6)
    assert np.array_equal((0.5 * a).added, (a * 0.5).added)
    assert not (a - a).added.any() and np.array_equal((-a).added, -a.added)
    plain = logprobs(engine, TOKENS)
    np.testing.assert_allclose(logprobs(steered(engine, 0 * a), TOKENS), plain, atol=2e-5)
    np.testing.assert_allclose(logprobs(engine, TOKENS), plain, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ControlVector(np.zeros(3)), r"vectors have shape \(3,\), but must have"),
        (lambda: ControlVector(np.full((2, 64), np.nan)), "vectors or scale are not finite"),
        (lambda: ControlVector(np.zeros((2, 64)), scale=float("inf")), "scale are not finite"),
        (
            lambda: ControlVector(np.zeros((2, 64)), layers=[2]),
            "layers holds 2, but the vectors are for",
        ),
        (
            lambda: ControlVector(np.zeros((2, 64))) + ControlVector(np.zeros((3, 64))),
            r"shapes \(2, 64\) and",
        ),
    ],
)
def test_a_bad_control_vector_is_refused(make: Callable[[], ControlVector], message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_control_vector_of_another_model_is_refused(engine: Engine):
    with pytest.raises(ValueError, match=r"vectors have shape \(2, 32\), but must have \(2, 64\)"):
        steered(engine, ControlVector(np.ones((2, 32))))


@pytest.fixture
def injected(monkeypatch) -> list[NDArray[np.float32]]:
    """The injections that sessions have had, in their order."""
    found: list[NDArray[np.float32]] = []
    plain = Session.injection

    def injection(session: Session, vectors: NDArray[np.float32], **how: Any) -> Any:
        found.append(np.array(vectors))
        return plain(session, vectors, **how)

    monkeypatch.setattr(Session, "injection", injection)
    return found


def test_a_steered_search_adds_its_injections(engine: Engine, injected: list[NDArray[np.float32]]):
    config = SearchConfig(chunk_len=8, max_chunks=1, n_candidates=3, rollout_len=4, **PAPER)
    vector = ControlVector(vectors(engine))
    before = engine.stats().n_positions
    reply = generate(steered(engine, vector), "hello", config, method="tgr-latent", raw=True)
    assert engine.stats().n_positions - before == reply.counts.total
    tried = reply.steps[0].candidates
    assert tried is not None
    for made, anchor in zip(injected, tried.anchors, strict=True):
        own = ControlVector.of_anchor(engine, anchor, config, [])
        np.testing.assert_allclose(made, own.added, atol=1e-6)
    with steered(engine, vector).session(64, 1) as session:
        injection = session.injection(injected[0])
        task = Task(session.sequence(), TOKENS, injection=injection, feed_logprobs=True)
        made = session.run([task])[0].feed_logprobs
    both = ControlVector(injected[0]) + vector
    np.testing.assert_allclose(made, logprobs(steered(engine, both), TOKENS), atol=2e-5)
    del session, injection, task
    assert is_free(engine)


def test_a_request_may_be_steered_beside_others(engine: Engine):
    vector = ControlVector(vectors(engine))
    body = {"prompt": "hello", "temperature": 0, "method": "tgr-latent", "max_tokens": 16}
    request = completion_request(engine, body | {"seed": 1}, config=SMALL)
    plain = respond(engine, request)["choices"]
    made = respond(steered(engine, vector), request)["choices"]
    assert made != plain and respond(steered(engine, vector), request)["choices"] == made
    assert respond(engine, request)["choices"] == plain


def test_control_vectors_of_stacked_engines_add_up(engine: Engine):
    a, b = ControlVector(vectors(engine, 1)), ControlVector(vectors(engine, 2))
    both = steered(steered(engine, a), b)
    expected = logprobs(steered(engine, a + b), TOKENS)
    np.testing.assert_allclose(logprobs(both, TOKENS), expected, atol=2e-5)
    np.testing.assert_allclose(
        logprobs(SteeredEngine(both, logit_bias=[(3, 1.0)]), TOKENS), expected, atol=2e-5
    )
    forced = SteeredEngine(SteeredEngine(engine, logit_bias=[(3, 60.0)]), logit_bias=[(3, 60.0)])
    assert generate(steered(forced, a), "hello", SMALL, method="base", raw=True).tokens == [3] * 16


# --- files ---


def test_a_saved_file_loads_unchanged(engine: Engine, tmp_path):
    vector, path = ControlVector(vectors(engine), scale=0.7), tmp_path / "v.gguf"
    vector.save(path, "qwen3")
    again = ControlVector.load(path, engine.n_layer)
    assert np.array_equal(again.added, vector.added)
    reader = gguf.GGUFReader(path)
    assert {tensor.name for tensor in reader.tensors} == {"direction.1"}
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "controlvector"
    assert fields["controlvector.model_hint"] == "qwen3"
    assert fields["controlvector.layer_count"] == 1


def test_a_file_of_another_program_is_read(engine: Engine, tmp_path):
    """As repeng writes it: some layers, from 1 on."""
    vector = np.arange(engine.n_embd, dtype=np.float32)
    path = write_vector(tmp_path, {"direction.1": vector})
    loaded = ControlVector.load(path, engine.n_layer)
    assert np.array_equal(loaded.added, [np.zeros_like(vector), vector])


def write_vector(folder: Path, tensors: dict[str, NDArray[Any]]) -> Path:
    writer = gguf.GGUFWriter(str(folder / "v.gguf"), "controlvector")
    writer.add_string("controlvector.model_hint", "qwen3")
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "v.gguf"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"direction.2": np.ones(64, np.float32)}, "a vector for layer 2, but this model has"),
        ({"direction.0": np.ones(64, np.float32)}, "a vector for layer 0"),
        ({"direction.x": np.ones(64, np.float32)}, "not a control vector: it holds 'direction.x'"),
        ({"other": np.ones(64, np.float32)}, "not a control vector: it holds 'other'"),
        ({"direction.1": np.ones((2, 64), np.float32)}, "needs float32 vectors of one width"),
        ({"direction.1": np.ones(64, np.float16)}, "needs float32 vectors of one width"),
        ({"direction.1": np.full(64, np.nan, np.float32)}, "a value that is not finite"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, tensors: dict[str, NDArray[Any]], message: str):
    with pytest.raises(ModelError, match=message):
        ControlVector.load(write_vector(tmp_path, tensors), 2)


def test_no_file_and_no_gguf_are_refused(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        ControlVector.load(tmp_path / "none.gguf", 2)
    (tmp_path / "x.gguf").write_bytes(b"GGUF no, this is not one at all")
    with pytest.raises(ModelError, match="has a damaged header"):
        ControlVector.load(tmp_path / "x.gguf", 2)
    with pytest.raises(OSError, match="No such file"):
        ControlVector(np.ones((2, 64))).save(tmp_path / "nowhere" / "x.gguf")


def test_a_file_that_is_cut_off_is_refused(engine: Engine, tmp_path):
    path = tmp_path / "v.gguf"
    ControlVector(vectors(engine)).save(path)
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        with pytest.raises(ModelError, match=re.escape(str(path))):
            ControlVector.load(path, engine.n_layer)


@pytest.mark.parametrize("calibration", ["divergence", "residual", "absolute"])
def test_the_winner_of_a_search_steers_as_it_did(engine: Engine, tmp_path, calibration: str):
    """The chunk that the anchor steered, written again under its file."""
    config = SearchConfig(**vars(SMALL) | {"calibration": calibration, "relative_strength": 0.5})
    reply = generate(engine, "hello", config, method="tgr-latent", raw=True)
    assert len(reply.steps) == 2
    query = query_tokens(engine, "hello", config, raw=True)
    assert [(run.first, run.query) for run in reply.runs] == [(0, query)]
    for index, step in enumerate(reply.steps):
        vector = winning_control_vector(engine, reply, config, step=index)
        vector.save(tmp_path / "winner.gguf", "qwen3")
        loaded = ControlVector.load(tmp_path / "winner.gguf", engine.n_layer)
        context = query + (reply.steps[0].tokens.tolist() if index else [])
        with engine.session(64, 2) as session:
            sequence = session.sequence()
            session.run([Task(sequence, context[:-1])])
            injection = session.injection(loaded.added)
            # the last layer's norm is a mean over some tokens: it may differ a little
            (output,) = session.run(
                [Task(sequence, [context[-1], *step.tokens.tolist()], injection=injection,
                      feed_logprobs=True)]
            )  # fmt: skip
        np.testing.assert_allclose(output.feed_logprobs, step.logprobs, atol=0.02)


def test_the_winner_is_the_injection_that_was_used_before_and_after_the_thinking(
    engine: Engine, injected: list[NDArray[np.float32]]
):
    config = SearchConfig(**vars(SMALL) | {"max_chunks": 4, "thinking_budget": 11})
    reply = generate(engine, engine.tokenize("hello<think>\n"), config, method="tgr-latent")
    assert reply.closed == 11 and [run.first for run in reply.runs] == [0, 2]
    assert len(reply.steps) > 3
    for index, step in enumerate(reply.steps):
        assert step.candidates is not None
        used = injected[index * config.n_candidates + step.candidates.scores.chosen]
        found = winning_control_vector(engine, reply, config, step=index).added
        # the last layer's norm is a median over some of the tokens
        np.testing.assert_allclose(found[:-1], used[:-1], rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose(found[-1], used[-1], rtol=0.1, atol=1e-4)


def test_missing_norms_are_reported(engine: Engine):
    config = SearchConfig(**vars(SMALL) | {"shift_cells": True})
    reply = generate(engine, "hello", config, method="tgr-latent", raw=True)
    winning_control_vector(engine, reply, config, step=0)
    with pytest.raises(ValueError, match="from before shift_cells moved the cells"):
        winning_control_vector(engine, reply, config)


def test_a_step_without_an_anchor_has_no_winner(engine: Engine):
    reply = generate(engine, "hello", SMALL, method="markov", raw=True)
    with pytest.raises(ValueError, match="step 0 of method markov has no anchor"):
        winning_control_vector(engine, reply, SMALL, step=0)
    with pytest.raises(ValueError, match="step is 9, but the reply has steps 0 to 1"):
        winning_control_vector(engine, reply, SMALL, step=9)
    with pytest.raises(ValueError, match="the anchor has shape"):
        ControlVector.of_anchor(engine, np.ones(3), SMALL, [1])
