"""Arrays made of the engine's outputs."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Output


def norm_totals(output: Output) -> NDArray[np.float64]:
    """[2, n_layer] sums of the residual norms over all fed tokens, and the number of those tokens.
    In the last layer, where the engine measures some tokens only, their mean counts for all."""
    means, n_fed = output.norm_sums / output.norm_counts, output.n_reused + output.n_decoded
    return np.stack([means * n_fed, np.full_like(means, n_fed)])


def padded(
    outputs: Seq[Output], as_sampled: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The log-probabilities [n, longest] and states [n, longest, n_embd] of n generations, with
    zeros after their ends. The log-probabilities are the model's own at temperature 1, or
    `as_sampled`, in the distribution that each token was drawn from."""
    longest = max(len(output.tokens) for output in outputs)
    logprobs = np.zeros((len(outputs), longest), np.float32)
    states = np.zeros((*logprobs.shape, outputs[0].states.shape[1]), np.float32)
    for i, output in enumerate(outputs):
        logprobs[i, : len(output.tokens)] = (
            output.sampled_logprobs if as_sampled else output.logprobs
        )
        states[i, : len(output.tokens)] = output.states
    return logprobs, states
