"""``markov``: the chunk-wise reset alone. Every chunk is sampled from Q and the last chunk."""

from __future__ import annotations

from collections.abc import Iterator

from tgr_local.search.needs import chunk_method
from tgr_local.search.run import Run
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


METHOD = chunk_method(
    "markov",
    run,
    resets=True,
    about="plain sampling in chunks, each from the question and the last chunk alone",
)
