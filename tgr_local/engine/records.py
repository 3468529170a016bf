"""What goes into the engine and comes out of it, apart from handles."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.options.config import SearchConfig


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the meaning of each field is that of `SearchConfig`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    grammar: str = ""
    """GBNF; empty = none."""
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, config: SearchConfig) -> Sampling:
        shared = {f.name for f in dataclasses.fields(cls)} & {
            f.name for f in dataclasses.fields(config)
        }
        return cls(**{name: getattr(config, name) for name in shared})


@dataclass(frozen=True, eq=False)
class Output:
    """What a task came to; n is the number of generated tokens."""

    tokens: NDArray[np.int32]
    """[n], an end token included."""
    logprobs: NDArray[np.float32]
    """[n] log p of each token, nats, at temperature 1 and before any filter."""
    sampled_logprobs: NDArray[np.float32]
    """[n] log of the probability that each token was drawn with, nats: after bias, penalties, the
    grammar, filters and the temperature; 0 at temperature 0."""
    entropies: NDArray[np.float32]
    """[n] entropy of the distribution each token was drawn from, nats, at temperature 1."""
    states: NDArray[np.float32]
    """[n, n_embd] final-norm state that each token was sampled from; [0, n_embd] unless asked."""
    feed_states: NDArray[np.float32]
    """[0, 1 or n_feed, n_embd] final-norm states of the fed tokens."""
    feed_logprobs: NDArray[np.float32]
    """[n_feed - 1] log p of feed[1:], each given what stands before it."""
    norm_sums: NDArray[np.float64]
    """[n_layer] sum of the residual norms of the fed tokens after each layer. The last layer, which
    computes output tokens only, is measured on up to 32 evenly spaced ones."""
    norm_counts: NDArray[np.float64]
    """[n_layer] number of tokens in each sum."""
    top_ids: NDArray[np.int32]
    """[n, n_top]"""
    top_logprobs: NDArray[np.float32]
    """[n, n_top]"""
    n_decoded: int
    """Positions that this task decoded."""
    finish: str
    """"length", "stop" (end token or stop text), "cancelled"; "" when nothing was to generate."""


@dataclass(frozen=True)
class EngineStats:
    """A moment's view of the engine; counts run from its start. While a decode takes longer than a
    second, that of the moment before it."""

    n_positions: int
    """Token positions that passed through the model."""
    n_decodes: int
    decode_seconds: float
    sample_seconds: float
    n_ctx: int
    """Cells of the KV cache now."""
    n_seq_max: int
    cells_used: int
    cells_peak: int
    cells_reserved: int
    n_sequences: int
    n_sessions: int
    n_waiting: int
    n_jobs: int
