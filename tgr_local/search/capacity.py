"""Capacity: how much room a query leaves in the context, which chunks fit into that room, and how
many cells of the KV cache a trajectory needs. A reset keeps the query and the newest chunk.

A query that leaves no room for a single token is refused; everything else is written until the
context is full.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry
from tgr_local.search.run import Measurement, Method
from tgr_local.system.errors import CapacityError, ContextError, too_long

if TYPE_CHECKING:
    from tgr_local.engine import Engine

STATE_COST = 2  # positions that reading a state decodes: the chunk's last token and the delimiter
SPARE_CELLS = 8  # the pending token, the delimiter, and a little more
CONTEXT_LIMITS = ("n_ctx", "n_ctx_train")
"""Names that stand for the option that ended a reply where the context is full."""
LEAST_CHUNK = 64
"""The shortest chunk to which a small context shortens chunks: with less, a reset forgets too
much."""
_LEAST_ROLLOUT = 8
_TOKEN_BYTES = 12  # of one token in the record of a rollout, measured
_PARTS = 16  # chunks are shortened in steps of a sixteenth


# ---- a trajectory ----


def n_rollouts(config: SearchConfig) -> int:
    """The largest number of rollouts at a boundary. Each needs a sequence."""
    return (config.n_candidates + min(config.reevaluate, config.n_candidates)) * config.n_mc


def guard_positions(config: SearchConfig) -> int:
    """The most positions that the guard decodes at a boundary: the winner's rollout and the token
    before it."""
    return 1 + config.rollout_len if config.guard else 0


def most_chunks(config: SearchConfig) -> int:
    """The largest number of chunks of a text."""
    return -(-config.token_limit // config.chunk_len)


def sequences_needed(engine: Engine, config: SearchConfig, method: Method) -> int:
    """Sequences of one trajectory with resets: one for the text and one for each rollout. A model
    that cannot roll back needs two more: one that holds Q alone, to which a reset returns, and one
    for reading a state."""
    beside = 0
    if method.searches:  # the guard needs the winner's rollout and another sequence
        beside = max(n_rollouts(config), 1 + int(guard_positions(config) > 0 and method.steers))
    if measurement := pending_measurement(engine, config, method):
        beside = max(beside, min(measurement.sequences, engine.n_seq_max - 2))
    if engine.rolls_back:
        return 1 + beside
    return 2 + max(beside, int(method.steers))


def cells_needed(engine: Engine, n_query: int, config: SearchConfig, method: Method) -> int:
    """Cells of one trajectory with resets: |Q| + retained tokens + the larger of a chunk and all
    rollouts. Where the strength of injections must be measured first and the cache is large enough,
    it includes the cells of that measurement.

    Raises ValueError for a query without tokens, and CapacityError, with the numbers, when it can
    never fit.
    """
    if n_query < 1:
        raise ValueError("the prompt has no tokens; write something")
    trained, n_ctx = engine.n_ctx_train, engine.config.n_ctx
    limit = config.token_limit
    chunk = min(config.chunk_len, limit)
    # by the last boundary
    retained = min(limit - 1, chunk) if limit > chunk else 0
    written = min(limit, retained + chunk)
    rollout = config.rollout_len if method.searches and may_steer(config) else 0
    rollouts = n_rollouts(config) * rollout
    if rollout and method.steers and config.guard:
        rollouts = max(rollouts, 2 * rollout + 1)
    n_cells = n_query + max(written, retained + rollouts) + SPARE_CELLS
    longest = n_query + max(written, retained + rollout)
    if longest > trained:
        space = (trained - n_query) // 2
        also = f", or set chunk_len and rollout_len to {space} or less" if space > 0 else ""
        raise CapacityError(
            f"the query has {n_query} tokens and grows to {longest} with its chunks and rollouts, "
            f"but the model was trained for {trained}; shorten it{also}"
        )
    if n_ctx and n_cells > n_ctx:
        raise CapacityError(
            f"the query has {n_query} tokens and needs {n_cells} cells with its chunks and "
            f"rollouts, but n_ctx is {n_ctx}; raise n_ctx (-c), or lower chunk_len or rollout_len"
        )
    if measurement := pending_measurement(engine, config, method):
        measuring = n_query + retained + measurement.cells + SPARE_CELLS
        n_cells = max(n_cells, min(measuring, n_ctx or engine.most_cells()))
    return n_cells


def may_steer(config: SearchConfig) -> bool:
    """Whether a text may get long enough to have a chunk that is searched or steered. Otherwise it
    needs no cells for rollouts."""
    if config.search_from >= config.max_chunks:
        return False
    return config.token_limit > config.search_from * config.chunk_len


def pending_measurement(engine: Engine, config: SearchConfig, method: Method) -> Measurement | None:
    """The measurement that a run may make first; None where there is none."""
    if method.measurement is None or not may_steer(config):
        return None
    return method.measurement(engine, config)


def positions_needed(engine: Engine, n_query: int, config: SearchConfig, method: Method) -> int:
    """The most positions that a trajectory with resets decodes: |Q|, all new tokens, and for each
    chunk the retained tokens, all rollouts and one state. Where the model cannot roll back, an
    adopted rollout that is too long is decoded again."""
    limit = config.token_limit
    per_chunk = min(config.chunk_len, limit)
    if method.searches:
        per_chunk += n_rollouts(config) * config.rollout_len
        per_chunk += 0 if engine.rolls_back else config.chunk_len
    if method.steers:
        per_chunk += STATE_COST + (guard_positions(config) if method.searches else 0)
    measurement = pending_measurement(engine, config, method)
    once = measurement.positions if measurement else 0
    return n_query + limit + once + most_chunks(config) * per_chunk


def run_bytes(engine: Engine, config: SearchConfig, method: Method) -> tuple[int, int, int]:
    """An upper bound of the memory that a run takes in addition to the KV cache, in bytes: the
    injection maps, which all runs share; the vectors and states of one boundary; the records of all
    steps without their tokens."""
    maps = boundary = record = 0
    if method.steers:
        d_z = config.d_z or engine.n_embd
        maps = geometry.map_bytes(engine.n_layer, engine.n_embd, d_z, config.rank)
        n_anchors = config.n_candidates if method.searches else 1
        boundary = 16 * n_anchors * engine.n_layer * engine.n_embd
        record = 8 * n_anchors * d_z
    if method.searches:
        n_tokens = n_rollouts(config) * config.rollout_len
        boundary += 8 * n_tokens * engine.n_embd
        record += _TOKEN_BYTES * n_tokens
    return maps, boundary, most_chunks(config) * record


def check_shift(engine: Engine) -> None:
    """Raises ValueError where the cells of the cache cannot be moved."""
    if not engine.rolls_back:
        raise ValueError(
            "shift_cells moves cells of the cache, which a model with recurrent layers cannot do; "
            "drop shift_cells"
        )
    if engine.config.type_k.startswith("q"):
        raise ValueError(
            f"shift_cells moves keys, which type_k {engine.config.type_k} would round again; "
            "set type_k to f16, or drop shift_cells"
        )


# ---- the context ----


def longest_text(engine: Engine) -> int:
    """Tokens of the longest text, query and reply together."""
    n_ctx = engine.config.n_ctx
    return min(engine.n_ctx_train, n_ctx - SPARE_CELLS) if n_ctx else engine.n_ctx_train


def text_in_cache(engine: Engine) -> int:
    """Tokens of the longest text that the cache can hold."""
    return min(longest_text(engine), engine.most_cells() - SPARE_CELLS)


def context_limit(engine: Engine) -> str:
    """The option that bounds the longest text, or "n_ctx_train"."""
    return "n_ctx_train" if longest_text(engine) == engine.n_ctx_train else "n_ctx"


def text_room(engine: Engine, n_query: int) -> int:
    """The most tokens that can follow the query. Raises ValueError for a query without tokens, and
    ContextError for a query that leaves no room for a token."""
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


def goes_on(engine: Engine, n_query: int, config: SearchConfig) -> bool:
    """Whether a plain text continues after a reset when the context is full. Raises as
    `text_room`."""
    room = text_room(engine, n_query)
    return config.when_full == "reset" and LEAST_CHUNK <= room < config.token_limit


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
    """The options of a trajectory with resets that fits after a query of `n_query` tokens: `config`
    itself, or a copy with shorter chunks and rollouts. Where these would be too short, the text is
    one chunk without a search, as long as the context allows. Raises as `text_room`."""
    room, limit = text_room(engine, n_query), config.token_limit

    def fits(candidate: SearchConfig) -> bool:
        try:
            cells_needed(engine, n_query, candidate, method)
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


def difference(asked: SearchConfig, used: SearchConfig, written: str = "reply") -> str:
    """The sentence for the user on how a small context changed the search; "" = it changed nothing.
    `written` names the searched text: the reply or the thinking."""
    if used.chunk_len == asked.chunk_len and used.rollout_len == asked.rollout_len:
        return ""
    if used.max_chunks == 1 and used.chunk_len == used.token_limit:
        if used.token_limit == asked.token_limit:
            return (
                f"the context has no room for rollouts beside this prompt: the {written} was "
                "written plainly"
            )
        return (
            f"the context has room for {used.token_limit} tokens, too few for chunks and resets: "
            f"the {written} was written plainly"
        )
    parts = [
        f"{name} have {used_len} tokens instead of {asked_len}"
        for name, used_len, asked_len in (
            ("chunks", used.chunk_len, asked.chunk_len),
            ("rollouts", used.rollout_len, asked.rollout_len),
        )
        if used_len != asked_len
    ]
    return f"the context is small for this prompt: {', '.join(parts)}"
