"""Values that a schema allows of one type, as a record, and the intersection of two records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import isfinite, lcm
from typing import Any

from tgr_local.generation.schemas.numbers import NumberRange

KINDS = ("object", "array", "string", "number", "boolean", "null")
Conjunction = tuple[Any, ...]
"""Schemas, all of which a value must match; none = any value."""
NEVER: Conjunction = (False,)
_STEP_MOST = 10**4300  # no number that JSON here can hold is a multiple of it, but 0


@dataclass(frozen=True)
class Alternative:
    """Values of one type."""

    kind: str
    values: Mapping[str, Any] | None = None
    """The only values, by what `canonical` makes of them; None = all of the type."""
    interval: NumberRange = field(default_factory=NumberRange)
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
    """Schemas of the items after `prefix`; None = unconstrained."""
    properties: dict[str, Conjunction] = field(default_factory=dict)
    listed: bool = False
    """Whether the properties are named, if only by an empty list of them."""
    required: tuple[str, ...] = ()
    additional: Conjunction | None = None
    """Schemas of the other properties; None = unconstrained."""
    by_pattern: Mapping[str, Conjunction] = field(default_factory=dict)
    """Schemas of the properties whose names match a regular expression."""
    names: Conjunction = ()
    forbidden: frozenset[str] = frozenset()
    """Properties that are left out."""
    place: str = ""

    @cached_property
    def free(self) -> bool:
        """Whether every value of the type belongs to it."""
        return replace(self, place="") == Alternative(self.kind)

    @cached_property
    def weight(self) -> int:
        """Number of its parts: what looking at all of them costs, and what they hold."""
        parts = (self.values or (), self.patterns, self.required, self.forbidden, self.names,
                 self.items or (), self.additional or ())  # fmt: skip
        schemas = (*self.prefix, *self.properties.values(), *self.by_pattern.values())
        n_names = len(self.properties) + len(self.required)
        return (
            sum(map(len, parts)) + len(schemas) + sum(map(len, schemas))
            + len(self.by_pattern) * n_names
        )  # fmt: skip

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for two alternatives made of the same parts, wherever they stand."""

        def named(schemas: Mapping[str, Conjunction]) -> tuple[tuple[str, Any], ...]:
            return tuple(
                (name, conjunction_key(conjunction)) for name, conjunction in schemas.items()
            )

        def given(schemas: Conjunction | None) -> Any:
            return None if schemas is None else conjunction_key(schemas)

        return (
            self.kind, None if self.values is None else tuple(self.values), self.interval,
            self.whole, self.step, self.least, self.most, self.patterns, self.format,
            tuple(map(conjunction_key, self.prefix)), given(self.items), named(self.properties),
            self.listed, self.required, given(self.additional), named(self.by_pattern),
            conjunction_key(self.names), self.forbidden,
        )  # fmt: skip


FREE = tuple(Alternative(kind) for kind in KINDS)
"""All values."""


def conjoined(*several: Conjunction) -> Conjunction:
    """The schemas of some conjunctions, each once."""
    if len(several) == 2 and not (several[0] and several[1]):
        return several[0] or several[1]
    return tuple({id(schema): schema for conjunction in several for schema in conjunction}.values())


def conjunction_key(schemas: Conjunction) -> tuple[int, ...]:
    """Returns a key that is equal for the same schemas in any order."""
    return tuple(sorted({id(schema) for schema in schemas if schema is not True}))


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

    def plain(part: Any) -> Any:
        if isinstance(part, float) and part.is_integer():
            return int(part)
        if isinstance(part, list):
            return [plain(inner) for inner in part]
        return {k: plain(v) for k, v in part.items()} if isinstance(part, dict) else part

    return json.dumps(plain(value), sort_keys=True)


def have_both(a: Alternative, b: Alternative) -> bool:
    """Whether `merged` finds anything."""
    if a.kind != b.kind:
        return False
    if a.kind == "number" and a.interval.within(b.interval).empty:
        return False
    most = _least(a.most, b.most)
    if most is not None and max(a.least, b.least) > most:
        return False
    forbidden = a.forbidden | b.forbidden
    return not forbidden or forbidden.isdisjoint((*a.required, *b.required))


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def merged(a: Alternative, b: Alternative) -> Alternative | None:
    """Returns the intersection of both, but for `values`; None if it is empty."""
    if not have_both(a, b):
        return None
    names = dict.fromkeys((*a.properties, *b.properties))
    return Alternative(
        kind=a.kind,
        interval=a.interval.within(b.interval),
        whole=a.whole or b.whole,
        step=min(lcm(a.step, b.step), _STEP_MOST),
        least=max(a.least, b.least),
        most=_least(a.most, b.most),
        patterns=tuple(dict.fromkeys((*a.patterns, *b.patterns))),
        format=a.format or b.format,
        prefix=tuple(
            conjoined(_item(a, i), _item(b, i)) for i in range(max(len(a.prefix), len(b.prefix)))
        ),
        items=_both(a.items, b.items),
        properties={name: conjoined(_declared(a, name), _declared(b, name)) for name in names},
        listed=a.listed or b.listed,
        required=tuple(dict.fromkeys((*a.required, *b.required))),
        additional=_both(a.additional, b.additional),
        by_pattern={
            name: conjoined(_patterned(a, name), _patterned(b, name))
            for name in dict.fromkeys((*a.by_pattern, *b.by_pattern))
        },
        names=conjoined(a.names, b.names),
        forbidden=a.forbidden | b.forbidden,
        place=a.place or b.place,
    )


def _both(a: Conjunction | None, b: Conjunction | None) -> Conjunction | None:
    return None if a is None and b is None else conjoined(a or (), b or ())


def _patterned(alternative: Alternative, expression: str) -> Conjunction:
    """The properties whose names match an expression: they may be additional ones."""
    return alternative.by_pattern.get(expression, alternative.additional or ())


def is_narrower(a: Alternative, b: Alternative) -> bool:
    """Whether `merged` gives less than what both allow."""
    return bool((a.by_pattern and b.additional) or (b.by_pattern and a.additional))


def _item(alternative: Alternative, i: int) -> Conjunction:
    return alternative.prefix[i] if i < len(alternative.prefix) else alternative.items or ()


def _declared(alternative: Alternative, name: str) -> Conjunction:
    """Returns an alternative's schemas for a property, but for its name's pattern."""
    if name in alternative.properties:
        return alternative.properties[name]
    if any(matches(pattern, name) is not False for pattern in alternative.by_pattern):
        return ()
    return alternative.additional or ()


def property_schemas(alternative: Alternative, name: str) -> Conjunction:
    """All that an alternative says of a property."""
    by_pattern = [s for pattern, s in alternative.by_pattern.items() if matches(pattern, name)]
    return conjoined(_declared(alternative, name), *by_pattern)


def matches(pattern: str, name: str) -> bool | None:
    """Whether a name matches an expression that is a text, perhaps with ``^`` and ``$``; None for
    any other expression, which nothing here tries: it may take forever."""
    begins, text, ends = _plain(pattern)
    if text is None:
        return None
    if begins and ends:
        return name == text
    return name.startswith(text) if begins else name.endswith(text) if ends else text in name


@lru_cache(maxsize=1024)
def _plain(pattern: str) -> tuple[bool, str | None, bool]:
    """Whether an expression begins with ``^``, the text that it is, and whether it ends with
    ``$``."""
    if pattern in ("", "^", ".*", "^.*$", "^.*"):
        return False, "", False
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    text = pattern[begins : len(pattern) - ends]
    is_text = text.replace("-", "").replace("_", "").isalnum()
    return begins, text if is_text else None, ends


def number_fits(value: float, alternative: Alternative) -> bool:
    """Whether a number belongs to an alternative, but for its `values`."""
    if isinstance(value, float) and not isfinite(value):
        return False
    exact = Fraction(str(value))
    is_whole = exact.denominator == 1
    return alternative.interval.holds(exact) and (
        not alternative.whole or (is_whole and exact.numerator % alternative.step == 0)
    )
