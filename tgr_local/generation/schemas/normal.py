"""A schema as alternatives of one type each: what its keywords mean together.

The alternatives may allow less than the schema, and never more. A keyword that no grammar can
follow is handed to `unfollowed`, which raises, or notes it and goes on without the keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tgr_local.generation.schemas.alternatives import (
    FREE,
    KINDS,
    Alternative,
    Conjunction,
    canonical,
    conjunction_key,
    have_both,
    is_narrower,
    kind_of,
    matches,
    merged,
    number_fits,
    property_schemas,
)
from tgr_local.generation.schemas.keywords import Keywords, Unfollowed, checked
from tgr_local.generation.schemas.references import References, below
from tgr_local.generation.schemas.ways import NOWHERE, SchemaResult, Way
from tgr_local.generation.schemas.work import StepBudget

_ALTERNATIVES_MOST = 1000


class SchemaError(ValueError):
    """A schema that cannot be followed; the message names the keyword and its place."""


class Normal:
    """The alternatives of one document's schemas."""

    def __init__(self, document: Any, unfollowed: Unfollowed, work: StepBudget) -> None:
        self.references = References(document, work.count)
        self.unfollowed = unfollowed
        self.count = work.count
        self._work = work
        self._known: dict[tuple[int, ...], SchemaResult] = {}
        self._expansions: dict[int, SchemaResult] = {}
        self._texts: dict[int, str] = {}  # `canonical` of lists and objects of the document
        self._kept: list[Any] = []  # keeps ids from being given again
        self._way = Way()
        self._narrowed = 0  # how often less was allowed than the schema does

    def of(self, schemas: Conjunction) -> Sequence[Alternative]:
        """Returns the alternatives that all schemas allow; empty if no value is allowed."""
        key = conjunction_key(schemas)
        self.count(1 + len(key) // 8)
        if key not in self._known:
            way, self._way = self._way, Way()  # the value is another one
            self._known[key] = self._try(self._of, schemas)
            self._way = way
            self._kept.append(schemas)
        return self._taken(self._known[key])

    def _of(self, schemas: Conjunction) -> Sequence[Alternative]:
        different = {id(one): one for one in schemas}.values()
        return self._all([self.expanded(one) for one in different])

    def _try(self, make: Callable[[Any], Sequence[Alternative]], given: Any) -> SchemaResult:
        before, self._narrowed = self._narrowed, 0
        try:
            return SchemaResult(make(given), self._narrowed > 0)
        except SchemaError as error:
            return SchemaResult(failure=str(error))
        finally:
            self._narrowed = before

    def _taken(self, found: SchemaResult) -> Sequence[Alternative]:
        if found.failure:
            raise SchemaError(found.failure)
        self._narrowed += found.is_narrower
        return found.alternatives

    def expanded(self, schema: Any) -> Sequence[Alternative]:
        """The alternatives of one schema."""
        self.count()
        if isinstance(schema, bool):
            return FREE if schema else ()
        key, way = id(schema), self._way
        if key in self._expansions:
            return self._taken(self._expansions[key])
        if key in way.depths:
            way.lowest = min(way.lowest, way.depths[key])
            self.unfollowed(self.references.place(schema), "leads to itself without end")
            return FREE
        if key in way.found:
            found, lowest = way.found[key]
            way.lowest = min(way.lowest, lowest)
            return self._taken(found)
        before, way.lowest = way.lowest, NOWHERE
        way.depths[key] = len(way.depths)
        found = self._try(self._expanded, schema)
        if way.leave(schema, found, before):
            self._expansions[key] = found
        return self._taken(found)

    def _expanded(self, schema: dict[str, Any]) -> Sequence[Alternative]:
        place = self.references.place(schema)
        keywords = Keywords(schema, place, self.unfollowed, self.both, self._work)
        parts = [keywords.own()]
        self._narrowed += keywords.is_narrower
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if schema.get(key) is not None:
                parts.append(self._referenced(schema, key))
        parts += [self.expanded(inner) for inner in self._schemas(schema, "allOf")]
        if schema.get("anyOf") is not None:
            parts.append(self._any_of(self._schemas(schema, "anyOf")))
        found = self._all(parts)
        if schema.get("oneOf") is not None:
            found = self._one_of(found, self._schemas(schema, "oneOf"), below(place, "oneOf"))
        if schema.get("not") is not None:
            before, at = self._narrowed, below(place, "not")
            inner = checked(schema["not"], at, self.unfollowed)
            if inner is not False:
                found = self._without(found, self.expanded(inner), at, before)
        return keywords.sealed(found)

    def _all(self, parts: Sequence[Sequence[Alternative]]) -> Sequence[Alternative]:
        """Returns the intersection of lists of alternatives."""
        different = {tuple(map(id, one)): one for one in parts if not is_free(one)}
        self.count(sum(map(len, parts)) // 8)
        found, *more = different.values() or (parts[0] if parts else FREE,)
        for one in more:
            found = self.both(found, one)
        return found

    def _union(self, lists: Iterable[Sequence[Alternative]]) -> Sequence[Alternative]:
        """The alternatives of some lists, each once."""
        made: dict[Any, Alternative] = {}
        for one in lists:
            for alternative in one:
                self.count(1 + alternative.weight // 8)
                made.setdefault(alternative.key, alternative)
        return self._bounded(tuple(made.values()))

    def _bounded(self, made: Sequence[Alternative]) -> Sequence[Alternative]:
        if len(made) > _ALTERNATIVES_MOST:
            raise SchemaError(f"it has more than {_ALTERNATIVES_MOST} alternatives in one place")
        return made

    def _referenced(self, schema: dict[str, Any], key: str) -> Sequence[Alternative]:
        reference = schema[key]
        place = below(self.references.place(schema), key)
        if key != "$ref":
            self.unfollowed(place, "is nothing that a grammar can follow")
            return FREE
        try:
            target = self.references.target(schema, reference)
        except (KeyError, TypeError, AttributeError, ValueError):
            self.unfollowed(place, f"is {reference!r:.80}, which is not in the schema")
            return FREE
        if not isinstance(target, dict | bool):
            self.unfollowed(place, f"is {reference!r:.80}, which is not a schema")
            return FREE
        return self.expanded(target)

    def _any_of(self, schemas: list[Any]) -> Sequence[Alternative]:
        """Returns the alternatives of every schema that can be followed; one is enough."""
        made: list[Sequence[Alternative]] = []
        failures: list[SchemaError] = []
        for inner in schemas:
            try:
                made.append(self.expanded(inner))
            except SchemaError as error:
                failures.append(error)
        if not made:
            raise failures[0]
        self._narrowed += bool(failures)
        return self._union(made)

    def _one_of(
        self, found: Sequence[Alternative], schemas: list[Any], place: str
    ) -> Sequence[Alternative]:
        """Returns the alternatives of every schema, without those that the others allow."""
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
                return self._union(branches)
            made += kept
        return self._bounded(made)

    def _without(
        self, found: Sequence[Alternative], others: Sequence[Alternative], place: str, before: int
    ) -> Sequence[Alternative]:
        """Returns the alternatives that are none of `others`, which are exact if nothing was
        narrowed since `before`."""
        made: list[Alternative] = []
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
            if left is None:
                return None
            self.count()
            left = self._apart(left, other)
        return left

    def _apart(self, a: Alternative, b: Alternative) -> Alternative | None:
        """A part of `a` without values of `b`; None where none is certain."""
        if a.kind != b.kind:
            return a
        if a.kind == "boolean" and a.values is None:
            a = replace(a, values={"true": True, "false": False})
        if a.values is not None:
            values = {text: v for text, v in a.values.items() if not self.fits(v, b, text)}
            return replace(a, values=values) if values else None
        if b.values is not None:
            return None if any(self.fits(v, a, text) for text, v in b.values.items()) else a
        if not have_both(a, b):
            return a
        return self._object_apart(a, b) if a.kind == "object" else None

    def _object_apart(self, a: Alternative, b: Alternative) -> Alternative | None:
        self.count((len(a.properties) + len(a.required) + len(b.required)) // 8)
        for name in [one for one in a.properties if one in b.properties]:
            before = self._narrowed
            theirs = [one.values for one in self.of(property_schemas(b, name))]
            if self._narrowed > before:  # there may be more
                continue
            own = [one.values for one in self.of(property_schemas(a, name))]
            if None not in own and None not in theirs:
                texts = [{t for values in side for t in values or ()} for side in (own, theirs)]
                self.count((len(texts[0]) + len(texts[1])) // 8)
                if not texts[0] & texts[1]:
                    self._narrowed += 1
                    return replace(a, required=tuple(dict.fromkeys((*a.required, name))))
        for name in a.required:
            before = self._narrowed
            if not self.of(property_schemas(b, name)) and self._narrowed == before:
                return a
        ours = set(a.required)
        absent = [name for name in b.required if name not in ours]
        for name in sorted(absent, key=lambda one: one in a.properties):
            self._narrowed += 1
            return replace(a, forbidden=a.forbidden | {name})
        return None

    def both(
        self, ours: Sequence[Alternative], theirs: Sequence[Alternative]
    ) -> Sequence[Alternative]:
        """Returns the intersection of two lists of alternatives."""
        made = []
        for a in ours:
            for b in theirs:
                self.count(_cost(a, b))
                if one := self._both(a, b):
                    made.append(one)
        return self._bounded(made)

    def _both(self, a: Alternative, b: Alternative) -> Alternative | None:
        if a is b:
            return a
        one = merged(a, b)
        self._narrowed += is_narrower(a, b)
        if one is None or (a.values is None and b.values is None):
            return one
        with_values, other = (a, b) if a.values is not None else (b, a)
        given = (with_values.values or {}).items()
        values = {text: value for text, value in given if self.fits(value, other, text)}
        return replace(Alternative(a.kind, values), place=one.place) if values else None

    def fits(self, value: Any, one: Alternative, text: str = "") -> bool:
        """Whether a value belongs to an alternative; `text` is what `canonical` makes of it."""
        self.count()
        if kind_of(value) != one.kind:
            return False
        if one.values is not None:
            return (text or self._canonical(value)) in one.values
        self.count(one.weight // 8)
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

    def _canonical(self, value: Any) -> str:
        """`canonical` of a value; of one with parts, which belongs to the document, only once."""
        if text := self._texts.get(id(value)):
            return text
        text = canonical(value)
        self.count(1 + len(text) // 64)
        if isinstance(value, list | dict):
            self._texts[id(value)] = text
        return text

    def _note_unknown_names(self, one: Alternative, value: dict[str, Any]) -> None:
        """Notes an expression of which it is not known whether it is about a property."""
        for pattern in one.by_pattern:
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


def is_free(ones: Sequence[Alternative]) -> bool:
    """Whether some alternatives are all values, and none is there twice."""
    kinds = {one.kind for one in ones if one.free}
    return len(ones) == len(kinds) == len(KINDS)


def _cost(a: Alternative, b: Alternative) -> int:
    """The steps of one look at all of two alternatives."""
    by_pattern = len(a.by_pattern) * len(b.properties) + len(b.by_pattern) * len(a.properties)
    return 1 + (a.weight + b.weight + by_pattern) // 8
