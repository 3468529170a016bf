"""A recipe: a published table as a TOML file with its tasks, systems and numbers of samples.

The command line takes precedence, except over the options of a single system. The files in
`recipes/` make the tables of the paper, for any model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.lab.eval import systems
from tgr_local.lab.eval.manifest import read_metric
from tgr_local.lab.eval.systems import System
from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import parse, updated
from tgr_local.system.files import toml_tables
from tgr_local.system.near_names import did_you_mean

FOLDER = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """The contents of a recipe."""

    name: str
    title: str
    tasks: tuple[str, ...] = ()
    systems: tuple[System, ...] = ()
    k: str = ""
    """The k in the form of `--k`; empty = the default."""
    seeds: tuple[int, ...] = ()
    injection_seeds: tuple[int, ...] = ()
    """Seeds of the maps of every system that injects; empty = that of its options."""
    limit: int = 0
    budget: int = 0
    parallel: int = 0
    metric: str = ""
    """Metric in the form of `--metric`; empty = the default."""
    reference: str = ""
    """The system that the others are compared with; empty = the best `base`."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options of all systems."""


def names() -> list[str]:
    """The recipes of the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Recipe:
    """The recipe of that name, or of that file. ValueError for an unknown or an invalid one."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        hint = f"{did_you_mean(name, names(), '')} ".lstrip()
        raise ValueError(
            f"there is no recipe {name!r:.80}; {hint}tgr-local eval list shows all, and a file "
            "of your own must end in .toml"
        )
    try:
        return _recipe(path.stem, toml_tables(path.read_bytes()))
    except ValueError as error:
        raise ValueError(f"recipe {path}: {error}") from None
    except RecursionError:
        raise ValueError(f"recipe {path}: it is nested too deeply") from None


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    fields = {spec.name: spec for spec in dataclasses.fields(Recipe) if spec.name != "name"}
    for key in table:
        if key not in fields:
            hint = did_you_mean(key, fields, f"there are {', '.join(fields)}")
            raise ValueError(f"unknown key {key!r:.80}; {hint}")
    wanted = {"tasks": list, "seeds": list, "injection_seeds": list, "systems": list,
              "options": dict, "title": str, "k": str, "reference": str,
              "metric": str}  # fmt: skip
    for key, value in table.items():
        if type(value) is not wanted.get(key, int):
            raise ValueError(
                f"{key} is {value!r:.40}, but must be of type {wanted.get(key, int).__name__}"
            )
    values = dict(table)
    values["systems"] = systems.distinct([systems.from_table(t) for t in table.get("systems", [])])
    values["options"] = {
        key: parse(SearchConfig, key, value) for key, value in table.get("options", {}).items()
    }
    updated(SearchConfig(), values["options"])
    if "metric" in table:
        read_metric(table["metric"])
    for key in ("tasks", "seeds", "injection_seeds"):
        values[key] = tuple(table.get(key, ()))
    return Recipe(name, **{"title": name, **values})
