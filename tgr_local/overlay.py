"""An engine as one request sees it: everything that it decodes also gets a push, a bias, or both.

An `Overlay` is used wherever an `Engine` is; methods do not know of it. The model, the cache and
the worker are those of the engine below, which others may use at the same time without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Direction, Engine, Member, Output, Session, Task

Pushes = NDArray[np.float32]


class Overlay(Engine):
    """`engine` with `pushes` [n_layer, n_embd] added to the residual stream after every layer at
    every position, prompt and delimiter included, and `logit_bias`, pairs of a token and what is
    added to its logit. Pushes of a search are added to these.

    What an overlay lies over already is added. Raises ValueError for pushes of another shape or
    not finite, and tokens that do not exist.
    """

    def __init__(
        self,
        engine: Engine,
        pushes: NDArray[np.floating] | None = None,
        logit_bias: Seq[tuple[int, float]] = (),
    ) -> None:
        self.__dict__.update(engine.__dict__)  # the same model, cache and worker
        over = engine if isinstance(engine, Overlay) else None
        self._below: Engine = over._below if over else engine
        self._pushes: Pushes | None = over._pushes if over else None
        if pushes is not None:
            expected = (engine.n_layer, engine.n_embd)
            if np.shape(pushes) != expected:
                raise ValueError(f"pushes have shape {np.shape(pushes)}, but must have {expected}")
            own = np.array(pushes, np.float32)
            if not np.isfinite(own).all():
                raise ValueError("pushes hold a value that is not finite; check their source")
            self._pushes = own if self._pushes is None else self._pushes + own
        for token, _ in logit_bias:
            if not 0 <= token < engine.n_vocab:
                raise ValueError(
                    f"logit_bias names token {token}, but must name one between 0 and "
                    f"{engine.n_vocab - 1}"
                )
        self._bias: tuple[tuple[int, float], ...] = (*(over._bias if over else ()), *logit_bias)

    def session(
        self,
        n_cells: int,
        n_seqs: int,
        *,
        member: Member | None = None,
        cancel: Cancel | None = None,
    ) -> Session:
        extra = 0 if self._pushes is None else 1  # a row of the table for the push alone
        session = self._below.session(n_cells, n_seqs + extra, member=member, cancel=cancel)
        return _OverlaySession(session, self._pushes, self._bias)


class _OverlaySession(Session):
    """A session whose directions and tasks are laid over."""

    def __init__(
        self, below: Session, pushes: Pushes | None, bias: tuple[tuple[int, float], ...]
    ) -> None:
        self.__dict__.update(below.__dict__)
        self._below = below  # it gives its room back when it is garbage
        self._pushes, self._bias = pushes, bias
        self._always = None if pushes is None else super().direction(pushes)

    def direction(self, pushes: NDArray[np.float32]) -> Direction:
        return super().direction(pushes if self._pushes is None else pushes + self._pushes)

    def run(
        self,
        tasks: Seq[Task],
        *,
        on_tokens: Callable[[list[list[int]]], None] | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        hasten: bool = False,
    ) -> list[Output]:
        return super().run(
            [self._laid_over(task) for task in tasks],
            on_tokens=on_tokens,
            cancel=cancel,
            deadline=deadline,
            hasten=hasten,
        )

    def _laid_over(self, task: Task) -> Task:
        bias = (*task.sampling.logit_bias, *self._bias)
        return dataclasses.replace(
            task,
            direction=task.direction or self._always,
            sampling=dataclasses.replace(task.sampling, logit_bias=bias),
        )
