"""``random-anchor``: an anchor drawn as the method draws its candidates, without rollouts or score.

What is left of ``tgr-latent`` when nothing is chosen: the reset and the injection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import cells_needed
from tgr_local.search.steering import Steering
from tgr_local.search.steps import Listener, Step
from tgr_local.search.trajectory import Trajectory

resets = True


def run(
    engine: Engine,
    prompt: Sequence[int],
    config: SearchConfig,
    *,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """Reset, sample one anchor, write, extract; again until the text ends."""
    with Trajectory(
        engine,
        prompt,
        config,
        steers=True,
        participant=participant,
        on_event=on_event,
        cancel=cancel,
    ) as trajectory:
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


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return cells_needed(engine, n_query, config, resets=True, searches=False)


def sequences(config: SearchConfig) -> int:
    return 1
