"""What a run of the benchmark measures with: the engine, the peers' settings, how often."""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.bench.peers import Settings
from tgr_local.engine import Engine


@dataclass(frozen=True)
class Plan:
    engine: Engine
    settings: Settings
    repeats: int
    quick: bool

    @property
    def few(self) -> int:
        """Repeats of what takes long."""
        return (self.repeats + 1) // 2

    @property
    def n_steps(self) -> int:
        """Decodes in one measurement of a step."""
        return 8 if self.quick else 16
