"""A remembered prefix that was never read, for measuring steps after a long text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgr_local.engine.devices import available_memory
from tgr_local.engine.engine import Engine
from tgr_local.engine.session import Task
from tgr_local.errors import CapacityError

_COPIES = 3  # of the keys and values in memory, for a moment


def fill_prefix(engine: Engine, tokens: Sequence[int], n_read: int) -> None:
    """Makes tokens a remembered prefix whose cells hold the bytes of its first `n_read` tokens
    again and again; only these are decoded. Attending to it means nothing, but takes as long as to
    real tokens. Needs an engine that remembers (`prefix_cells`).

    Raises CapacityError where the cache or the memory has no room for them.
    """
    n_read, n = min(n_read, len(tokens)), len(tokens)
    need, left = _COPIES * n * engine.cell_bytes, available_memory()
    if left is not None and need > left:
        raise CapacityError(
            f"a context of {n:,} tokens needs {need >> 20:,} MiB of memory, but only "
            f"{left >> 20:,} MiB are available; take a shorter one"
        )
    with engine.session(n_read + 8, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, tokens[:n_read])])
        session.remember(sequence)
    _, _, state, cells = engine._native.read_prefix(tokens[:n_read], b"")
    filled = np.resize(np.frombuffer(cells, np.uint8), len(cells) // n_read * n).tobytes()
    if not engine._native.add_prefix(tokens, b"", b"", state, filled):
        raise CapacityError(
            f"the cache has no room for {n:,} more tokens; set a larger n_ctx, or "
            "take a shorter context"
        )
