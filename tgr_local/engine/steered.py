"""A view of an engine that adds a control vector and a logit bias to everything that it decodes,
and remembers prefixes for one owner alone.

A `SteeredEngine` can be used wherever an `Engine` can. Everything else is that of the engine below,
which others may use without steering at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.engine import Engine
from tgr_local.engine.session import Added


class SteeredEngine(Engine):
    """`engine` with `vectors` [n_layer, n_embd] added to the residual stream after every layer at
    every position, prompt and delimiter included, and `logit_bias`, pairs of a token and a number
    added to its logit. The injections of a search are added to the vectors. What is read for an
    `owner` is reused for the same owner alone, while it is read and when it is remembered.

    The vectors and biases of a steered `engine` are added too. Raises ValueError for vectors of
    another shape, values that are not finite, and tokens that do not exist.
    """

    def __init__(
        self,
        engine: Engine,
        vectors: NDArray[np.floating] | None = None,
        logit_bias: Seq[tuple[int, float]] = (),
        owner: bytes = b"",
    ) -> None:
        self._below: Engine = engine._below if isinstance(engine, SteeredEngine) else engine
        summed = engine._added.vectors
        if vectors is not None:
            expected = (engine.n_layer, engine.n_embd)
            if np.shape(vectors) != expected:
                raise ValueError(
                    f"vectors have shape {np.shape(vectors)}, but must have {expected}"
                )
            added_vectors = np.array(vectors, np.float32)
            if not np.isfinite(added_vectors).all():
                raise ValueError("vectors hold a value that is not finite; check their source")
            summed = added_vectors if summed is None else summed + added_vectors
        for token, _ in logit_bias:
            if not 0 <= token < engine.n_vocab:
                raise ValueError(
                    f"logit_bias names token {token}, but must name one between 0 and "
                    f"{engine.n_vocab - 1}"
                )
        bias = (*engine._added.logit_bias, *logit_bias)
        self._added = Added(summed, bias, owner or engine._added.owner)

    if not TYPE_CHECKING:  # which would allow any name

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["_below"], name)
