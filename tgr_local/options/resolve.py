"""Which value of an option holds: the user's, else the model file's, else the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from tgr_local.errors import ModelError
from tgr_local.options.config import RANDOM_SEED, SearchConfig
from tgr_local.options.fields import parse, updated

DEFAULT = "default"
MODEL_FILE = "the model file"
USER = "the user"
_PREFIX = "tgr."


def advice(metadata: Mapping[str, str]) -> dict[str, str]:
    """What a model file recommends in its ``tgr.*`` metadata, as text by name."""
    return {
        key.removeprefix(_PREFIX): text for key, text in metadata.items() if key.startswith(_PREFIX)
    }


class Resolved(NamedTuple):
    """Options and their origin."""

    config: SearchConfig
    sources: dict[str, str]
    """Where the value of each field comes from: DEFAULT, MODEL_FILE, or the place of the wish."""
    seed_is_drawn: bool
    """Whether the seed is random, and so another one for the next reply."""

    def shown(self) -> dict[str, Any]:
        """The values of all fields for a person: a seed that is drawn is "random"."""
        values = dataclasses.asdict(self.config)
        return values | {"seed": "random"} if self.seed_is_drawn else values


def resolve(
    metadata: Mapping[str, str],
    wishes: Mapping[str, Any] | None = None,
    places: Mapping[str, str] | None = None,
    *,
    draws_seed: bool = False,
) -> Resolved:
    """The options for a model, from its metadata and the fields that the user set.

    `places` names where a wish was made, such as ``--sigma``; a wish that it does not name has the
    source USER. With `draws_seed` a seed that nobody names is drawn. Advice for no field is
    ignored. Raises ModelError for bad advice, ValueError for an unknown field or a bad value among
    the wishes.
    """
    wishes, places = wishes or {}, places or {}
    names = [spec.name for spec in dataclasses.fields(SearchConfig)]
    texts = {name: text for name, text in advice(metadata).items() if name in names}
    try:
        values = {name: parse(SearchConfig, name, text) for name, text in texts.items()}
        advised = updated(SearchConfig(), values)
    except ValueError as error:
        raise ModelError(
            f"the model file gives bad advice in its tgr.* metadata: {error}"
        ) from None
    sources = dict.fromkeys(names, DEFAULT) | dict.fromkeys(texts, MODEL_FILE)
    sources |= {name: places.get(name, USER) for name in wishes}
    wished: Any = wishes.get("seed", values.get("seed", RANDOM_SEED if draws_seed else None))
    if wished == RANDOM_SEED:
        wishes = {**wishes, "seed": RANDOM_SEED}
    whole = dataclasses.replace(updated(advised, wishes), given=frozenset(names))
    return Resolved(whole, sources, wished == RANDOM_SEED)
