"""A family of functions: its text with slots, and the arguments that its tests pass.

A TOML file has a table for each family, with the fields of `Family`. `draw` makes one function of a
family: names, constants and one of its forms at random. The text is the correct one; `defects.py`
breaks it, `checks.py` makes its tests.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tgr_local.lab.eval.bugs.slots import names
from tgr_local.system.files import toml_tables

SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Family:
    """Functions or classes that do the same, but for names and constants."""

    name: str
    forms: Sequence[str]
    """Texts with slots; ``{f}`` is the name of the function or class."""
    arguments: str = ""
    """Kinds of a function's arguments, see `slots.KINDS`; of a class, those of its constructor."""
    doc: str = ""
    """Purpose of the function or class, in a sentence with slots."""
    pick: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Choices for slots that belong together: ``{"f|cmp": ["count_above|>", …]}``."""
    constants: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Slots of random whole numbers, with the least and the most."""
    changes: Sequence[str] = ()
    """Methods of a class that tests call first, with the kinds of their arguments."""
    asks: Sequence[str] = ()
    """Methods of a class whose results tests compare, with the kinds of their arguments."""


@dataclass(frozen=True)
class FamilyMember:
    """One function or class of a family, correct."""

    family: Family
    name: str
    text: str
    """Source of the function or class, without an empty line at the end."""
    doc: str


def load() -> dict[str, Family]:
    """The families by name, in the order of their files."""
    folder = Path(__file__).parent
    return {
        name: Family(name, **table)
        for kind in ("lists", "numbers", "strings", "tables", "classes")
        for name, table in toml_tables((folder / f"{kind}.toml").read_bytes()).items()
    }


def draw(rng: random.Random, family: Family) -> FamilyMember:
    """A random member of the family."""
    form, doc = rng.choice(family.forms).strip("\n"), family.doc
    filled: dict[str, str] = {}
    for slots, options in family.pick.items():
        filled |= zip(slots.split("|"), rng.choice(options).split("|"), strict=True)
    for slot, (least, most) in family.constants.items():
        filled[slot] = str(rng.randint(least, most))
    for _ in range(2):  # a choice may hold a slot of another one
        form, doc = _fill(form, filled), _fill(doc, filled)
    used = list(dict.fromkeys(SLOT.findall(form + doc)))
    while True:
        chosen = names(rng, used)
        # A choice of the family may have the name of a variable.
        if not set(chosen.values()) & set(filled.values()):
            break
    return FamilyMember(family, filled["f"], _fill(form, chosen), _fill(doc, chosen))


def _fill(text: str, values: Mapping[str, str]) -> str:
    """The text with the slots that have a value filled."""
    return SLOT.sub(lambda match: values.get(match[1], match[0]), text)
