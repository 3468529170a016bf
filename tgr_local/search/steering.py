"""From a state to an anchor, from an anchor to candidates and to what steers the model."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Injection
from tgr_local.errors import CapacityError
from tgr_local.search import geometry
from tgr_local.search.trajectory import PROPOSE, Trajectory, derived_seed
from tgr_local.system import memory


class Steering:
    """The anchors of one trajectory and their injection, by its config."""

    def __init__(self, trajectory: Trajectory) -> None:
        engine, config = trajectory.engine, trajectory.config
        d_z = config.d_z or engine.n_embd
        self._trajectory, self._config = trajectory, config
        self._fixed = _fixed(engine.n_layer, engine.n_embd, d_z, config.rank, config.injection_seed)

    @property
    def measures(self) -> bool:
        """Whether the residual norms of the prefix are needed."""
        return self._config.calibration == "residual"

    def anchor(self, h: NDArray[np.float32]) -> NDArray[np.float64]:
        """z = unit(W h) [d_z] of a state h [d_h]."""
        return geometry.state_anchor(h, self._fixed.W)

    def propose(self, z: NDArray[np.float64], n: int) -> NDArray[np.float64]:
        """n anchors [n, d_z] around z [d_z]; the same ones when asked again at a boundary."""
        seed = derived_seed(self._config.seed, self._trajectory.index, PROPOSE)
        return geometry.propose(z, n, self._config.sigma, np.random.default_rng(seed))

    def injections(self, anchors: NDArray[np.float64]) -> list[Injection]:
        """The injection of each anchor [n, d_z], in the place of those of the last call."""
        config = self._config
        rho = geometry.residual_scale(
            self._trajectory.residual_norms, config.relative_strength, config.calibration
        )
        vectors = config.eta * rho[:, None] * self._fixed.maps.vectors(anchors)  # [n, n_layer, d_h]
        return self._trajectory.injections(vectors)


@dataclass(frozen=True, eq=False)
class _Fixed:
    """What a seed fixes for all trajectories."""

    W: NDArray[np.float32] | None
    maps: geometry.InjectionMaps


# trajectories share them: at 8B size they are 10 MB and take 50 ms to draw. They stay while one
# uses them, and the newest also after that.
_in_use: weakref.WeakValueDictionary[tuple[int, ...], _Fixed] = weakref.WeakValueDictionary()
_newest: list[_Fixed] = []
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _fixed(n_layer: int, d_h: int, d_z: int, rank: int, seed: int) -> _Fixed:
    key = (n_layer, d_h, d_z, rank, seed)
    with _lock:
        fixed = _in_use.get(key)
        if fixed is None:
            _newest.clear()
            needed, left = geometry.map_bytes(n_layer, d_h, d_z, rank), memory.available()
            if left is not None and needed > left:
                raise CapacityError(
                    f"the injection maps take {needed >> 20} MiB, but {left >> 20} MiB of memory "
                    f"are left; lower rank, which is {rank}, or d_z, which is {d_z}"
                )
            fixed = _Fixed(
                geometry.projection(d_z, d_h, seed),
                geometry.InjectionMaps.draw(n_layer, d_h, d_z, rank, seed),
            )
            _in_use[key] = fixed
        _newest[:] = [fixed]
        return fixed
