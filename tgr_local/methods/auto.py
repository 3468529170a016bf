"""``auto``: a vote with the settings that gave the best answers for their tokens.

The first sample is written alone, and is the reply where its answer is free text that no other
sample could equal. Then another, and two at a time, sixteen at most, until one answer leads.
docs/results.md has the evidence. An option that is not the default stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from tgr_local.methods import vote
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def run(run: Run) -> Iterator[Step]:
    """The vote that suits this budget."""
    yield from vote.run(run.with_options(**options(run.config)), first_alone=True)


def options(config: SearchConfig) -> dict[str, Any]:
    """The options that change."""
    if config.temperature == 0 and config.dynatemp_range == 0:  # all samples would be the same
        return {"n_samples": 1}
    wanted: dict[str, Any] = {"n_samples": 16, "vote_wave": 2, "vote_bar": 0.75}
    if config.max_forward_tokens:  # a budget is to be spent
        wanted = {"n_samples": 64, "vote_wave": 2}
    default = SearchConfig()
    return {
        name: value
        for name, value in wanted.items()
        if getattr(config, name) == getattr(default, name)
    }


def _with(config: SearchConfig) -> SearchConfig:
    return dataclasses.replace(config, **options(config))


METHOD = Method(
    "auto",
    run,
    lambda engine, n_query, config: vote.cells(engine, n_query, _with(config)),
    lambda engine, config: vote.sequences(engine, _with(config)),
    positions=lambda engine, n_query, config: vote.positions(engine, n_query, _with(config)),
    about="vote with settings of its own; one text where nothing can be compared",
    options=vote.METHOD.options,
)
