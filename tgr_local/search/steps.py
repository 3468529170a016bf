"""The records that flow along a trajectory. A method is a generator of `Step`, one for each chunk;
everything else (text, traces, pictures, tables) reads that stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.records import Output
from tgr_local.options.config import SearchConfig
from tgr_local.search import scoring

_Sum = TypeVar("_Sum", "Counts", "Seconds")


def _add(a: _Sum, b: _Sum) -> _Sum:
    names = [spec.name for spec in fields(a)]
    return type(a)(**{name: getattr(a, name) + getattr(b, name) for name in names})


@dataclass(frozen=True)
class Counts:
    """Positions that passed through the model, by purpose; and `reused` ones, which did not."""

    query: int = 0
    rebuild: int = 0
    rollouts: int = 0
    chunk: int = 0
    delimiter: int = 0
    guard: int = 0
    """Winners' rollouts, read again plainly."""
    calibration: int = 0
    """The measurement of the injection's strength, once for a model."""
    discarded: int = 0
    """Generated texts that were not chosen, and prompts that judged or merged such texts."""

    reused: int = 0
    """Positions of the query that were in the cache already. They did not pass through the model,
    so the total is without them."""
    refused: int = 0
    """Positions of drafts (`SearchConfig.draft_lookup`) that were decoded but not accepted. They do
    not count against a budget, so the total is without them."""

    @property
    def decoded(self) -> dict[str, int]:
        """The positions that passed through the model, by purpose, without refused drafts."""
        names = [spec.name for spec in fields(self) if spec.name not in ("reused", "refused")]
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        return sum(self.decoded.values())

    def __add__(self, other: Counts) -> Counts:
        return _add(self, other)


@dataclass(frozen=True)
class Seconds:
    """Wall time by part; the query counts as rebuild."""

    rebuild: float = 0.0
    rollouts: float = 0.0
    scoring: float = 0.0
    chunk: float = 0.0
    delimiter: float = 0.0
    calibration: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, spec.name) for spec in fields(self)))

    def __add__(self, other: Seconds) -> Seconds:
        return _add(self, other)


@dataclass(frozen=True, eq=False)
class Candidates:
    """The anchors tried at one boundary, and their n rollouts."""

    anchors: NDArray[np.float64]
    """[K, d_z] unit vectors."""
    tokens: list[NDArray[np.int32]]
    """[n] the tokens of each rollout."""
    logprobs: list[NDArray[np.float32]]
    """[n] their log-probabilities, nats, at temperature 1."""
    scores: scoring.Scores
    owners: NDArray[np.int64]
    """[n] the candidate of each rollout; the rollouts of a re-evaluation are last."""


def scored(
    anchors: NDArray[np.float64],
    origin: NDArray[np.float64],
    outputs: list[Output],
    owners: NDArray[np.int64],
    config: SearchConfig,
) -> Candidates:
    """The anchors [K, d_z], drawn around origin [d_z], with the scores of their n rollouts.
    `owners` [n] has the candidate of each rollout."""
    logprobs, states = _padded(outputs)
    scores = scoring.score(
        logprobs,
        states,
        np.array([len(output.tokens) for output in outputs]),
        anchors,
        origin,
        delta=config.delta,
        weights=scoring.Weights(config.foresight_weight, config.lambda_b, config.lambda_u),
        owners=owners,
    )
    return Candidates(
        anchors, [o.tokens for o in outputs], [o.logprobs for o in outputs], scores, owners
    )


def _padded(outputs: list[Output]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The log-probabilities [n, longest] and states [n, longest, n_embd] of n generations, with
    zeros after their ends. The log-probabilities are the model's own at temperature 1."""
    longest = max(len(output.tokens) for output in outputs)
    logprobs = np.zeros((len(outputs), longest), np.float32)
    states = np.zeros((*logprobs.shape, outputs[0].states.shape[1]), np.float32)
    for i, output in enumerate(outputs):
        logprobs[i, : len(output.tokens)] = output.logprobs
        states[i, : len(output.tokens)] = output.states
    return logprobs, states


Finish = Literal["stop", "length", "budget", "loop"]
"""Why a text ends: "stop" (end token or stop text), "length" (chunks or new tokens), "budget"
(forward tokens or seconds), "loop" (`SearchConfig.loop_guard`, which only replies know)."""


@dataclass(frozen=True, eq=False)
class Step:
    """One boundary and the chunk that it led to."""

    index: int
    """Chunk number, from 0."""
    tokens: NDArray[np.int32]
    """[n] the chunk."""
    logprobs: NDArray[np.float32]
    """[n] nats, at temperature 1."""
    entropies: NDArray[np.float32]
    """[n] nats."""
    finish: Finish | None
    """None = the text goes on."""
    counts: Counts
    seconds: Seconds
    cells: int
    """Cached tokens of this trajectory at their highest in this step."""
    origin: NDArray[np.float64] | None = None
    """[d_z] z_{t-1}, the center of the proposals; None for a method without anchors."""
    candidates: Candidates | None = None
    """None for a method without candidates, and where a boundary was not searched."""
    anchor: NDArray[np.float64] | None = None
    """[d_z] the anchor that steered the chunk."""
    state: NDArray[np.float64] | None = None
    """[d_z] z_t, read after the chunk; None after the last chunk."""
    top_ids: list[NDArray[np.int32]] | None = None
    """[n] for each token the ``top_logprobs`` likeliest alternatives, likeliest first; None if
    ``top_logprobs`` is 0."""
    top_logprobs: list[NDArray[np.float32]] | None = None
    """[n] their log-probabilities, nats, at temperature 1."""
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers that the method reports, by name, such as its accepted proposals."""

    def beginning(self, n: int) -> Step:
        """A copy of the step with its first n tokens. The other tokens count as discarded, and the
        state after them is left out."""
        n_dropped = min(len(self.tokens) - n, self.counts.chunk)
        if n >= len(self.tokens):
            return self
        return dataclasses.replace(
            self,
            tokens=self.tokens[:n],
            logprobs=self.logprobs[:n],
            entropies=self.entropies[:n],
            top_ids=None if self.top_ids is None else self.top_ids[:n],
            top_logprobs=None if self.top_logprobs is None else self.top_logprobs[:n],
            counts=self.counts + Counts(chunk=-n_dropped, discarded=n_dropped),
            state=None,
        )


@dataclass(frozen=True, eq=False)
class Progress:
    """An event inside a step, for a live display."""

    chunk: int
    stage: str
    """"rebuild", "calibration", "rollouts", "scored", "tokens"; "texts" while several are written
    to be compared; "answer due" where the thinking was ended."""
    tokens: tuple[int, ...] = ()
    """New tokens of the chunk, with "tokens"."""
    text: bytes = b""
    """Their text, which may end within a character."""
    candidates: Candidates | None = None
    """Scored candidates; present with "scored"."""
    n_read: int = 0
    """Tokens of the query that are in the cache, with a "rebuild" that reads it."""
    n_query: int = 0
    """Tokens of the query, likewise; else 0."""
    n_reused: int = 0
    """Number of these tokens that need not be decoded, once that is known."""


OnProgress = Callable[[Progress], None]
