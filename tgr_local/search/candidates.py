"""From rollouts to scored candidates: arrays of the engine in, a `Candidates` record out."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Output
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry, scoring
from tgr_local.search.outputs import padded
from tgr_local.search.steps import Candidates


class Judge(Protocol):
    """What a rollout is worth as the continuation of a text, instead of its log-probability."""

    def take(self, output: Output) -> None:
        """The text goes on with these tokens, whose states were read."""

    def values(self, outputs: Seq[Output]) -> NDArray[np.float64] | None:
        """V [n] of n rollouts after the text so far; None where the judge cannot say."""


def scored(
    anchors: NDArray[np.float64],
    origin: NDArray[np.float64],
    outputs: list[Output],
    owners: NDArray[np.int64],
    others: Seq[NDArray[np.float64]],
    config: SearchConfig,
    plain: Seq[Output] = (),
    values: NDArray[np.float64] | None = None,
) -> Candidates:
    """The anchors [K, d_z], drawn around origin [d_z], with the scores of their n rollouts.

    `owners` [n] are the candidates of the outputs, `others` the anchors that repel too. `plain` [n]
    are the rollouts without injection that each one's gain is measured from; empty = V itself.
    `values` [n] are the V of a `Judge`; None = mean log-probabilities.
    """
    as_sampled = config.foresight_temperature == "sampling"
    logprobs, states = padded(outputs, as_sampled)
    scores = scoring.score(
        logprobs,
        states,
        _lengths(outputs),
        anchors,
        origin,
        delta=config.delta,
        weights=scoring.Weights(config.foresight_weight, config.lambda_b, config.lambda_u),
        normalize=config.normalize_scores,
        owners=owners,
        others=others,
        rollout_states=config.rollout_states,
        baseline=(
            scoring.foresight(padded(plain, as_sampled)[0], _lengths(plain)) if plain else 0.0
        ),
        values=values,
    )
    top = anchors[scores.best(config.geometry_top or len(anchors))]
    if geometry.collapsed(top, config.min_n_eff, config.max_apcs):
        scores = scoring.with_lambda_u(scores, config.raised_lambda_u)
    return Candidates(
        anchors, [o.tokens for o in outputs], [o.logprobs for o in outputs], scores, owners
    )


def _lengths(outputs: Seq[Output]) -> NDArray[np.int64]:
    return np.array([len(output.tokens) for output in outputs])
