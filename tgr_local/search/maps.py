"""The low-rank maps that turn anchors into injections: drawn once for a model and a seed, shared by
all runs."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine, available_memory
from tgr_local.options.config import SearchConfig
from tgr_local.search import geometry
from tgr_local.system.errors import CapacityError


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps that all trajectories with the same `injection_seed` share."""

    W: NDArray[np.float32] | None
    injection: geometry.InjectionMaps


# for a model of 8B parameters the maps have 10 MB and take 50 ms to draw: they stay in memory while
# a trajectory uses them, and the newest maps also after that
_in_use: weakref.WeakValueDictionary[tuple[int, ...], Maps] = weakref.WeakValueDictionary()
_newest: list[Maps] = []
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def of(engine: Engine, config: SearchConfig) -> Maps:
    """The maps for a model by its options. Raises CapacityError where the memory is too small."""
    n_layer, d_h = engine.n_layer, engine.n_embd
    d_z, rank, seed = config.d_z or d_h, config.rank, config.injection_seed
    key = (n_layer, d_h, d_z, rank, seed)
    with _lock:
        maps = _in_use.get(key)
        if maps is None:
            _newest.clear()
            n_bytes, n_free = (
                geometry.map_bytes(n_layer, d_h, d_z, rank),
                available_memory(),
            )
            if n_free is not None and n_bytes > n_free:
                raise CapacityError(
                    f"the injection maps take {n_bytes >> 20} MiB, but {n_free >> 20} MiB of "
                    f"memory are left; lower rank, which is {rank}, or d_z, which is {d_z}"
                )
            maps = Maps(
                geometry.projection(d_z, d_h, seed),
                geometry.InjectionMaps.draw(n_layer, d_h, d_z, rank, seed),
            )
            _in_use[key] = maps
        _newest[:] = [maps]
        return maps
