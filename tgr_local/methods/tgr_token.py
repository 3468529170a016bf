"""``tgr-token``: the same chunks and resets, but whole tokens are chosen: no anchor, no injection.

At every chunk boundary K plain rollouts of s tokens are scored by w V − λ_b P_bum, and the winner
begins the chunk: its cells stay, and the chunk continues its tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tgr_local.options.config import SearchConfig
from tgr_local.search.needs import chunk_method
from tgr_local.search.run import Run
from tgr_local.search.steps import Step
from tgr_local.search.trajectory import Trajectory

# the options that concern anchors, off; a candidate is its own rollout, so there is one of each
_WITHOUT_ANCHORS: dict[str, Any] = {
    "n_mc": 1,
    "reevaluate": 0,
    "lambda_u": 0.0,
    "delta": 0.0,
    "reuse_winner": True,
}


def run(run: Run) -> Iterator[Step]:
    """Reset, roll out, score, continue the winner; again until the text ends. The chunks before
    ``search_from`` are written without a search."""
    run = run.with_options(**_WITHOUT_ANCHORS)
    config = run.config
    with Trajectory(run, METHOD) as trajectory:
        trajectory.read_query()
        no_anchors = np.zeros((config.n_candidates, 0))
        while True:
            candidates = None
            if run.index >= config.search_from:
                outputs = trajectory.roll_out([None] * config.n_candidates)
                if not trajectory.late:  # else they may have been cut short
                    candidates = trajectory.choose(no_anchors, no_anchors[0], outputs)
                    chosen = candidates.scores.chosen
                    trajectory.adopt(chosen, outputs[chosen])
            chunk = trajectory.write()
            finish = trajectory.finish(chunk)
            yield trajectory.step(chunk, finish, candidates=candidates)
            if finish is not None:
                return
            trajectory.reset()


def _changed(config: SearchConfig) -> SearchConfig:
    return dataclasses.replace(config, **_WITHOUT_ANCHORS)


METHOD = chunk_method(
    "tgr-token",
    run,
    resets=True,
    searches=True,
    changed=_changed,
    about="tries beginnings of each further chunk, continues the best one",
)
