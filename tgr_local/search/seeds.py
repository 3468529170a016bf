"""Seeds derived from a run's seed: a different one for each chunk, rollout and proposal."""

from __future__ import annotations

import numpy as np

# Imported now: else numpy imports it at its first use, in the thread of a reply. A process that is
# forked during that import would wait for it forever.
from numpy.random import SeedSequence

# purposes of a seed
PROPOSE, ROLLOUT, CHUNK = range(3)


def derived_seed(*parts: int) -> int:
    """A 64-bit seed that changes with every part, such as (seed, chunk, purpose, index)."""
    return int(SeedSequence(parts).generate_state(1, np.uint64)[0])
