"""Seeds derived from a run's seed, so that every draw has one of its own."""

from __future__ import annotations

import numpy as np

# Imported now: numpy would import it at its first use, in the thread of a reply. A process that is
# forked meanwhile would wait for that import forever.
from numpy.random import SeedSequence

# purposes of a seed
PROPOSE, ROLLOUT, CHUNK = range(3)


def derived_seed(*parts: int) -> int:
    """A 64-bit seed that changes with every part, such as (seed, chunk, purpose, index)."""
    return int(SeedSequence(parts).generate_state(1, np.uint64)[0])
