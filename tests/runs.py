"""The steps of a run in tests: their text, their cost, whether two runs are identical, and what
the numpy reference computes for the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import Reference, log_softmax

from tgr_local.search.steps import Counts, Step


def text_of(steps: list[Step]) -> list[int]:
    """The tokens of all chunks."""
    return [int(token) for step in steps for token in step.tokens]


def spent(steps: list[Step]) -> int:
    """How many tokens passed through the model in all steps."""
    return sum((step.counts for step in steps), Counts()).total


def assert_identical(ours: list[Step], theirs: list[Step]) -> None:
    """Equal to the bit, times excepted."""

    def flat(steps: list[Step]) -> list[Any]:
        values: list[Any] = []
        for step in steps:
            values += [step.index, step.finish, step.counts, step.cells]
            values += [step.tokens, step.logprobs, step.entropies]
            values += [step.origin, step.anchor, step.state]
            if step.candidates:
                values += [step.candidates.anchors, step.candidates.scores.total]
                values += [*step.candidates.tokens, *step.candidates.logprobs]
        return values

    for a, b in zip(flat(ours), flat(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def decoded(
    reference: Reference, context: list[int], new: list[int], injection: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-probabilities [n] and states [n, d] of `new` after `context`. The injection acts on `new`
    and on the last token of `context`, the pending one, which is decoded with `new`."""
    text = context + new[:-1]
    vectors = np.zeros((len(text), reference.n_layer, reference.n_embd))
    if injection is not None:
        vectors[len(context) - 1 :] = injection
    out = reference.forward(text, vectors)
    at = slice(len(context) - 1, None)
    return log_softmax(out.logits[at])[range(len(new)), new], out.states[at]
