"""The measures: by hand, by the published formulas, and by independent computations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tgr_local.lab.eval import metrics


def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one():
    for n, k in itertools.product(range(1, 8), range(1, 8)):
        for c in range(n + 1) if k <= n else ():
            draws = list(itertools.combinations([i < c for i in range(n)], k))
            share = sum(map(any, draws)) / len(draws)
            assert metrics.pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_the_formula_of_chen_et_al_where_factorials_are_huge():
    for n, c, k in [(200, 3, 100), (384, 1, 128), (1000, 500, 1), (4000, 7, 64)]:
        exact = 1 - math.comb(n - c, k) / math.comb(n, k)
        assert metrics.pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be_drawn(n: int, c: int, k: int):
    with pytest.raises(ValueError, match="must be between"):
        metrics.pass_at_k(n, c, k)


def test_any_of_first_looks_at_the_first_k():
    correct = np.array([False, False, True, False])
    assert [metrics.any_of_first(correct, k) for k in (1, 2, 3, 4)] == [0, 0, 1, 1]


def test_auc_by_hand():
    assert metrics.auc([1, 2, 4], [0.5, 0.5, 0.5]) == pytest.approx(50)
    assert metrics.auc([1, 2], [0.0, 1.0]) == pytest.approx(50)
    # (1·0.25 + 2·0.75) / 3 over log2 k = 0, 1, 3
    assert metrics.auc([1, 2, 8], [0.0, 0.5, 1.0]) == pytest.approx(100 * 1.75 / 3)


def test_auc_is_the_trapezoid_over_log2_k_and_linear():
    rng = np.random.default_rng(0)
    ks, curves = metrics.doublings(1, 128), rng.random((5, 8))
    areas = [metrics.auc(ks, curve) for curve in curves]
    for curve, area in zip(curves, areas, strict=True):
        assert area == pytest.approx(100 * np.trapezoid(curve, np.log2(ks)) / 7)
    assert np.mean(areas) == pytest.approx(metrics.auc(ks, curves.mean(axis=0)))


@pytest.mark.parametrize("ks", [[1], [1, 1], [4, 2]])
def test_auc_needs_increasing_ks(ks: list[int]):
    with pytest.raises(ValueError, match="increasing"):
        metrics.auc(ks, [0.5] * len(ks))


def test_doublings():
    assert metrics.doublings(1, 128) == [1, 2, 4, 8, 16, 32, 64, 128]
    assert metrics.doublings(1, 100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert metrics.doublings(3, 3) == [3]


def test_best_of_k_is_the_mean_over_all_draws():
    rng = np.random.default_rng(1)
    values, keys = rng.random(7), np.array([3.0, 1, 4, 1, 5, 1, 2])  # with ties
    for k in range(1, 8):
        draws = itertools.combinations(range(7), k)
        taken = [values[max(draw, key=lambda i: (keys[i], -i))] for draw in draws]
        assert metrics.best_of_k(values, keys, k) == pytest.approx(np.mean(taken))


def vote(answers: list[str | None], correct: list[bool], order: tuple[int, ...]) -> bool:
    """One draw, counted the plain way."""
    tally: dict[str, list[int]] = {}
    for i in order:
        answer = answers[i]
        if answer is not None:
            tally.setdefault(answer, []).append(i)
    if not tally:
        return False
    most = max(map(len, tally.values()))
    winner = next(voters for voters in tally.values() if len(voters) == most)
    return correct[winner[0]]


def test_majority_is_the_mean_over_all_orders():
    answers = ["a", "b", None, "b", "c"]
    correct = [True, False, False, False, True]
    for k in (1, 2, 3, 5):
        orders = list(itertools.permutations(range(5), k))
        exact = np.mean([vote(answers, correct, order) for order in orders])
        rng = np.random.default_rng(k)
        found = [metrics.majority_at_k(answers, np.array(correct), k, rng) for _ in range(20)]
        assert np.mean(found) == pytest.approx(exact, abs=0.02)


def test_majority_without_votes_is_wrong_and_with_one_answer_is_that():
    rng = np.random.default_rng(0)
    assert metrics.majority_at_k([None, None], np.array([True, True]), 2, rng) == 0
    assert metrics.majority_at_k(["x", "x", None], np.array([True] * 3), 3, rng) == 1


def test_a_budget_by_hand():
    rng = np.random.default_rng(0)
    correct, costs = np.array([True, False]), np.array([3.0, 2.0])
    part, cheap, either, both = metrics.at_budgets(correct, costs, [1, 2, 3, 5], rng)
    # in half of the orders the right one comes first, else the wrong one, which costs less
    assert part.passed == pytest.approx(1 / 6, abs=0.05)
    assert part.fitting == pytest.approx((1 / 3 + 1 / 2) / 2, abs=0.05)
    assert cheap.passed == pytest.approx(2 / 6, abs=0.05)
    assert cheap.fitting == pytest.approx((2 / 3 + 1) / 2, abs=0.05)
    assert either.passed == pytest.approx((1 + 1 / 3) / 2, abs=0.05)
    assert either.fitting == pytest.approx((1 + 1 + 1 / 3) / 2, abs=0.05)
    assert (both.passed, both.fitting) == (1, 2)


@pytest.mark.parametrize("ratio", [1.0, 2.5, 3.4])
def test_a_dear_system_that_is_as_good_a_token_gets_as_much_of_a_budget(ratio: float):
    """Samples at `ratio` times the cost, right so much more often that a token buys the same: the
    budget of eight cheap ones finds no difference."""
    rng = np.random.default_rng(3)
    chance = 1 - 0.85**ratio
    gaps = []
    for _ in range(1500):
        cheap, dear = rng.random(8) < 0.15, rng.random(8) < chance
        passed = [
            metrics.at_budgets(correct, np.full(8, cost), [8 * 100.0], rng)[0].passed
            for correct, cost in ((cheap, 100.0), (dear, 100.0 * ratio))
        ]
        gaps.append(passed[0] - passed[1])
    assert abs(np.mean(gaps)) < 0.02 + 2 * np.std(gaps) / np.sqrt(len(gaps))


def test_a_budget_of_equal_costs_is_pass_at_k():
    rng = np.random.default_rng(0)
    correct = np.array([True] * 2 + [False] * 6)
    found = [
        np.mean([s.passed for s in rows])
        for rows in zip(
            *(metrics.at_budgets(correct, np.full(8, 10.0), [10, 40, 80], rng) for _ in range(20)),
            strict=True,
        )
    ]
    expected = [metrics.pass_at_k(8, 2, k) for k in (1, 4, 8)]
    assert found == pytest.approx(expected, abs=0.02)


def test_the_interval_of_0_1_values_is_wilsons():
    none = metrics.interval(np.zeros(100))
    z2 = 1.959964**2
    assert (none.mean, none.low, none.high) == (0, 0, pytest.approx(z2 / (100 + z2)))
    every = metrics.interval(np.ones(100))
    assert (every.low, every.high) == (pytest.approx(100 / (100 + z2)), 1)
    # 81 of 263, the example of Newcombe (1998)
    found = metrics.interval(np.repeat([1.0, 0.0], [81, 182]))
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_an_interval_scales_with_the_largest_possible_value():
    values = np.random.default_rng(2).random(40)
    share, points = metrics.interval(values), metrics.interval(100 * values, top=100)
    assert (points.low, points.high) == pytest.approx((100 * share.low, 100 * share.high))
    with pytest.raises(ValueError, match=r"a value is 1\.5, but 1 is the largest possible"):
        metrics.interval([0.0, 1.5])
    with pytest.raises(ValueError, match=r"a value is -0\.5, but must be between 0 and 1"):
        metrics.interval([0.0, -0.5])


def covered(found: list[metrics.Interval], truth: float) -> float:
    return float(np.mean([one.low <= truth <= one.high for one in found]))


@pytest.mark.parametrize("n", [30, 100])
@pytest.mark.parametrize("samples", [1, 4, 33])
@pytest.mark.parametrize("p", [0.02, 0.05, 0.5, 0.98])
def test_the_interval_has_the_coverage_that_it_says(p: float, samples: int, n: int):
    """Problems of every difficulty, each with the mean of so many samples."""
    rng = np.random.default_rng(7)
    values = rng.binomial(samples, rng.beta(p, 1 - p, (500, n))) / samples
    assert covered([metrics.interval(row) for row in values], p) >= 0.92


@pytest.mark.parametrize("gain", [0.0, 0.02])
@pytest.mark.parametrize("samples", [1, 4, 33])
@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
def test_a_paired_difference_has_the_coverage_that_it_says(p: float, samples: int, gain: float):
    rng = np.random.default_rng(8)
    chances = rng.beta(p, 1 - p, (500, 60))
    better = rng.binomial(samples, chances + gain * (1 - chances) / (1 - p)) / samples
    plain = rng.binomial(samples, chances) / samples
    found = [metrics.paired(a, b) for a, b in zip(better, plain, strict=True)]
    assert covered(found, gain) >= 0.92


def test_a_paired_difference_is_narrower_than_its_sides():
    rng = np.random.default_rng(5)
    difficulty = 0.9 * rng.random(80)
    found = metrics.paired(difficulty + 0.1 * rng.random(80), difficulty)
    alone = metrics.interval(difficulty)
    assert found.low < 0.05 < found.high
    assert found.high - found.low < (alone.high - alone.low) / 2
    with pytest.raises(ValueError, match="same ones"):
        metrics.paired([1.0], [1.0, 2.0])


def test_a_paired_difference_is_its_opposite_the_other_way_round():
    a, b = np.random.default_rng(6).integers(0, 2, (2, 50)).astype(float)
    one, other = metrics.paired(a, b), metrics.paired(b, a)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    equal = metrics.paired(a, a)
    assert equal.low == pytest.approx(-equal.high) and 0.05 < equal.high < 0.1


def test_rank_correlation_by_hand():
    assert metrics.rank_correlation([1, 2, 3, 9], [0, 1, 5, 7]).mean == pytest.approx(1)
    assert metrics.rank_correlation([1, 2, 3], [3, 2, 1]).mean == pytest.approx(-1)
    # ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: cov 4.5/4, variances 4.5/4 and 5/4
    found = metrics.rank_correlation([1, 2, 2, 7], [1, 2, 3, 4])
    assert found.mean == pytest.approx(math.sqrt(4.5 / 5))
    assert found.low <= found.mean <= found.high <= 1 + 1e-9
    for x, y in (([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3])):
        assert math.isnan(metrics.rank_correlation(x, y).mean)


def test_rank_correlation_of_noise_covers_zero():
    rng = np.random.default_rng(11)
    found = [metrics.rank_correlation(*rng.normal(size=(2, 60))) for _ in range(200)]
    assert 0.9 <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.99


def test_self_bleu_of_equal_and_of_foreign_texts():
    pytest.importorskip("sacrebleu")
    same = ["the cat sat on the mat today", "the cat sat on the mat today"]
    assert metrics.self_bleu(same) == pytest.approx(100)
    assert metrics.self_bleu(["one two three four", "five six seven eight"]) < 20
    with pytest.raises(ValueError, match="at least 2"):
        metrics.self_bleu(["alone"])
