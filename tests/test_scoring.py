"""Scores of candidates: rollouts to check by hand, then identities of the combination."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tgr_local.search import scoring
from tgr_local.search.scoring import Scores, Weights

WEIGHTS = Weights(foresight_weight=1.0, lambda_b=0.5, lambda_u=0.25)
EAST, NORTH = np.eye(2)


def combine(*terms: list[float], weights: Weights = WEIGHTS) -> Scores:
    v, bum, uni = (np.array(term) for term in terms)
    return scoring.combine(v, bum, uni, weights)


def rollouts(n: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "logprobs": -rng.random((n, 6), dtype=np.float32),
        "states": rng.standard_normal((n, 6, 5), dtype=np.float32),
        "lengths": rng.integers(1, 7, n),
    }


def score(
    arrays: dict[str, NDArray[Any]], anchors: NDArray[Any], owners: list[int] | None = None
) -> Scores:
    """Each anchor has one rollout unless `owners` says whose each is."""
    owners = list(range(len(anchors))) if owners is None else owners
    return scoring.score(
        **arrays, anchors=anchors, z=EAST, delta=0.2, weights=WEIGHTS, owners=np.array(owners)
    )


def test_foresight_is_the_mean_over_a_rollouts_own_tokens():
    logprobs = np.array([[-1.0, -2.0, -3.0], [-1.0, -3.0, np.nan]])
    np.testing.assert_allclose(scoring.foresight(logprobs, np.array([3, 2])), [-2.0, -2.0])


def test_bumpiness_of_hand_checked_paths():
    still = [EAST] * 4
    back_and_forth = [EAST, -EAST, EAST, -EAST]  # ‖±4 e‖² = 16, the largest there is
    corner = [EAST, EAST, NORTH, NORTH]  # ‖n − e‖² = 2, then ‖e − n‖² = 2
    states = np.array([still, back_and_forth, corner])
    lengths = np.array([4, 4, 4])
    np.testing.assert_allclose(scoring.bumpiness(states, lengths), [0.0, 16.0, 2.0])


def test_bumpiness_ignores_length_of_states_and_padding():
    states = np.array([[EAST, 5 * NORTH, 0.1 * EAST, [np.nan, 0.0]]])
    np.testing.assert_allclose(scoring.bumpiness(states, np.array([3])), [8.0])


@pytest.mark.parametrize("length", [1, 2])
def test_bumpiness_of_fewer_than_three_tokens_is_the_mean_of_the_others_or_zero(length: int):
    back_and_forth, still = [EAST, -EAST, EAST], [EAST] * 3  # 16 and 0
    states = np.array([back_and_forth, [NORTH, EAST, NORTH], still])
    found = scoring.bumpiness(states, np.array([3, length, 3]))
    np.testing.assert_allclose(found, [16.0, 8.0, 0.0])
    np.testing.assert_array_equal(scoring.bumpiness(states, np.array([length, 1, 2])), [0.0] * 3)


def test_a_rollout_that_ends_early_does_not_win_by_its_bumpiness():
    """V is −1, −1.5 and −1, P_bum 16, 8 and 0; without the third, P_bum is 16 and 16. If it were 0
    for the second, that would win against the first."""
    back_and_forth, still = [EAST, -EAST, EAST], [EAST] * 3
    arrays = {
        "logprobs": np.array([[-1.0] * 3, [-1.5] * 3, [-1.0] * 3]),
        "states": np.array([back_and_forth, back_and_forth, still]),
        "lengths": np.array([3, 2, 3]),
    }
    scores = score(arrays, np.array([NORTH] * 3))
    np.testing.assert_allclose(scores.total, [-9.0, -5.5, -1.0])
    scores = score({name: array[:2] for name, array in arrays.items()}, np.array([NORTH] * 2))
    np.testing.assert_allclose(scores.total, [-9.0, -9.5])
    assert scores.chosen == 0


def test_bumpiness_is_six_minus_eight_c1_plus_two_c2():
    g = np.random.default_rng(0).standard_normal((1, 400, 8))
    g /= np.linalg.norm(g, axis=2, keepdims=True)
    c1 = np.mean(np.sum(g[0, 1:] * g[0, :-1], axis=1))
    c2 = np.mean(np.sum(g[0, 2:] * g[0, :-2], axis=1))
    assert scoring.bumpiness(g, np.array([400]))[0] == pytest.approx(6 - 8 * c1 + 2 * c2, abs=0.05)


def test_uniformity_is_the_cosine_in_excess_of_delta():
    anchors = np.array([EAST, NORTH, -EAST, [0.6, 0.8]], dtype=np.float32)
    excess = scoring.uniformity(anchors, EAST, 0.2)
    np.testing.assert_allclose(excess, [0.8, 0.0, 0.0, 0.4], atol=1e-7)


def test_total_of_hand_checked_terms():
    scores = combine([-1.0, -2.0], [4.0, 0.0], [0.0, 0.8])
    np.testing.assert_allclose(scores.total, [-3.0, -2.2])
    assert scores.chosen == 1
    assert scores.spread() == pytest.approx({"foresight": 0.5, "bumpiness": 2.0, "uniformity": 0.4})


def test_a_weight_of_zero_switches_its_term_off():
    terms = ([-1.0, -2.0], [9.0, 0.0], [9.0, 0.0])
    assert combine(*terms, weights=Weights(1.0, 0.0, 0.0)).chosen == 0
    assert combine(*terms, weights=Weights(0.0, 0.5, 0.0)).chosen == 1
    np.testing.assert_array_equal(combine(*terms, weights=Weights(0.0, 0.0, 0.0)).total, [0, 0])


def test_ties_go_to_the_lowest_index():
    assert combine([-2.0, -1.0, -1.0], [0.0] * 3, [0.0] * 3).chosen == 1


def test_score_is_the_combination_of_its_terms():
    arrays, anchors = rollouts(4), np.array([EAST, NORTH, -EAST, [0.6, 0.8]])
    scores = score(arrays, anchors)
    v = scoring.foresight(arrays["logprobs"], arrays["lengths"])
    bum = scoring.bumpiness(arrays["states"], arrays["lengths"])
    uni = scoring.uniformity(anchors, EAST, 0.2)
    np.testing.assert_array_equal(scores.total, v - 0.5 * bum - 0.25 * uni)
    assert scores.chosen == int(np.argmax(scores.total))
    for term in (scores.foresight, scores.bumpiness, scores.uniformity, scores.total):
        assert term.dtype == np.float64 and term.shape == (4,)


@pytest.mark.parametrize("owners", [[0, 0, 0, 1, 1, 1], [0, 1, 0]])
def test_the_rollouts_of_a_candidate_are_averaged(owners: list[int]):
    arrays, own = rollouts(len(owners)), np.array(owners)
    scores = score(arrays, np.array([EAST, NORTH]), owners)
    v = scoring.foresight(arrays["logprobs"], arrays["lengths"])
    bum = scoring.bumpiness(arrays["states"], arrays["lengths"])
    np.testing.assert_allclose(scores.foresight, [v[own == 0].mean(), v[own == 1].mean()])
    np.testing.assert_allclose(scores.bumpiness, [bum[own == 0].mean(), bum[own == 1].mean()])


def test_the_best_are_in_order():
    scores = combine([-3.0, -1.0, -1.5, -1.0], [0.0] * 4, [0.0] * 4)
    assert scores.best(3).tolist() == [1, 3, 2] and scores.best(0).size == 0


@pytest.mark.parametrize("name", ["logprobs", "states"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_its_candidate(name: str, bad: float):
    arrays, anchors = rollouts(4), np.array([EAST, NORTH])
    arrays["lengths"][:] = 4
    arrays[name][:, 5] = bad
    score(arrays, anchors, [0, 0, 1, 1])  # padding may hold anything
    arrays[name][3, 2] = bad
    with pytest.raises(ValueError, match=r"candidate 1 \(rollout 3\) is inf or nan"):
        score(arrays, anchors, [0, 0, 1, 1])


@pytest.mark.parametrize("length", [0, 7])
def test_a_length_out_of_bounds_names_its_candidate(length: int):
    arrays = rollouts(2)
    arrays["lengths"][1] = length
    with pytest.raises(ValueError, match=f"candidate 1 .* has length {length} .* 1 to 6 tokens"):
        score(arrays, np.array([EAST, NORTH]))
