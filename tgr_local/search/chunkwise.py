"""Methods that write a text in chunks and reset the context to the query and the newest tokens
before each further chunk: their loop, and the `Method` record made from their flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.session import Injection
from tgr_local.options import groups
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import Config
from tgr_local.search.capacity import cells_needed, fitted, positions_needed, sequences_needed
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Candidates, Step
from tgr_local.search.trajectory import Trajectory

if TYPE_CHECKING:
    from tgr_local.search.steering import Steering


class Decision(NamedTuple):
    """How the next chunk is written."""

    anchor: NDArray[np.float64] | None = None
    """[d_z]; None = plainly."""
    injection: Injection | None = None
    candidates: Candidates | None = None
    """Candidates from which it was chosen."""
    figures: Mapping[str, float] = {}
    """Figures for the record of the step."""


Decide = Callable[..., Decision]
"""Decides at a boundary, given the `Trajectory` and, where the method steers, its `Steering`."""


def _plainly(_: Trajectory) -> Decision:
    return Decision()


def chunk_method(
    name: str,
    decide: Decide = _plainly,
    *,
    about: str,
    searches: bool = False,
    steering: type[Steering] | None = None,
    fixed: Mapping[str, Any] | None = None,
    options: tuple[type[Config], ...] = (),
) -> Method:
    """The record of a method that resets the context at every chunk. From chunk `search_from` on,
    `decide` says how the next chunk is written; the chunks before are written plainly. `steering`
    makes the anchors and injections of a method that steers. `fixed` options override the user's.
    `options` are groups of options that the method uses in addition to those of its kind."""
    steers = steering is not None

    def steps(run: Run) -> Iterator[Step]:
        return _steps(run.with_options(**fixed) if fixed else run, method, decide, steering)

    def used(config: SearchConfig) -> SearchConfig:
        return dataclasses.replace(config, **fixed) if fixed else config

    kinds: list[tuple[bool, type[Config]]] = [
        (True, groups.ResetOptions),
        (searches or steers, groups.BoundaryOptions),
        (searches, groups.RolloutOptions),
        (searches and steers, groups.AnchorOptions),
        (steers, groups.SteeringOptions),
    ]
    method = Method(
        name,
        steps,
        lambda engine, n_query, config: cells_needed(engine, n_query, used(config), method),
        lambda engine, config: sequences_needed(engine, used(config), method),
        resets=True,
        searches=searches,
        measurement=steering.measurement if steering else None,
        positions=lambda engine, n, config: positions_needed(engine, n, used(config), method),
        fit=lambda engine, n_query, config: fitted(engine, n_query, used(config), method),
        about=about,
        options=(*(group for is_used, group in kinds if is_used), *options),
    )
    return method


def _steps(
    run: Run, method: Method, decide: Decide, steered_by: type[Steering] | None
) -> Iterator[Step]:
    """The loop: decide, write a chunk, read the state, reset, until the text ends."""
    first = run.config.search_from
    with Trajectory(run, method) as trajectory:
        steering = steered_by(trajectory) if steered_by else None
        if steering and first and not run.measures:
            trajectory.begin()
        else:
            trajectory.read_query()
        if steering and not first:
            steering.read()
        while True:
            is_plain = run.index < first
            decision = Decision() if is_plain else _decision(trajectory, steering, decide)
            origin = None if is_plain or steering is None else steering.z
            if is_plain and run.index == 0:
                chunk = trajectory.first_chunk()
            else:
                chunk = trajectory.write(decision.injection)
            finish, state = trajectory.finish(chunk), None
            if steering and finish is None and run.index + 1 >= first:
                state = steering.read(decision.injection)
            yield trajectory.step(
                chunk,
                finish,
                origin=origin,
                candidates=decision.candidates,
                anchor=decision.anchor,
                state=state,
                figures=dict(decision.figures),
            )
            if finish is not None:
                return
            trajectory.reset()


def _decision(trajectory: Trajectory, steering: Steering | None, decide: Decide) -> Decision:
    """Returns the decision of `decide`. Where the strength of injections cannot be measured, the
    chunk is written plainly."""
    if steering is None:
        return decide(trajectory)
    return decide(trajectory, steering) if steering.is_ready() else Decision(figures={"plain": 1.0})
