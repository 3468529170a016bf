"""The conditions of one benchmark: the engine, the settings of the peers, the number of repeats."""

from __future__ import annotations

from dataclasses import dataclass

from tgr_local.engine import Engine
from tgr_local.lab.bench.peers import Settings


@dataclass(frozen=True)
class Plan:
    """`quick` takes fewer sizes and shorter chunks."""

    engine: Engine
    settings: Settings
    repeats: int
    quick: bool
    long_tokens: int
    """Length of the reply in the group `long`."""

    @property
    def few(self) -> int:
        """Repeats of slow measurements."""
        return (self.repeats + 1) // 2

    @property
    def n_steps(self) -> int:
        """Decodes in one measurement of a step."""
        return 8 if self.quick else 16
