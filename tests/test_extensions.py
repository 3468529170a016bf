"""What each extension of the search and of the reset changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from engines import held
from fixture_types import Load, Model
from method_runs import PROMPT, decoded, spent, steps_of, text_of, with_
from numpy.typing import NDArray
from reference import Reference

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry
from tgr_local.search.steps import Step
from tgr_local.system.errors import CapacityError

# --- shifted cells ---


def test_shifting_equals_rebuilding_in_a_one_layer_model(model: Model, load: Load):
    """In a model of one layer the cell of a token depends on nothing but the token."""
    engine = load(model(n_layer=1))
    for method in ("markov", "tgr-latent"):
        config = with_(calibration="absolute", temperature=0.0)
        rebuilt = steps_of(engine, method, config)
        shifted = steps_of(engine, method, dataclasses.replace(config, shift_cells=True))
        assert not any(step.counts.rebuild for step in shifted)
        assert text_of(shifted) == text_of(rebuilt)
        for a, b in zip(shifted, rebuilt, strict=True):
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
            assert a.cells <= methods.get(method).cells(engine, len(PROMPT), config)


def test_shifted_cells_remember_their_context_in_a_deeper_model(engine: Engine):
    rebuilt = steps_of(engine, "markov", with_(temperature=0.0))
    before = engine.stats().n_positions
    shifted = steps_of(engine, "markov", with_(temperature=0.0, shift_cells=True))
    assert engine.stats().n_positions - before == spent(shifted) == spent(rebuilt) - 3 * 6
    for same in (0, 1):  # the first reset drops nothing
        np.testing.assert_allclose(shifted[same].logprobs, rebuilt[same].logprobs, atol=1e-5)
    assert not np.allclose(shifted[2].logprobs, rebuilt[2].logprobs, atol=1e-3)


def test_quantised_keys_are_not_shifted(model: Model, load: Load):
    engine = load(model(n_head=2), type_k="q8_0")
    with pytest.raises(ValueError, match="which type_k q8_0 would round again; set type_k to f16"):
        steps_of(engine, "markov", with_(shift_cells=True))
    steps_of(engine, "base", with_(shift_cells=True))


# --- the extensions of the search ---


def found(step: Step) -> Any:
    assert step.candidates is not None
    return step.candidates


def vectors_of(engine: Engine, config: SearchConfig, anchors: NDArray[Any]) -> NDArray[Any]:
    """[n, n_layer, d_h] under calibration="absolute"."""
    d_h = engine.n_embd
    maps = geometry.InjectionMaps.draw(engine.n_layer, d_h, d_h, config.rank, config.injection_seed)
    return config.eta * maps.vectors(anchors)


def assert_rolled_out(engine: Engine, config: SearchConfig, steps: list[Step]) -> None:
    """Every rollout of a first step, and its chunk, from the reference."""
    reference, candidates = Reference(engine.path), found(steps[0])
    vectors = vectors_of(engine, config, candidates.anchors)
    for tokens, logprobs, owner in zip(
        candidates.tokens, candidates.logprobs, candidates.owners, strict=True
    ):
        wanted, _ = decoded(reference, PROMPT, tokens.tolist(), vectors[owner])
        np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
    injection = vectors[candidates.scores.chosen]
    wanted, _ = decoded(reference, PROMPT, steps[0].tokens.tolist(), injection)
    np.testing.assert_allclose(steps[0].logprobs, wanted, atol=1e-4)


def test_the_best_are_rolled_out_once_more_and_averaged(engine: Engine):
    plain = with_(n_mc=2, n_candidates=4, calibration="absolute", max_chunks=1)
    config = dataclasses.replace(plain, reevaluate=2)
    once, again = (steps_of(engine, "tgr-latent", c) for c in (plain, config))
    first, both = found(once[0]), found(again[0])
    best = np.argsort(-first.scores.total, kind="stable")[:2]
    assert both.owners.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, *np.repeat(best, 2)]
    for before, after in zip(first.tokens, both.tokens, strict=False):
        np.testing.assert_array_equal(before, after)
    assert len({tuple(tokens) for tokens in both.tokens}) == 12
    V = [np.mean(logprobs) for logprobs in both.logprobs]
    wanted = [np.mean([v for v, o in zip(V, both.owners, strict=True) if o == k]) for k in range(4)]
    np.testing.assert_allclose(both.scores.foresight, wanted, rtol=1e-6)
    assert both.scores.chosen == both.scores.total.argmax()
    assert again[0].counts.rollouts == once[0].counts.rollouts + 2 * 2 * 4
    assert_rolled_out(engine, config, again)


def test_the_winners_rollout_begins_the_chunk(engine: Engine):
    config = with_(reuse_winner=True, calibration="absolute", n_mc=2)
    plain, reused = (
        steps_of(engine, "tgr-latent", dataclasses.replace(config, reuse_winner=reuse))
        for reuse in (False, True)
    )
    for step in reused:
        rollout = found(step).tokens[2 * found(step).scores.chosen]
        np.testing.assert_array_equal(step.tokens[:4], rollout)
        assert step.counts.chunk == 6 - 4
    assert spent(reused) == spent(plain) - 4 * 4
    assert_rolled_out(engine, config, reused)


@pytest.mark.parametrize("rollout_len", [6, 7, 20])
def test_a_rollout_longer_than_a_chunk_is_the_chunk(engine: Engine, rollout_len: int):
    config = with_(reuse_winner=True, calibration="absolute", rollout_len=rollout_len)
    steps = steps_of(engine, "tgr-latent", config)
    for step in steps:
        rollout = found(step).tokens[found(step).scores.chosen]
        np.testing.assert_array_equal(step.tokens, rollout[:6])
        assert step.counts.chunk == 0
    assert_rolled_out(engine, config, steps)
    # the state that follows is read after the cut
    context, chunk = PROMPT, steps[0].tokens.tolist()
    (injection,) = vectors_of(engine, config, steps[0].anchor[None])  # type: ignore[index]
    text = [*context, *chunk, engine.eoc_token()]
    everywhere = np.zeros((len(text), engine.n_layer, engine.n_embd))
    everywhere[len(context) - 1 : -1] = injection
    h = Reference(engine.path).forward(text, everywhere).states[-1]
    np.testing.assert_allclose(steps[0].state, geometry.unit(h), atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 7, 10, 11])
def test_a_reused_rollout_keeps_to_the_limit_of_new_tokens(engine: Engine, limit: int):
    steps = steps_of(engine, "tgr-latent", with_(reuse_winner=True, max_tokens=limit))
    assert len(text_of(steps)) == limit and steps[-1].finish == "length"


def test_a_reused_rollout_is_reported_like_any_text(engine: Engine):
    seen: list[int] = []
    config = with_(reuse_winner=True, top_logprobs=2)
    steps = steps_of(
        engine, "tgr-latent", config, on_event=lambda progress: seen.extend(progress.tokens)
    )
    assert seen == text_of(steps)
    assert all(len(step.top_ids or ()) == len(step.tokens) for step in steps)


@pytest.mark.parametrize(
    ("options", "term"),
    [
        ({"lambda_u": 0.0, "lambda_b": 0.0}, "foresight"),
        ({"lambda_u": 0.0, "foresight_weight": 0.0}, "bumpiness"),
        ({"lambda_b": 0.0, "foresight_weight": 0.0}, "uniformity"),
    ],
)
def test_a_weight_of_zero_is_the_papers_ablation(
    engine: Engine, options: dict[str, Any], term: str
):
    """Only the term that is left can decide, and a term that is off cannot."""
    for step in steps_of(engine, "tgr-latent", with_(n_candidates=6, **options)):
        scores = found(step).scores
        sign = 1 if term == "foresight" else -1
        assert scores.chosen == np.argmax(sign * getattr(scores, term))


def test_random_anchor_draws_as_the_method_does_without_rollouts(engine: Engine):
    config = with_(calibration="absolute")
    steps = steps_of(engine, "random-anchor", config)
    tried = steps_of(engine, "tgr-latent", dataclasses.replace(config, n_candidates=1))
    assert text_of(steps) == text_of(tried)  # one candidate is no choice
    for step, other in zip(steps, tried, strict=True):
        np.testing.assert_array_equal(step.anchor, other.anchor)  # type: ignore[arg-type]
        np.testing.assert_allclose(step.origin, other.origin, atol=1e-6)  # type: ignore[arg-type]
        assert step.candidates is None and step.counts.rollouts == 0


def test_long_extensions_are_refused_with_the_numbers(engine: Engine):
    config = with_(chunk_len=600, max_chunks=20, rollout_len=4090)
    with pytest.raises(CapacityError, match="chunk_len and rollout_len to 2043"):
        steps_of(engine, "tgr-latent", config)
    with pytest.raises(CapacityError, match="needs 301 sequences"):
        steps_of(engine, "tgr-latent", with_(n_candidates=150, reevaluate=200))
    assert not any(held(engine.stats()).values())
