"""``base``: plain sampling with the whole text as context, up to L·S new tokens.

The text is cut into steps of S tokens only for the stream; the cache is never reset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import cells_needed, sequences_needed
from tgr_local.search.room import fitted
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
    config = fit(engine, n_query, config)
    return cells_needed(engine, n_query, config, resets=False, searches=False)


fit = partial(fitted, resets=False)

METHOD = Method(
    "base",
    run,
    cells=cells,
    sequences=partial(sequences_needed, resets=False, searches=False, steers=False),
    fit=fit,
    about="plain sampling: one text, as every other program writes it",
)
