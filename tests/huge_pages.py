"""A program for a process of its own: how much of a larger cache is advised to be huge pages."""

from __future__ import annotations

from pathlib import Path

from tgr_local.engine import Engine
from tgr_local.options.config import EngineConfig

SMALL, LARGE = 256, 16384


def advised_bytes() -> int:
    """Bytes of this process for which huge pages were asked (flag hg)."""
    total = size = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and "hg" in line.split():
            total += size
    return total


def report(path: str) -> None:
    """Prints the bytes that are advised for the larger of two caches only, and how much larger it
    is."""
    with Engine(path, EngineConfig(n_ctx=SMALL)):
        small = advised_bytes()
    with Engine(path, EngineConfig(n_ctx=LARGE)) as engine:
        print(advised_bytes() - small, (LARGE - SMALL) * engine.cell_bytes)
