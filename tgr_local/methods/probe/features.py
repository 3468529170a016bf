"""Features of a text for a probe: how sure the model was of its tokens, and two states.

The confidences are those that published methods use: the mean log-probability (CISC,
arXiv 2502.06233) and the worst window (DeepConf, arXiv 2508.15260), and others like them. The
states are top-layer states that tokens were sampled from: their mean over the text, and the first
one, which is that of the question and says how hard it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WINDOW = 16
"""Tokens of a window."""
CONFIDENCES = (
    "mean log-probability",
    "least log-probability",
    "worst window",
    "last window",
    "mean entropy",
    "highest window of entropy",
    "log(1 + tokens with a probability below 1/2)",
    "log of the number of tokens",
    "sum of log-probabilities",
)


def width(n_embd: int) -> int:
    """The number of features."""
    return len(CONFIDENCES) + 2 * n_embd


def confidences(logprobs: Sequence[float], entropies: Sequence[float]) -> Floats:
    """[9] the `CONFIDENCES` of n ≥ 1 tokens; log-probabilities and entropies in nats, at
    temperature 1."""
    p, h = np.asarray(logprobs, np.float64), np.asarray(entropies, np.float64)
    means = window_means(p)
    return np.array(
        [
            p.mean(),
            p.min(),
            means.min(),
            means[-1],
            h.mean(),
            window_means(h).max(),
            np.log1p(np.count_nonzero(p < np.log(0.5))),
            np.log(len(p)),
            p.sum(),
        ]
    )


def window_means(values: Floats) -> Floats:
    """The mean of every `WINDOW` neighbours, or of all values where they are fewer."""
    width = min(WINDOW, len(values))
    sums = np.cumsum(np.r_[0.0, values])
    means: Floats = (sums[width:] - sums[:-width]) / width
    return means
