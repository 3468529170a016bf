"""The moves of a model that cannot roll back: only append, fork and drop.

The model of these tests can; its engine says that it cannot, and refuses to truncate or shift. What
a method writes must then be the same, apart from rounding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from engines import TOKENS, is_free
from method_runs import PROMPT, branches_of, sequences_held, spent, steps_of, text_of, with_

from tgr_local import methods
from tgr_local.apis.logprobs import read_prompt
from tgr_local.engine import Engine, Sequence
from tgr_local.lab.methods import power

RUNS: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in sorted(methods.METHODS)),
    ("markov", {"chunk_len": 3}),
    ("tgr-latent", {"reevaluate": 2, "n_mc": 2}),
    ("tgr-latent", {"reuse_winner": True}),
    ("tgr-latent", {"reuse_winner": True, "rollout_len": 9}),
    ("tgr-token", {"rollout_len": 12}),
    ("got", {"tree_breadth": 3}),
]
every_run = pytest.mark.parametrize(("method", "options"), RUNS, ids=str)


def append_only(engine: Engine, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a model that cannot roll back was asked to")

    monkeypatch.setattr(engine, "rolls_back", False)
    monkeypatch.setattr(Sequence, "truncate", refuse)
    monkeypatch.setattr(Sequence, "shift", refuse)


@pytest.mark.parametrize(
    ("method", "options", "n_prompt"),
    [(*run, 10) for run in RUNS] + [(method, {}, 1) for method in ("power", "tgr-latent")],
    ids=str,
)
def test_a_run_is_that_of_a_model_that_can_roll_back(
    engine: Engine, method: str, options: dict[str, Any], n_prompt: int, monkeypatch
):
    config, prompt = with_(**options), PROMPT[:n_prompt]
    wanted = steps_of(engine, method, config, prompt)
    append_only(engine, monkeypatch)
    before = engine.stats().n_positions
    steps = steps_of(engine, method, config, prompt)
    assert engine.stats().n_positions - before == spent(steps)
    assert text_of(steps) == text_of(wanted)
    cut = method == "power" or options.get("rollout_len", 0) > config.chunk_len
    for ours, theirs in zip(steps, wanted, strict=True):
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
        if theirs.state is not None:
            np.testing.assert_allclose(ours.state, theirs.state, atol=1e-5)
        again = ours.counts.rebuild - theirs.counts.rebuild  # read again instead of cut
        assert dataclasses.replace(ours.counts, rebuild=theirs.counts.rebuild) == theirs.counts
        assert again == 0 or (cut and again > 0)
    assert is_free(engine)


@every_run
def test_its_sequences_and_cells_are_bounds(
    engine: Engine, method: str, options: dict[str, Any], monkeypatch
):
    append_only(engine, monkeypatch)
    config, held = with_(temperature=0.0, **options), sequences_held(engine, monkeypatch)
    steps = steps_of(engine, method, config)
    needs = methods.get(method)
    assert max(held) <= needs.sequences(engine, config)
    assert max(step.cells for step in steps) <= needs.cells(engine, len(PROMPT), config)


@every_run
def test_a_budget_is_kept(engine: Engine, method: str, options: dict[str, Any], monkeypatch):
    append_only(engine, monkeypatch)
    config = with_(**options)
    whole, kept = spent(steps_of(engine, method, config)), 0
    for budget in np.linspace(whole // 4, whole, 6).astype(int).tolist():
        try:
            steps = steps_of(engine, method, dataclasses.replace(config, max_forward_tokens=budget))
        except ValueError as error:
            assert "max_forward_tokens" in str(error)
        else:
            assert spent(steps) <= budget and text_of(steps)
            kept += 1
    assert kept


@pytest.mark.parametrize("method", sorted(methods.METHODS))
def test_shifting_is_refused(engine: Engine, method: str, monkeypatch):
    append_only(engine, monkeypatch)
    config = with_(shift_cells=True)
    if not methods.get(method).resets:
        assert steps_of(engine, method, config)
        return
    with pytest.raises(ValueError, match="a model with recurrent layers cannot do; drop shift_cel"):
        steps_of(engine, method, config)
    assert is_free(engine)


def test_a_text_that_is_cut_is_read_again(engine: Engine, monkeypatch):
    append_only(engine, monkeypatch)
    with branches_of(engine) as branches:
        chain = power.Chain(branches)
        assert chain.extend(8)
        for n in (0, 1, 5, 8):
            fork = chain.cut(n)
            assert len(fork.sequence) == len(PROMPT) - 1 + n
            assert fork.tokens == chain.text.tokens[:n]
            fork.sequence.drop()
        step, *_ = branches.steps(chain.text, {})
    assert step.counts.rebuild == 0 + 1 + 5 and [chain.cut_cost(n) for n in (0, 3)] == [0, 3]


def test_the_alternatives_of_a_prompt(engine: Engine, monkeypatch):
    prompt, text = TOKENS[:9], engine.detokenize(TOKENS[:9]).decode(errors="replace")
    wanted, n_wanted = read_prompt(engine, prompt, text, 3)
    append_only(engine, monkeypatch)
    found, n_found = read_prompt(engine, prompt, text, 3)
    assert n_found == n_wanted == 9 + 8
    assert [one.logprob for one in found] == [one.logprob for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        np.testing.assert_allclose(
            [logprob for _, logprob in ours.top], [logprob for _, logprob in theirs.top], atol=1e-5
        )
