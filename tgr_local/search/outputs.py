"""Outputs of the engine, cut and joined: a generation in two parts is one generation."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Output

# the fields of an Output that have a row for each generated token
_OF_THE_TASK = {"feed_states", "feed_logprobs", "norm_sums", "norm_counts", "n_decoded", "finish"}
_PER_TOKEN = [spec.name for spec in fields(Output) if spec.name not in _OF_THE_TASK]


def joined(first: Output, more: Output) -> Output:
    """A generation and its continuation, as one."""
    arrays = {
        name: np.concatenate([getattr(first, name), getattr(more, name)]) for name in _PER_TOKEN
    }
    n_decoded = first.n_decoded + more.n_decoded
    return replace(first, **arrays, n_decoded=n_decoded, finish=more.finish)


def beginning(output: Output, n: int) -> Output:
    """The first n tokens of a generation that has more."""
    arrays = {name: getattr(output, name)[:n] for name in _PER_TOKEN}
    return replace(output, **arrays, finish="length")


def norm_totals(output: Output) -> NDArray[np.float64]:
    """[2, n_layer] sums of the residual norms over all fed tokens, and the number of those tokens.
    In the last layer, where the engine measures some tokens only, their mean counts for all."""
    means = output.norm_sums / output.norm_counts
    return np.stack([means * output.n_decoded, np.full_like(means, output.n_decoded)])


def padded(outputs: Seq[Output]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The log-probabilities [n, longest] and states [n, longest, n_embd] of n generations, with
    zeros after their ends."""
    longest = max(len(output.tokens) for output in outputs)
    logprobs = np.zeros((len(outputs), longest), np.float32)
    states = np.zeros((*logprobs.shape, outputs[0].states.shape[1]), np.float32)
    for i, output in enumerate(outputs):
        logprobs[i, : len(output.tokens)] = output.logprobs
        states[i, : len(output.tokens)] = output.states
    return logprobs, states
