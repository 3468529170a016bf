"""The statistics of bench/oracle.py: arrays in, numbers out; it knows no model and no file.

At one boundary K anchors have n completions each: `x` [K, n] holds their success (0 or 1), `scores`
[K, n] what a rollout said of each. Completions have seeds of their own, or with `shared` those of a
column have the same seeds. Every function gives one number, or a few, for a boundary; `bootstrap`
makes the interval over boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.eval.metrics import Interval

Floats = NDArray[np.floating[Any]]
Measure = Callable[[Floats], float]

_RESAMPLES = 2000  # of the boundaries, for an interval


def variances(x: Floats, shared: bool) -> NDArray[np.float64]:
    """[3] unbiased variances of x [K, n]: between anchors, common to a column, and the rest.

    The method of moments: the variance of the anchors' means minus that of the luck in a mean, so
    it may be negative. Where columns share seeds, their effect is taken out of the rest; else it is
    0. ValueError for fewer than two anchors or completions.
    """
    n_anchors, n = x.shape
    if min(x.shape) < 2:
        raise ValueError(f"x has shape {x.shape}, but needs at least two anchors and completions")
    means = x.mean(axis=1)
    if not shared:
        luck = x.var(axis=1, ddof=1).mean()
        return np.array([means.var(ddof=1) - luck / n, 0.0, luck])
    columns = x.mean(axis=0)
    residual = x - means[:, None] - columns + x.mean()
    luck = np.sum(residual**2) / ((n_anchors - 1) * (n - 1))
    return np.array([means.var(ddof=1) - luck / n, columns.var(ddof=1) - luck / n_anchors, luck])


def best_of_half(x: Floats, rng: np.random.Generator, n_splits: int = 50) -> float:
    """Success of the anchor that is best by one half of the completions, in the other half, minus
    the mean of all anchors there; over random halves. 0 on average where anchors are alike."""
    n = x.shape[1]
    gains = []
    for _ in range(n_splits):
        halves = np.split(rng.permutation(n), [n // 2])
        for choosing, judging in (halves, halves[::-1]):
            by = x[:, judging].mean(axis=1)
            gains.append(_chosen(x[:, choosing].mean(axis=1), axis=0) @ by - by.mean())
    return float(np.mean(gains))


def gain_of_choice(scores: Floats, x: Floats, n_mc: int = 1) -> float:
    """Success of the anchor with the largest mean score of n_mc rollouts, minus the mean of all
    anchors, both in the completions that these rollouts did not begin; over all rollouts."""
    n_anchors, n = x.shape
    n_choices = n // n_mc
    used = (n_anchors, n_choices, n_mc)
    chosen = scores[:, : n_choices * n_mc].reshape(used).mean(axis=2)
    own = x[:, : n_choices * n_mc].reshape(used).sum(axis=2)
    by = (x.sum(axis=1, keepdims=True) - own) / (n - n_mc)  # [K, choices]
    return float(np.mean(_chosen(chosen, axis=0) * by, axis=1).sum() - by.mean())


def gain_of_winner(scores: Floats, x: Floats) -> float:
    """Success of the completion that the best rollout of a column began, minus that of all."""
    return float(np.mean(_chosen(scores, axis=0) * x, axis=1).sum() - x.mean())


def apart(
    measure: Callable[[Floats, Floats], float],
    scores: Floats,
    x: Floats,
    rng: np.random.Generator,
    n_draws: int = 100,
) -> float:
    """`measure` of scores and x [K, n] where columns share seeds, as if every candidate of a choice
    had a seed of its own: the mean over random pairings that put no seed twice into a column.
    ValueError for fewer completions than anchors."""
    n_anchors, n = x.shape
    if n < n_anchors:
        raise ValueError(f"x has shape {x.shape}, but needs a completion for each anchor")
    rows = np.arange(n_anchors)[:, None]
    values = []
    for _ in range(n_draws):
        columns = rng.permutation(n)[(np.arange(n) + rows) % n]  # [K, n]
        values.append(measure(scores[rows, columns], x[rows, columns]))
    return float(np.mean(values))


def half_moments(scores: Floats, x: Floats) -> NDArray[np.float64]:
    """[3] covariance and variances over anchors of the mean score in one half of the completions
    and the success in the other, for `correlation`."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    first, second = (
        _moments(scores[:, scored].mean(axis=1), x[:, counted].mean(axis=1))
        for scored, counted in ((even, odd), (odd, even))
    )
    return np.asarray((first + second) / 2)


def text_moments(scores: Floats, x: Floats) -> NDArray[np.float64]:
    """[3] the same over all completions of the boundary, each with its own rollout's score."""
    return _moments(scores.ravel(), x.ravel())


def share(parts: Floats) -> float:
    """The first of `variances` as a share of their sum; NaN without any variance."""
    total = float(parts.sum())
    return float(parts[0]) / total if total > 0 else math.nan


def correlation(moments: Floats) -> float:
    """Of a covariance and two variances; NaN where one of them is 0."""
    covariance, a, b = moments
    return float(covariance / math.sqrt(a * b)) if a > 0 and b > 0 else math.nan


def best_of_normal(n: int) -> float:
    """The expected largest of n standard normal numbers."""
    t = np.linspace(-8, 8, 4001)
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in t])
    density = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(t * n * below ** (n - 1) * density) * (t[1] - t[0]))


def bootstrap(parts: Floats, measure: Measure, seed: int = 0) -> Interval:
    """`measure` of the mean over boundaries of parts [boundaries, m], with its 95% percentile
    bootstrap interval over boundaries. NaN without a boundary."""
    if not len(parts):
        return Interval(math.nan, math.nan, math.nan)
    n = len(parts)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES) / n
    values = [measure(row) for row in weights @ parts]
    known = [value for value in values if not math.isnan(value)] or [math.nan]
    low, high = np.percentile(known, (2.5, 97.5))
    return Interval(measure(parts.mean(axis=0)), float(low), float(high))


def mean(values: Floats) -> float:
    """The measure of one number for each boundary: the mean itself."""
    return float(values[0])


def _chosen(scores: Floats, axis: int) -> NDArray[np.float64]:
    """The weight of each candidate: 1 for the best along the axis, shared among equals."""
    best = np.asarray(scores == scores.max(axis=axis, keepdims=True), np.float64)
    return np.asarray(best / best.sum(axis=axis, keepdims=True))


def _moments(a: Floats, b: Floats) -> NDArray[np.float64]:
    a, b = a - a.mean(), b - b.mean()
    return np.asarray(np.array([a @ b, a @ a, b @ b]) / (len(a) - 1), np.float64)
