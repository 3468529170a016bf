"""Steering: from a state to an anchor, then to candidates and to the vectors that are injected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Injection, Output, Task
from tgr_local.options.config import SearchConfig
from tgr_local.options.strength_files import Strength
from tgr_local.search import geometry, maps, strength
from tgr_local.search.seeds import PROPOSE, derived_seed
from tgr_local.search.trajectory import Trajectory
from tgr_local.system.errors import CapacityError


class Steering:
    """The anchors of one trajectory and their injection, by its config."""

    measurement = staticmethod(strength.pending)
    """Returns the measurement that must come before the first injection with some options."""
    z: NDArray[np.float64]
    """[d_z] z_{t-1}, the state at the end of the text, from the first `read` on."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory, self._config = trajectory, trajectory.config
        self._maps = maps.of(trajectory.engine, trajectory.config)
        self._strength: Strength | None = None
        self.before: NDArray[np.float64] | None = None
        """[d_z] the state that led to `z`; None where there was none."""

    def is_ready(self) -> bool:
        """Whether the strength of injections is known. Where it must be measured and never was, it
        is measured now, if the limits of the run and its room in the cache allow that."""
        if self._strength is None and strength.is_needed(self._config):
            known = strength.known(self._trajectory.engine, self._config)
            self._strength = known or self._measured()
            return self._strength is not None
        return True

    def _measured(self) -> Strength | None:
        """Measures the strength in the free cells and sequences of the session. None where these,
        the budget or the time are not enough, or where a lockstep group would have to wait."""
        trajectory, run, wanted = self._trajectory, self._trajectory.run, strength.MEASUREMENT
        n_free = run.n_sequences - trajectory.n_sequences
        if run.participant or n_free < wanted.sequences or not trajectory.affords(wanted.positions):
            return None

        def decode(tasks: Sequence[Task]) -> list[Output] | None:
            outputs = run.generate(tasks)
            run.count(calibration=sum(output.n_decoded for output in outputs))
            return None if trajectory.late else outputs

        run.report("calibration")
        with run.timed("calibration"):
            n_cells = run.n_cells - trajectory.n_cells
            return strength.measure(trajectory.engine, run.session, self._config, n_cells, decode)

    @property
    def figures(self) -> dict[str, float]:
        """The strength ζ and its measured divergence, by name, for the record of a step."""
        strength = self._strength
        return {"zeta": strength.zeta, "divergence": strength.divergence} if strength else {}

    def read(self, injection: Injection | None = None) -> NDArray[np.float64]:
        """Reads the state at the end of the text and sets `z` [d_z]. The newest token is decoded
        under `injection`."""
        self.before = getattr(self, "z", None)
        self.z = self.anchor(self._trajectory.read_state(injection))
        return self.z

    def anchor(self, h: NDArray[np.float32]) -> NDArray[np.float64]:
        """z = unit(W h) [d_z] of a state h [d_h]."""
        return geometry.state_anchor(h, self._maps.W)

    def propose(self, z: NDArray[np.float64], n: int) -> NDArray[np.float64]:
        """n anchors [n, d_z] around z [d_z]; the same ones when asked again at a boundary."""
        seed = derived_seed(self._config.seed, self._trajectory.run.index, PROPOSE)
        return geometry.propose(z, n, self._config.sigma, np.random.default_rng(seed))

    def injections(self, anchors: NDArray[np.float64]) -> list[Injection]:
        """The injections of anchors [n, d_z]. They replace the injections of the last call. Raises
        CapacityError where the strength is not known (`is_ready`)."""
        if not self.is_ready():
            raise CapacityError(
                "the strength of the injection is not known, and the limits or the cache leave no "
                "room to measure it; raise n_ctx, or set calibration to absolute"
            )
        zeta = self._strength.zeta if self._strength else 0.0
        norms = self._trajectory.residual_norms
        vectors = injected(self._config, self._maps.injection, anchors, norms, zeta)
        return self._trajectory.injections(vectors)


def injected(
    config: SearchConfig,
    injection: geometry.InjectionMaps,
    anchors: NDArray[np.float64],
    norms: NDArray[np.float64],
    zeta: float,
) -> NDArray[np.float64]:
    """η ρ_l B_l A_l a of anchors [n, d_z] -> [n, n_layer, d_h]. The residual norms [n_layer] and
    the measured ζ give ρ where the calibration needs them."""
    strength = zeta if config.calibration == "divergence" else config.relative_strength
    rho = geometry.injection_scale(norms, strength, config.calibration)
    return np.asarray(config.eta * rho[:, None] * injection.vectors(anchors))
