"""``random-anchor``: an anchor drawn as the method draws its candidates, without rollouts or score.

What is left of ``tgr-latent`` when nothing is chosen: the reset and the injection.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tgr_local.search.capacity import cells_needed, positions_needed, sequences_needed
from tgr_local.search.run import Method, Run
from tgr_local.search.steering import Steering
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Reset, sample one anchor, write, extract; again until the text ends."""
    with Trajectory(run, METHOD) as trajectory:
        steering = Steering(trajectory)
        trajectory.read_query(norms=steering.measures)
        z = steering.anchor(trajectory.read_state())
        while True:
            (anchor,) = steering.propose(z, 1)
            (injection,) = steering.injections(anchor[None])
            chunk = trajectory.write(injection)
            finish = trajectory.finish(chunk)
            search = {"origin": z, "anchor": anchor}
            if finish is not None:
                yield trajectory.step(chunk, finish, **search)
                return
            z = steering.anchor(trajectory.read_state(injection))
            yield trajectory.step(chunk, None, **search, state=z)
            trajectory.reset(norms=steering.measures)


METHOD = Method(
    "random-anchor",
    run,
    cells=partial(cells_needed, resets=True, searches=False),
    sequences=partial(sequences_needed, resets=True, searches=False, steers=True),
    resets=True,
    steers=True,
    positions=partial(positions_needed, searches=False, steers=True),
)
