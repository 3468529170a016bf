"""``tgr-token``: the same chunks and resets, but whole tokens are chosen: no anchor, no injection.

At every chunk boundary K plain rollouts of s tokens are scored by w V − λ_b P_bum, and the winner
begins the chunk: its cells stay, and the chunk continues its tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tgr_local.search.chunkwise import Decision, chunk_method
from tgr_local.search.trajectory import Trajectory

# the options that concern anchors, off; a candidate is its own rollout, so there is one of each
_WITHOUT_ANCHORS: dict[str, Any] = {
    "n_mc": 1,
    "reevaluate": 0,
    "lambda_u": 0.0,
    "delta": 0.0,
    "reuse_winner": True,
}


def _decide(trajectory: Trajectory) -> Decision:
    """Rolls out, scores, and begins the chunk with the winner."""
    no_anchors = np.zeros((trajectory.config.n_candidates, 0))
    outputs = trajectory.roll_out([None] * len(no_anchors))
    if trajectory.late:  # they may have been cut short
        return Decision()
    candidates = trajectory.choose(no_anchors, no_anchors[0], outputs)
    chosen = candidates.scores.chosen
    trajectory.adopt(chosen, outputs[chosen])
    return Decision(candidates=candidates)


METHOD = chunk_method(
    "tgr-token",
    _decide,
    searches=True,
    fixed=_WITHOUT_ANCHORS,
    about="tries beginnings of each further chunk, continues the best one",
)
