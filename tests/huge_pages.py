"""Programs for a process of their own: how much of a larger cache is advised to be huge pages, and
how much memory the logits of texts take that there are not."""

from __future__ import annotations

import re
from pathlib import Path

from tgr_local.engine import Engine, Task
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


def report_logits(path: str, n_seq_max: int) -> None:
    """Prints the resident bytes of an engine for so many texts, before a text is written and after,
    and the bytes of their logits."""
    with Engine(path, EngineConfig(n_ctx=SMALL, n_seq_max=n_seq_max)) as engine:
        at_start = _resident()
        with engine.session(64, 1) as session:
            session.run([Task(session.sequence(), [1, 2, 3], n_generate=4)])
        print(at_start, _resident(), 4 * engine.n_vocab * n_seq_max)


def _resident() -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+)", text)
    assert match
    return int(match[1]) * 1024
