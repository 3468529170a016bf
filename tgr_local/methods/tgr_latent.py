"""``tgr-latent``: The Geometric Reasoner, as docs/method.md states it.

At every chunk boundary, from ``search_from`` on, K anchors are drawn around the state of the last
chunk, each is tried by a short rollout under its injection and scored, and the best one steers the
next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Injection, Output
from tgr_local.search.chunkwise import Decision, chunk_method
from tgr_local.search.steering import Steering
from tgr_local.search.steps import Candidates
from tgr_local.search.trajectory import Trajectory


def _decide(trajectory: Trajectory, steering: Steering) -> Decision:
    """The anchor with the best score; plainly where the guard finds that its injection throws the
    model off its course."""
    figures = steering.figures
    anchors = steering.propose(steering.z, trajectory.config.n_candidates)
    injections = steering.injections(anchors)
    outputs = trajectory.roll_out(injections)
    if trajectory.late:  # they may have been cut short
        return Decision(anchors[0], injections[0], figures=figures)
    candidates = trajectory.choose(anchors, steering.z, outputs)
    candidates, outputs = _reevaluated(trajectory, steering.z, injections, candidates, outputs)
    chosen = candidates.scores.chosen
    first = chosen * trajectory.config.n_mc
    if trajectory.config.guard:
        excess = trajectory.excess(first, outputs[first])
        figures = {**figures, "excess": excess, "plain": 0.0}
        if excess > trajectory.config.guard:
            return Decision(candidates=candidates, figures={**figures, "plain": 1.0})
    if trajectory.config.reuse_winner:
        trajectory.adopt(first, outputs[first])
    return Decision(anchors[chosen], injections[chosen], candidates, figures)


def _reevaluated(
    trajectory: Trajectory,
    z: NDArray[np.float64],
    injections: Sequence[Injection],
    candidates: Candidates,
    outputs: list[Output],
) -> tuple[Candidates, list[Output]]:
    """Top-m re-evaluation: the best m are rolled out once more, and all their rollouts count."""
    config = trajectory.config
    best = candidates.scores.best(config.reevaluate)
    n_most = len(best) * config.n_mc * config.rollout_len
    if not len(best) or not trajectory.affords(n_most):
        return candidates, outputs
    more = trajectory.roll_out([injections[k] for k in best])
    if trajectory.late:
        return candidates, outputs
    outputs = outputs + more
    owners = [*candidates.owners, *np.repeat(best, config.n_mc)]
    return trajectory.choose(candidates.anchors, z, outputs, owners), outputs


METHOD = chunk_method(
    "tgr-latent",
    _decide,
    searches=True,
    steering=Steering,
    about="tries directions before each further chunk, follows the best one",
)
