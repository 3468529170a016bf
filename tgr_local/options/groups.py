"""The options of a reply that only some methods use, in groups: the bases of `SearchConfig`.

A method names the groups that it uses (`search.run.Method.options`). A group's docstring is its
title in ``--help-all``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.options.fields import option


@dataclass(frozen=True)
class BoundaryOptions:
    """Chunks that are searched or steered."""

    search_from: int = option(
        1,
        "first chunk that is searched or injected, counted from 0, so that short replies cost what "
        "plain ones do; 0 = all, as in the paper and by default in eval",
        low=0,
    )


@dataclass(frozen=True)
class RolloutOptions:
    """Rollouts and their score."""

    n_candidates: int = option(8, "candidate anchors tried at a boundary (K)", low=1, high=255)
    rollout_len: int = option(32, "tokens in one rollout (s)", low=1)
    foresight_weight: float = option(1.0, "weight of the foresight term V", low=0)
    lambda_b: float = option(0.5, "weight of the bumpiness term (λ_b)", low=0)


@dataclass(frozen=True)
class AnchorOptions:
    """The search among anchors."""

    n_mc: int = option(1, "rollouts for each candidate (N_MC)", low=1, high=64)
    delta: float = option(
        0.2, "cosine above which a candidate is too close to the last anchor (δ)", low=-1, high=1
    )
    lambda_u: float = option(0.5, "weight of the uniformity term (λ_u)", low=0)
    reevaluate: int = option(
        0, "best candidates (m) rolled out once more, at most K; 0 = none", low=0, high=255
    )
    reuse_winner: bool = option(False, "begin the chunk with the winner's rollout")
    guard: float = option(
        0.3,
        "nats a token by which the winner's rollout may be likelier under its injection than "
        "plainly; above it the chunk is written plainly; 0 = off",
        low=0,
    )


@dataclass(frozen=True)
class SteeringOptions:
    """Anchors and their injection."""

    sigma: float = option(0.05, "proposal radius (σ)", low=0)
    d_z: int = option(0, "width of an anchor; 0 = the width of the model", low=0, high=65536)
    rank: int = option(8, "rank of the injection (r)", low=1, high=4096)
    eta: float = option(1.0, "injection scale (η)", low=0)
    calibration: str = option(
        "divergence",
        "unit of the injection: what it does to the model, measured once for a model; a share of "
        "the median residual norm; or absolute",
        choices=("divergence", "residual", "absolute"),
    )
    divergence: float = option(
        0.01,
        "mean KL divergence (D) of the next token between the plain model and the model under a "
        "random anchor, nats; with calibration divergence",
        low=1e-5,
        high=10,
    )
    injection_seed: int = option(
        42, "seed of the projection W and the maps A, B", low=0, high=2**63 - 1
    )
    relative_strength: float = option(
        0.05,
        "injection as a share of the median residual norm (ζ); with calibration residual",
        low=0,
    )
    eoc_token: str = option(
        "", "end-of-chunk delimiter, one token of the vocabulary; empty = automatic", longest=256
    )


@dataclass(frozen=True)
class FullOptions:
    """A context that is full."""

    when_full: str = option(
        "stop",
        "what a plain text does where the context is full: stop, or reset = go on with the prompt "
        "and the newest half of the text as context",
        choices=("stop", "reset"),
    )


@dataclass(frozen=True)
class ResetOptions:
    """The reset at every chunk."""

    shift_cells: bool = option(
        False, "at a reset shift the cells of the chunk instead of decoding it again"
    )


@dataclass(frozen=True)
class SampleOptions:
    """Samples, by best-of-n, self-consistency, vote and auto."""

    n_samples: int = option(8, "samples generated (n); by vote at most", low=1, high=255)


@dataclass(frozen=True)
class VoteOptions:
    """Votes, by vote and auto."""

    vote_weight: str = option(
        "likelihood",
        "weight of a sample's vote: by its likelihood, or 1",
        choices=("likelihood", "count"),
    )
    vote_bar: float = option(
        0.95,
        "stop once the leading answer has at least this chance; above 1 = never",
        low=0,
        high=2,
    )
    vote_wave: int = option(4, "samples started together", low=1, high=250)


@dataclass(frozen=True)
class PowerOptions:
    """Proposals towards p^α, by power."""

    power_alpha: float = option(
        4.0,
        "sample from the α-th power of p; proposals have temperature 1/α",
        low=1,
        high=100,
    )
    power_steps: int = option(
        10, "proposals for each of the 16 blocks that the new tokens are divided into", low=0
    )


@dataclass(frozen=True)
class TreeOptions:
    """Trees of thoughts, by tot and got."""

    tree_breadth: int = option(2, "thoughts kept at a level (b)", low=1, high=64)
    tree_proposals: int = option(4, "continuations of each kept thought (k)", low=1, high=64)


@dataclass(frozen=True)
class HardGeometryOptions:
    """A rule on anchors, by hard-geometry."""

    kappa_max: float = option(1.6, "maximum turn over mean step length (κ_max)", low=0)
