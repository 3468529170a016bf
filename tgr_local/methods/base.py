"""``base``: plain sampling with the whole text as context, up to L·S new tokens.

The text is cut into steps of S tokens for the stream's sake only; the cache just goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.errors import CapacityError
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import cells_needed
from tgr_local.search.steps import Listener, Step
from tgr_local.search.trajectory import Trajectory

resets = False


def run(
    engine: Engine,
    prompt: Sequence[int],
    config: SearchConfig,
    *,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """Plain sampling. New tokens end at the length that the model was trained for."""
    config = _within(config, len(prompt), engine.n_ctx_train)
    with Trajectory(
        engine,
        prompt,
        config,
        resets=False,
        participant=participant,
        on_event=on_event,
        cancel=cancel,
    ) as trajectory:
        trajectory.read_query()
        finish = None
        while finish is None:
            chunk = trajectory.write()
            finish = trajectory.finish(chunk)
            yield trajectory.step(chunk, finish)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    config = _within(config, n_query, engine.n_ctx_train)
    return cells_needed(engine, n_query, config, resets=False, searches=False)


def sequences(config: SearchConfig) -> int:
    return 1


def _within(config: SearchConfig, n_query: int, n_ctx_train: int) -> SearchConfig:
    room = n_ctx_train - n_query
    if room < 1:
        raise CapacityError(
            f"the query has {n_query} tokens, but the model was trained for {n_ctx_train}; "
            "shorten the query"
        )
    return dataclasses.replace(config, max_tokens=min(config.token_limit, room))
