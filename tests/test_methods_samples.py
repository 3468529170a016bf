"""best-of-n, self-consistency and power: several samples, and a chain of samples."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from method_runs import (
    END,
    PROMPT,
    assert_read_after_the_query,
    branches_of,
    decoded,
    only,
    spent,
    steps_of,
    text_of,
    with_,
)
from reference import Reference

from tgr_local.engine import Engine
from tgr_local.lab.methods import best_of_n, power, self_consistency
from tgr_local.search.branches import Branch
from tgr_local.system.answers import answer_key


def test_the_likeliest_of_n_samples_is_kept(engine: Engine):
    with branches_of(engine) as branches:
        samples = best_of_n.sampled(branches, 4)
        assert len({tuple(sample.tokens) for sample in samples}) == 4
        for sample in samples:
            assert_read_after_the_query(engine, sample.tokens, sample.logprobs)
        means = [np.mean(sample.logprobs) for sample in samples]
    steps = steps_of(engine, "best-of-n")
    assert text_of(steps) == samples[int(np.argmax(means))].tokens
    assert steps[-1].figures == {"samples": 4, "ended": 0}
    counts = [step.counts for step in steps]
    assert counts[0].discarded == 3 * 24 and sum(one.chunk for one in counts) == 24


def test_ended_samples_are_preferred_to_likelier_unfinished_ones():
    def sample(logprob: float, ended: bool) -> Branch:
        return Branch(None, [1], [logprob], [0.0], ended=ended)  # type: ignore[arg-type]

    cut, ended, better = sample(-0.1, False), sample(-2.0, True), sample(-1.0, True)
    assert best_of_n.best([cut, ended, better]) is better
    assert best_of_n.best([cut, sample(-0.2, False)]) is cut


def test_samples_share_the_budget_equally(engine: Engine):
    for budget in (9 + 4, 9 + 7, 9 + 8, 9 + 50, 9 + 4 * 24 - 1, 9 + 4 * 24):
        steps = steps_of(engine, "best-of-n", with_(max_forward_tokens=budget))
        assert len(text_of(steps)) == (budget - 9) // 4
        assert budget - 4 < spent(steps) <= budget


@pytest.mark.parametrize(
    ("keys", "likelihoods", "kept"),
    [
        (["1", "2", "2"], [-0.1, -3.0, -2.0], 2),
        (["1", "2"], [-2.0, -1.0], 1),
        (["1", "2", "1", "2"], [-4.0, -3.0, -1.0, -2.0], 2),
        ([None, None, "3"], [-0.1, -0.2, -9.0], 2),
        ([None, None], [-0.3, -0.2], 1),
        ([None], [-1.0], 0),
    ],
)
def test_the_most_frequent_answer_wins_and_ties_go_to_the_likeliest(
    keys: list[str | None], likelihoods: list[float], kept: int
):
    assert self_consistency.elect(keys, likelihoods) == kept


def test_self_consistency_keeps_a_sample_of_the_majority(engine: Engine, monkeypatch):
    digits = tuple(engine.tokenize(digit)[0] for digit in "12")
    only((*digits, END), monkeypatch)
    config = with_(n_samples=24)
    with branches_of(engine, config) as branches:
        ended = [sample for sample in best_of_n.sampled(branches, 24) if sample.ended]
        keys = [answer_key(branches.text(sample.tokens)) for sample in ended]
    steps = steps_of(engine, "self-consistency", config)
    votes = Counter(key for key in keys if key is not None)
    assert len(votes) > 1
    kept = answer_key(engine.detokenize(text_of(steps)).decode())
    assert kept is not None and votes[kept] == max(votes.values())
    figures = {"samples": 24, "votes": votes[kept], "answers": len(votes)}
    assert steps[-1].figures == figures and steps[-1].finish == "stop"


# --- power ---


def test_the_acceptance_ratio_is_that_of_metropolis_hastings():
    new, old = [math.log(0.5), math.log(0.25)], [math.log(0.5), math.log(0.1)]
    ratio = power.log_ratio(new, old, [math.log(0.8)], [math.log(0.2)], 3.0)
    np.testing.assert_allclose(math.exp(ratio), (0.25 / 0.1) ** 3 * 0.2 / 0.8)
    # from two tokens to one: the position was one of two, and would be one of one on the way back
    ratio = power.log_ratio(new[:1], old, [0.0], [0.0, 0.0], 1.0)
    np.testing.assert_allclose(math.exp(ratio), 0.5 / 0.05 * 2)


@pytest.mark.parametrize("alpha", [1.0, 2.5, 4.0])
def test_the_chain_is_in_detailed_balance_with_the_power_of_p(alpha: float):
    """The whole transition matrix over all texts of a toy model of two tokens and an end token, of
    at most three tokens: its stationary law is p^α, and in detail."""
    rng = np.random.default_rng(1)
    p: dict[tuple[int, ...], Any] = {}
    texts: list[tuple[int, ...]] = []
    for length in range(4):
        for text in itertools.product((0, 1, 2), repeat=length):
            if 2 in text[:-1]:
                continue
            p[text] = np.log(rng.dirichlet([1, 1, 0.6]))
            if length == 3 or (text and text[-1] == 2):
                texts.append(text)

    def logprobs(text: tuple[int, ...]) -> list[float]:
        return [p[text[:i]][token] for i, token in enumerate(text)]

    def drawn(text: tuple[int, ...]) -> list[float]:
        rows = [alpha * p[text[:i]] for i in range(len(text))]
        return [row[t] - np.log(np.exp(row).sum()) for row, t in zip(rows, text, strict=True)]

    moves = np.zeros((len(texts), len(texts)))
    for (i, old), (j, new) in itertools.product(enumerate(texts), repeat=2):
        for at in range(len(old)):
            if i == j or old[:at] != new[:at] or len(new) <= at:
                continue
            ratio = power.log_ratio(
                logprobs(new), logprobs(old), drawn(new)[at:], drawn(old)[at:], alpha
            )
            proposed = math.exp(sum(drawn(new)[at:])) / len(old)
            moves[i, j] += proposed * min(1.0, math.exp(ratio))
    target = np.exp([alpha * sum(logprobs(text)) for text in texts])
    target /= target.sum()
    flow = target[:, None] * moves
    np.testing.assert_allclose(flow, flow.T, atol=1e-14)


def test_a_chain_on_the_engine_samples_from_the_power_of_p(engine: Engine, monkeypatch):
    """All nine texts of two out of three tokens, for which cold sampling is far from p^α."""
    letters = (0, 25, 248)
    only(letters, monkeypatch)
    with branches_of(engine, with_(power_alpha=1.5)) as branches:
        chain = power.Chain(branches)
        assert chain.extend(2)
        visits: Counter[tuple[int, ...]] = Counter()
        for _ in range(1200):
            assert chain.improve()
            visits[tuple(chain.text.tokens)] += 1
        assert_read_after_the_query(engine, chain.text.tokens, chain.text.logprobs)
    texts = [*itertools.product(letters, letters)]
    reference = Reference(engine.path)
    p = np.array([decoded(reference, PROMPT, list(text))[0] for text in texts])
    target = np.exp(1.5 * p.sum(axis=1))
    first, second = (np.exp(1.5 * p[:, i]).reshape(3, 3) for i in (0, 1))
    cold = (first / first[:, 0].sum() * second / second.sum(axis=1, keepdims=True)).ravel()
    found = np.array([visits[text] for text in texts])

    def distance(one: Any, other: Any) -> float:
        return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)

    assert visits.total() == found.sum()
    assert distance(found, target) < 0.1 < 0.5 < distance(cold, target)


def test_at_alpha_one_proposals_are_the_model_and_always_accepted(engine: Engine):
    steps = steps_of(engine, "power", with_(power_alpha=1.0))
    assert steps[-1].figures == {"proposals": 36, "accepted": 36}


@pytest.mark.parametrize(("n_tokens", "n_blocks"), [(1, 1), (5, 5), (16, 16), (17, 9), (24, 12)])
def test_every_block_is_improved_before_the_next(engine: Engine, n_tokens: int, n_blocks: int):
    """There are 16 blocks at most, of at least one token each."""
    steps = steps_of(engine, "power", with_(max_tokens=n_tokens))
    assert len(text_of(steps)) == n_tokens
    assert steps[-1].figures["proposals"] == 3 * n_blocks


def test_without_steps_power_is_cold_sampling(engine: Engine):
    steps = steps_of(engine, "power", with_(power_steps=0))
    # whose chunks are as long as the blocks, so that they have the same seeds
    base = steps_of(engine, "base", with_(temperature=0.25, chunk_len=2, max_chunks=12))
    assert text_of(steps) == text_of(base) and spent(steps) == spent(base)
