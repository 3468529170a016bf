"""K searches with the embedded model in a process that did nothing before; prints their tokens,
seconds and memory as JSON: ``python -m tgr_local.lab.bench.cold_start K SEED``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from pathlib import Path

from tgr_local.generation import advised, generate_many, load

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

QUESTION = "Use 3, 7, 12 and 25 to make 64."


def search(k: int, seed: int) -> dict[str, float]:
    """Reply tokens, decoded positions, seconds, peak resident bytes and peak cached tokens."""
    with load() as engine:
        config = dataclasses.replace(advised(engine), temperature=1.0)
        generate_many(engine, QUESTION, dataclasses.replace(config, seed=10**6), k)
        start = time.perf_counter()
        replies = generate_many(engine, QUESTION, dataclasses.replace(config, seed=seed), k)
        seconds = time.perf_counter() - start
        cells = engine.stats().cells_peak
    return {
        "tokens": sum(reply.n_tokens for reply in replies),
        "positions": sum(reply.counts.total for reply in replies),
        "seconds": seconds,
        "resident": peak_resident(),
        "cells": cells,
    }


def peak_resident() -> int:
    """Peak bytes; 0 on Windows. On Linux ru_maxrss includes the parent's memory, VmHWM does not."""
    if (peak := of_status("VmHWM")) or resource is None:
        return peak
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024)


def of_status(field: str) -> int:
    """Bytes that Linux gives for this process in a field; 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    print(json.dumps(search(int(sys.argv[1]), int(sys.argv[2]))))
