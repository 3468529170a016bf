"""Resolution of an option's value: the user's, else the model file's, else the default."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tgr_local.options.config import RANDOM_SEED, SearchConfig
from tgr_local.options.fields import parse, updated
from tgr_local.options.former import has_left, no_effect
from tgr_local.system.errors import ModelError

DEFAULT = "default"
MODEL_FILE = "the model file"
USER = "the user"
FOR_PEOPLE: Mapping[str, Any] = {"seed": "random", "loop_guard": 32}
"""The defaults of run, chat and serve that differ from those of `SearchConfig`, as a user reads
them. 32 repetitions of a part, in 1,024 tokens at least, are too many for a table or for a list of
zeros; of a long part fewer are (`generation.loops`)."""
_PREFIX = "tgr."
_MAKERS_PREFIX = "general.sampling."
_MAKERS_KEYS = {
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
}  # fmt: skip
"""Fields by the keys with which the maker of a model says how to sample from it."""


def advice(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns a model file's advice in its metadata, as text by name: ``tgr.*``, then
    ``general.sampling.*``."""
    own = {
        key.removeprefix(_PREFIX): text for key, text in metadata.items() if key.startswith(_PREFIX)
    }
    return {**_makers_advice(metadata), **own}


def former_advice(metadata: Mapping[str, str]) -> list[str]:
    """A warning for each advice of a model file about an option, or a value of it, that has
    left."""
    return [
        no_effect(name, text, f"{MODEL_FILE}: {_PREFIX}{name}")
        for name, text in advice(metadata).items()
        if has_left(name, text)
    ]


def _makers_advice(metadata: Mapping[str, str]) -> dict[str, str]:
    """The sampling that the maker recommends. As in llama.cpp, what is not a number is ignored, and
    one beyond the bounds, such as a top_k of -1, means the bound."""
    specs = {spec.name: spec.metadata for spec in dataclasses.fields(SearchConfig)}
    recommended = {}
    for key, name in _MAKERS_KEYS.items():
        with contextlib.suppress(KeyError, ValueError):
            value = float(metadata[_MAKERS_PREFIX + key])
            low, high = specs[name]["low"], specs[name]["high"]
            if math.isfinite(value) and (name != "repeat_penalty" or value >= low):
                value = min(max(value, low), 2**31 - 1 if high is None else high)
                # 6 digits: the file has a float of 32 bits
                recommended[name] = f"{value:.0f}" if name == "top_k" else f"{value:.6g}"
    return recommended


def _place(name: str, metadata: Mapping[str, str]) -> str:
    """Names the place where a model file advises on a field."""
    keys = [_MAKERS_PREFIX + key for key, field in _MAKERS_KEYS.items() if field == name]
    return MODEL_FILE if _PREFIX + name in metadata else f"{keys[0]} of {MODEL_FILE}"


class Resolved(NamedTuple):
    """Options and their origin."""

    config: SearchConfig
    sources: dict[str, str]
    """Source of the value of each field: DEFAULT, MODEL_FILE for its ``tgr.*``, a key of it
    for ``general.sampling.*``, or the place where the user set it."""
    seed_is_drawn: bool
    """Whether the seed is random, and so another one for the next reply."""

    def shown(self) -> dict[str, Any]:
        """The values of all fields for the user: a seed that is drawn is "random"."""
        values = dataclasses.asdict(self.config)
        return values | {"seed": "random"} if self.seed_is_drawn else values


def _unlimited(config: SearchConfig, metadata: Mapping[str, str]) -> SearchConfig:
    """The config with as many tokens and chunks as the model was trained for, if max_tokens is -1,
    or -2, which llama.cpp has too."""
    if config.max_tokens >= 0:
        return config
    of = metadata.get("general.architecture", "")
    trained = metadata.get(f"{of}.context_length", "")
    n_tokens = int(trained) if trained.isdecimal() and len(trained) < len(str(2**31)) else 0
    n_chunks = max(config.max_chunks, -(-n_tokens // config.chunk_len))
    return dataclasses.replace(config, max_tokens=n_tokens, max_chunks=n_chunks)


def resolve(
    metadata: Mapping[str, str],
    user_options: Mapping[str, Any] | None = None,
    places: Mapping[str, str] | None = None,
    *,
    for_people: bool = False,
) -> Resolved:
    """The options for a model, from its metadata and the fields that the user set.

    `places` names where an option was set, such as ``--sigma``; one that it does not name has the
    source USER. `for_people` takes the defaults of `FOR_PEOPLE`, by which a seed that nobody names
    is drawn. Advice for no field is ignored. Raises ModelError for bad advice, ValueError for an
    unknown field or a bad value among `user_options`.
    """
    user_options, places = user_options or {}, places or {}
    names = [spec.name for spec in dataclasses.fields(SearchConfig)]
    texts = {
        name: text
        for name, text in advice(metadata).items()
        if name in names and not has_left(name, text)
    }
    try:
        values = {name: parse(SearchConfig, name, text) for name, text in texts.items()}
        guard = {"loop_guard": FOR_PEOPLE["loop_guard"]} if for_people else {}
        advised = updated(SearchConfig(), guard | values)
    except ValueError as error:
        raise ModelError(
            f"the model file gives bad advice in its tgr.* metadata: {error}"
        ) from None
    sources = dict.fromkeys(names, DEFAULT) | {name: _place(name, metadata) for name in texts}
    sources |= {name: places.get(name, USER) for name in user_options}
    seed: Any = user_options.get("seed", values.get("seed", RANDOM_SEED if for_people else None))
    if seed == RANDOM_SEED:
        user_options = {**user_options, "seed": RANDOM_SEED}
    chosen = _unlimited(updated(advised, user_options), metadata)
    whole = dataclasses.replace(chosen, given=frozenset(names))
    return Resolved(whole, sources, seed == RANDOM_SEED)
