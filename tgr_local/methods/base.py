"""``base``: plain sampling with the whole text as context, up to L·S new tokens.

The text is cut into steps of S tokens only for the stream; the cache is never reset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tgr_local.search.needs import chunk_method
from tgr_local.search.run import Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory


def run(run: Run) -> Iterator[Step]:
    """Plain sampling. The text ends where the context is full."""
    run = run.with_options(
        max_tokens=METHOD.fitted(run.engine, len(run.query), run.config).token_limit
    )
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


METHOD = chunk_method(
    "base",
    run,
    about="plain sampling: one text, as every other program writes it",
)
