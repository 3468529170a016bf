"""Samplers of llama.cpp that requests of every API may set: min-p, DRY and XTC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from tgr_local.openai.client_parameters import ClientParameters
from tgr_local.openai.search_options import (
    INT_MAX,
    as_list,
    list_bounds,
    option_field,
    text_bounds,
)

Breakers = Annotated[
    list[Annotated[str, text_bounds("dry_sequence_breakers")]],
    list_bounds("dry_sequence_breakers"),
    as_list,
]


class SamplerParameters(ClientParameters):
    """A body with these samplers."""

    min_p: float | None = option_field("min_p")
    dry_multiplier: float | None = option_field("dry_multiplier")
    dry_base: float | None = option_field("dry_base", ge=0)
    dry_allowed_length: int | None = option_field("dry_allowed_length", le=INT_MAX)
    dry_penalty_last_n: int | None = option_field("dry_penalty_last_n", le=INT_MAX)
    dry_sequence_breakers: Breakers | None = Field(
        None, description="DRY: texts at which a repetition ends"
    )
    xtc_probability: float | None = option_field("xtc_probability")
    xtc_threshold: float | None = option_field("xtc_threshold")

    def sampler_options(self) -> Mapping[str, Any]:
        """The fields of `SearchConfig` that are set."""
        given = {name: getattr(self, name) for name in SAMPLERS}
        if given["dry_base"] is not None and given["dry_base"] < 1:
            del given["dry_base"]  # which to llama-server means its default
        if (breakers := given["dry_sequence_breakers"]) is not None:
            given["dry_sequence_breakers"] = tuple(breakers)
        return {name: value for name, value in given.items() if value is not None}


SAMPLERS = (
    "min_p", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "xtc_probability", "xtc_threshold",
)  # fmt: skip
