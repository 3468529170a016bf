"""The limits of one request, and the memory that it takes."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, TypeVar

from tgr_local.apis.requests import PreparedRequest
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Method, run_bytes
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server.errors import ApiError
from tgr_local.system.errors import CapacityError, ContextError
from tgr_local.system.turnstile import Turnstile

Number = TypeVar("Number", int, float)

_LEAST_MEMORY = 256 << 20  # bytes that running requests may take together, however small the model
_LEAST_CACHE = 128 << 20  # bytes that the KV cache may grow to, likewise
_TYPICAL_QUERY = 512  # tokens; what the cache is sized for at the start

# bytes, measured: of a token of a reply, of an alternative reported for one, and of a character of
# a grammar in a sampler
_TOKEN, _ALTERNATIVE, _GRAMMAR = 250, 400, 32
_LEAST_SECONDS = 1.0  # for a reply that waited long, less than what its job has in addition


def within_limits(
    engine: Engine, request: PreparedRequest, limits: ServerConfig, n_ctx: int
) -> PreparedRequest:
    """The request, its reply bounded by the server's limits. The cache has `n_ctx` cells or more.

    Raises ApiError for more replies than the server writes, and CapacityError for a request that
    can never fit, before anything is decoded; ContextError where its prompt is at fault.
    """
    n_replies = len(request.prompts) * request.best_of
    if n_replies > limits.max_choices:
        raise ApiError(
            400,
            f"the request asks for {n_replies} replies (prompts × best_of or n), but the server "
            f"writes {limits.max_choices} for one request at most",
            param="n",
        )
    config = dataclasses.replace(
        request.config,
        max_tokens=_lower(request.config.max_tokens, limits.max_reply_tokens),
        max_seconds=_lower(request.config.max_seconds, limits.request_seconds),
    )
    needs = request.method
    n_seqs, n_seq_max = needs.sequences(engine, config), engine.n_seq_max
    if n_seqs > n_seq_max:
        raise CapacityError(
            f"{needs.name} needs {n_seqs} sequences at a time, but the server holds "
            f"{n_seq_max}; ask for fewer candidates, rollouts or texts"
        )
    longest = longest_conversation(engine.n_ctx_train, engine.config)
    for prompt in request.prompts:
        try:
            n_cells = needs.cells(engine, len(prompt), needs.fitted(engine, len(prompt), config))
        except ContextError:
            raise
        except CapacityError as error:
            raise ContextError(str(error), len(prompt), longest) from None
        # the engine answers at the end of a step, so it is only asked if it must be
        if n_cells > n_ctx and n_cells > (most := engine.most_cells()):
            raise ContextError(
                f"the request needs {n_cells} cells of the KV cache, but the server allows {most}; "
                "shorten the prompt, or lower max_tokens, chunk_len, rollout_len or n_candidates",
                len(prompt),
                min(longest, most),
            )
    return dataclasses.replace(request, config=config)


def longest_conversation(n_ctx_train: int, config: EngineConfig) -> int:
    """Tokens of the longest conversation with a model."""
    return min(n_ctx_train, config.n_ctx or n_ctx_train)


def within_time(request: PreparedRequest, limits: ServerConfig, seconds: float) -> PreparedRequest:
    """The request when its reply begins, `seconds` after its job, so that it ends before that."""
    if not limits.request_seconds:
        return request
    left = max(_LEAST_SECONDS, limits.request_seconds - seconds)
    most = _lower(request.config.max_seconds, left)
    return dataclasses.replace(
        request, config=dataclasses.replace(request.config, max_seconds=most)
    )


def memory_needed(engine: Engine, request: PreparedRequest) -> int:
    """An upper bound in bytes: injection maps, states of rollouts, records of steps, text and
    log-probabilities."""
    config, method = request.config, request.method
    if method.thinking and method.answer:
        kinds = (method.thinking, method.answer)
        return max(
            memory_needed(engine, dataclasses.replace(request, method=part)) for part in kinds
        )
    n_replies = len(request.prompts) * request.best_of
    n_seqs = method.sequences(engine, config)
    at_once = min(n_replies, max(1, engine.n_seq_max // n_seqs))
    n_texts = 1 if method.resets else n_seqs
    text = config.token_limit * (_TOKEN * n_texts + _ALTERNATIVE * config.top_logprobs)
    maps, boundary, records = run_bytes(engine, config, method)
    grammar = request.form.grammar if request.form else ""
    boundary += _GRAMMAR * max(len(config.grammar), len(grammar)) * n_seqs
    if request.echo and request.logprobs is not None:
        n_prompt = sum(map(len, request.prompts)) * request.best_of
        text += n_prompt * (_TOKEN + _ALTERNATIVE * request.logprobs) // n_replies
    return maps + at_once * boundary + n_replies * (records + text)


class RequestMemory:
    """The memory that running requests share, in bytes: one that needs more than is left waits, and
    those that come later wait behind it."""

    def __init__(self, engine: Engine, limits: ServerConfig) -> None:
        allowed = limits.request_memory << 20
        self._most = allowed or max(_LEAST_MEMORY, engine.size_bytes // 2)
        self._turnstile = Turnstile(self._most)

    def held(self, n_bytes: int, cancel: Cancel) -> contextlib.AbstractContextManager[None]:
        """Reserves `n_bytes` for the ``with`` block. Raises ApiError for more than the server has,
        and CancelledError if `cancel` is set first."""
        if n_bytes > self._most:
            raise ApiError(
                400,
                f"the request would take up to {n_bytes >> 20} MiB of memory, but the server "
                f"allows {self._most >> 20} MiB; lower max_tokens, n, logprobs, n_candidates, "
                "rollout_len, rank or d_z",
            )
        return self._turnstile.taken(cancel, n_bytes)


def limit_cache(engine: Engine, config: Any, method: Method) -> int:
    """Bounds the cache of a served model, and makes it large enough for one typical request, which
    is the number of cells that it returns. It grows when requests run at a time, or a longer one.

    The bound is the need of one request of the length that the model was trained for, and a
    typical one; where the owner wants more requests with long replies at a time, `n_ctx` says so.
    Plain texts take its cells as they grow, so that requests without a limit do not wait for each
    other.
    """
    needed = 0
    with contextlib.suppress(CapacityError):  # the error of each request says so
        fitted = method.fitted(engine, _TYPICAL_QUERY, config)
        needed = method.cells(engine, _TYPICAL_QUERY, fitted)
    most = max(_LEAST_CACHE // engine.cell_bytes, needed + engine.n_ctx_train)
    engine.preempts = True
    engine.max_cells = most + engine.config.prefix_cells
    engine.grow_cache(needed)
    return needed


def cache_line(engine: Engine) -> str:
    """Describes the KV cache to the owner: its present and its largest size."""
    n_cells, most = engine.stats().n_ctx, engine.most_cells()
    now = f"KV cache: {n_cells:,} cells, {_megabytes(engine, n_cells)}"
    if engine.config.n_ctx or most <= n_cells:
        return now
    return (
        f"{now}; grows to {most:,} cells, {_megabytes(engine, most)}, at most while requests need "
        "it (-c fixes it)"
    )


def _megabytes(engine: Engine, n_cells: int) -> str:
    return f"{n_cells * engine.cell_bytes / 1e6:,.0f} MB"


def _lower(asked: Number, limit: Number) -> Number:
    """The lower of two limits; 0 = no limit."""
    return min(asked, limit) if asked and limit else asked or limit
