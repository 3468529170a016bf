"""Models and vocabularies that this project did not make: their own text and test vectors."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import pytest
from fixture_types import Load
from gguf_models import write_smallest_model

from tgr_local.engine import Engine
from tgr_local.generation import generate
from tgr_local.options.config import SearchConfig

STORY = ", there was a little girl named Lily. She loved to play outside"


@pytest.fixture
def storyteller(stories: Path, load: Load) -> Engine:
    return load(stories)


def test_the_documented_story(storyteller: Engine):
    config = SearchConfig(chunk_len=40, max_chunks=1, temperature=0.0)
    reply = generate(storyteller, "Once upon a time", config, method="base", raw=True)
    assert storyteller.detokenize(reply.tokens).decode().startswith(STORY)


def test_the_story_is_llama_cpps_own(storyteller: Engine):
    prompt = storyteller.tokenize("Once upon a time", add_special=True)
    llm = llama_cpp.Llama(
        str(storyteller.path), n_ctx=256, n_threads=1, n_gpu_layers=0, verbose=False
    )
    try:
        assert prompt == llm.tokenize(b"Once upon a time", add_bos=True, special=True)
        theirs = []
        for token in llm.generate(prompt, temp=0.0, repeat_penalty=1.0):
            theirs.append(int(token))
            if len(theirs) == 40:
                break
    finally:
        llm.close()
    config = SearchConfig(chunk_len=40, max_chunks=1, temperature=0.0)
    ours = generate(storyteller, "Once upon a time", config, method="base", raw=True)
    assert ours.tokens == theirs


def test_the_method_runs_on_it(storyteller: Engine):
    config = SearchConfig(chunk_len=16, max_chunks=3, n_candidates=4, rollout_len=8)
    reply = generate(storyteller, "Once upon a time", config, raw=True)
    assert reply.n_tokens == 48 and reply.text.isprintable()


def test_texts_survive_the_vocabulary_of_the_stories(storyteller: Engine):
    for text in ("Once upon a time", " two  spaces", "für 🦙\n\tλ"):
        # SentencePiece puts a space before the first word
        assert storyteller.detokenize(storyteller.tokenize(text)).decode() == f" {text}"
    assert storyteller.tokenize("") == []


# --- llama.cpp's test vectors ---


@pytest.fixture(scope="module")
def qwen(qwen_vocabulary: Path, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("qwen") / "qwen.gguf"
    return write_smallest_model(qwen_vocabulary, path)


def test_the_qwen_vocabulary_gives_llama_cpps_own_vectors(
    qwen: Path, qwen_vocabulary: Path, load: Load
):
    texts = qwen_vocabulary.with_suffix(".gguf.inp").read_text(encoding="utf-8")
    lines = qwen_vocabulary.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()
    inputs = texts.split("\n__ggml_vocab_test__\n")[:-1]
    assert len(inputs) == len(lines) > 40
    engine = load(qwen)
    for text, line in zip(inputs, lines, strict=True):
        tokens = engine.tokenize(text, parse_special=False)
        assert tokens == [int(token) for token in line.split()], repr(text)
        assert engine.detokenize(tokens).decode() == text


def test_a_large_vocabulary_is_searched(qwen: Path, load: Load):
    engine = load(qwen)
    assert engine.n_vocab > 150_000 and engine.n_seq_max == 96
    assert [engine.eoc_token()] == engine.tokenize("<|endoftext|>") == [151_643]
    config = SearchConfig(chunk_len=4, max_chunks=2, n_candidates=3, rollout_len=3)
    assert generate(engine, "17 * 23 =", config, raw=True).n_tokens == 8
