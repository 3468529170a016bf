"""The keywords of a schema, apart from those that combine schemas: what each says of every type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from tgr_local.generation.schemas.alternatives import (
    FREE,
    KINDS,
    NEVER,
    Alternative,
    Conjunction,
    canonical,
    kind_of,
)
from tgr_local.generation.schemas.numbers import NumberRange
from tgr_local.generation.schemas.patterns import pattern
from tgr_local.generation.schemas.references import below
from tgr_local.generation.schemas.work import StepBudget

Unfollowed = Callable[[str, str], None]
"""Receives the place of a keyword, and what is wrong with it."""
Common = Callable[[Sequence[Alternative], Sequence[Alternative]], Sequence[Alternative]]

_TYPES = {"integer": "number", **{kind: kind for kind in KINDS}}
_PATTERNS_MOST = 64
_STEP_MOST = 10**16
# what no grammar can count, by type, apart from values that say nothing; that false leaves nothing
# unevaluated is followed once the other keywords are read
_UNFOLLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "array": {"uniqueItems": (False,), "unevaluatedItems": (True, {}, False)},
    "object": {"dependentSchemas": ({},), "unevaluatedProperties": (True, {}, False)},
}

_OWN = {
    "type", "nullable", "const", "enum", "if", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "pattern", "format", "minLength", "maxLength", "items",
    "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minItems", "maxItems",
    "uniqueItems", "properties", "patternProperties", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "required", "minProperties", "maxProperties", "dependentRequired",
    "dependentSchemas", "dependencies",
}  # fmt: skip


class Keywords:
    """Reads those of one schema, which stands at `place`; `both` gives what two lists of
    alternatives have in common."""

    def __init__(
        self,
        schema: dict[str, Any],
        place: str,
        unfollowed: Unfollowed,
        both: Common,
        work: StepBudget,
    ) -> None:
        self._schema, self._place, self._work = schema, place, work
        self._unfollowed, self._both = unfollowed, both
        self.is_narrower = False
        """Whether `own` allows less than the schema."""
        # a keyword that is null says nothing
        self._given = {k: v for k, v in schema.items() if v is not None or k == "const"}

    def own(self) -> Sequence[Alternative]:
        """Returns the alternatives of the schema's own keywords."""
        given = self._given
        if not self._schema.keys() & _OWN:
            return FREE
        lengths = (len(value) for value in given.values() if isinstance(value, dict | list))
        kinds, whole = self._types()
        self._work.count(2 + 2 * len(kinds or KINDS) + (len(given) + sum(lengths)) // 8)
        if kinds is None:
            return [Alternative(kind, place=self._place) for kind in KINDS]
        for kind in kinds:
            for key, empty in _UNFOLLOWED.get(kind, {}).items():
                if key in given and given[key] not in empty:
                    if key == "uniqueItems" and self._count("maxItems", 2) <= 1:
                        continue
                    self._bad(key, "is nothing that a grammar can follow")
        if "if" in given and ("then" in given or "else" in given):
            self._bad("if", "is nothing that a grammar can follow")
        makers = {"number": self._number, "string": self._string, "array": self._array,
                  "object": self._object}  # fmt: skip
        alternatives = []
        for kind in kinds:
            alternative = makers[kind]() if kind in makers else Alternative(kind)
            alternatives.append(
                replace(alternative, whole=alternative.whole or kind in whole, place=self._place)
            )
        alternatives = [
            alternative
            for alternative in alternatives
            if (alternative.most is None or alternative.least <= alternative.most)
            and not alternative.interval.empty
        ]
        return (
            self._both(alternatives, self._values())
            if {"const", "enum"} & given.keys()
            else alternatives
        )

    def sealed(self, alternatives: Sequence[Alternative]) -> Sequence[Alternative]:
        """The alternatives of the whole schema without what it leaves unevaluated."""
        closed = []
        for alternative in alternatives:
            for key, kind in (("unevaluatedProperties", "object"), ("unevaluatedItems", "array")):
                if self._schema.get(key) is not False or alternative.kind != kind:
                    continue
                if any((alternative.values or {}).values()):
                    self._bad(key, "is combined with values that it may exclude")
                elif alternative.values is None and kind == "object":
                    alternative = replace(alternative, additional=alternative.additional or NEVER)
                elif alternative.values is None:
                    alternative = replace(alternative, items=alternative.items or NEVER)
            closed.append(alternative)
        return closed

    def _bad(self, key: str, why: str) -> None:
        self._unfollowed(below(self._place, key), why)

    def _types(self) -> tuple[list[str] | None, set[str]]:
        """The types that are allowed, None where they cannot be read, and which are whole."""
        given = self._given.get("type")
        if given is None:
            return list(KINDS), set()
        names = given if isinstance(given, list) else [given]
        unknown = [name for name in names if not isinstance(name, str) or name not in _TYPES]
        if unknown or not names:
            shown = unknown[0] if unknown else names
            self._bad("type", f"is {shown!r:.80}, but must be one of {', '.join(_TYPES)}")
            return None, set()
        whole = {"number"} if "integer" in names and "number" not in names else set()
        if self._given.get("nullable") is True:  # OpenAPI's
            names = [*names, "null"]
        return list(dict.fromkeys(_TYPES[name] for name in names)), whole

    def _values(self) -> Sequence[Alternative]:
        alternatives: Sequence[Alternative] = FREE
        for key in ("const", "enum"):
            if key not in self._given:
                continue
            values = [self._given[key]] if key == "const" else self._given[key]
            if not isinstance(values, list) or not values:
                self._bad(key, f"is {values!r:.80}, but must be a list of values")
                continue
            by_kind: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
            for value in values:
                text = canonical(value)
                self._work.count(1 + len(text) // 64)
                by_kind.setdefault(kind_of(value), {}).setdefault(text, value)
            alternatives = self._both(
                alternatives,
                [Alternative(kind, own) for kind, own in by_kind.items() if own and kind],
            )
        return alternatives

    def _number(self) -> Alternative:
        above = self._bounded("low", "minimum", "exclusiveMinimum")
        interval = above.within(self._bounded("high", "maximum", "exclusiveMaximum"))
        number = Alternative("number", interval=interval)
        if "multipleOf" not in self._given:
            return number
        step = self._rational("multipleOf")
        if step is None or step <= 0 or step.denominator != 1 or step > _STEP_MOST:
            why = "is nothing that a grammar can follow, but for whole numbers up to 10^16"
            self._bad("multipleOf", why)
            return number
        return replace(number, whole=True, step=step.numerator)

    def _bounded(self, end: str, key: str, exclusive: str) -> NumberRange:
        """The numbers that the bounds at the "low" or "high" `end` leave."""

        def bounded(bound: Fraction | None, is_open: bool) -> NumberRange:
            return NumberRange(**{end: bound, f"{end}_open": is_open})  # type: ignore[arg-type]

        if isinstance(is_open := self._given.get(exclusive), bool):  # as draft 4 has it
            return bounded(self._rational(key), is_open)
        return bounded(self._rational(key), False).within(bounded(self._rational(exclusive), True))

    def _rational(self, key: str) -> Fraction | None:
        given = self._given.get(key)
        if given is None:
            return None
        try:
            if kind_of(given) == "number":
                return Fraction(str(given))
        except ValueError:  # an infinity
            pass
        self._bad(key, f"is {given!r:.80}, but must be a number")
        return None

    def _count(self, key: str, absent: int) -> int:
        given = self._given.get(key)
        if given is None:
            return absent
        if kind_of(given) == "number" and given >= 0 and given == given // 1:
            return int(given)
        self._bad(key, f"is {given!r:.80}, but must be a whole number of at least 0")
        return absent

    def _most(self, key: str) -> int | None:
        most = self._count(key, -1)
        return None if most < 0 else most

    def _string(self) -> Alternative:
        given, form = self._given.get("pattern"), self._given.get("format")
        patterns: tuple[str, ...] = ()
        least, most = self._count("minLength", 0), self._most("maxLength")
        if isinstance(given, str):
            try:
                self._read(given)
                patterns = (given,)
            except ValueError as error:
                self._bad("pattern", f"has {error}, which no grammar can follow")
        elif given is not None:
            self._bad("pattern", f"is {given!r:.80}, but must be a text")
        return Alternative(
            "string", least=least, most=most, patterns=patterns,
            format=form if isinstance(form, str) else "",
        )  # fmt: skip

    def _array(self) -> Alternative:
        items, rest = self._given.get("items"), self._given.get("additionalItems")
        first: Any = self._given.get("prefixItems")
        if isinstance(items, list):  # before draft 2020-12
            first, items = items, rest
        if first is not None and not isinstance(first, list):
            self._bad("prefixItems", f"is {first!r:.80}, but must be a list of schemas")
            first = None
        place = below(self._place, "prefixItems")
        array = Alternative(
            "array",
            least=self._count("minItems", 0),
            most=self._most("maxItems"),
            prefix=tuple(
                (checked(schema, f"{place}.{i}", self._unfollowed),)
                for i, schema in enumerate(first or ())
            ),
            items=None if items is None else self._inner("items", items),
        )
        return self._containing(array) if self._given.get("contains") is not None else array

    def _containing(self, array: Alternative) -> Alternative:
        """A list whose first item is the one that it must contain."""
        least = self._count("minContains", 1)
        if least > 1 or (least and "maxContains" in self._given):
            self._bad("contains", "is nothing that a grammar can follow more than once")
            return array
        if "maxContains" in self._given:
            self._bad("maxContains", "is nothing that a grammar can follow")
            return array
        if not least:
            return array
        self.is_narrower = True
        first = array.prefix[0] if array.prefix else array.items or ()
        first = (*first, *self._inner("contains", self._given["contains"]))
        return replace(array, prefix=(first, *array.prefix[1:]), least=max(1, array.least))

    def _inner(self, key: str, schema: Any) -> Conjunction:
        inner = checked(schema, below(self._place, key), self._unfollowed)
        return () if inner is True else (inner,)

    def _object(self) -> Alternative:
        additional = self._given.get("additionalProperties")
        names = self._given.get("propertyNames")
        return Alternative(
            "object",
            least=self._count("minProperties", 0),
            most=self._most("maxProperties"),
            properties={name: (schema,) for name, schema in self._mapping("properties").items()},
            listed="properties" in self._schema,
            required=self._required(),
            additional=None if additional is None else self._inner(
                "additionalProperties", additional
            ),
            by_pattern=self._by_pattern(),
            names=() if names is None else self._inner("propertyNames", names),
        )  # fmt: skip

    def _mapping(self, key: str) -> dict[str, Any]:
        given = self._given.get(key, {})
        if given == []:  # PHP's empty object
            return {}
        if not isinstance(given, dict):
            self._bad(key, f"is {given!r:.80}, but must be an object of schemas")
            return {}
        place = below(self._place, key)
        return {
            name: checked(schema, f"{place}.{name}", self._unfollowed)
            for name, schema in given.items()
        }

    def _read(self, expression: str) -> None:
        """Raises ValueError for an expression that no grammar can follow."""
        self._work.count(1 + len(expression) // 4)
        self._work.count(len(pattern(expression).body) // 256)

    def _by_pattern(self) -> dict[str, Conjunction]:
        by_pattern: dict[str, Conjunction] = {}
        for expression, schema in self._mapping("patternProperties").items():
            if len(by_pattern) == _PATTERNS_MOST:
                self._bad("patternProperties", f"has more than {_PATTERNS_MOST} expressions")
                break
            try:
                self._read(expression)
                by_pattern[expression] = () if schema is True else (schema,)
            except ValueError as error:
                self._bad("patternProperties", f"has {error}, which no grammar can follow")
        return by_pattern

    def _required(self) -> tuple[str, ...]:
        """The names that are required, and those that any other one requires."""
        names = self._texts("required", self._given.get("required", []))
        for key in ("dependentRequired", "dependencies"):
            given = self._given.get(key, {})
            for inner in given.values() if isinstance(given, dict) else ():
                if isinstance(inner, list):
                    self.is_narrower = True
                    names += self._texts(key, inner)
                elif key == "dependencies" and inner not in (True, {}):
                    self._bad(key, "has a schema, which no grammar can follow")
        return tuple(dict.fromkeys(names))

    def _texts(self, key: str, given: Any) -> list[str]:
        if isinstance(given, list) and all(isinstance(name, str) for name in given):
            return list(given)
        self._bad(key, f"is {given!r:.80}, but must be a list of names")
        return []


def checked(value: Any, place: str, unfollowed: Unfollowed) -> Any:
    """A schema: an object, true or false; anything else allows every value."""
    if isinstance(value, dict | bool):
        return value
    unfollowed(place, f"is {value!r:.80}, but must be a schema")
    return True
