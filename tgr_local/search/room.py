"""The room of the context after a query: the longest text, and options whose chunks fit.

In: an engine, the tokens of a query, a config. Out: a config that fits. A query that leaves no room
for a single token is refused; everything else is written until the context is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tgr_local.engine import Engine
from tgr_local.errors import CapacityError, ContextError, too_long
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import SPARE_CELLS, cells_needed, n_rollouts
from tgr_local.search.run import Method

CONTEXT_LIMITS = ("n_ctx", "n_ctx_train")
"""What ends a reply in the place of an option where the context is full."""
LEAST_CHUNK = 64
"""Tokens of a chunk at least where the context shortens it: with less, a reset forgets too much."""
_LEAST_ROLLOUT = 8
_PARTS = 16  # a chunk is shortened by this part of it at a time


def longest_text(engine: Engine) -> int:
    """Tokens of the longest text, query and reply together."""
    n_ctx = engine.config.n_ctx
    return min(engine.n_ctx_train, n_ctx - SPARE_CELLS) if n_ctx else engine.n_ctx_train


def context_limit(engine: Engine) -> str:
    """The option that bounds the longest text, or "n_ctx_train"."""
    return "n_ctx_train" if longest_text(engine) == engine.n_ctx_train else "n_ctx"


def text_room(engine: Engine, n_query: int) -> int:
    """New tokens of a text at most. Raises ValueError for a query without tokens and ContextError
    for one that leaves no room for a token."""
    if n_query < 1:
        raise ValueError("the prompt has no tokens; write something")
    if (room := longest_text(engine) - n_query) > 0:
        return room
    n_ctx = engine.config.n_ctx
    if context_limit(engine) == "n_ctx_train":
        raise too_long("the query", n_query, engine.n_ctx_train)
    raise ContextError(
        f"the query has {n_query} tokens, but n_ctx is {n_ctx}, of which {SPARE_CELLS} are kept "
        f"free; raise n_ctx (-c), or shorten the query",
        n_query,
        n_ctx,
    )


def most_tokens(limit: int, cells: Callable[[int], int], n_cells: int) -> int:
    """The longest text up to `limit` whose ``cells(length)``, which grow with it, are at most
    `n_cells`; 0 = none."""
    if cells(limit) <= n_cells:
        return limit
    low, high = 0, limit - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cells(middle) <= n_cells else (low, middle - 1)
    return low


def fitted(engine: Engine, n_query: int, config: SearchConfig, method: Method) -> SearchConfig:
    """`config` for a trajectory with resets that fits after a query of `n_query` tokens: itself, or
    with shorter chunks and rollouts. Where these would be too short, the text is one chunk without
    a search, which fills the context. Raises as `text_room`."""
    room, limit = text_room(engine, n_query), config.token_limit

    def fits(one: SearchConfig) -> bool:
        try:
            cells_needed(engine, n_query, one, method)
        except CapacityError:
            return False
        return True

    if fits(config):
        return config
    for part in range(_PARTS, 0, -1):
        chunk = config.chunk_len * part // _PARTS
        if chunk < min(LEAST_CHUNK, config.chunk_len):
            break
        shorter = _with_chunks(config, chunk, room, limit, method.searches)
        if shorter and fits(shorter):
            return shorter
    return dataclasses.replace(
        config,
        chunk_len=min(limit, room),
        max_chunks=1,
        max_tokens=min(limit, room),
        search_from=max(1, config.search_from),
    )


def _with_chunks(
    config: SearchConfig, chunk: int, room: int, limit: int, searches: bool
) -> SearchConfig | None:
    """The config with chunks of `chunk` tokens, rollouts that fit with them, and the same limit;
    None where the rollouts would be too short."""
    changes: dict[str, Any] = {
        "chunk_len": chunk,
        "max_chunks": -(-limit // chunk),
        "max_tokens": limit,
    }
    if searches:
        length = min(config.rollout_len, (room - chunk - 1) // max(2, n_rollouts(config)))
        if length < min(_LEAST_ROLLOUT, config.rollout_len):
            return None
        changes["rollout_len"] = length
    return dataclasses.replace(config, **changes)


def difference(asked: SearchConfig, used: SearchConfig) -> str:
    """What the context has changed of a search, for the user; "" = nothing."""
    if used.chunk_len == asked.chunk_len and used.rollout_len == asked.rollout_len:
        return ""
    if used.max_chunks == 1 and used.chunk_len == used.token_limit:
        return (
            f"the context has room for {used.token_limit} tokens, too few for chunks and resets: "
            "the reply was written plainly"
        )
    parts = [
        f"{name} have {now} tokens instead of {before}"
        for name, now, before in (
            ("chunks", used.chunk_len, asked.chunk_len),
            ("rollouts", used.rollout_len, asked.rollout_len),
        )
        if now != before
    ]
    return f"the context is small for this prompt: {', '.join(parts)}"
