"""Systems, which a run compares: a method with its own options, under a name.

The command line has ``tgr-latent:lambda_b=0,rank=4``; a recipe has a table with ``name``,
``method`` and options. A value that ends in ``x`` is a factor of the value that the run has without
it: ``0.5x`` for chunk_len halves the chunks of any model, so that one recipe fits all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgr_local import methods
from tgr_local.options import resolve
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import parse, updated

PROGRAM_ROLLOUT_LEN = 64
SEED_IN_NAME = ", injection seed "
"""Separator between the name of a system and one of several seeds."""


@dataclass(frozen=True)
class System:
    """A method and its options as a user writes them; `resolve` parses them."""

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        methods.get(self.method)
        if "seed" in self.options:
            raise ValueError(f"{self.name} sets seed, but --seeds sets the seeds of a run")
        self.resolve(SearchConfig(), 64)  # an invalid value is refused before a model is loaded

    def resolve(self, config: SearchConfig, n_embd: int) -> SearchConfig:
        """`config` with this system's options; `n_embd` is the meaning of d_z = 0.

        Raises ValueError, naming the system, for an unknown option or an invalid value.
        """
        try:
            values = {name: _value(config, name, n_embd, v) for name, v in self.options.items()}
            return updated(config, values)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def _value(config: SearchConfig, name: str, n_embd: int, text: Any) -> Any:
    own = getattr(config, name, "")
    is_factor = isinstance(text, str) and text.endswith("x")
    if not is_factor or isinstance(own, bool) or not isinstance(own, int | float):
        return parse(SearchConfig, name, text)
    try:
        factor = float(text[:-1])
    except ValueError:
        raise ValueError(f"{name} is {text!r}, but a factor must be as in 0.5x") from None
    if isinstance(own, float):
        return own * factor
    return max(1, round((own or (n_embd if name == "d_z" else 0)) * factor))


def from_text(text: str) -> System:
    """``method`` or ``method:option=value,option=value``; the text is the name."""
    method, _, settings = text.strip().partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in settings.split(","))):
        name, sign, value = part.partition("=")
        if not sign:
            cut = f" ({part!r} has no =; a comma ends a value, except in a recipe)"
            raise ValueError(
                f"the variant {text!r} must be as in tgr-latent:lambda_b=0,rank=4"
                f"{cut if options else ''}"
            )
        options[name.strip().replace("-", "_")] = value.strip()
    return System(text.strip(), method.strip(), options)


def from_table(table: Mapping[str, Any]) -> System:
    """A system from a recipe's table: ``method``, optionally ``name``, and options."""
    options = {key: value for key, value in table.items() if key not in ("name", "method")}
    if "method" not in table:
        raise ValueError(f"the system {table.get('name', dict(table))!r} has no method")
    method = str(table["method"])
    plain = f"{method}:{','.join(f'{k}={_as_text(v)}' for k, v in options.items())}".rstrip(":")
    return System(str(table.get("name", plain)), method, options)


def distinct(systems: Sequence[System]) -> tuple[System, ...]:
    """The systems, each name once. ValueError where two different systems have one name."""
    known: dict[str, System] = {}
    for system in systems:
        if known.setdefault(system.name, system) != system:
            raise ValueError(f"two different systems are called {system.name!r}; rename one")
    return tuple(known.values())


def at_injection_seeds(systems: Sequence[System], seeds: Sequence[int]) -> tuple[System, ...]:
    """The systems, each injecting one repeated for every seed of the maps, unless it sets a seed
    itself. ValueError where no system takes a seed."""
    seeded: list[System] = []
    for system in systems:
        if methods.get(system.method).of_thinking.steers and "injection_seed" not in system.options:
            for seed in seeds:
                options = {**system.options, "injection_seed": str(seed)}
                seeded.append(System(f"{system.name}{SEED_IN_NAME}{seed}", system.method, options))
        else:
            seeded.append(system)
    if seeded == list(systems):
        raise ValueError(
            "injection_seeds has no effect: no system injects without a seed of its own; add "
            "tgr-latent to --methods"
        )
    return distinct(seeded)


def rollout_lens(systems: Sequence[System], source: str) -> dict[str, int]:
    """Tokens of a rollout by system where answers are programs: the paper's 64, of each system that
    searches and has the default. `source` is where the run has its rollout_len from."""
    return {
        system.name: PROGRAM_ROLLOUT_LEN
        for system in systems
        if source == resolve.DEFAULT and "rollout_len" not in system.options
        if methods.get(system.method).of_thinking.searches
    }


def _as_text(value: Any) -> str:
    """A TOML value in the name of a system."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def record(system: System, config: SearchConfig) -> dict[str, Any]:
    """A system's entry in a manifest, with every option that its samples depend on."""
    values = dataclasses.asdict(config)
    del values["seed"]
    return {"name": system.name, "method": system.method, "config": values}
