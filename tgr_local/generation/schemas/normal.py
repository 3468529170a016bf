"""A schema as alternatives of one type each: what its keywords mean together.

The alternatives may allow less than the schema, and never more. A keyword that no grammar can
follow is handed to `unfollowed`, which raises, or notes it and goes on without the keyword.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tgr_local.generation.schemas.alternatives import (
    KINDS,
    Alternative,
    Conjunction,
    canonical,
    is_narrower,
    kind_of,
    matches,
    merged,
    number_fits,
    property_schemas,
)
from tgr_local.generation.schemas.keywords import Keywords, Unfollowed, checked
from tgr_local.generation.schemas.references import References, below

_ALTERNATIVES_MOST, _WORK_MOST = 1000, 100_000


class SchemaError(ValueError):
    """A schema that cannot be followed; the message names the keyword and its place."""


class Normal:
    """The alternatives of one document's schemas."""

    def __init__(self, document: Any, unfollowed: Unfollowed) -> None:
        self.references = References(document)
        self.unfollowed = unfollowed
        self._known: dict[tuple[int, ...], list[Alternative]] = {}
        self._kept: list[Any] = []  # keeps ids from being given again
        self._active: list[int] = []
        self._work = 0
        self._narrowed = 0  # how often less was allowed than the schema does
        self._is_narrower: set[tuple[int, ...]] = set()  # keys of `_known` where that happened

    def of(self, schemas: Conjunction) -> list[Alternative]:
        """What all of some schemas allow; none for no value at all."""
        key = conjunction_key(schemas)
        if key in self._known:
            self._narrowed += key in self._is_narrower
            return self._known[key]
        before, active = self._narrowed, self._active
        self._active = []  # the value is another one
        try:
            found = _free()
            for schema in {id(one): one for one in schemas}.values():
                found = self.both(found, self.expanded(schema))
        finally:
            self._active = active
        if self._narrowed > before:
            self._is_narrower.add(key)
        self._kept.append(schemas)
        self._known[key] = found
        return found

    def expanded(self, schema: Any) -> list[Alternative]:
        """The alternatives of one schema."""
        if isinstance(schema, bool):
            return _free() if schema else []
        if id(schema) in self._active:
            self.unfollowed(self.references.place(schema), "leads to itself without end")
            return _free()
        self._active.append(id(schema))
        try:
            return self._expanded(schema)
        finally:
            self._active.pop()

    def _expanded(self, schema: dict[str, Any]) -> list[Alternative]:
        place = self.references.place(schema)
        keywords = Keywords(schema, place, self.unfollowed, self.both)
        found = keywords.own()
        self._narrowed += keywords.is_narrower
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if schema.get(key) is not None:
                found = self.both(found, self._referenced(schema, key))
        for inner in self._schemas(schema, "allOf"):
            found = self.both(found, self.expanded(inner))
        if schema.get("anyOf") is not None:
            found = self.both(found, self._any_of(self._schemas(schema, "anyOf")))
        if schema.get("oneOf") is not None:
            found = self._one_of(found, self._schemas(schema, "oneOf"), below(place, "oneOf"))
        if schema.get("not") is not None:
            before, at = self._narrowed, below(place, "not")
            inner = checked(schema["not"], at, self.unfollowed)
            if inner is not False:
                found = self._without(found, self.expanded(inner), at, before)
        return keywords.sealed(found)

    def _referenced(self, schema: dict[str, Any], key: str) -> list[Alternative]:
        reference = schema[key]
        place = below(self.references.place(schema), key)
        if key != "$ref":
            self.unfollowed(place, "is nothing that a grammar can follow")
            return _free()
        try:
            target = self.references.target(schema, reference)
        except (KeyError, TypeError, AttributeError, ValueError):
            self.unfollowed(place, f"is {reference!r:.80}, which is not in the schema")
            return _free()
        if not isinstance(target, dict | bool):
            self.unfollowed(place, f"is {reference!r:.80}, which is not a schema")
            return _free()
        return self.expanded(target)

    def _any_of(self, schemas: list[Any]) -> list[Alternative]:
        """Those of every schema that can be followed; one is enough."""
        made: list[Alternative] = []
        failures: list[SchemaError] = []
        for inner in schemas:
            try:
                made += self.expanded(inner)
            except SchemaError as error:
                failures.append(error)
        if len(failures) == len(schemas):
            raise failures[0]
        self._narrowed += bool(failures)
        return made

    def _one_of(
        self, found: list[Alternative], schemas: list[Any], place: str
    ) -> list[Alternative]:
        """Those of every schema, apart from what the others allow."""
        before = self._narrowed
        branches = [self.both(found, self.expanded(inner)) for inner in schemas]
        made: list[Alternative] = []
        is_exact = self._narrowed == before or len(branches) == 1
        branches = [branch for branch in branches if branch]
        for i, branch in enumerate(branches):
            others = [one for j, other in enumerate(branches) if j != i for one in other]
            kept = [left for one in branch if (left := self._apart_from(one, others))]
            if not kept or not is_exact:
                self.unfollowed(place, "has schemas that a value may match at once; use anyOf")
                return [one for every in branches for one in every]
            made += kept
        return made

    def _without(
        self, found: list[Alternative], others: list[Alternative], place: str, before: int
    ) -> list[Alternative]:
        """Those that are none of others, which are exact if nothing was narrowed since `before`."""
        made = []
        if self._narrowed > before:
            self.unfollowed(place, "excludes values that a grammar cannot leave out")
            return found
        for one in found:
            if left := self._apart_from(one, others):
                made.append(left)
            elif one.values is None and not any(b.free and b.kind == one.kind for b in others):
                self.unfollowed(place, "excludes values that a grammar cannot leave out")
                return found
        return made

    def _apart_from(self, one: Alternative, others: Iterable[Alternative]) -> Alternative | None:
        left: Alternative | None = one
        for other in others:
            self.count()
            left = left and self._apart(left, other)
        return left

    def _apart(self, a: Alternative, b: Alternative) -> Alternative | None:
        """A part of `a` without values of `b`; None where none is certain."""
        if a.kind != b.kind:
            return a
        if a.kind == "boolean" and a.values is None:
            a = replace(a, values=(True, False))
        if a.values is not None:
            values = tuple(value for value in a.values if not self.fits(value, b))
            return replace(a, values=values) if values else None
        if b.values is not None:
            return None if any(self.fits(value, a) for value in b.values) else a
        if merged(a, b) is None:
            return a
        return self._object_apart(a, b) if a.kind == "object" else None

    def _object_apart(self, a: Alternative, b: Alternative) -> Alternative | None:
        for name in [one for one in a.properties if one in b.properties]:
            before = self._narrowed
            theirs = [one.values for one in self.of(property_schemas(b, name))]
            if self._narrowed > before:  # there may be more
                continue
            ours = [one.values for one in self.of(property_schemas(a, name))]
            if None not in ours and None not in theirs:
                texts = [{canonical(v) for values in side for v in values or ()}
                         for side in (ours, theirs)]  # fmt: skip
                if not texts[0] & texts[1]:
                    self._narrowed += 1
                    return replace(a, required=tuple(dict.fromkeys((*a.required, name))))
        for name in a.required:
            before = self._narrowed
            if not self.of(property_schemas(b, name)) and self._narrowed == before:
                return a
        absent = [name for name in b.required if name not in a.required]
        for name in sorted(absent, key=lambda one: one in a.properties):
            self._narrowed += 1
            return replace(a, forbidden=a.forbidden | {name})
        return None

    def both(self, ours: list[Alternative], theirs: list[Alternative]) -> list[Alternative]:
        """What two lists of alternatives have in common."""
        made = []
        for a in ours:
            for b in theirs:
                self.count(1 + (len(a.properties) + len(b.properties)) // 8)
                if one := self._both(a, b):
                    made.append(one)
        if len(made) > _ALTERNATIVES_MOST:
            raise SchemaError(f"it has more than {_ALTERNATIVES_MOST} alternatives in one place")
        return made

    def _both(self, a: Alternative, b: Alternative) -> Alternative | None:
        one = merged(a, b)
        self._narrowed += is_narrower(a, b)
        if one is None or (a.values is None and b.values is None):
            return one
        with_values, other = (a, b) if a.values is not None else (b, a)
        values = tuple(v for v in with_values.values or () if self.fits(v, other))
        return replace(Alternative(a.kind, values), place=one.place) if values else None

    def fits(self, value: Any, one: Alternative) -> bool:
        """Whether a value belongs to an alternative."""
        self.count()
        if kind_of(value) != one.kind:
            return False
        if one.values is not None:
            self.count(len(one.values))
            return canonical(value) in map(canonical, one.values)
        if one.kind == "number":
            return number_fits(value, one)
        if one.kind in ("string", "array", "object") and not (
            one.least <= len(value) <= (len(value) if one.most is None else one.most)
        ):
            return False
        if one.kind == "string":
            if any(matches(pattern, value) is None for pattern in one.patterns):
                place = below(one.place, "pattern")
                self.unfollowed(place, "is combined with values that it may exclude")
                return True
            return all(matches(pattern, value) for pattern in one.patterns)
        if one.kind == "array":
            rest = one.items or ()
            return all(
                self.accepts(item, one.prefix[i] if i < len(one.prefix) else rest)
                for i, item in enumerate(value)
            )
        if one.kind == "object":
            self._note_unknown_names(one, value)
            return (
                all(name in value for name in one.required)
                and not one.forbidden & value.keys()
                and all(self.accepts(name, one.names) for name in value)
                and all(self.accepts(v, property_schemas(one, k)) for k, v in value.items())
            )
        return True

    def _note_unknown_names(self, one: Alternative, value: dict[str, Any]) -> None:
        """Notes an expression of which it is not known whether it is about a property."""
        for pattern, _ in one.by_pattern:
            if any(matches(pattern, name) is None for name in value):
                place = below(one.place, "patternProperties")
                self.unfollowed(place, "is combined with values that it may exclude")

    def accepts(self, value: Any, schemas: Conjunction) -> bool:
        """Whether a value is valid for some schemas."""
        return not schemas or any(self.fits(value, one) for one in self.of(schemas))

    def _schemas(self, schema: dict[str, Any], key: str) -> list[Any]:
        """The schemas of a keyword that has a list of them."""
        given, place = schema.get(key), below(self.references.place(schema), key)
        if given is None:
            return []
        if not isinstance(given, list) or not given:
            self.unfollowed(place, f"is {given!r:.80}, but must be a list of schemas")
            return [True]
        return [checked(one, f"{place}.{i}", self.unfollowed) for i, one in enumerate(given)]

    def count(self, n: int = 1) -> None:
        """Ends work that has no end in sight."""
        self._work += n
        if self._work > _WORK_MOST:
            raise SchemaError(f"it takes more than {_WORK_MOST} comparisons; simplify it")


def conjunction_key(schemas: Conjunction) -> tuple[int, ...]:
    """The same for the same schemas in any order."""
    return tuple(sorted({id(one) for one in schemas if one is not True}))


def _free() -> list[Alternative]:
    return [Alternative(kind) for kind in KINDS]
