"""The conditions of a benchmark: engine, settings of the peers, number of repeats, machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tgr_local.engine import Engine, backend_devices, physical_cores
from tgr_local.lab.bench.peers import ContextSettings
from tgr_local.lab.bench.programs import Seconds
from tgr_local.system import cores
from tgr_local.system.versions import processor, versions


@dataclass(frozen=True)
class Plan:
    """`quick` takes fewer sizes and shorter chunks."""

    engine: Engine
    settings: ContextSettings
    repeats: int
    quick: bool
    long_tokens: int
    """Length of the reply in the group `long`."""
    programs: Mapping[str, Seconds] = field(default_factory=dict)
    """Other programs that take part in `plain` and `prefill`."""

    @property
    def few(self) -> int:
        """Repeats of slow measurements."""
        return (self.repeats + 1) // 2

    @property
    def n_steps(self) -> int:
        """Decodes in one measurement of a step."""
        return 8 if self.quick else 16


def about(engine: Engine, settings: ContextSettings) -> dict[str, Any]:
    """Facts that a reader needs to repeat or to question a measurement."""
    devices = [f"{d.name} ({d.description})" for d in backend_devices() if d.kind != "cpu"]
    return {
        "processor": processor(),
        "cores": {"physical": physical_cores(), "logical": cores.usable()},
        "load average": [round(load, 2) for load in getattr(os, "getloadavg", tuple)()],
        "other devices": devices or "none",
        "model": f"{engine.path.name}, {engine.description}, {engine.n_params:,} parameters, "
        f"{engine.size_bytes:,} bytes, layers on {'/'.join(dict.fromkeys(engine.devices()))}",
        "model sha256": engine.model_hash,
        "settings": settings.shown(),
        "versions": versions(),
    }
