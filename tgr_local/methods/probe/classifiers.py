"""Classifiers of a probe: the chance that texts are right, and whether that holds for them.

Pure arrays, with no knowledge of texts or models. Elsewhere than among texts like those that it was
fitted on, the chances of a probe mean nothing. The measure of that is the Mahalanobis distance of
the standardised features in a random projection to at most 64 values, which needs no matrix of the
width of a model and still sees the directions in which the known texts vary little.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTH = 64
_SEED = 0


@dataclass(frozen=True, eq=False)
class Logistic:
    """A logistic regression: log-odds = bias + weights · features."""

    bias: float
    weights: Floats
    """[n_features]"""

    def log_odds(self, features: Floats) -> Floats:
        """[n] for features [n, n_features]."""
        log_odds: Floats = self.bias + np.asarray(features, np.float64) @ self.weights
        return log_odds


@dataclass(frozen=True, eq=False)
class Likeness:
    """Distribution of the features of the known texts."""

    mean: Floats
    """[n_features]"""
    scale: Floats
    """[n_features] standard deviations."""
    root: Floats
    """[m, m] of the precision P of the projected features: P = root rootᵀ."""
    limit: float
    """Distance from which on a text is unlike them."""

    def distance(self, features: Floats) -> Floats:
        """[n] of features [n, n_features]; about 1 for known texts."""
        standard = (np.asarray(features, np.float64) - self.mean) / self.scale
        projected = standard @ projection(len(self.mean), len(self.root))
        distances: Floats = np.sqrt(np.mean((projected @ self.root) ** 2, 1))
        return distances

    def covers(self, features: Floats) -> NDArray[np.bool_]:
        """[n] whether these texts are like the known ones."""
        are_like: NDArray[np.bool_] = self.distance(features) <= self.limit
        return are_like


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e⁻ˣ)."""
    chances: Floats = 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64)))
    return chances


@functools.lru_cache(maxsize=4)
def projection(n: int, width: int) -> Floats:
    """[n, width] seeded, i.i.d. N(0, 1/width)."""
    drawn: Floats = np.random.default_rng(_SEED).standard_normal((n, width)) / np.sqrt(width)
    return drawn
