"""A model of the pool, and one request's claim to it. Only one event loop uses them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from tgr_local.engine import MemoryNeed
from tgr_local.server.errors import ApiError
from tgr_local.server.loaded import LoadedModel
from tgr_local.system.errors import TgrError, describe


class PooledModel:
    """State of one model in the pool."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model: LoadedModel | None = None
        self.path = Path()
        self.need = MemoryNeed(0, 0)
        self.n_leases = 0
        self.used = 0.0  # the clock's time at the end of the latest lease
        self.is_wanted = False  # is to be loaded though no request waits for it
        self.is_idle = False  # for too long, or somebody wants it unloaded
        self.is_needed = False  # by another model
        self.failure: str | None = None  # why the latest load failed
        self.rest: asyncio.TimerHandle | None = None  # for it to rest

    @property
    def leaves(self) -> bool:
        """Whether it takes no new leases until it has been unloaded."""
        return self.is_idle or self.is_needed

    def mapped_need(self) -> MemoryNeed:
        """The need without the weights that are interleaved: the pages of a mapped file count as
        free memory, those weights do not. Any thread."""
        model = self.model
        n_taken = model.interleaved_bytes() if model else 0
        return dataclasses.replace(self.need, ram=max(0, self.need.ram - n_taken))


class Lease:
    """One request's use of a model. `end` it, whether or not it was granted."""

    def __init__(self, pooled: PooledModel, ended: Callable[[Lease, bool], object]) -> None:
        """`ended` is called at the end, with whether the lease was granted before."""
        self.pooled = pooled
        self._ended = ended
        self._model: LoadedModel | None = None
        self.failure: Exception | None = None
        """Error that kept the model from loading."""
        self._then: list[Callable[[], object]] = []

    @property
    def model(self) -> LoadedModel:
        """The model, once the lease is granted."""
        assert self._model is not None, "the lease is not granted"
        return self._model

    @property
    def error(self) -> ApiError | None:
        """The failure, as clients see it."""
        if isinstance(self.failure, ApiError) or self.failure is None:
            return self.failure
        why = without_folder(describe(self.failure), self.pooled.path)
        return ApiError(
            400 if isinstance(self.failure, TgrError | ValueError | OSError) else 500,
            f"the model {self.pooled.name!r} cannot be loaded: {why}",
            param="model",
            code="model_load_failed",
        )

    @property
    def is_decided(self) -> bool:
        """Whether it is granted or has failed."""
        return self._model is not None or self.failure is not None

    def then(self, call: Callable[[], object]) -> None:
        """Calls this once the lease is granted or has failed; now, if that is so."""
        if self.is_decided:
            call()
        else:
            self._then.append(call)

    def end(self) -> None:
        """The request is over, or does not wait any more."""
        self._then.clear()
        was_granted, self._model = self._model is not None, None
        self._ended(self, was_granted)

    def decide(self, model: LoadedModel | None, failure: Exception | None = None) -> None:
        """Grants the lease, or gives up with a failure."""
        self._model, self.failure = model, failure
        calls, self._then = self._then, []
        for call in calls:
            call()


def without_folder(text: str, path: Path) -> str:
    """A message about a file as clients see it."""
    return text.replace(f"{path.parent}{os.sep}", "")
