"""``tgr-token``: the same chunks and resets, but whole tokens are chosen: no anchor, no injection.

At every chunk boundary K plain rollouts of s tokens are scored by w V − λ_b P_bum, and the winner
is kept: its tokens begin the chunk, its cells stay, and the chunk goes on from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import cells_needed, sequences_needed
from tgr_local.search.steps import Listener, Step
from tgr_local.search.trajectory import Trajectory

resets = True


def run(
    engine: Engine,
    prompt: Sequence[int],
    config: SearchConfig,
    *,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """Reset, roll out, score, keep the winner and go on with it; again until the text ends."""
    config = _without_anchors(config)
    with Trajectory(
        engine,
        prompt,
        config,
        searches=True,
        participant=participant,
        on_event=on_event,
        cancel=cancel,
    ) as trajectory:
        trajectory.read_query()
        no_anchors = np.zeros((config.n_candidates, 0))
        while True:
            outputs = trajectory.roll_out([None] * config.n_candidates)
            candidates = None
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


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    return cells_needed(engine, n_query, _without_anchors(config), resets=True, searches=True)


def sequences(config: SearchConfig) -> int:
    return sequences_needed(_without_anchors(config), searches=True)


def _without_anchors(config: SearchConfig) -> SearchConfig:
    """The config without what concerns anchors; a candidate is its own rollout, so there is one."""
    return dataclasses.replace(
        config,
        n_mc=1,
        reevaluate=0,
        min_gap=0.0,
        lambda_u=0.0,
        delta=0.0,
        min_n_eff=0.0,
        max_apcs=1.0,
        share_repulsion=False,
        reuse_winner=True,
    )
