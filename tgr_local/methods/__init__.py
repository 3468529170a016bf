"""The methods, by name: each turns a prompt into a stream of steps, all with one signature.

A method takes the engine, the prompt's tokens and a `SearchConfig`, and yields one `Step` for each
chunk, the last of which says why it ended. `participant` puts it into a group, `on_event` hears what
happens inside a step, `cancel` ends it with CancelledError. Closing the generator frees its cache.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.methods import (
    base,
    best_of_n,
    got,
    hard_geometry,
    markov,
    power,
    random_anchor,
    self_consistency,
    tgr_latent,
    tgr_token,
    tot,
)
from tgr_local.options.config import SearchConfig
from tgr_local.search.steps import Listener, Step


class Run(Protocol):
    """The signature of every method."""

    def __call__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        config: SearchConfig,
        *,
        participant: Participant | None = None,
        on_event: Listener | None = None,
        cancel: Cancel | None = None,
    ) -> Iterator[Step]: ...


class Cells(Protocol):
    """How many cache cells a method needs for a query of so many tokens; CapacityError when it can
    never have them."""

    def __call__(self, engine: Engine, n_query: int, config: SearchConfig) -> int: ...


class Sequences(Protocol):
    """How many sequences a method holds at a time."""

    def __call__(self, config: SearchConfig) -> int: ...


class Method(Protocol):
    """What a module of this package offers."""

    run: Run
    cells: Cells
    sequences: Sequences
    resets: bool
    """Whether the context is cut back to the query and the newest text; else all of it stays."""


_NAME_MOST = 64  # characters of a name that is compared with known ones

METHODS: Mapping[str, Method] = {
    "base": base,
    "markov": markov,
    "random-anchor": random_anchor,
    "tgr-latent": tgr_latent,
    "tgr-token": tgr_token,
    "hard-geometry": hard_geometry,
    "best-of-n": best_of_n,
    "self-consistency": self_consistency,
    "power": power,
    "tot": tot,
    "got": got,
}


def get(name: str) -> Method:
    """The method of that name. Raises ValueError for another, with the nearest one, or all."""
    if name not in METHODS:
        near = difflib.get_close_matches(name[:_NAME_MOST], METHODS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METHODS)}"
        raise ValueError(f"unknown method {name!r:.80}; {hint}")
    return METHODS[name]
