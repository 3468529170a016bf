"""What a schema allows of one type, as a record, and what two such records have in common."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm
from typing import Any

from tgr_local.generation.schemas.numbers import Interval

KINDS = ("object", "array", "string", "number", "boolean", "null")
Conjunction = tuple[Any, ...]
"""Schemas, all of which a value must match; none = any value."""
NEVER: Conjunction = (False,)


@dataclass(frozen=True)
class Alternative:
    """Values of one type."""

    kind: str
    values: tuple[Any, ...] | None = None
    """The only values; None = all of the type."""
    interval: Interval = field(default_factory=Interval)
    whole: bool = False
    step: int = 1
    """A number that divides them; only where `whole`."""
    least: int = 0
    most: int | None = None
    """Characters, items or properties."""
    patterns: tuple[str, ...] = ()
    format: str = ""
    prefix: tuple[Conjunction, ...] = ()
    items: Conjunction | None = None
    """Of the items after `prefix`; None = nothing is said of them."""
    properties: dict[str, Conjunction] = field(default_factory=dict)
    listed: bool = False
    """Whether the properties are named, if only by an empty list of them."""
    required: tuple[str, ...] = ()
    additional: Conjunction | None = None
    """Of the other properties; None = nothing is said of them."""
    by_pattern: tuple[tuple[str, Conjunction], ...] = ()
    """Schemas of the properties whose names match a regular expression."""
    names: Conjunction = ()
    forbidden: frozenset[str] = frozenset()
    """Properties that are left out."""
    place: str = ""

    @property
    def free(self) -> bool:
        """Whether every value of the type belongs to it."""
        return replace(self, place="") == Alternative(self.kind)


def kind_of(value: Any) -> str:
    """The type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int | float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for types, name in kinds if isinstance(value, types)), "")


def canonical(value: Any) -> str:
    """A text that equal JSON values share: 1 and 1.0, and objects in any order."""

    def plain(one: Any) -> Any:
        if isinstance(one, float) and one.is_integer():
            return int(one)
        if isinstance(one, list):
            return [plain(inner) for inner in one]
        return {k: plain(v) for k, v in one.items()} if isinstance(one, dict) else one

    return json.dumps(plain(value), sort_keys=True)


def merged(a: Alternative, b: Alternative) -> Alternative | None:
    """What both allow, but for `values`; None where that is nothing."""
    if a.kind != b.kind:
        return None
    most = a.most if b.most is None else b.most if a.most is None else min(a.most, b.most)
    names = dict.fromkeys((*a.properties, *b.properties))
    one = Alternative(
        kind=a.kind,
        interval=a.interval.within(b.interval),
        whole=a.whole or b.whole,
        step=lcm(a.step, b.step),
        least=max(a.least, b.least),
        most=most,
        patterns=tuple(dict.fromkeys((*a.patterns, *b.patterns))),
        format=a.format or b.format,
        prefix=tuple(
            (*_item(a, i), *_item(b, i)) for i in range(max(len(a.prefix), len(b.prefix)))
        ),
        items=_both(a.items, b.items),
        properties={name: (*_declared(a, name), *_declared(b, name)) for name in names},
        listed=a.listed or b.listed,
        required=tuple(dict.fromkeys((*a.required, *b.required))),
        additional=_both(a.additional, b.additional),
        by_pattern=(*_patterned(a, b), *_patterned(b, a)),
        names=(*a.names, *b.names),
        forbidden=a.forbidden | b.forbidden,
        place=a.place or b.place,
    )
    is_empty = one.interval.empty or (one.most is not None and one.least > one.most)
    return None if is_empty or one.forbidden & set(one.required) else one


def _both(a: Conjunction | None, b: Conjunction | None) -> Conjunction | None:
    return None if a is None and b is None else (*(a or ()), *(b or ()))


def _patterned(one: Alternative, other: Alternative) -> list[tuple[str, Conjunction]]:
    """The properties by pattern of one, which to the other are additional ones."""
    return [(name, (*schemas, *(other.additional or ()))) for name, schemas in one.by_pattern]


def is_narrower(a: Alternative, b: Alternative) -> bool:
    """Whether `merged` gives less than what both allow."""
    return bool((a.by_pattern and b.additional) or (b.by_pattern and a.additional))


def _item(one: Alternative, i: int) -> Conjunction:
    return one.prefix[i] if i < len(one.prefix) else one.items or ()


def _declared(one: Alternative, name: str) -> Conjunction:
    """What an alternative says of a property, but for its name's pattern."""
    if name in one.properties:
        return one.properties[name]
    if any(matches(pattern, name) is not False for pattern, _ in one.by_pattern):
        return ()
    return one.additional or ()


def property_schemas(one: Alternative, name: str) -> Conjunction:
    """All that an alternative says of a property."""
    by_pattern = [schemas for pattern, schemas in one.by_pattern if matches(pattern, name)]
    return (*_declared(one, name), *(schema for schemas in by_pattern for schema in schemas))


def matches(pattern: str, name: str) -> bool | None:
    """Whether a name matches an expression that is a text, perhaps with ``^`` and ``$``; None for
    any other expression, which nothing here tries: it may take forever."""
    if pattern in ("", "^", ".*", "^.*$", "^.*"):
        return True
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    text = pattern[begins : len(pattern) - ends]
    if not text.replace("-", "").replace("_", "").isalnum():
        return None
    if begins and ends:
        return name == text
    return name.startswith(text) if begins else name.endswith(text) if ends else text in name


def number_fits(value: float, one: Alternative) -> bool:
    """Whether a number belongs to an alternative, but for its `values`."""
    exact = Fraction(str(value))
    is_whole = exact.denominator == 1
    return one.interval.holds(exact) and (
        not one.whole or (is_whole and exact.numerator % one.step == 0)
    )
