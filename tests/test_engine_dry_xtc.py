"""DRY, XTC and other samplers: against plain references, and against llama.cpp's own."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from engines import TOKENS, distributions, exact, generated, written
from gguf_models import N_PLAIN, token_id
from numpy.typing import NDArray
from plain_sampling import assert_as_frequent, draws, filtered, temperature
from reference import log_softmax

from tgr_local.engine import Engine, Sampling

A, B, C, D, E = range(64, 69)  # tokens of letters

DRY = Sampling(1.0, dry_multiplier=0.8, dry_sequence_breakers=())
DRIES = [
    DRY,
    dataclasses.replace(DRY, dry_base=1.1, dry_allowed_length=0),
    dataclasses.replace(DRY, dry_multiplier=3.0, dry_allowed_length=4, dry_penalty_last_n=-1),
    dataclasses.replace(DRY, dry_penalty_last_n=12, dry_allowed_length=1),
    dataclasses.replace(DRY, dry_allowed_length=1, dry_sequence_breakers=("\x42", "h")),
    dataclasses.replace(DRY, dry_allowed_length=1, dry_sequence_breakers=("\x41\x42\x43",)),
    dataclasses.replace(DRY, dry_allowed_length=1, dry_sequence_breakers=("<|im_end|>",)),
    dataclasses.replace(DRY, dry_base=100.0, dry_multiplier=1e30, dry_allowed_length=1),
]


def texts_of(engine: Engine, read: list[int]) -> list[bytes]:
    return [engine.detokenize([token], special=True) for token in read]


def dry_penalties(engine: Engine, read: list[int], sampling: Sampling) -> dict[int, float]:
    """What each token loses, by its definition: for every token, the longest end of the text after
    the last breaker that stands before an earlier occurrence of the token."""
    last = sampling.dry_penalty_last_n
    window = read if last < 0 else read[len(read) - min(last, len(read)) :]
    texts, breakers = (
        texts_of(engine, read),
        [one.encode() for one in sampling.dry_sequence_breakers],
    )
    reach = 0  # tokens after the last breaker
    while reach < len(read) and not any(
        one in b"".join(texts[: len(texts) - reach])[-len(one) - len(texts[-1 - reach]) + 1 :]
        for one in breakers
    ):
        reach += 1
    longest: dict[int, int] = {}
    for at in range(1, len(window)):
        length = 0
        while length < at and window[at - 1 - length] == window[len(window) - 1 - length]:
            length += 1
        length = min(length, reach)
        if length >= sampling.dry_allowed_length:
            longest[window[at]] = max(longest.get(window[at], 0), length)
    return {
        token: min(
            sampling.dry_multiplier * sampling.dry_base ** (n - sampling.dry_allowed_length), 1e30
        )
        for token, n in longest.items()
        if not any(one in texts_of(engine, [token])[0] for one in breakers)
    }


def repetitive(seed: int, n: int) -> list[int]:
    """A text of few tokens that repeats parts of itself."""
    rng = np.random.default_rng(seed)
    text = [int(one) for one in rng.choice([A, B, C, 104, token_id("<|im_end|>")], 6)]
    while len(text) < n:
        begin = int(rng.integers(len(text)))
        text += text[begin : begin + int(rng.integers(1, 9))]
        if rng.random() < 0.3:
            text.append(int(rng.choice([A, B, C, D, E])))
    return text[:n]


@pytest.mark.parametrize("sampling", DRIES, ids=range(len(DRIES)))
def test_dry_takes_from_each_token_what_its_definition_says(engine: Engine, sampling: Sampling):
    found = 0
    for seed in range(12):
        history = repetitive(seed, 100)
        output = written(
            engine, history[-1:], n_generate=1, seed=seed, sampling=sampling, ignore_eog=True,
            history=history[:-1], n_top=engine.n_vocab,
        )  # fmt: skip
        logits = distributions(output)[0]
        penalties = dry_penalties(engine, history, sampling)
        for token, penalty in penalties.items():
            logits[token] -= penalty
        token = output.tokens[0]
        assert abs(output.sampled_logprobs[0] - log_softmax(logits)[token]) < 5e-6
        found += len(penalties)
    assert found > 5


def test_dry_counts_what_the_reply_itself_repeats(engine: Engine):
    """Every token of a text has the probability that the reference gives it after those before."""
    few = tuple((token, 30.0) for token in (A, B, C))
    sampling = Sampling(1.0, dry_multiplier=1.0, dry_allowed_length=2, logit_bias=few)
    output = written(
        engine, TOKENS, n_generate=60, seed=5, sampling=sampling, ignore_eog=True,
        n_top=engine.n_vocab,
    )  # fmt: skip
    text, counted = output.tokens.tolist(), 0
    for i, logits in enumerate(distributions(output)):
        penalties = dry_penalties(engine, TOKENS + text[:i], sampling)
        for token, bias in few:
            logits[token] += bias
        for token, penalty in penalties.items():
            logits[token] -= penalty
        counted += bool(penalties)
        assert abs(output.sampled_logprobs[i] - log_softmax(logits)[text[i]]) < 1e-5
    assert counted > 30


def test_dry_ends_a_repetition(engine: Engine):
    """A text that can only go round leaves the round, but for a breaker in it."""
    likely = tuple((token, 20.0) for token in (A, B))
    sampling = Sampling(0, logit_bias=likely, repeat_penalty=1.0)
    dry = dataclasses.replace(sampling, dry_multiplier=2.0, dry_base=2.0)
    options: dict[str, Any] = {"n_generate": 40, "history": [A] * 20}
    plain = generated(engine, sampling=sampling, **options)
    assert len(set(plain[-20:])) == 1
    text = generated(engine, sampling=dry, **options)
    assert max(len(list(run)) for _, run in itertools.groupby(text)) < 9
    breaker = engine.detokenize(plain[-1:]).decode()
    free = dataclasses.replace(dry, dry_sequence_breakers=(breaker,))
    assert generated(engine, sampling=free, **options) == plain


def test_a_grammar_is_followed_whatever_dry_says(engine: Engine):
    sampling = Sampling(1.0, grammar='root ::= ("ab"){20}', dry_multiplier=1e38, dry_base=100.0)
    tokens = generated(engine, sampling=sampling, n_generate=40)
    assert engine.detokenize(tokens) == b"ab" * 20


# --- XTC ---


XTC = [
    Sampling(1.0, xtc_probability=0.5, xtc_threshold=0.03),
    Sampling(0.6, xtc_probability=0.9, xtc_threshold=0.05, top_k=12),
    Sampling(1.5, xtc_probability=0.3, xtc_threshold=0.04, top_p=0.7, min_p=0.05),
    Sampling(0.05, xtc_probability=1.0, xtc_threshold=0.02),
]


@pytest.mark.parametrize("sampling", XTC, ids=str)
@exact
def test_xtc_draws_have_the_reference_distribution(engine: Engine, sampling: Sampling):
    """Each draw is one of the two distributions; how often it is which is χ²-tested with all."""
    n = 2000
    outputs = draws(engine, n, sampling)
    (whole,) = draws(engine, 1, sampling, n_top=engine.n_vocab)
    row = distributions(whole)[0]
    wanted = [filtered(row, sampling, excludes=one) for one in (False, True)]
    tokens = [int(output.tokens[0]) for output in outputs]
    logprobs = np.array([output.sampled_logprobs[0] for output in outputs])
    assert np.isinf(wanted[1]).sum() > np.isinf(wanted[0]).sum()  # XTC has something to do
    plain, excluded = (rows[tokens] for rows in wanted)
    rounding = 4e-5 / min(1.0, sampling.temperature)
    near = np.minimum(abs(plain - logprobs), abs(excluded - logprobs))
    assert near.max() < rounding
    p = sampling.xtc_probability
    assert_as_frequent(tokens, n * (p * np.exp(wanted[1]) + (1 - p) * np.exp(wanted[0])))


def test_xtc_at_temperature_0_takes_the_likeliest_of_the_rest(engine: Engine):
    for filters in ({}, {"top_k": 20}):
        sampling = Sampling(0, xtc_probability=1.0, xtc_threshold=0.02, **filters)
        output = written(
            engine, TOKENS, n_generate=20, sampling=sampling, ignore_eog=True, n_top=engine.n_vocab
        )
        for token, row in zip(output.tokens, distributions(output), strict=True):
            warm = dataclasses.replace(sampling, temperature=1.0)
            assert token == filtered(row, warm, excludes=True).argmax()
        assert set(output.sampled_logprobs.tolist()) == {0.0}


def test_samplers_that_are_off_change_nothing(engine: Engine):
    warm = Sampling(0.9, top_p=0.95)
    plain = generated(engine, sampling=warm, seed=4)
    for off in (
        {"xtc_probability": 0.0, "xtc_threshold": 0.01},
        {"xtc_probability": 1.0, "xtc_threshold": 0.6},
        {"dry_multiplier": 5.0, "dry_penalty_last_n": 0}, {"dry_multiplier": 0.0, "dry_base": 9.0},
    ):  # fmt: skip
        sampling: Any = dataclasses.replace(warm, **off)
        assert generated(engine, sampling=sampling, seed=4, history=[A] * 30) == plain


# --- llama.cpp's own samplers ---


class _Candidates:
    """llama.cpp's array of tokens with these logits."""

    def __init__(self, logits: NDArray[np.float64]) -> None:
        self.data = (llama_cpp.llama_token_data * len(logits))()
        for token, logit in enumerate(logits):
            self.data[token].id, self.data[token].logit = token, float(logit)
        self.array = llama_cpp.llama_token_data_array(
            data=ctypes.cast(self.data, ctypes.POINTER(llama_cpp.llama_token_data)),
            size=len(logits), selected=-1, sorted=False,
        )  # fmt: skip

    def after(self, sampler: Any) -> dict[int, float]:
        """The logits of the tokens that it leaves."""
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(self.array))
        return {self.array.data[i].id: self.array.data[i].logit for i in range(self.array.size)}


@pytest.fixture
def vocabulary(engine: Engine) -> Iterator[Any]:
    llm = llama_cpp.Llama(str(engine.path), vocab_only=True, verbose=False)
    yield llama_cpp.llama_model_get_vocab(llm.model)
    llm.close()


@pytest.mark.parametrize("sampling", DRIES[:-1], ids=range(len(DRIES) - 1))
def test_dry_is_that_of_llama_cpp(engine: Engine, vocabulary: Any, sampling: Sampling):
    """The penalties of the reference, which the engine's draws have, are those of llama.cpp."""
    breakers = [one.encode() for one in sampling.dry_sequence_breakers]
    last = sampling.dry_penalty_last_n
    for seed in range(12):
        text = repetitive(seed, 100)
        sampler = llama_cpp.llama_sampler_init_dry(
            vocabulary, sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length,
            last if last >= 0 else 4096, (ctypes.c_char_p * len(breakers))(*breakers),
            len(breakers),
        )  # fmt: skip
        for token in text:
            llama_cpp.llama_sampler_accept(sampler, token)
        left = _Candidates(np.zeros(engine.n_vocab)).after(sampler)
        llama_cpp.llama_sampler_free(sampler)
        theirs = {token: -logit for token, logit in left.items() if logit}
        ours = dry_penalties(engine, text, sampling)
        assert theirs.keys() == ours.keys()
        assert [theirs[token] for token in ours] == pytest.approx(list(ours.values()), rel=1e-5)


@pytest.mark.parametrize(
    ("sampling", "make"),
    [
        (Sampling(top_n_sigma=1.2), lambda: llama_cpp.llama_sampler_init_top_n_sigma(1.2)),
        (Sampling(top_n_sigma=0.1), lambda: llama_cpp.llama_sampler_init_top_n_sigma(0.1)),
        (Sampling(typical_p=0.2), lambda: llama_cpp.llama_sampler_init_typical(0.2, 1)),
        (Sampling(typical_p=0.9), lambda: llama_cpp.llama_sampler_init_typical(0.9, 1)),
        (Sampling(typical_p=0.0), lambda: llama_cpp.llama_sampler_init_typical(0.0, 1)),
    ],
    ids=["sigma 1.2", "sigma 0.1", "typical 0.2", "typical 0.9", "typical 0"],
)
def test_other_filters_are_those_of_llama_cpp(sampling: Sampling, make: Any):
    rng = np.random.default_rng(3)
    for scale in (0.5, 1.0, 2.0, 5.0):
        logits = (rng.standard_normal(N_PLAIN) * scale).astype(np.float32).astype(np.float64)
        sampler = make()
        left = _Candidates(logits).after(sampler)
        llama_cpp.llama_sampler_free(sampler)
        theirs = {token for token, logit in left.items() if math.isfinite(logit)}
        assert theirs == set(np.flatnonzero(np.isfinite(filtered(logits, sampling))))


@pytest.mark.parametrize(
    ("t", "reach", "exponent"), [(0.8, 0.5, 1.0), (0.3, 1.0, 2.0), (2.0, 0.0, 3.0), (0.0, 1.0, 0.5)]
)
def test_dynatemp_is_that_of_llama_cpp(t: float, reach: float, exponent: float):
    rng = np.random.default_rng(3)
    sampling = Sampling(t, dynatemp_range=reach, dynatemp_exponent=exponent)
    for scale in (0.5, 2.0, 5.0):
        logits = (rng.standard_normal(N_PLAIN) * scale).astype(np.float32).astype(np.float64)
        sampler = llama_cpp.llama_sampler_init_temp_ext(t, reach, exponent)
        left = _Candidates(logits).after(sampler)
        llama_cpp.llama_sampler_free(sampler)
        theirs = np.array([left[token] for token in range(N_PLAIN)])
        np.testing.assert_allclose(theirs, logits / temperature(logits, sampling), rtol=2e-4)


def test_typical_p_and_dynatemp_hold_at_temperature_0(engine: Engine):
    """Typical-p may drop the likeliest token, and the range begins at 0."""
    (whole,) = draws(engine, 1, Sampling(), n_top=engine.n_vocab)
    logprobs = distributions(whole)[0]
    for p in (0.01, 0.2, 0.5):
        (drawn,) = draws(engine, 1, Sampling(0.0, typical_p=p))
        left = filtered(logprobs, Sampling(1.0, typical_p=p))
        assert drawn.tokens[0] == left.argmax() and drawn.sampled_logprobs[0] == 0.0
    warm = Sampling(0.0, dynatemp_range=2.0)
    outputs = draws(engine, 300, warm)
    wanted = filtered(logprobs, warm)
    reported = np.array([output.sampled_logprobs[0] for output in outputs])
    tokens = [int(output.tokens[0]) for output in outputs]
    np.testing.assert_allclose(reported, wanted[tokens], atol=1e-3)
    assert len(set(tokens)) > 5


@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.3, 0.5])
def test_xtc_is_that_of_llama_cpp(threshold: float):
    rng = np.random.default_rng(3)
    for scale in (1.0, 2.0, 5.0):
        logits = (rng.standard_normal(N_PLAIN) * scale).astype(np.float32).astype(np.float64)
        sampler = llama_cpp.llama_sampler_init_xtc(1.0, threshold, 0, 1)
        theirs = _Candidates(logits).after(sampler).keys()
        llama_cpp.llama_sampler_free(sampler)
        sampling = Sampling(1.0, xtc_probability=1.0, xtc_threshold=threshold)
        ours = filtered(logits, sampling, excludes=True)
        assert theirs == set(np.flatnonzero(np.isfinite(ours)))
