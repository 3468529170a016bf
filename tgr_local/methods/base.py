"""``base``: plain sampling with the whole text as context, up to L·S new tokens.

The text is cut into steps of S tokens only for the stream. The cache is reset only where it is full
and the text is to go on (``when_full``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from tgr_local.engine import Engine
from tgr_local.options import groups
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import SPARE_CELLS, goes_on, text_room
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Plain sampling. The text ends where the context is full, or goes on from there with Q and the
    newest half of its tokens (``when_full``)."""
    n_query = len(run.query)
    config = fit(run.engine, n_query, run.config)
    limit, most = config.token_limit, config.max_chunks
    if goes_on(run.engine, n_query, config):  # a chunk that fills the context is short
        kept = text_room(run.engine, n_query) // 2
        most += -(-limit // kept)
    run = run.with_options(max_tokens=limit, max_chunks=most)
    with Trajectory(run, METHOD) as trajectory:
        trajectory.begin()
        while True:
            with contextlib.closing(trajectory.chunks()) as chunks:
                for chunk in chunks:
                    finish = trajectory.finish(chunk)
                    is_full, n_cells = trajectory.is_full, trajectory.n_cells
                    yield trajectory.step(chunk, finish, cells=n_cells)
                    if finish:
                        return
                    if is_full:
                        break
            trajectory.reset()


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return n_query + min(config.token_limit, text_room(engine, n_query)) + SPARE_CELLS


def sequences(engine: Engine, config: SearchConfig) -> int:
    """One, and one for Q alone where the model cannot roll back to it."""
    return 2 if config.when_full == "reset" and not engine.rolls_back else 1


def fit(engine: Engine, n_query: int, config: SearchConfig) -> SearchConfig:
    room = text_room(engine, n_query)
    fits = room >= config.token_limit or goes_on(engine, n_query, config)
    return config if fits else dataclasses.replace(config, max_tokens=room)


METHOD = Method(
    "base",
    run,
    cells,
    sequences,
    fit=fit,
    about="plain sampling: one text, as every other program writes it",
    options=(groups.FullOptions,),
)
