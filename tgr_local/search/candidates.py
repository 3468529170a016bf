"""From rollouts to scored candidates: arrays of the engine in, a `Candidates` record out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Output
from tgr_local.options.config import SearchConfig
from tgr_local.search import scoring
from tgr_local.search.steps import Candidates


def scored(
    anchors: NDArray[np.float64],
    origin: NDArray[np.float64],
    outputs: list[Output],
    owners: NDArray[np.int64],
    config: SearchConfig,
) -> Candidates:
    """The anchors [K, d_z], drawn around origin [d_z], with the scores of their n rollouts.

    `owners` [n] are the candidates of the outputs.
    """
    logprobs, states = padded(outputs)
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


def padded(outputs: list[Output]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The log-probabilities [n, longest] and states [n, longest, n_embd] of n generations, with
    zeros after their ends. The log-probabilities are the model's own at temperature 1."""
    longest = max(len(output.tokens) for output in outputs)
    logprobs = np.zeros((len(outputs), longest), np.float32)
    states = np.zeros((*logprobs.shape, outputs[0].states.shape[1]), np.float32)
    for i, output in enumerate(outputs):
        logprobs[i, : len(output.tokens)] = output.logprobs
        states[i, : len(output.tokens)] = output.states
    return logprobs, states
