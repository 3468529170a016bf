"""``tgr-latent``: The Geometric Reasoner, as docs/method.md states it.

At every chunk boundary, from ``search_from`` on, K anchors are drawn around the state of the last
chunk, each is tried by a short rollout under its injection and scored, and the best one steers the
next chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Injection, Output
from tgr_local.search.needs import chunk_method
from tgr_local.search.run import Run
from tgr_local.search.steering import Steering
from tgr_local.search.steps import Candidates, Step
from tgr_local.search.trajectory import Trajectory


class _Decision(NamedTuple):
    """How the next chunk is written."""

    anchor: NDArray[np.float64] | None
    """[d_z]; None = plainly."""
    injection: Injection | None
    candidates: Candidates | None
    """From which the anchor was chosen."""
    figures: dict[str, float]
    """For the record of the step."""


def run(run: Run) -> Iterator[Step]:
    """Reset, sample, roll out, score, write, extract; again until the text ends. The chunks before
    ``search_from`` are written plainly."""
    with Trajectory(run, METHOD) as trajectory:
        steering = Steering(trajectory)
        z = yield from trajectory.opening(steering.anchor, norms=steering.measures)
        while z is not None:
            anchor, injection, candidates, figures = _decide(trajectory, steering, z)
            chunk = trajectory.write(injection)
            finish = trajectory.finish(chunk)
            search: dict[str, Any] = {"origin": z, "candidates": candidates, "anchor": anchor}
            search["figures"] = figures
            if finish is not None:
                yield trajectory.step(chunk, finish, **search)
                return
            z = steering.anchor(trajectory.read_state(injection))
            yield trajectory.step(chunk, None, **search, state=z)
            trajectory.reset(norms=steering.measures)


def _decide(trajectory: Trajectory, steering: Steering, z: NDArray[np.float64]) -> _Decision:
    """The anchor of the next chunk, or that it is written plainly: where the strength is not known,
    or where the guard finds that the injection throws the model off its course."""
    if not steering.is_ready():
        return _Decision(None, None, None, {"plain": 1.0})
    figures = steering.figures
    anchors = steering.propose(z, trajectory.config.n_candidates)
    injections = steering.injections(anchors)
    outputs = trajectory.roll_out(injections)
    if trajectory.late:  # they may have been cut short
        return _Decision(anchors[0], injections[0], None, figures)
    candidates = trajectory.choose(anchors, z, outputs)
    candidates, outputs = _reevaluated(trajectory, z, injections, candidates, outputs)
    chosen = candidates.scores.chosen
    first = chosen * trajectory.config.n_mc
    if trajectory.config.guard:
        excess = trajectory.excess(first, outputs[first])
        figures = {**figures, "excess": excess, "plain": 0.0}
        if excess > trajectory.config.guard:
            return _Decision(None, None, candidates, {**figures, "plain": 1.0})
    if trajectory.config.reuse_winner:
        trajectory.adopt(first, outputs[first])
    return _Decision(anchors[chosen], injections[chosen], candidates, figures)


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
    run,
    resets=True,
    searches=True,
    steers=True,
    about="tries directions before each further chunk, follows the best one",
)
