"""An engine for one request: a control vector and a logit bias apply to everything it decodes.

A `SteeredEngine` can be used wherever an `Engine` can. It shares the model, the cache and the
worker of the engine below, which others may use unsteered at the same time.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Generator
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.cancel import Cancel
from tgr_local.engine.engine import Engine
from tgr_local.engine.lockstep import Participant
from tgr_local.engine.records import Output
from tgr_local.engine.session import Injection, OnRead, OnTokens, Session, Task


class SteeredEngine(Engine):
    """`engine` with `vectors` [n_layer, n_embd] added to the residual stream after every layer at
    every position, prompt and delimiter included, and `logit_bias`, pairs of a token and a number
    added to its logit. The injections of a search are added to the vectors.

    The vectors and biases of a steered `engine` are added too. Raises ValueError for vectors of
    another shape, values that are not finite, and tokens that do not exist.
    """

    def __init__(
        self,
        engine: Engine,
        vectors: NDArray[np.floating] | None = None,
        logit_bias: Seq[tuple[int, float]] = (),
    ) -> None:
        self.__dict__.update(engine.__dict__)  # the same model, cache and worker
        over = engine if isinstance(engine, SteeredEngine) else None
        self._below: Engine = over._below if over else engine
        self._vectors: NDArray[np.float32] | None = over._vectors if over else None
        if vectors is not None:
            expected = (engine.n_layer, engine.n_embd)
            if np.shape(vectors) != expected:
                raise ValueError(
                    f"vectors have shape {np.shape(vectors)}, but must have {expected}"
                )
            own = np.array(vectors, np.float32)
            if not np.isfinite(own).all():
                raise ValueError("vectors hold a value that is not finite; check their source")
            self._vectors = own if self._vectors is None else self._vectors + own
        for token, _ in logit_bias:
            if not 0 <= token < engine.n_vocab:
                raise ValueError(
                    f"logit_bias names token {token}, but must name one between 0 and "
                    f"{engine.n_vocab - 1}"
                )
        self.digest = b"" if self._vectors is None else _digest_of(self._vectors)
        self._bias: tuple[tuple[int, float], ...] = (*(over._bias if over else ()), *logit_bias)

    def session(
        self,
        n_cells: int,
        n_seqs: int,
        *,
        prompt: Seq[int] = (),
        norms: bool = False,
        digest: bytes = b"",
        participant: Participant | None = None,
        cancel: Cancel | None = None,
    ) -> Session:
        extra = 0 if self._vectors is None else 1  # a row of the table for the injection alone
        session = self._below.session(
            n_cells,
            n_seqs + extra,
            prompt=prompt,
            norms=norms,
            digest=digest or self.digest,
            participant=participant,
            cancel=cancel,
        )
        return _SteeredSession(session, self._vectors, self._bias, self.digest)


class _SteeredSession(Session):
    """A session that adds the vectors and the bias to its injections and tasks."""

    def __init__(
        self,
        below: Session,
        vectors: NDArray[np.float32] | None,
        bias: tuple[tuple[int, float], ...],
        digest: bytes,
    ) -> None:
        self.__dict__.update(below.__dict__)
        self._below = below  # closes when it is garbage-collected
        self._vectors, self._bias = vectors, bias
        self._always = None if vectors is None else super().injection(vectors, digest=digest)
        self._plain = self._always._row if self._always else 0

    def injection(self, vectors: NDArray[np.float32], *, digest: bytes | None = None) -> Injection:
        if self._vectors is None:
            return super().injection(vectors, digest=digest)
        return super().injection(vectors + self._vectors)

    def run(
        self,
        tasks: Seq[Task],
        *,
        on_tokens: OnTokens | None = None,
        on_read: OnRead | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        stop_early: bool = False,
    ) -> list[Output]:
        return super().run(
            [self._steered(task) for task in tasks],
            on_tokens=on_tokens,
            on_read=on_read,
            cancel=cancel,
            deadline=deadline,
            stop_early=stop_early,
        )

    def run_parts(
        self,
        task: Task,
        *,
        on_tokens: OnTokens | None = None,
        on_read: OnRead | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        stop_early: bool = False,
    ) -> Generator[Output, None, None]:
        return super().run_parts(
            self._steered(task),
            on_tokens=on_tokens,
            on_read=on_read,
            cancel=cancel,
            deadline=deadline,
            stop_early=stop_early,
        )

    def _steered(self, task: Task) -> Task:
        bias = (*task.sampling.logit_bias, *self._bias)
        return dataclasses.replace(
            task,
            injection=task.injection or self._always,
            sampling=dataclasses.replace(task.sampling, logit_bias=bias),
        )


def _digest_of(vectors: NDArray[np.float32]) -> bytes:
    """What tells the prefixes that were read under different vectors apart."""
    return hashlib.blake2b(np.ascontiguousarray(vectors).tobytes(), digest_size=16).digest()
