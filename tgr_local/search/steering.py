"""From a state to an anchor, from an anchor to candidates and to the vectors that are injected."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Injection, available_memory
from tgr_local.errors import CapacityError
from tgr_local.search import geometry
from tgr_local.search.seeds import PROPOSE, derived_seed
from tgr_local.search.trajectory import Trajectory

_EQUAL = 1e-4  # relative difference under which two states are the same but for rounding


class Steering:
    """The anchors of one trajectory and their injection, by its config."""

    def __init__(self, trajectory: Trajectory) -> None:
        engine, config = trajectory.engine, trajectory.config
        d_z = config.d_z or engine.n_embd
        self._trajectory, self._config = trajectory, config
        self._maps = _maps_of(
            config.injection_maps, engine.n_layer, engine.n_embd, d_z, config.rank,
            config.injection_seed,
        )  # fmt: skip

    @property
    def measures(self) -> bool:
        """Whether the residual norms of the prefix are needed."""
        return self._config.calibration == "residual"

    def anchor(self, h: NDArray[np.float32]) -> NDArray[np.float64]:
        """z = unit(W h) [d_z] of a state h [d_h]."""
        return geometry.state_anchor(h, self._maps.W)

    def propose(self, z: NDArray[np.float64], n: int) -> NDArray[np.float64]:
        """n anchors [n, d_z] around z [d_z]; the same ones when asked again at a boundary."""
        return geometry.propose(z, n, self._config.sigma, self._rng())

    def propose_towards(
        self, z: NDArray[np.float64], ends: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Anchors [n, d_z] around z [d_z], each towards where one branch ends and the others do
        not: the state at its end, ends [n, d_h], less the mean of all. Noise for equal ends."""
        directions = ends - ends.mean(axis=0)
        size = np.linalg.norm(directions, axis=1)
        directions[size <= _EQUAL * np.linalg.norm(ends, axis=1)] = 0
        if self._maps.W is not None:
            directions = directions @ self._maps.W.T
        return geometry.propose_towards(z, directions, self._config.sigma, self._rng())

    def _rng(self) -> np.random.Generator:
        """The noise of this boundary."""
        seed = derived_seed(self._config.seed, self._trajectory.run.index, PROPOSE)
        return np.random.default_rng(seed)

    def injections(self, anchors: NDArray[np.float64]) -> list[Injection]:
        """The injection of each anchor [n, d_z], in the place of those of the last call."""
        config, maps = self._config, self._maps.injection
        rho = geometry.residual_scale(
            self._trajectory.residual_norms,
            config.relative_strength,
            config.calibration,
            maps.unscaled,
        )
        rho = geometry.in_layers(rho, config.first_layer, config.last_layer)
        vectors = config.eta * rho[:, None] * maps.vectors(anchors)  # [n, n_layer, d_h]
        return self._trajectory.injections(vectors)


@dataclass(frozen=True, eq=False)
class _Maps:
    """The maps that all trajectories with the same `injection_seed` share."""

    W: NDArray[np.float32] | None
    injection: geometry.InjectionMaps | geometry.IdentityMaps


# at 8B size they are 10 MB and take 50 ms to draw: they are kept while a trajectory uses them, and
# the newest ones also after that
_in_use: weakref.WeakValueDictionary[tuple[str | int, ...], _Maps] = weakref.WeakValueDictionary()
_newest: list[_Maps] = []
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _maps_of(kind: str, n_layer: int, d_h: int, d_z: int, rank: int, seed: int) -> _Maps:
    key = (kind, n_layer, d_h, d_z, rank, seed)
    with _lock:
        maps = _in_use.get(key)
        if maps is None:
            _newest.clear()
            needed, left = geometry.map_bytes(n_layer, d_h, d_z, rank), available_memory()
            if left is not None and needed > left:
                raise CapacityError(
                    f"the injection maps take {needed >> 20} MiB, but {left >> 20} MiB of memory "
                    f"are left; lower rank, which is {rank}, or d_z, which is {d_z}"
                )
            maps = _Maps(
                geometry.projection(d_z, d_h, seed),
                geometry.maps_of(kind, n_layer, d_h, d_z, rank, seed),
            )
            _in_use[key] = maps
        _newest[:] = [maps]
        return maps
