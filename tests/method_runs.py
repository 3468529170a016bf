"""Short runs of any method in tests: a prompt, small options, one run, and several in lockstep."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

from engines import TOKENS
from threads import in_threads

from tgr_local import methods
from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Request, Run
from tgr_local.search.steps import Progress, Step

PROMPT = TOKENS[:10]
PAPER: dict[str, Any] = {"search_from": 0, "calibration": "absolute", "guard": 0.0}
"""Every chunk is searched and injected, by a strength that needs no measurement."""
RESIDUAL: dict[str, Any] = {**PAPER, "calibration": "residual"}
SMALL = SearchConfig(
    chunk_len=6, max_chunks=4, n_candidates=3, rollout_len=4, temperature=0.8,
    n_samples=3, power_steps=2, tree_breadth=2, tree_proposals=2,
    **PAPER,
)  # fmt: skip


def with_(**options: Any) -> SearchConfig:
    """The small config with other options."""
    return dataclasses.replace(SMALL, **options)


def steps_of(
    engine: Engine,
    method: str,
    config: SearchConfig = SMALL,
    prompt: list[int] = PROMPT,
    **more: Any,
) -> list[Step]:
    """The steps of a method."""
    request = Request(prompt, config, methods.get(method))
    return list(request.method.run(Run(engine, request, **more)))


def group_of(
    engine: Engine, method: str, config: SearchConfig, k: int, pause: float = 0.0
) -> list[list[Step]]:
    """The steps of k runs in one lockstep group, as `generate_many` makes them. With `pause`, their
    threads sleep up to so many seconds at some events."""
    engine.grow_cache(k * methods.get(method).cells(engine, len(PROMPT), config))
    group = engine.lockstep_group(k)

    def one(index: int) -> list[Step]:
        mine = dataclasses.replace(config, seed=config.seed + index)
        pauses = random.Random(index)

        def wait(progress: Progress) -> None:
            if pause and pauses.random() < 0.3:
                time.sleep(pauses.random() * pause)

        with group.participant(index) as participant:
            return steps_of(engine, method, mine, participant=participant, on_event=wait)

    runs = in_threads(*(lambda i=i: one(i) for i in range(k)))
    assert all(isinstance(run, list) for run in runs), runs
    return runs
