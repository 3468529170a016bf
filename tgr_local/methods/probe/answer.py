"""How likely the leading answer of several texts is right: from their answers and log-odds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgr_local.methods.probe.classifiers import Floats, sigmoid

FEATURES = (
    "best log-odds of a text with the answer",
    "log of its votes",
    "log of the votes of the next answer",
    "log of the number of texts with it",
    "log of the number of texts",
)
_LEAST = 1e-3  # votes that a logarithm counts at least


def weights(log_odds: Sequence[float] | Floats) -> Floats:
    """Vote weight of each text: its probability of being right, cubed. (Of the first to the fourth
    power the third and fourth gave the best votes on 250 problems of the embedded model.)"""
    return sigmoid(np.asarray(log_odds, np.float64)) ** 3


def tally(keys: Sequence[str | None], votes: Sequence[float] | Floats) -> dict[str, float]:
    """The sum of votes of every answer, the leader first; equal ones in the order in which they
    came. A text without an answer does not vote."""
    sums: dict[str, float] = {}
    for key, vote in zip(keys, votes, strict=True):
        if key is not None:
            sums[key] = sums.get(key, 0.0) + float(vote)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def features(keys: Sequence[str | None], log_odds: Sequence[float] | Floats) -> Floats | None:
    """[5] `FEATURES` of the leading answer; None where no text has an answer."""
    sums = tally(keys, weights(log_odds))
    if not sums:
        return None
    leader, *others = sums
    own = [odds for key, odds in zip(keys, log_odds, strict=True) if key == leader]
    return np.array(
        [
            max(own),
            np.log(sums[leader] + _LEAST),
            np.log((sums[others[0]] if others else 0.0) + _LEAST),
            np.log(len(own)),
            np.log(len(keys)),
        ]
    )
