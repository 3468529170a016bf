"""Arrays made of the engine's outputs."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Output


def median_norms(norms: Seq[NDArray[np.float32]]) -> NDArray[np.float64]:
    """[n_layer] median‖h‖₂ after each layer of the tokens whose norms [n, n_layer] were read. A
    mean would be that of a few tokens, mostly the first, whose norms are up to 200 times the others
    (Sun et al., "Massive Activations in Large Language Models", 2024)."""
    medians: NDArray[np.float64] = np.nanmedian(np.concatenate(norms), axis=0).astype(np.float64)
    return medians


def padded(
    outputs: Seq[Output],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The log-probabilities [n, longest] and states [n, longest, n_embd] of n generations, with
    zeros after their ends. The log-probabilities are the model's own at temperature 1."""
    longest = max(len(output.tokens) for output in outputs)
    logprobs = np.zeros((len(outputs), longest), np.float32)
    states = np.zeros((*logprobs.shape, outputs[0].states.shape[1]), np.float32)
    for i, output in enumerate(outputs):
        logprobs[i, : len(output.tokens)] = output.logprobs
        states[i, : len(output.tokens)] = output.states
    return logprobs, states
