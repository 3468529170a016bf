"""A schema as alternatives of one type each: what its keywords mean together.

The alternatives may allow less than the schema, and never more. A keyword that no grammar can
follow is handed to `unfollowed`, which raises, or notes it and goes on without the keyword.
"""

from __future__ import annotations

import itertools
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
from tgr_local.generation.schemas.work import NOWHERE, SchemaResult, StepBudget, Way

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
        different = {id(schema): schema for schema in schemas}.values()
        return self._all([self.expanded(schema) for schema in different])

    def _try(self, make: Callable[[Any], Sequence[Alternative]], given: Any) -> SchemaResult:
        outer, self._narrowed = self._narrowed, 0
        try:
            return SchemaResult(make(given), self._narrowed > 0)
        except SchemaError as error:
            return SchemaResult(failure=str(error))
        finally:
            self._narrowed = outer

    def _taken(self, result: SchemaResult) -> Sequence[Alternative]:
        if result.failure:
            raise SchemaError(result.failure)
        self._narrowed += result.is_narrower
        return result.alternatives

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
        if key in way.results:
            result, lowest = way.results[key]
            way.lowest = min(way.lowest, lowest)
            return self._taken(result)
        outer_lowest, way.lowest = way.lowest, NOWHERE
        way.depths[key] = len(way.depths)
        result = self._try(self._expanded, schema)
        if way.leave(schema, result, outer_lowest):
            self._expansions[key] = result
        return self._taken(result)

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
        alternatives = self._all(parts)
        if schema.get("oneOf") is not None:
            alternatives = self._one_of(
                alternatives, self._schemas(schema, "oneOf"), below(place, "oneOf")
            )
        if schema.get("not") is not None:
            n_narrowed, at = self._narrowed, below(place, "not")
            inner = checked(schema["not"], at, self.unfollowed)
            if inner is not False:
                alternatives = self._without(alternatives, self.expanded(inner), at, n_narrowed)
        return keywords.sealed(alternatives)

    def _all(self, parts: Sequence[Sequence[Alternative]]) -> Sequence[Alternative]:
        """Returns the intersection of lists of alternatives."""
        different = {tuple(map(id, part)): part for part in parts if not is_free(part)}
        self.count(sum(map(len, parts)) // 8)
        common, *more = different.values() or (parts[0] if parts else FREE,)
        for alternatives in more:
            common = self.both(common, alternatives)
        return common

    def _union(self, lists: Iterable[Sequence[Alternative]]) -> Sequence[Alternative]:
        """The alternatives of some lists, each once."""
        by_key: dict[Any, Alternative] = {}
        for alternatives in lists:
            for alternative in alternatives:
                self.count(1 + alternative.weight // 8)
                by_key.setdefault(alternative.key, alternative)
        return self._bounded(tuple(by_key.values()))

    def _bounded(self, alternatives: Sequence[Alternative]) -> Sequence[Alternative]:
        if len(alternatives) > _ALTERNATIVES_MOST:
            raise SchemaError(f"it has more than {_ALTERNATIVES_MOST} alternatives in one place")
        return alternatives

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
        lists: list[Sequence[Alternative]] = []
        failures: list[SchemaError] = []
        for inner in schemas:
            try:
                lists.append(self.expanded(inner))
            except SchemaError as error:
                failures.append(error)
        if not lists:
            raise failures[0]
        self._narrowed += bool(failures)
        return self._union(lists)

    def _one_of(
        self, alternatives: Sequence[Alternative], schemas: list[Any], place: str
    ) -> Sequence[Alternative]:
        """Returns the alternatives of every schema, without those that the others allow."""
        n_narrowed = self._narrowed
        branches = [self.both(alternatives, self.expanded(inner)) for inner in schemas]
        apart: list[Alternative] = []
        is_exact = self._narrowed == n_narrowed or len(branches) == 1
        branches = [branch for branch in branches if branch]
        for i, branch in enumerate(branches):
            others = [*itertools.chain(*branches[:i], *branches[i + 1 :])]
            kept = [
                left for alternative in branch if (left := self._apart_from(alternative, others))
            ]
            if not kept or not is_exact:
                self.unfollowed(place, "has schemas that a value may match at once; use anyOf")
                return self._union(branches)
            apart += kept
        return self._bounded(apart)

    def _without(
        self,
        alternatives: Sequence[Alternative],
        others: Sequence[Alternative],
        place: str,
        n_narrowed: int,
    ) -> Sequence[Alternative]:
        """Returns the alternatives that are none of `others`, which are exact if nothing was
        narrowed since `n_narrowed`."""
        apart: list[Alternative] = []
        if self._narrowed > n_narrowed:
            self.unfollowed(place, "excludes values that a grammar cannot leave out")
            return alternatives
        for alternative in alternatives:
            if left := self._apart_from(alternative, others):
                apart.append(left)
            elif alternative.values is None and not any(
                b.free and b.kind == alternative.kind for b in others
            ):
                self.unfollowed(place, "excludes values that a grammar cannot leave out")
                return alternatives
        return apart

    def _apart_from(
        self, alternative: Alternative, others: Iterable[Alternative]
    ) -> Alternative | None:
        left: Alternative | None = alternative
        for excluded in others:
            if left is None:
                return None
            self.count()
            left = self._apart(left, excluded)
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
        for name in [own_name for own_name in a.properties if own_name in b.properties]:
            n_narrowed = self._narrowed
            theirs = [alternative.values for alternative in self.of(property_schemas(b, name))]
            if self._narrowed > n_narrowed:  # there may be more
                continue
            own = [alternative.values for alternative in self.of(property_schemas(a, name))]
            if None not in own and None not in theirs:
                texts = [{t for values in side for t in values or ()} for side in (own, theirs)]
                self.count((len(texts[0]) + len(texts[1])) // 8)
                if not texts[0] & texts[1]:
                    self._narrowed += 1
                    return replace(a, required=tuple(dict.fromkeys((*a.required, name))))
        for name in a.required:
            n_narrowed = self._narrowed
            if not self.of(property_schemas(b, name)) and self._narrowed == n_narrowed:
                return a
        ours = set(a.required)
        absent = [name for name in b.required if name not in ours]
        for name in sorted(absent, key=lambda absent_name: absent_name in a.properties):
            self._narrowed += 1
            return replace(a, forbidden=a.forbidden | {name})
        return None

    def both(
        self, ours: Sequence[Alternative], theirs: Sequence[Alternative]
    ) -> Sequence[Alternative]:
        """Returns the intersection of two lists of alternatives."""
        both = []
        for a in ours:
            for b in theirs:
                self.count(_cost(a, b))
                if common := self._both(a, b):
                    both.append(common)
        return self._bounded(both)

    def _both(self, a: Alternative, b: Alternative) -> Alternative | None:
        if a is b:
            return a
        both = merged(a, b)
        self._narrowed += is_narrower(a, b)
        if both is None or (a.values is None and b.values is None):
            return both
        with_values, other = (a, b) if a.values is not None else (b, a)
        given = (with_values.values or {}).items()
        values = {text: value for text, value in given if self.fits(value, other, text)}
        return replace(Alternative(a.kind, values), place=both.place) if values else None

    def fits(self, value: Any, alternative: Alternative, text: str = "") -> bool:
        """Whether a value belongs to an alternative; `text` is what `canonical` makes of it."""
        self.count()
        if kind_of(value) != alternative.kind:
            return False
        if alternative.values is not None:
            return (text or self._canonical(value)) in alternative.values
        self.count(alternative.weight // 8)
        if alternative.kind == "number":
            return number_fits(value, alternative)
        if alternative.kind in ("string", "array", "object") and not (
            alternative.least
            <= len(value)
            <= (len(value) if alternative.most is None else alternative.most)
        ):
            return False
        if alternative.kind == "string":
            if any(matches(pattern, value) is None for pattern in alternative.patterns):
                place = below(alternative.place, "pattern")
                self.unfollowed(place, "is combined with values that it may exclude")
                return True
            return all(matches(pattern, value) for pattern in alternative.patterns)
        if alternative.kind == "array":
            rest = alternative.items or ()
            return all(
                self.accepts(item, alternative.prefix[i] if i < len(alternative.prefix) else rest)
                for i, item in enumerate(value)
            )
        if alternative.kind == "object":
            self._note_unknown_names(alternative, value)
            return (
                all(name in value for name in alternative.required)
                and not alternative.forbidden & value.keys()
                and all(self.accepts(name, alternative.names) for name in value)
                and all(self.accepts(v, property_schemas(alternative, k)) for k, v in value.items())
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

    def _note_unknown_names(self, alternative: Alternative, value: dict[str, Any]) -> None:
        """Notes an expression of which it is not known whether it is about a property."""
        for pattern in alternative.by_pattern:
            if any(matches(pattern, name) is None for name in value):
                place = below(alternative.place, "patternProperties")
                self.unfollowed(place, "is combined with values that it may exclude")

    def accepts(self, value: Any, schemas: Conjunction) -> bool:
        """Whether a value is valid for some schemas."""
        return not schemas or any(self.fits(value, alternative) for alternative in self.of(schemas))

    def _schemas(self, schema: dict[str, Any], key: str) -> list[Any]:
        """The schemas of a keyword that has a list of them."""
        given, place = schema.get(key), below(self.references.place(schema), key)
        if given is None:
            return []
        if not isinstance(given, list) or not given:
            self.unfollowed(place, f"is {given!r:.80}, but must be a list of schemas")
            return [True]
        return [checked(part, f"{place}.{i}", self.unfollowed) for i, part in enumerate(given)]


def is_free(ones: Sequence[Alternative]) -> bool:
    """Whether some alternatives are all values, and none is there twice."""
    kinds = {alternative.kind for alternative in ones if alternative.free}
    return len(ones) == len(kinds) == len(KINDS)


def _cost(a: Alternative, b: Alternative) -> int:
    """The steps of one look at all of two alternatives."""
    by_pattern = len(a.by_pattern) * len(b.properties) + len(b.by_pattern) * len(a.properties)
    return 1 + (a.weight + b.weight + by_pattern) // 8
