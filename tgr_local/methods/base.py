"""``base``: plain sampling with the whole text as context, up to L·S new tokens.

The text is cut into steps of S tokens only for the stream; the cache is never reset.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import SPARE_CELLS, text_room
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Plain sampling. The text ends where the context is full."""
    run = run.with_options(max_tokens=fit(run.engine, len(run.query), run.config).token_limit)
    with Trajectory(run, METHOD) as trajectory:
        trajectory.begin()
        with contextlib.closing(trajectory.chunks()) as chunks:
            for chunk in chunks:
                finish = trajectory.finish(chunk)
                # the newest token is in no cell
                n_cells = len(run.query) - 1 + len(trajectory.generated)
                yield trajectory.step(chunk, finish, cells=n_cells)
                if finish:
                    return


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return n_query + fit(engine, n_query, config).token_limit + SPARE_CELLS


def sequences(engine: Engine, config: SearchConfig) -> int:
    return 1


def fit(engine: Engine, n_query: int, config: SearchConfig) -> SearchConfig:
    room = text_room(engine, n_query)
    return dataclasses.replace(config, max_tokens=room) if room < config.token_limit else config


METHOD = Method(
    "base",
    run,
    cells,
    sequences,
    fit=fit,
    about="plain sampling: one text, as every other program writes it",
)
