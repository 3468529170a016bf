"""Fitting a logistic regression in numpy, and measuring how well it tells right from wrong.

Pure arrays, with no knowledge of texts or models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.eval.metrics import ranks
from tgr_local.methods.probe.classifiers import Logistic, sigmoid

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_NEWTON_STEPS, _CG_STEPS = 30, 200
_SMALL = 1e-6  # relative size of a gradient that counts as 0


def fit(features: Floats, right: Flags, *, strength: float = 0.01) -> Logistic:
    """The regression of `right` [n] on features [n, n_features], each of which is standardised
    first. `strength` is C, the inverse of the L2 penalty on the weights (Hastie et al., "The
    Elements of Statistical Learning", 4.4). ValueError unless both outcomes occur.

    Newton's method, with conjugate gradients for each step, so that no matrix of
    [n_features, n_features] is made: a state may have thousands of values.
    """
    y = np.asarray(right, np.float64)
    if not 0 < y.sum() < len(y):
        raise ValueError(
            f"of {len(y)} texts {int(y.sum())} are right, but a probe needs right and wrong ones; "
            "take easier or harder problems"
        )
    x = np.asarray(features, np.float32)
    mean, scale = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    used = scale > 1e-9 * np.maximum(1, np.abs(mean))  # the others say nothing
    scale = np.where(used, scale, 1.0)
    x = np.where(used, (x - mean) / scale, 0).astype(np.float32)
    penalty = np.r_[0.0, np.full(x.shape[1], 1 / strength)]
    weights = np.zeros(len(penalty))
    for _ in range(_NEWTON_STEPS):
        p = sigmoid(weights[0] + x @ weights[1:].astype(np.float32))
        gradient = np.r_[(p - y).sum(), x.T @ (p - y).astype(np.float32)] + penalty * weights
        if np.linalg.norm(gradient) <= _SMALL * len(y):
            break
        weights -= _solve(x, p * (1 - p), penalty, gradient)
    return Logistic(
        float(weights[0] - (weights[1:] * mean / scale)[used].sum()),
        np.where(used, weights[1:] / scale, 0.0),
    )


def _solve(x: NDArray[np.float32], curvature: Floats, penalty: Floats, wanted: Floats) -> Floats:
    """H⁻¹ wanted, with H = [1 x]ᵀ diag(curvature) [1 x] + diag(penalty), by conjugate gradients
    that are preconditioned by the diagonal of H."""

    def product(v: Floats) -> Floats:
        u = curvature * (v[0] + x @ v[1:].astype(np.float32))
        image: Floats = np.r_[u.sum(), x.T @ u.astype(np.float32)] + penalty * v
        return image

    diagonal = np.r_[curvature.sum(), curvature.astype(np.float32) @ x**2] + penalty
    diagonal = np.maximum(diagonal, 1e-12)
    solution, residual = np.zeros_like(wanted), wanted.copy()
    scaled = residual / diagonal
    direction, size = scaled, float(residual @ scaled)
    for _ in range(_CG_STEPS):
        image = product(direction)
        step = size / max(float(direction @ image), 1e-30)
        solution, residual = solution + step * direction, residual - step * image
        scaled = residual / diagonal
        old_size, size = size, float(residual @ scaled)
        if size <= (_SMALL * 10) ** 2 * float(wanted @ (wanted / diagonal)):
            break
        direction = scaled + size / old_size * direction
    return solution


def auroc(scores: Floats, right: Flags) -> float:
    """The chance that a right text has a higher score than a wrong one; an equal score counts half
    (Hanley and McNeil, 1982). NaN unless both occur."""
    right = np.asarray(right, bool)
    n_right, n_wrong = int(right.sum()), int((~right).sum())
    if not n_right or not n_wrong:
        return float("nan")
    above = ranks(scores)[right].sum() - n_right * (n_right - 1) / 2
    return float(above / (n_right * n_wrong))


def auroc_within(scores: Floats, right: Flags, problems: NDArray[np.int64]) -> float:
    """Computes `auroc` over the pairs of texts of one problem. `problems` [n] numbers them."""
    values, pairs = [], []
    for problem in np.unique(problems):
        of_it = problems == problem
        n_right = int(right[of_it].sum())
        if 0 < n_right < of_it.sum():
            values.append(auroc(scores[of_it], right[of_it]))
            pairs.append(n_right * (int(of_it.sum()) - n_right))
    return float(np.average(values, weights=pairs)) if values else float("nan")


def reliability(chances: Floats, right: Flags, n_bins: int = 10) -> list[tuple[int, float, float]]:
    """Returns for each of `n_bins` equal parts of 0 … 1 the number of chances in it, their mean,
    and the share that is right; NaN for an empty one."""
    bins = np.minimum((np.asarray(chances) * n_bins).astype(int), n_bins - 1)
    rows = []
    for i in range(n_bins):
        of_it = bins == i
        n = int(of_it.sum())
        mean = float(np.mean(chances[of_it])) if n else float("nan")
        rows.append((n, mean, float(np.mean(right[of_it])) if n else float("nan")))
    return rows
