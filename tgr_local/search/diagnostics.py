"""Geometry of a run: how alike its candidates are, how its anchors move.

Pure functions of a run's steps; docs/method.md defines the measures. A measure is None where its
input is missing: a boundary without candidates, the last chunk (no state), the first step.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tgr_local.search import geometry
from tgr_local.search.steps import Step


@dataclass(frozen=True)
class Geometry:
    """The measures of one boundary and of the step from z_{t-1} to z_t that its chunk made."""

    apcs: float | None = None
    """Mean pairwise cosine of the candidates."""
    min_cosine: float | None = None
    """Their smallest pairwise cosine."""
    n_eff: float | None = None
    """Their effective dimension, 1 to K - 1."""
    n_measured: int | None = None
    """K."""
    similarity: float | None = None
    """cos(z_t, z_{t-1})."""
    angle: float | None = None
    """θ_t, radians."""
    curvature: float | None = None
    """κ_{t-1}, the turn at z_{t-1} over the mean of the arcs before and after it."""


@dataclass(frozen=True)
class Diagnostics:
    """All boundaries of a run together."""

    CYCLING: ClassVar[float] = 0.99
    """Step similarity above which the chain counts as cycling: it hardly moves."""
    means: dict[str, float]
    """Mean of each measure over the boundaries that have it."""
    cycling: float | None
    """Share of the steps with a similarity over `CYCLING`."""


def measure(step: Step, previous: Step | None) -> Geometry:
    """The measures of a step and of the turn from the one before.

    The steps must have their anchors and states in full, as a method yields them.
    """
    return Geometry(**_of_candidates(step), **_of_movement(step, previous))  # type: ignore[arg-type]


def summary(boundaries: list[Geometry]) -> Diagnostics:
    """The diagnostics of a run, from the measures of its boundaries."""

    def known(name: str) -> list[float]:
        values = [getattr(boundary, name) for boundary in boundaries]
        return [value for value in values if value is not None]

    names = [spec.name for spec in dataclasses.fields(Geometry)]
    means = {name: float(np.mean(known(name))) for name in names if known(name)}
    moved = known("similarity")
    cycling = float(np.mean(np.array(moved) > Diagnostics.CYCLING)) if moved else None
    return Diagnostics(means, cycling)


def _of_candidates(step: Step) -> dict[str, float | int]:
    candidates = step.candidates
    if candidates is None or not candidates.anchors.size:
        return {}
    return {
        "apcs": geometry.apcs(candidates.anchors),
        "min_cosine": geometry.min_pairwise_cosine(candidates.anchors),
        "n_eff": geometry.effective_dimension(candidates.anchors),
        "n_measured": len(candidates.anchors),
    }


def _of_movement(step: Step, previous: Step | None) -> dict[str, float]:
    if step.origin is None or step.state is None:
        return {}
    measures = {
        "similarity": geometry.step_similarity(step.state, step.origin),
        "angle": geometry.angle(step.state, step.origin),
    }
    # z_{t-1} is where the step before led to, unless a new run began in between
    if previous is not None and previous.origin is not None and previous.state is not None:
        with contextlib.suppress(ValueError):  # antipodes have no single geodesic, so no turn
            measures["curvature"] = geometry.geodesic_curvature(
                previous.origin, step.origin, step.state
            )
    return measures
