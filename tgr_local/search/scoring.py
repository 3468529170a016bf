"""The score of candidate anchors from their rollouts: J = w V − λ_b P_bum − λ_u P_uni.

Pure numpy, arrays in and one record out. It knows nothing of models, sampling or search. An array
of rollouts has one row for each rollout, padded to the longest one. `lengths` has the number of
tokens of each row, `owners` the candidate that each rollout tried. V is the paper's V_fore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.search.geometry import Floats, unit

Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Weights:
    """How much each term counts; finite, and 0 switches a term off."""

    foresight_weight: float
    """w, of V (a reward)."""
    lambda_b: float
    """λ_b, of P_bum (a penalty)."""
    lambda_u: float
    """λ_u, of P_uni (a penalty)."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of K candidates; every array is float64 [K]. The terms are not weighted yet."""

    foresight: NDArray[np.float64]
    """V: mean log-probability per token, nats."""
    bumpiness: NDArray[np.float64]
    """P_bum: mean squared second difference of the unit states, 0 to 16."""
    uniformity: NDArray[np.float64]
    """P_uni: cosine to the old anchor in excess of δ."""
    total: NDArray[np.float64]
    """J."""
    chosen: int
    """The candidate with the largest score, the lowest index among equals."""
    weights: Weights

    def best(self, n: int) -> NDArray[np.intp]:
        """The n candidates with the largest score, best first; the lowest index among equals."""
        return np.argsort(-self.total, kind="stable")[:n]

    def spread(self) -> dict[str, float]:
        """Standard deviation over the candidates of each term, not weighted."""
        return {
            "foresight": float(self.foresight.std()),
            "bumpiness": float(self.bumpiness.std()),
            "uniformity": float(self.uniformity.std()),
        }


def foresight(logprobs: Floats, lengths: Integers) -> NDArray[np.float64]:
    """V [n]: the mean of each rollout's own log-probabilities, logprobs [n, s], lengths [n]."""
    rows = zip(logprobs, lengths, strict=True)
    return np.array([np.mean(row[:length], dtype=np.float64) for row, length in rows])


def bumpiness(states: Floats, lengths: Integers) -> NDArray[np.float64]:
    """P_bum [n] = mean_i ‖g_{i+1} − 2 g_i + g_{i−1}‖², g_i the unit states of a rollout.

    states [n, s, d], lengths [n]. A rollout with fewer than three states has no second difference:
    it gets the mean of the others, or 0 if they are all that short.
    """

    def one(g: NDArray[np.float64]) -> float:
        return float(np.mean(np.sum(np.diff(g, n=2, axis=0) ** 2, axis=1)))

    known = lengths >= 3
    known_terms = [one(unit(states[i, : lengths[i]])) for i in np.flatnonzero(known)]
    terms = np.full(len(lengths), np.mean(known_terms) if known_terms else 0.0)
    terms[known] = known_terms
    return terms


def uniformity(anchors: Floats, z: Floats, delta: float) -> NDArray[np.float64]:
    """P_uni [n] = max(0, aᵀz − δ) of unit anchors [n, d_z], drawn around z [d_z]."""
    return np.asarray(np.maximum(0.0, anchors.astype(np.float64) @ z - delta))


def combine(
    foresight: NDArray[np.float64],
    bumpiness: NDArray[np.float64],
    uniformity: NDArray[np.float64],
    weights: Weights,
) -> Scores:
    """J = w V − λ_b P_bum − λ_u P_uni of K candidates, each term [K]. Among equal scores the
    candidate with the lowest index is chosen."""
    total = (
        weights.foresight_weight * foresight
        - weights.lambda_b * bumpiness
        - weights.lambda_u * uniformity
    )
    return Scores(foresight, bumpiness, uniformity, total, int(np.argmax(total)), weights)


def score(
    logprobs: Floats,
    states: Floats,
    lengths: Integers,
    anchors: Floats,
    z: Floats,
    *,
    delta: float,
    weights: Weights,
    owners: Integers,
) -> Scores:
    """Score K candidate anchors [K, d_z], drawn around z [d_z], by their n rollouts.

    logprobs [n, s] in nats, states [n, s, d_h] before each token, lengths [n], and owners [n] in
    0 … K−1; V and P_bum are means over the rollouts of a candidate.
    Padding may hold anything. ValueError for a length outside 1 … s, or a value that is not finite,
    naming the candidate.
    """
    _check(logprobs, states, lengths, owners)

    def mean(term: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.bincount(owners, term, minlength=len(anchors))
        return np.asarray(sums / np.bincount(owners, minlength=len(anchors)))

    return combine(
        mean(foresight(logprobs, lengths)),
        mean(bumpiness(states, lengths)),
        uniformity(anchors, z, delta),
        weights,
    )


def _check(logprobs: Floats, states: Floats, lengths: Integers, owners: Integers) -> None:
    for row, length in enumerate(lengths):
        rollout = f"candidate {owners[row]} (rollout {row})"
        if not 1 <= length <= logprobs.shape[1]:
            raise ValueError(
                f"{rollout} has length {length} but must have 1 to {logprobs.shape[1]} tokens: "
                "drop a candidate that has none"
            )
        for name, values in (("log-probability", logprobs), ("state", states)):
            if not np.isfinite(values[row, :length]).all():
                raise ValueError(
                    f"a {name} of {rollout} is inf or nan but must be finite: lower the injection"
                )
