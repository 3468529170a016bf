"""Anchors on the unit sphere: how they are drawn, injected and measured.

Pure numpy, arrays in and arrays out; randomness comes from a Generator or a seed that the caller
passes. It knows nothing of models, tokens or search. Anchors and diagnostics are float64; the
injection maps and the vectors that the engine takes are float32. Symbols are those of
docs/method.md: z and a are anchors [d_z], h a final-norm state [d_h], l a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.ma  # else nanmedian imports it at its first use; seeds.py says why that is too late
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# SeedSequence pads with zeros, so these are non-zero: W and the maps share no draw with each
# other or with the caller's default_rng(seed).
_PROJECTION_STREAM = 1
_MAPS_STREAM = 2

_SAME = 1e-12  # two points closer than this (radians) are equal; a smaller relative spread is none


def unit(x: Floats) -> NDArray[np.float64]:
    """x / ‖x‖₂ along the last axis, any shape [..., d].

    ValueError if a vector is zero or not finite: it has no direction.
    """
    x = np.asarray(x, dtype=np.float64)
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    if not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError(
            "a vector to normalise has norm 0, inf or nan, but a direction needs a finite norm "
            "above 0: check the states it was made from"
        )
    directions: NDArray[np.float64] = x / norms
    return directions


def projection(d_z: int, d_h: int, seed: int) -> NDArray[np.float32] | None:
    """W [d_z, d_h] with i.i.d. N(0, 1/d_z) entries, or None for the identity when d_z = d_h.

    E‖W h‖² = ‖h‖². ValueError for d_z < 2: the sphere in one dimension is two points.
    """
    if d_z < 2:
        raise ValueError(f"d_z is {d_z} but an anchor needs at least 2 dimensions: raise d_z")
    if d_z == d_h:
        return None
    rng = np.random.default_rng((seed, _PROJECTION_STREAM))
    return rng.standard_normal((d_z, d_h), dtype=np.float32) / np.float32(np.sqrt(d_z))


def state_anchor(h: Floats, W: Floats | None) -> NDArray[np.float64]:
    """z = unit(W h) [d_z], the anchor of a state h [d_h]; W None is the identity."""
    h = np.asarray(h, dtype=np.float64)
    return unit(h if W is None else W @ h)


def propose(z: Floats, n: int, sigma: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """n candidate anchors [n, d_z] around z [d_z]: ε ~ N(0, I); v = ε − (zᵀε) z; a = unit(z + σ v).

    aᵀz is about 1/√(1 + σ²(d_z − 1)).
    """
    z = unit(z)
    eps = rng.standard_normal((n, z.size))
    return unit(z + sigma * (eps - np.outer(eps @ z, z)))


@dataclass(frozen=True, eq=False)
class InjectionMaps:
    """The fixed low-rank maps of every layer: B_l A_l turns an anchor into layer l's injection."""

    A: NDArray[np.float32]
    """[n_layer, r, d_z]"""
    B: NDArray[np.float32]
    """[n_layer, d_h, r]"""

    @classmethod
    def draw(cls, n_layer: int, d_h: int, d_z: int, rank: int, seed: int) -> InjectionMaps:
        """Seeded Gaussian maps with A ~ N(0, 1/r) and B ~ N(0, 1/d_h), so E‖B A a‖² = 1, ‖a‖ = 1.

        For a unit a, the r entries of A a are i.i.d. N(0, 1/r), so E‖A a‖² = 1; given u = A a, the
        d_h entries of B u are i.i.d. N(0, ‖u‖²/d_h), so E[‖B u‖² | u] = ‖u‖². One layer's ‖B A a‖²
        varies around 1 with variance 2/r + 2/d_h + 4/(r d_h): at r = 8 by about ± 0.5.
        """
        rng = np.random.default_rng((seed, _MAPS_STREAM))
        A = rng.standard_normal((n_layer, rank, d_z), dtype=np.float32)
        B = rng.standard_normal((n_layer, d_h, rank), dtype=np.float32)
        return cls(A / np.float32(np.sqrt(rank)), B / np.float32(np.sqrt(d_h)))

    def vectors(self, anchors: Floats) -> NDArray[np.float32]:
        """B_l A_l a for anchors [n, d_z] -> [n, n_layer, d_h]; the caller applies η and ρ_l."""
        low = anchors.astype(np.float32) @ self.A.swapaxes(1, 2)  # [n_layer, n, r]
        high = low @ self.B.swapaxes(1, 2)  # [n_layer, n, d_h]
        return np.ascontiguousarray(high.swapaxes(0, 1))


def map_bytes(n_layer: int, d_h: int, d_z: int, rank: int) -> int:
    """Bytes of the injection maps and of the projection of anchors, if there is one."""
    W = 0 if d_z == d_h else d_z * d_h
    return 4 * (n_layer * rank * (d_z + d_h) + W)


def median_norms(norms: Sequence[Floats]) -> NDArray[np.float64]:
    """[n_layer] median‖h‖₂ after each layer, over the tokens whose norms [n, n_layer] were read. A
    few tokens, mostly the first, would decide a mean: their norms are up to 200 times the others
    (Sun et al., "Massive Activations in Large Language Models", 2024)."""
    medians: NDArray[np.float64] = np.nanmedian(np.concatenate(norms), axis=0).astype(np.float64)
    return medians


def injection_scale(
    residual_norms: Floats, strength: float, calibration: str
) -> NDArray[np.float64]:
    """ρ [n_layer], the unit of an injection: ρ_l = ζ ("divergence"), 1 ("absolute") or
    ζ · median‖h_l‖₂ ("residual").

    residual_norms [n_layer] is median‖h_l‖₂ over the prefix tokens, strength is ζ. ValueError for
    norms that are not finite.
    """
    norms = np.asarray(residual_norms, dtype=np.float64)
    if calibration != "residual":
        return np.full_like(norms, 1.0 if calibration == "absolute" else strength)
    if not np.isfinite(norms).all():
        layer = int(np.argmin(np.isfinite(norms)))
        raise ValueError(
            f"the residual norm of layer {layer} is {norms[layer]} but must be finite: "
            'use calibration="absolute"'
        )
    return strength * norms


def pairwise_cosines(x: Floats) -> NDArray[np.float64]:
    """Cosines of the n(n−1)/2 pairs i < j of the rows of x [n, d], in row-major order."""
    directions = unit(x)
    return (directions @ directions.T)[np.triu_indices(len(directions), k=1)]


def apcs(x: Floats) -> float:
    """Average pairwise cosine similarity of the rows of x [n, d]; 1 for a single row."""
    return float(pairwise_cosines(x).mean()) if len(x) > 1 else 1.0


def min_pairwise_cosine(x: Floats) -> float:
    """The smallest cosine between two rows of x [n, d]; 1 for a single row."""
    return float(pairwise_cosines(x).min()) if len(x) > 1 else 1.0


def effective_dimension(x: Floats) -> float:
    """N_eff = exp(−Σ p_i ln p_i), p the normalised eigenvalues of the centred covariance of x.

    x [n, d], one candidate a row. Between 1 and min(n − 1, d); equal rows, or one row, give 1.
    """
    x = np.asarray(x, dtype=np.float64)
    eigenvalues = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
    total = eigenvalues.sum()
    if total <= _SAME**2 * np.sum(x**2):
        return 1.0
    p = eigenvalues[eigenvalues > 0] / total
    return float(np.exp(-np.sum(p * np.log(p))))


def step_similarity(z: Floats, z_previous: Floats) -> float:
    """cos(z_t, z_{t−1}) of two vectors [d]; over 0.99 the chain counts as cycling."""
    return float(unit(z) @ unit(z_previous))


def angle(x: Floats, y: Floats) -> float:
    """The angle between two vectors [d] in radians, 0 to π; see `angles`."""
    return float(angles(x, y))


def angles(x: Floats, y: Floats) -> NDArray[np.float64]:
    """θ = arccos(xᵀy) of unit x and y along the last axis, [..., d] -> [...].

    Computed as 2 atan2(‖x − y‖, ‖x + y‖), which keeps its digits for small angles.
    """
    x, y = unit(x), unit(y)
    apart, together = np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1)
    return np.asarray(2 * np.arctan2(apart, together), dtype=np.float64)


def log_map(x: Floats, y: Floats) -> NDArray[np.float64]:
    """Log_x(y): the tangent vector [d] at unit x along the geodesic to unit y, its length the arc.

    Equal points give 0. ValueError for antipodes: every direction leads there.
    """
    theta = float(_arcs(x, y))
    if theta == 0.0:
        return np.zeros_like(x, dtype=np.float64)
    return theta * unit(y - (x @ y) * x)


def parallel_transport(x: Floats, y: Floats, v: Floats) -> NDArray[np.float64]:
    """v [d], tangent at unit x, moved along the geodesic to unit y: v − (yᵀv)/(1 + xᵀy) (x + y).

    Keeps length and the angle to the geodesic. Equal points give v; ValueError for antipodes.
    """
    _arcs(x, y)
    return np.asarray(v - (y @ v) / (1 + x @ y) * (x + y), dtype=np.float64)


def geodesic_curvature(z0: Floats, z1: Floats, z2: Floats) -> float:
    """κ for three anchors [d]; see `geodesic_curvatures`."""
    return float(geodesic_curvatures(z0, z1, np.asarray(z2)[None])[0])


def geodesic_curvatures(z0: Floats, z1: Floats, z2: Floats) -> NDArray[np.float64]:
    """κ [n] = the turn at z1 over the mean arc length, for anchors z0 and z1 [d] and each row of z2
    [n, d]; no unit.

    The turn is the angle between Log_{z0}(z1), parallel-transported to z1, and Log_{z1}(z2). A step
    of zero length has no direction and so no turn: 0. ValueError if two neighbours are antipodes.
    """
    z0, z1, z2 = unit(z0), unit(z1), unit(z2)
    arriving = parallel_transport(z0, z1, log_map(z0, z1))
    arrived, arcs = np.linalg.norm(arriving), _arcs(z1, z2)
    leaving = z2 - (z2 @ z1)[:, None] * z1  # along Log_{z1}(z2)
    curvatures, moved = np.zeros(len(z2)), arcs > 0
    if arrived > 0:
        curvatures[moved] = angles(arriving, leaving[moved]) / ((arrived + arcs[moved]) / 2)
    return curvatures


def _arcs(x: Floats, y: Floats) -> NDArray[np.float64]:
    """angles(x, y), but exactly 0 for points that differ by rounding alone. ValueError for
    antipodes."""
    theta = angles(x, y)
    if (np.pi - theta < _SAME).any():
        raise ValueError(
            f"the points are {theta.max()} radians apart, but antipodes have no single geodesic: "
            "they must be closer than π"
        )
    return np.where(theta < _SAME, 0.0, theta)
