"""The numpy reference against llama.cpp itself, and the files that both of them read."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from families import deepseek32
from gguf_models import N_VOCAB, token_id, write_bert, write_model, write_vocab_only
from numpy.typing import NDArray
from reference import Reference, log_softmax

F32, F16 = 0, 1  # ggml type numbers of the cache
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, N_VOCAB, 24)]
DECODERS = [("qwen3", None), ("qwen3", 32), ("llama", None), ("llama", 32), ("phi3", None)]


@contextmanager
def native(path: Path, cache: int = F32) -> Iterator[Any]:
    llm = llama_cpp.Llama(
        str(path), n_ctx=64, n_batch=64, n_threads=2, n_gpu_layers=0, logits_all=True,
        embedding=True, flash_attn=False, type_k=cache, type_v=cache, verbose=False,
    )  # fmt: skip
    try:
        yield llm
    finally:
        llm.close()


def run(llm: Any, tokens: list[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """llama.cpp's logits [n, n_vocab] and final-norm states [n, n_embd]."""
    llm.reset()
    llm.eval(tokens)
    states = [
        np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(llm.ctx, i), (llm.n_embd(),))
        for i in range(len(tokens))
    ]
    return llm.scores[: len(tokens)].copy(), np.array(states)


def worst(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(np.abs(a - b).max())


def test_log_softmax_of_hand_checked_rows():
    rows = np.array([[0.0, 0.0, 0.0, 0.0], [1000.0, 0.0, 0.0, 0.0]])
    expected = [[-np.log(4)] * 4, [0.0, -1000.0, -1000.0, -1000.0]]
    np.testing.assert_allclose(log_softmax(rows), expected)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("arch", "head_dim"), DECODERS)
def test_f32_file_and_cache_agree(tmp_path, arch: str, head_dim: int | None, tied: bool):
    path = write_model(tmp_path / "m.gguf", arch, head_dim=head_dim, tied=tied)
    ours = Reference(path).forward(TOKENS)
    with native(path) as llm:
        logits, states = run(llm, TOKENS)
    assert worst(logits, ours.logits) <= 1e-4
    assert worst(states, ours.states) <= 1e-4
    assert worst(log_softmax(logits), log_softmax(ours.logits)) <= 1e-4


@pytest.mark.parametrize("n_head_kv", [1, 4])
def test_one_and_all_kv_heads_agree(tmp_path, n_head_kv: int):
    path = write_model(tmp_path / "m.gguf", n_head_kv=n_head_kv)
    with native(path) as llm:
        logits, _ = run(llm, TOKENS)
    assert worst(logits, Reference(path).forward(TOKENS).logits) <= 1e-4


@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_vectors_equal_llama_cpps_control_vector(tmp_path, arch: str):
    path = write_model(tmp_path / "m.gguf", arch, n_layer=3)
    injection = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    injection[0] = 0  # a control vector cannot reach layer 0
    ours = Reference(path).forward(TOKENS, np.tile(injection, (len(TOKENS), 1, 1)))
    with native(path) as llm:
        plain, _ = run(llm, TOKENS)
        data = np.ascontiguousarray(injection[1:])
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert llama_cpp.llama_set_adapter_cvec(llm.ctx, pointer, data.size, 64, 1, 3) == 0
        logits, states = run(llm, TOKENS)
    assert worst(logits, plain) > 1
    assert worst(logits, ours.logits) <= 1e-4
    assert worst(states, ours.states) <= 1e-4


def test_an_injection_acts_from_its_layer_and_token_on(tmp_path):
    reference = Reference(write_model(tmp_path / "m.gguf", n_layer=3))
    plain = reference.forward(TOKENS)
    nothing = np.zeros((len(TOKENS), 3, 64))
    np.testing.assert_array_equal(reference.forward(TOKENS, nothing).logits, plain.logits)
    for layer in range(3):
        vectors = nothing.copy()
        vectors[10, layer] = 1.0
        changed = reference.forward(TOKENS, vectors).residual_norms != plain.residual_norms
        assert not changed[:layer].any() and not changed[:, :10].any()
        assert changed[layer].tolist() == [token == 10 for token in range(len(TOKENS))]
        assert changed[layer + 1 :, 10:].all()


@pytest.mark.parametrize("arch", ["qwen3", "llama", "phi3"])
def test_q8_differs_by_llama_cpps_rounding_of_activations(tmp_path, arch: str):
    path = write_model(tmp_path / "m.gguf", arch, dtype="Q8_0")
    with native(path) as llm:
        logits, _ = run(llm, TOKENS)
        firsts = [run(llm, [token])[0] for token in TOKENS[:5]]
    assert worst(logits, Reference(path).forward(TOKENS).logits) <= 0.5
    # The median forgives a value that falls on the other side of a rounding boundary.
    rounding = Reference(path, round_activations=True)
    errors = [worst(a, rounding.forward([t]).logits) for a, t in zip(firsts, TOKENS, strict=False)]
    assert np.median(errors) <= 1e-5


def test_f16_cache_differs_by_its_rounding(tmp_path):
    path = write_model(tmp_path / "m.gguf")
    with native(path, F16) as llm:
        logits, _ = run(llm, TOKENS)
    assert worst(logits, Reference(path).forward(TOKENS).logits) <= 2e-2
    assert worst(logits, Reference(path, f16_cache=True).forward(TOKENS).logits) <= 5e-3


def test_f16_file_agrees_within_its_rounding(tmp_path):
    path = write_model(tmp_path / "m.gguf", dtype="F16")
    with native(path) as llm:
        logits, _ = run(llm, TOKENS)
    assert worst(logits, Reference(path).forward(TOKENS).logits) <= 2e-2


def test_seeds_repeat_and_change(tmp_path):
    one, again, other = (
        write_model(tmp_path / f"{i}.gguf", seed=seed).read_bytes()
        for i, seed in enumerate((7, 7, 8))
    )
    assert one == again != other


def test_vocabulary_has_bytes_specials_and_a_merge(tmp_path):
    with native(write_model(tmp_path / "m.gguf")) as llm:
        tokens = llm.tokenize("he\x00 tü<think>".encode(), add_bos=False, special=True)
        assert tokens == [256, 0, 257, 0xC3, 0xBC, token_id("<think>")]
        assert llm.detokenize(tokens, special=True).decode() == "he\x00 tü<think>"
        assert llm.token_eos() == token_id("<|im_end|>")
        assert llm.token_bos() == token_id("<|endoftext|>")


def load(path: Path, vocab_only: bool = False) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    return llama_cpp.llama_model_load_from_file(str(path).encode(), params)


@pytest.mark.parametrize("write", [write_bert, deepseek32])
def test_models_to_refuse_are_complete(tmp_path, write: Any):
    path = write(tmp_path / "m.gguf")
    model = load(path)
    assert model
    llama_cpp.llama_model_free(model)
    with pytest.raises(ValueError, match="no reference for architecture"):
        Reference(path)


def test_vocab_only_file_has_a_tokenizer_and_no_weights(tmp_path):
    path = write_vocab_only(tmp_path / "v.gguf")
    assert not load(path)
    model = load(path, vocab_only=True)
    assert llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)) == N_VOCAB
    llama_cpp.llama_model_free(model)
