"""A logistic regression: features in, log-odds and chances out.

Pure arrays, with no knowledge of texts or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Logistic:
    """log-odds = bias + weights · features."""

    bias: float
    weights: Floats
    """[n_features]"""

    def log_odds(self, features: Floats) -> Floats:
        """[n] for features [n, n_features]."""
        found: Floats = self.bias + np.asarray(features, np.float64) @ self.weights
        return found


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + e⁻ˣ)."""
    found: Floats = 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64)))
    return found
