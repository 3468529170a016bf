"""``markov``: the chunk-wise reset alone. Every chunk is sampled from Q and the last chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import cells_needed
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
    """Chunk after chunk, with nothing tried and nothing injected."""
    with Trajectory(
        engine, prompt, config, participant=participant, on_event=on_event, cancel=cancel
    ) as trajectory:
        trajectory.read_query()
        while True:
            chunk = trajectory.write()
            finish = trajectory.finish(chunk)
            yield trajectory.step(chunk, finish)
            if finish is not None:
                return
            trajectory.reset()


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return cells_needed(engine, n_query, config, resets=True, searches=False)


def sequences(config: SearchConfig) -> int:
    return 1
