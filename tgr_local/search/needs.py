"""The record of a method that writes chunk after chunk: its flags say what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgr_local.engine import Engine
from tgr_local.options import groups
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import Config
from tgr_local.search.capacity import cells_needed, positions_needed, sequences_needed
from tgr_local.search.room import fitted
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def chunk_method(
    name: str,
    run: Callable[[Run], Iterator[Step]],
    *,
    about: str,
    resets: bool = False,
    searches: bool = False,
    steers: bool = False,
    options: tuple[type[Config], ...] = (),
    changed: Callable[[SearchConfig], SearchConfig] = lambda config: config,
) -> Method:
    """A method whose `run` is one `Trajectory`. `changed` gives the config that it runs with,
    `options` are those beside those of its kind."""

    def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
        config = changed(config) if resets else fit(engine, n_query, config)
        return cells_needed(
            engine, n_query, config, resets=resets, searches=searches, steers=steers
        )

    def sequences(engine: Engine, config: SearchConfig) -> int:
        config = changed(config)
        return sequences_needed(engine, config, resets=resets, searches=searches, steers=steers)

    def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
        config = changed(config)
        return positions_needed(engine, n_query, config, searches=searches, steers=steers)

    def fit(engine: Engine, n_query: int, config: SearchConfig) -> SearchConfig:
        config = changed(config)
        return fitted(engine, n_query, config, resets=resets, searches=searches, steers=steers)

    kinds: list[tuple[bool, type[Config]]] = [
        (resets, groups.ResetOptions),
        (searches or steers, groups.BoundaryOptions),
        (searches, groups.RolloutOptions),
        (searches and steers, groups.AnchorOptions),
        (steers, groups.SteeringOptions),
    ]
    return Method(
        name,
        run,
        cells,
        sequences,
        resets=resets,
        searches=searches,
        steers=steers,
        positions=positions if resets else None,
        fit=fit,
        about=about,
        options=(*(group for is_used, group in kinds if is_used), *options),
    )
