"""``random-anchor``: an anchor drawn as the method draws its candidates, without rollouts or score.

What is left of ``tgr-latent`` when nothing is chosen: the reset and the injection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tgr_local.search.needs import chunk_method
from tgr_local.search.run import Run
from tgr_local.search.steering import Steering
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Reset, sample one anchor, write, extract; again until the text ends. The chunks before
    ``search_from`` are written plainly, and all where the strength cannot be measured."""
    with Trajectory(run, METHOD) as trajectory:
        steering = Steering(trajectory)
        z = yield from trajectory.opening(steering.anchor, norms=steering.measures)
        while z is not None:
            anchor = injection = None
            figures = {"plain": 1.0}
            if steering.is_ready():
                (anchor,) = steering.propose(z, 1)
                (injection,) = steering.injections(anchor[None])
                figures = steering.figures
            chunk = trajectory.write(injection)
            finish = trajectory.finish(chunk)
            search: dict[str, Any] = {"origin": z, "anchor": anchor, "figures": figures}
            if finish is not None:
                yield trajectory.step(chunk, finish, **search)
                return
            z = steering.anchor(trajectory.read_state(injection))
            yield trajectory.step(chunk, None, **search, state=z)
            trajectory.reset(norms=steering.measures)


METHOD = chunk_method(
    "random-anchor",
    run,
    resets=True,
    steers=True,
    about="markov with a random direction in every chunk, untested",
)
