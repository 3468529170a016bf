"""vote and auto: waves of samples, weighted votes, and when they stop."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from method_runs import branches_of, spent, steps_of, text_of, with_
from surroundings import ROOT

from tgr_local.console import render
from tgr_local.engine import Engine
from tgr_local.generation import generate, query_tokens
from tgr_local.methods import auto, vote
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Run
from tgr_local.search.steps import Counts

QUESTION = "What is 7 + 4 * 5 - 12 + 30 - 2 * 6 + 8?"
SETTINGS = SearchConfig(chunk_len=32, max_chunks=24, n_samples=6, vote_wave=3)


@pytest.fixture(scope="module")
def embedded() -> Iterator[Engine]:
    with Engine(ROOT / "models" / "tgr-mini-q8_0.gguf") as engine:
        yield engine


def run_of(engine: Engine, prompt: str, config: SearchConfig) -> Run:
    """A run of the vote."""
    return Run(engine, query_tokens(engine, prompt, config), config)


def replied(engine: Engine, **options: Any) -> tuple[Counts, dict[str, float], str, int]:
    """Counts, figures and text of a reply to the question, and the engine's own count."""
    before = engine.stats().n_positions
    config = dataclasses.replace(SETTINGS, **options)
    reply = generate(engine, QUESTION, config, method="vote")
    decoded = engine.stats().n_positions - before
    return reply.counts, reply.steps[-1].figures, reply.text, decoded


@pytest.mark.parametrize("votes", [(0, 0), (3, 0), (2, 2), (5, 1), (9, 4)])
def test_a_posterior_of_whole_votes_is_a_binomial_tail(votes: tuple[int, int]):
    a, b = votes
    # P(Beta(a + 1, b + 1) > 1/2) = P(Binomial(a + b + 1, 1/2) <= a)
    n = a + b + 1
    exact = sum(math.comb(n, i) for i in range(a + 1)) / 2**n
    assert vote.ahead(a, b) == pytest.approx(exact, abs=2e-4)


def test_votes_by_likelihood_are_a_softmax_that_sums_to_the_number():
    found = vote.votes_of([-0.1, -0.2, -0.2], "likelihood")
    assert found.sum() == pytest.approx(3) and found[1] == found[2]
    assert found[0] / found[1] == pytest.approx(math.exp(0.1 / vote.TEMPERATURE))


@pytest.mark.parametrize("weight", ["likelihood", "count"])
def test_every_position_is_counted(embedded: Engine, weight: str):
    counts, figures, _, decoded = replied(embedded, vote_weight=weight, vote_bar=2)
    assert counts.total == decoded
    assert figures["samples"] == 6 and figures["dropped"] == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_text_that_a_limit_ended_frees_its_cells_once_another_leads(embedded: Engine, seed: int):
    # which texts end, and which one leads, changes from wave to wave
    config = dataclasses.replace(
        SETTINGS, max_tokens=150, n_samples=8, vote_wave=1, vote_bar=2, seed=seed
    )
    before = embedded.stats().n_positions
    steps = list(vote.METHOD.run(run_of(embedded, QUESTION, config)))
    assert steps[-1].figures["samples"] == 8
    assert spent(steps) == embedded.stats().n_positions - before


def test_it_stops_once_the_leader_is_sure(embedded: Engine):
    least, sure, _, _ = replied(embedded, vote_bar=0.0)
    most, all_, _, _ = replied(embedded, vote_bar=2)
    assert least.total < most.total
    assert sure["samples"] == 3 and all_["samples"] == 6  # one wave, and both
    # the first text to end decides; those under way are dropped and counted
    assert 0 < sure["dropped"] <= 2 and all_["dropped"] == 0


def test_the_first_of_equal_leaders_wins():
    assert vote.tally(["a", "b", None, "b"], [1, 0.5, 9, 0.5]) == {"a": 1.0, "b": 1.0}
    assert list(vote.tally(["a", "b", "b"], [1, 0.6, 0.6])) == ["b", "a"]


def test_weights_decide_against_the_more_frequent_answer(engine: Engine, monkeypatch):
    answers = itertools.cycle(["a", "a", "b", None])
    monkeypatch.setattr(vote, "answer_key", lambda text: next(answers))
    monkeypatch.setattr(vote, "votes_of", lambda likelihoods, weight: [1.0, 1.5, 3.0, 9.0])
    with branches_of(engine, with_(n_samples=4, vote_wave=4, vote_bar=2)) as branches:
        poll = vote.Poll(branches)
        texts = [branches.fork(poll.root) for _ in range(4)]
        for _ in branches.rounds(texts):
            pass
        for text in texts:
            text.ended = True
        poll.count(texts)
        assert poll.chosen is texts[2]
        poll.count(texts)  # each counts once
        assert poll.figures["answers"] == 2 and poll.figures["share"] == pytest.approx(3 / 5.5)


# ---- auto ----


def test_auto_writes_texts_until_the_leader_is_likely_enough(embedded: Engine):
    changed = auto.options(SearchConfig())
    assert changed == {"n_samples": 16, "vote_wave": 2, "vote_bar": 0.75}
    for seed in range(3):
        reply = generate(embedded, QUESTION, SearchConfig(chunk_len=32, seed=seed), method="auto")
        n, chance = reply.figures["samples"], reply.figures["posterior"]
        assert 2 <= n <= 16 and (chance >= 0.75) == bool(reply.figures["sure"])
        assert chance >= 0.75 or n == 16
    low = SearchConfig(chunk_len=32, seed=3, vote_bar=0.001)
    reply = generate(embedded, QUESTION, low, method="auto")
    assert reply.figures["samples"] == 2  # one text decides nothing


def test_auto_leaves_what_the_user_set_and_takes_what_a_budget_pays():
    set_ = SearchConfig(n_samples=3, vote_wave=3)
    assert auto.options(set_) == {"vote_bar": 0.75}
    paid = auto.options(SearchConfig(max_forward_tokens=900))
    assert paid == {"n_samples": 64, "vote_wave": 2}
    assert auto.options(SearchConfig(temperature=0)) == {"n_samples": 1}


@pytest.mark.parametrize(("comparable", "n"), [(False, 1), (True, 12)])
def test_free_text_costs_one_sample(engine: Engine, monkeypatch, comparable: bool, n: int):
    """The first sample is that of base, and the reply where no other could equal it."""
    monkeypatch.setattr(vote, "is_comparable", lambda text: comparable)
    monkeypatch.setattr(vote, "answer_key", lambda text: text)
    config = with_(max_chunks=99, n_samples=12, vote_bar=2, stop=tuple("aeiou"))
    steps, base = steps_of(engine, "auto", config), steps_of(engine, "base", config)
    assert base[-1].finish == "stop"
    assert steps[-1].figures["samples"] == n
    if not comparable:
        assert text_of(steps) == text_of(base) and spent(steps) == spent(base)


def test_a_vote_without_answers_ends_with_its_first_wave(engine: Engine, monkeypatch):
    monkeypatch.setattr(vote, "answer_key", lambda text: None)
    config = with_(max_chunks=99, n_samples=8, vote_wave=3, stop=tuple("aeiou"))
    assert steps_of(engine, "vote", config)[-1].figures["samples"] == 3


def test_one_text_without_an_answer_ends_no_vote(engine: Engine, monkeypatch):
    """The first text of a wave that ends may be a refusal; the others of the wave are written."""
    seen: list[str] = []

    def key(text: str) -> str | None:
        seen.append(text)
        return text if len(seen) > 1 else None

    monkeypatch.setattr(vote, "answer_key", key)
    config = with_(max_chunks=99, n_samples=6, vote_wave=3, vote_bar=2, stop=tuple("aeiou"))
    figures = steps_of(engine, "vote", config)[-1].figures
    assert figures["samples"] == 6 and figures["answers"] > 1


def test_a_second_sample_with_the_same_answer_is_enough(embedded: Engine):
    config = SearchConfig(chunk_len=32, vote_weight="likelihood")
    reply = generate(embedded, "What is 2+3?", config, method="auto")
    assert reply.text.endswith("{5}.") and reply.figures["samples"] == 2
    assert "2 samples, 100% of the votes, likely enough" in render.summary([reply])


def test_a_vote_says_how_it_came_to_its_answer(embedded: Engine):
    reply = generate(embedded, QUESTION, SETTINGS, method="auto")
    line, figures = render.summary([reply]), reply.figures
    dropped = f", {figures['dropped']:.0f} of them dropped early" if figures["dropped"] else ""
    share = f"{100 * figures['share']:.0f}% of the votes"
    assert f"{figures['samples']:.0f} samples{dropped}, {share}, " in line
    plain = generate(embedded, QUESTION, SETTINGS, method="base")
    assert "votes" not in render.summary([plain])


def test_no_chance_is_told_where_no_answer_was_judged(embedded: Engine):
    config = dataclasses.replace(SETTINGS, max_tokens=5)  # no text ends
    figures = list(vote.METHOD.run(run_of(embedded, QUESTION, config)))[-1].figures
    assert figures["answers"] == 0 and "posterior" not in figures


def test_the_figures_are_those_of_the_run_that_wrote_the_answer(embedded: Engine):
    config = dataclasses.replace(SETTINGS, thinking_budget=40)
    reply = generate(embedded, QUESTION, config, method="auto")
    assert len(reply.runs) == 2 and reply.figures == reply.steps[-1].figures


@pytest.mark.parametrize("method", ["auto", "vote", "self-consistency", "best-of-n", "tot"])
def test_what_a_limit_leaves_unread_is_counted(embedded: Engine, method: str):
    """The thinking ends in the middle of the chosen text, whose later chunks nobody asks for."""
    before = embedded.stats().n_positions
    config = SearchConfig(n_samples=4, max_tokens=100, chunk_len=32)
    reply = generate(embedded, "What is 7 * (10 + 3) * 84 + 8 + 52 - 9 + 8?", config, method=method)
    assert reply.closed is not None
    assert reply.counts.total == embedded.stats().n_positions - before


@pytest.mark.parametrize("question", ["What is 123456*789?", "Make 24 from 4 7 8 8."])
def test_auto_stops_at_its_bar_or_at_that_of_the_user(embedded: Engine, question: str):
    for seed in range(3):
        config = SearchConfig(temperature=1.0, seed=seed)
        figures = generate(embedded, question, config, method="auto").figures
        if "posterior" in figures:
            assert bool(figures["sure"]) == (figures["posterior"] >= 0.75)
            assert figures["sure"] or figures["samples"] == 16
        low = dataclasses.replace(config, vote_bar=0.5)
        figures = generate(embedded, question, low, method="auto").figures
        assert figures.get("posterior", 1.0) < 0.5 or figures["sure"]  # a bar of the user's stays


def test_auto_stops_where_no_text_ends_within_its_limit(engine: Engine):
    config = with_(n_samples=12, max_tokens=5)
    steps = steps_of(engine, "auto", config)
    assert steps[-1].finish == "length" and steps[-1].figures["samples"] == 2
    assert steps_of(engine, "auto", with_(n_samples=1, max_tokens=5))[-1].figures["samples"] == 1
