"""``markov``: the chunk-wise reset alone. Every chunk is sampled from Q and the last chunk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tgr_local.search.capacity import cells_needed, positions_needed, sequences_needed
from tgr_local.search.room import fitted
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Chunk after chunk, with nothing tried and nothing injected."""
    with Trajectory(run, METHOD) as trajectory:
        trajectory.read_query()
        while True:
            chunk = trajectory.write()
            finish = trajectory.finish(chunk)
            yield trajectory.step(chunk, finish)
            if finish is not None:
                return
            trajectory.reset()


METHOD = Method(
    "markov",
    run,
    cells=partial(cells_needed, resets=True, searches=False),
    sequences=partial(sequences_needed, resets=True, searches=False, steers=False),
    resets=True,
    positions=partial(positions_needed, searches=False, steers=False),
    fit=partial(fitted, resets=True, searches=False),
    about="plain sampling in chunks, each from the question and the last chunk alone",
)
