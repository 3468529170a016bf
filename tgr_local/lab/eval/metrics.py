"""The metrics of an evaluation: arrays in, numbers out.

Pure numpy, independent of models, files and reports. A *problem* has n samples, each with its
correctness (`correct` [n] bool), its cost (`costs` [n] forward tokens), its likelihood (`logprobs`
[n]) and its extracted answer. Every metric is one number for each problem, in 0 … 1 unless stated
otherwise, so means, intervals and paired differences over problems are computed the same way.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.system.errors import InstallError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_ORDERS = 400  # random orders in which the samples of a problem are drawn
_RESAMPLES = 2000  # of the problems, for the interval of a correlation
_FEW, _FEW_PAIRED = 4.0, 1.0  # see `_wilson`; chosen by bench/interval_coverage.py
_Z = 1.959964  # standard errors from a mean to the edge of its 95% interval


@dataclass(frozen=True)
class Interval:
    """A mean over problems with its 95% interval."""

    mean: float
    low: float
    high: float


# ---- k samples ----


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n samples, drawn without replacement, include one of the c correct ones:
    1 − C(n−c, k)/C(n, k), as the product of Chen et al. (2021), which neither overflows nor
    cancels. ValueError unless 1 ≤ k ≤ n and 0 ≤ c ≤ n."""
    _check_draw(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"c is {c}, but must be between 0 and n, which is {n}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def any_of_first(correct: Flags, k: int) -> float:
    """1 if one of the first k samples is correct: Pass@k measured directly."""
    _check_draw(len(correct), k)
    return float(np.any(correct[:k]))


def best_of_k(values: Floats, keys: Floats, k: int) -> float:
    """The expected value of the sample with the largest key among k drawn without replacement;
    the earlier one among equals. values and keys [n].

    With keys = mean log-likelihoods this is best-of-k; with keys = values the expected maximum.
    """
    n = len(values)
    _check_draw(n, k)
    order = np.argsort(-np.asarray(keys, np.float64), kind="stable")
    # the r-th best is taken when the other k−1 are among the n−1−r after it: C(n−1−r, k−1)/C(n, k)
    n_after = n - np.arange(1, n)
    chances = np.cumprod([k / n, *(np.maximum(n_after - k + 1, 0) / n_after)])
    return float(np.sum(chances * np.asarray(values, np.float64)[order]))


def majority_at_k(
    answers: Sequence[str | None], correct: Flags, k: int, rng: np.random.Generator
) -> float:
    """The chance that the most frequent answer of k samples is correct, over random draws.

    A sample without an answer does not vote. The earlier answer wins a tie. An answer is correct if
    the first sample with it is. Without any vote the answer is wrong.
    """
    n = len(answers)
    _check_draw(n, k)
    names = {answer: i for i, answer in enumerate(dict.fromkeys(answers)) if answer is not None}
    codes = np.array([names.get(answer, -1) if answer is not None else -1 for answer in answers])
    orders = rng.permuted(np.tile(np.arange(n), (_ORDERS, 1)), axis=1)[:, :k]  # [orders, k]
    wins = []
    for name in set(names.values()):
        votes = codes[orders] == name
        first = np.where(votes.any(axis=1), votes.argmax(axis=1), 0)
        right = np.asarray(correct, bool)[orders[np.arange(_ORDERS), first]]
        # one more vote outweighs any position in the draw
        wins.append(np.stack([votes.sum(axis=1) * (k + 1) + k - first, right]))
    if not wins:
        return 0.0
    ranks, rights = np.stack(wins, axis=1)  # [answers, orders] each
    winner = ranks.argmax(axis=0)
    some = (codes[orders] >= 0).any(axis=1)
    return float(np.mean(rights[winner, np.arange(_ORDERS)] * some))


def auc(ks: Sequence[int], passes: Sequence[float] | Floats) -> float:
    """The area under Pass@k over log₂ k, scaled to 0 … 100:
    100/(log₂ k_M − log₂ k_0) · Σ (log₂ k_{i+1} − log₂ k_i)(Pass@k_{i+1} + Pass@k_i)/2.

    `passes` [len(ks)] are shares. ValueError unless there are two or more increasing ks.
    """
    widths = np.diff(np.log2(ks))
    if len(widths) == 0 or not (widths > 0).all():
        raise ValueError(f"k is {list(ks)}, but an area needs two or more increasing values")
    values = np.asarray(passes, np.float64)
    return float(100 * np.sum(widths * (values[1:] + values[:-1]) / 2) / widths.sum())


def doublings(low: int, high: int) -> list[int]:
    """low, 2·low, 4·low … and high. ValueError unless 1 ≤ low ≤ high."""
    if not 1 <= low <= high:
        raise ValueError(f"k runs from {low} to {high}, but must increase from at least 1")
    ks = [low]
    while ks[-1] * 2 < high:
        ks.append(ks[-1] * 2)
    return ks if high == low else [*ks, high]


# ---- a budget of forward tokens ----


@dataclass(frozen=True)
class Spending:
    """The samples that a budget buys on one problem."""

    passed: float
    """Pass@budget: the chance that a correct sample is among those that are bought."""
    fitting: float
    """Mean number of samples that are bought, the last one in part."""


def at_budgets(
    correct: Flags, costs: Floats, budgets: Sequence[float], rng: np.random.Generator
) -> list[Spending]:
    """The samples that each budget buys: in random orders, without replacement, until it is spent.
    The last one counts in proportion to the part of its cost that the budget covers: whole samples
    would waste more of a budget the more a sample costs. A budget that buys every sample gives
    their Pass@n."""
    n = len(correct)
    orders = rng.permuted(np.tile(np.arange(n), (_ORDERS, 1)), axis=1)  # [orders, n]
    each = np.asarray(costs, np.float64)[orders]
    spent = np.cumsum(each, axis=1) - each
    right = np.asarray(correct, bool)[orders]
    bought = [((budget - spent) / np.maximum(each, 1)).clip(0, 1) for budget in budgets]
    return [
        Spending(float((share * right).max(axis=1).mean()), float(share.sum(axis=1).mean()))
        for share in bought
    ]


# ---- over problems ----


def interval(values: Sequence[float] | Floats, top: float = 1.0) -> Interval:
    """The mean of one number for each problem, 0 … top, with its 95% Wilson interval.

    Wilson's score interval (1927), with the effective number of problems in the place of n, as
    `_wilson` computes it; its edges stay within 0 … top. NaN without a value. ValueError for a
    value outside 0 … top.
    """
    x = _scaled(values, top)
    if x.min(initial=0) < 0:
        raise ValueError(f"a value is {x.min() * top:g}, but must be between 0 and {top:g}")
    mean, low, high = _wilson(x, _FEW)
    return Interval(top * mean, top * low, top * high)


def paired(a: Sequence[float] | Floats, b: Sequence[float] | Floats, top: float = 1.0) -> Interval:
    """The mean difference a − b over the same problems, with its 95% interval; a, b 0 … top.

    A hybrid score interval (Newcombe 1998) of gains minus losses: each has a Wilson interval, and
    the distances of its edges from the mean add as standard errors of correlated numbers do. NaN
    without a value. ValueError for a difference beyond `top`.
    """
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} problems and b {len(b)}, but a pair needs the same ones")
    x = _scaled(np.asarray(a, np.float64) - np.asarray(b, np.float64), top)
    gains, losses = x.clip(min=0), (-x).clip(min=0)
    gain, gain_low, gain_high = _wilson(gains, _FEW_PAIRED)
    loss, loss_low, loss_high = _wilson(losses, _FEW_PAIRED)
    spread = gains.std() * losses.std() if len(x) else 0.0
    related = -gain * loss / spread if spread else 0.0  # no problem has both a gain and a loss

    def arm(first: float, second: float) -> float:
        return math.sqrt(max(0.0, first**2 + second**2 - 2 * related * first * second))

    low = gain - loss - arm(gain - gain_low, loss_high - loss)
    high = gain - loss + arm(gain_high - gain, loss - loss_low)
    return Interval(top * (gain - loss), top * max(low, -1.0), top * min(high, 1.0))


def _scaled(values: Sequence[float] | Floats, top: float) -> Floats:
    """The values as shares of `top`. ValueError for one beyond it, in either direction."""
    x = np.asarray(values, np.float64) / top
    if (beyond := np.abs(x) > 1 + 1e-9).any():
        raise ValueError(f"a value is {top * x[beyond][0]:g}, but {top:g} is the largest possible")
    return x.clip(-1, 1)


def _wilson(x: Floats, few: float) -> tuple[float, float, float]:
    """Mean, low and high of shares x [n].

    n is the effective number: that of 0/1 values whose mean has the same variance. Only the m
    values strictly between 0 and 1 show that the variance is below p(1 − p), that of 0/1 values.
    Where they are few they prove little, so it is drawn towards p(1 − p) by (few / (few + m))².
    Where all values are 0 or 1, this is Wilson's interval itself.
    """
    if not len(x):
        return math.nan, math.nan, math.nan
    p = float(x.mean())
    most = p * (1 - p)
    drawn = (few / (few + np.count_nonzero((x > 0) & (x < 1)))) ** 2
    variance = float((1 - drawn) * x.var() + drawn * most)
    n = len(x) * most / variance if variance > 0 else len(x)
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(most / n + _Z**2 / (4 * n**2))
    return p, min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))


@functools.lru_cache(maxsize=8)
def _resamples(n: int, seed: int) -> Floats:
    """[resamples, n] the weight of each problem in each resample."""
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    return draws / n


def bootstrap_mean(x: Floats) -> Floats:
    """[3, ...] mean over problems of x [problems, ...], and the edges of its 95% bootstrap
    interval: for measures without bounds of their own, or far from them."""
    values = np.asarray(x, np.float64)
    means = np.tensordot(_resamples(len(values), 0), values, axes=1)
    low, high = np.percentile(means, (2.5, 97.5), axis=0)
    return np.stack([values.mean(axis=0), low, high])


def rank_correlation(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Interval:
    """Spearman's correlation over problems, -1 … 1, with its bootstrap interval, for which the
    ranks are not computed again. NaN for fewer than three problems or values that do not differ."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Interval(math.nan, math.nan, math.nan)
    a, b = ranks(x), ranks(y)
    weights = np.vstack([np.full(len(a), 1 / len(a)), _resamples(len(a), 0)])
    products = weights @ np.stack([a, b, a * a, b * b, a * b], axis=1)  # [1 + resamples, 5]
    mean_a, mean_b, aa, bb, ab = products.T
    spread = np.sqrt((aa - mean_a**2).clip(0) * (bb - mean_b**2).clip(0))
    rhos = np.divide(ab - mean_a * mean_b, spread, where=spread > 1e-9, out=np.zeros_like(ab))
    low, high = np.percentile(rhos[1:], (2.5, 97.5))
    return Interval(float(rhos[0]), float(low), float(high))


def ranks(values: Sequence[float] | Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, place, n = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(n) - (n + 1) / 2)[place]


# ---- texts ----


def self_bleu(texts: Sequence[str]) -> float:
    """Self-BLEU of the texts (Zhu et al. 2018), 0 … 100: the mean BLEU of each with all others as
    its references. Low is diverse. ValueError for fewer than two texts, InstallError without
    sacrebleu."""
    if len(texts) < 2:
        raise ValueError(f"there are {len(texts)} texts, but Self-BLEU compares at least 2")
    try:
        sacrebleu = importlib.import_module("sacrebleu.metrics")
    except ImportError:
        raise InstallError(
            "Self-BLEU needs sacrebleu; run: pip install 'tgr-local[eval]'"
        ) from None
    bleu = sacrebleu.BLEU(effective_order=True)
    scores = [
        bleu.sentence_score(text, [*texts[:i], *texts[i + 1 :]]).score
        for i, text in enumerate(texts)
    ]
    return float(np.mean(scores))


def _check_draw(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, but must be between 1 and the number of samples, {n}")
