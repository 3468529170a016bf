"""Draws of the engine, and plainly with which probability each token is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from engines import TOKENS
from numpy.typing import NDArray
from reference import log_softmax

from tgr_local.engine import Engine, Output, Sampling, Task


def filtered(
    logprobs: NDArray[np.float64], sampling: Sampling, *, excludes: bool = False
) -> NDArray[np.float64]:
    """[n_vocab] the log-probabilities that a token is drawn with, one filter at a time; `excludes`
    where XTC takes the likeliest tokens away."""
    logits = logprobs.copy()
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if sampling.top_n_sigma:
        possible = logits[np.isfinite(logits)]
        logits[logits < possible.max() - sampling.top_n_sigma * possible.std()] = -np.inf
    order = np.argsort(-logits, kind="stable")
    order = order[np.isfinite(logits[order])]
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.typical_p < 1:
        p = np.exp(log_softmax(logits[order]))
        typical = np.argsort(np.abs(-np.log(p) - _entropy(p)), kind="stable")
        n_typical = (np.cumsum(p[typical]) <= sampling.typical_p).sum() + 1
        order = order[np.sort(typical[:n_typical])]
    p = np.exp(log_softmax(logits[order]))
    order = order[np.cumsum(p) - p < sampling.top_p] if sampling.top_p > 0 else order[:1]
    order = order[logits[order] >= logits[order[0]] + np.log(max(sampling.min_p, 1e-300))]
    if excludes:
        n_likely = (np.exp(log_softmax(logits[order])) >= sampling.xtc_threshold).sum()
        order = order[max(n_likely - 1, 0) :]
    result = np.full_like(logits, -np.inf)
    result[order] = log_softmax(logits[order] / temperature(logits[order], sampling))
    return result


def temperature(logits: NDArray[np.float64], sampling: Sampling) -> float:
    """The temperature for the tokens that the filters leave."""
    t, reach = sampling.temperature, sampling.dynatemp_range
    if not reach or len(logits) < 2:
        return t
    low = max(0.0, t - reach)
    share = _entropy(np.exp(log_softmax(logits))) / np.log(len(logits))
    return float(low + (t + reach - low) * share**sampling.dynatemp_exponent)


def _entropy(p: NDArray[np.float64]) -> float:
    return float(-(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum())


def draws(engine: Engine, n: int, sampling: Sampling, **options: Any) -> list[Output]:
    """n draws of the token after the same text, each with a seed of its own."""
    fixed: dict[str, Any] = {"n_generate": 1, "sampling": sampling, "ignore_eog": True}
    outputs: list[Output] = []
    for first in range(0, n, 200):
        seeds = range(first, min(first + 200, n))
        with engine.session(len(TOKENS) + 8 * len(seeds), len(seeds) + 1) as session:
            prefix = session.sequence()
            session.run([Task(prefix, TOKENS)])
            tasks = [Task(prefix.fork(), [5], seed=seed, **fixed | options) for seed in seeds]
            outputs += session.run(tasks)
    return outputs


def assert_as_frequent(tokens: Sequence[int], expected: NDArray[np.float64]) -> None:
    """χ² of drawn tokens with the expected numbers of each [n_vocab], the rare ones together."""
    drawn = np.bincount(tokens, minlength=len(expected))
    common = expected >= 5
    cells = np.append(expected[common], expected[~common].sum())
    counts = np.append(drawn[common], drawn[~common].sum())
    if cells[-1] < 1e-9:
        assert counts[-1] == 0
        cells, counts = cells[:-1], counts[:-1]
    chi2, freedom = float(((counts - cells) ** 2 / cells).sum()), max(1, len(cells) - 1)
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom)
