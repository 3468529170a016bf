"""``hard-geometry``: rejection sampling of anchors by a rule on the curve that the states make.

An anchor is proposed as `random-anchor` does, again and again until one follows the geodesic: the
turn between the last step, parallel-transported, and the step to the anchor, over the mean of the
two step lengths, is at most κ_max, and the step's length is at most a right angle. In many
dimensions nearly every proposal turns by a right angle, so a hard rule has to propose a great deal.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import HardGeometryOptions
from tgr_local.search import geometry
from tgr_local.search.chunkwise import Decision, chunk_method
from tgr_local.search.seeds import PROPOSE, derived_seed
from tgr_local.search.steering import Steering
from tgr_local.search.trajectory import Trajectory

MOST_PROPOSALS = 1000
"""Proposals at a boundary at most; then the one nearest to the rule is taken."""
_LONGEST_STEP = math.pi / 2  # radians
_AT_ONCE = 64  # proposals drawn together; which one is taken does not depend on it

Anchor = NDArray[np.float64]


def _decide(trajectory: Trajectory, steering: Steering) -> Decision:
    """The first anchor that passes. Each step reports its proposals and whether one was accepted;
    the first, where there is no turn to judge, does not."""
    config, last_z = trajectory.config, steering.before
    rng = np.random.default_rng(derived_seed(config.seed, trajectory.run.index, PROPOSE))
    anchor, n, passed = propose(last_z, steering.z, config, rng, lambda: trajectory.late)
    counts = {} if last_z is None else {"proposals": n, "accepted": int(passed)}
    (injection,) = steering.injections(anchor[None])
    return Decision(anchor, injection, figures={**counts, **steering.figures})


def propose(
    last_z: Anchor | None,
    z: Anchor,
    config: SearchConfig,
    rng: np.random.Generator,
    is_late: Callable[[], bool] = lambda: False,
) -> tuple[Anchor, int, bool]:
    """The first proposal around z [d_z] that follows the rule, the number of proposals, True.

    After `MOST_PROPOSALS`, or when `is_late` returns True, the one that breaks the rule
    least, their number, False. `last_z` is the state that led to z; without one, at the first
    boundary, only the length is asked for.
    """
    nearest, least = z, np.inf
    for first in range(0, MOST_PROPOSALS, _AT_ONCE):
        if is_late():
            return nearest, first, False
        some = min(_AT_ONCE, MOST_PROPOSALS - first)
        anchors = geometry.propose(z, some, config.sigma, rng)
        excess = breaches(last_z, z, anchors, config)
        if not excess.all():
            n = int(np.argmin(excess))
            return anchors[n], first + n + 1, True
        if excess.min() < least:
            nearest, least = anchors[np.argmin(excess)], excess.min()
    return nearest, MOST_PROPOSALS, False


def breaches(
    last_z: Anchor | None, z: Anchor, anchors: Anchor, config: SearchConfig
) -> NDArray[np.float64]:
    """Violation of the rule [n] by the step from z to each anchor [n, d_z]: the excess of its
    curvature over κ_max plus the radians by which it is too long; 0 = it follows."""
    too_long = np.maximum(geometry.angles(z, anchors) - _LONGEST_STEP, 0)
    if last_z is None:
        return np.asarray(too_long)
    excess = geometry.geodesic_curvatures(last_z, z, anchors) - config.kappa_max
    return np.asarray(too_long + np.maximum(excess, 0))


METHOD = chunk_method(
    "hard-geometry",
    _decide,
    steering=Steering,
    about="markov with directions that bend no more than a rule allows",
    options=(HardGeometryOptions,),
)
