"""The parameters of functions that a model may call, as the formats of chat templates take them.

llama.cpp makes the grammar of a call, and the parser of a reply, from one schema. Here it gets the
shape of the parameters alone: their names and types, each part with a mark. Its grammar names a
rule for every part of which a call has JSON (csrc/chat/grammar.cpp), and that rule is ours. What no
grammar can follow leaves its parameter freer than the schema, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tgr_local.generation.schemas.alternatives import (
    FREE,
    Alternative,
    Conjunction,
    conjunction_key,
    property_schemas,
)
from tgr_local.generation.schemas.grammar import alternatives_rules
from tgr_local.generation.schemas.keywords import checked
from tgr_local.generation.schemas.normal import Normal, SchemaError, is_free
from tgr_local.generation.schemas.references import below
from tgr_local.generation.schemas.work import StepBudget, WorkError

# texts and classes of characters, which name nothing, and names of our rules
_NAMED = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|(?<![\w-])tgr-(\d+|value)(?![\w-])', re.DOTALL
)
_STRUCTURES_MOST = 64  # objects and lists of one function whose parts have marks of their own
_LEVELS_MOST = 8  # of such ones within each other
_NONE: dict[str, Any] = {"type": "object", "properties": {}}
# values by whose types a format decides how it writes and reads a parameter
_SAMPLES: dict[str, Any] = {"object": {}, "array": [], "boolean": True, "null": None, "number": 1.5}


@dataclass(frozen=True)
class _ParameterPart:
    """A part of the parameters of a function. A call has JSON of it, or of the parts within it."""

    normal: Normal
    ones: Sequence[Alternative]
    place: str
    within: Sequence[int] = ()
    """Numbers of the parts within it."""
    is_leaf: bool = False
    """Whether no call has JSON of a part of it."""


class Followable:
    """Functions with the shapes of their parameters, and the rules that their calls need."""

    def __init__(self, check: Callable[[], object] | None = None) -> None:
        self.work = StepBudget(check)
        """Work for all functions together."""
        self.functions: list[dict[str, Any]] = []
        self.unfollowed: list[str] = []
        """Places of what no grammar follows: ``tools.NAME.parameters.properties.x.pattern``."""
        self._noted: set[str] = set()
        self._parts: list[_ParameterPart] = []
        self._whole: list[int] = []  # the parts that are all parameters of a function

    def add(self, function: Mapping[str, Any]) -> None:
        """Takes one more function, with or without ``parameters``."""
        given = function.get("parameters")
        place = f"tools.{function.get('name')}.parameters"
        shape, numbers = _ParameterShapes(
            self, _NONE if given in (None, {}) else given, place
        ).whole()
        self._whole += numbers
        self.functions.append({**function, "parameters": shape})

    def complete(self, grammar: str) -> str:
        """A grammar of calls with the rules that it names. Calls that have no JSON of a part, and
        none of the parts within it, do not follow its schema, and its place is noted."""
        named = set(_NAMED.findall(grammar))
        rules = _free_rules(FREE, "tgr-value") if "value" in named else {}
        left = self._whole[::-1]
        while left:
            number = left.pop()
            part = self._parts[number - 1]
            if str(number) in named:
                rules |= self._rules(part, f"tgr-{number}")
            else:
                for key in _missed(part):
                    self.note(below(part.place, key) if key else part.place)
                left += part.within[::-1]
        added = "".join(f"{name} ::= {body}\n" for name, body in rules.items())
        return f"{grammar.rstrip()}\n{added}" if added else grammar

    def note(self, place: str) -> None:
        """Names what is not followed."""
        if place not in self._noted:
            self._noted.add(place)
            self.unfollowed.append(place)

    def mark(self, part: _ParameterPart) -> int:
        """Takes a part; returns the number by which a grammar names it."""
        self._parts.append(part)
        return len(self._parts)

    def _rules(self, part: _ParameterPart, name: str) -> dict[str, str]:
        """Rules of a part without what cannot be followed, which is noted."""
        try:
            try:
                return alternatives_rules(part.normal, part.ones, name)
            except (SchemaError, RecursionError):
                ones = [self._freed(part, alternative) for alternative in part.ones]
                return alternatives_rules(part.normal, ones, name)
        except (SchemaError, WorkError, RecursionError):
            self.note(part.place)
            kinds = dict.fromkeys(alternative.kind for alternative in part.ones)
            return _free_rules([Alternative(kind) for kind in kinds], name)

    def _freed(self, part: _ParameterPart, alternative: Alternative) -> Alternative:
        """An object whose properties take any value where theirs cannot be followed."""
        freed, must = {}, set(alternative.required)
        for name in dict.fromkeys((*alternative.properties, *alternative.required)):
            try:
                ones = part.normal.of(property_schemas(alternative, name))
                if ones or name in must:
                    alternatives_rules(part.normal, ones, "tgr-0")
            except (SchemaError, RecursionError):
                self.note(below(part.place, f"properties.{name}"))
                freed[name] = ()
        return replace(alternative, properties={**alternative.properties, **freed})


def followable(
    functions: Sequence[Mapping[str, Any]], check: Callable[[], object] | None = None
) -> Followable:
    """Some functions, each with a name and perhaps ``parameters``, as formats of calls take them.
    Raises nothing for any schema, but what `check` raises, which is called again and again."""
    result = Followable(check)
    for function in functions:
        result.add(function)
    return result


def _free_rules(ones: Sequence[Alternative], name: str) -> dict[str, str]:
    """Rules of all values of some types."""
    return alternatives_rules(Normal({}, lambda *_: None, StepBudget()), ones, name)


def _missed(part: _ParameterPart) -> list[str]:
    """Keywords that a call does not follow which has no JSON of a part, only of those within it;
    an empty one is all of the part."""
    if not part.is_leaf and len(part.ones) > 1:
        return [""]
    keys = []
    for alternative in part.ones:
        if part.is_leaf or alternative.values is not None:
            keys += [] if replace(alternative, whole=False).free else [""]
            continue
        is_object = alternative.kind == "object"
        n_most = len(alternative.properties) if is_object else 0
        limits = {
            "minProperties" if is_object else "minItems": alternative.least
            > len(alternative.required),
            "maxProperties": is_object
            and alternative.most is not None
            and alternative.most < n_most,
            "maxItems": not is_object and alternative.most is not None,
            "patternProperties": bool(alternative.by_pattern),
            "propertyNames": bool(alternative.names),
        }
        keys += [key for key, is_given in limits.items() if is_given]
    return keys


class _ParameterShapes:
    """Makes the shape of the parameters of one function."""

    def __init__(self, functions: Followable, given: Any, place: str) -> None:
        self._functions, self._given, self._place = functions, given, place
        self._normal = Normal({}, self._note, StepBudget())  # until the schema is read
        self._way: set[tuple[int, ...]] = set()  # the schemas that lead to the one being read
        self._n = 0

    def _note(self, place: str, _: str = "") -> None:
        self._functions.note(f"{self._place}.{place}".rstrip("."))

    def whole(self) -> tuple[dict[str, Any], list[int]]:
        """The shape of all parameters, and the numbers of its alternatives."""
        numbers: list[int] = []
        try:
            self._normal = Normal(self._given, self._note, self._functions.work)
            ones = self._normal.of((checked(self._given, "", lambda *_: None),))
            objects = [alternative for alternative in ones if alternative.kind == "object"]
            if objects:
                return self._object(objects, "", numbers), numbers
        except (SchemaError, WorkError, RecursionError):
            pass
        self._note("")
        numbers = []
        return self._object([Alternative("object")], "", numbers), numbers

    def _object(
        self, ones: Sequence[Alternative], place: str, numbers: list[int]
    ) -> dict[str, Any]:
        """The shape of an object, with the properties of all its alternatives; its number is added
        to some."""
        within: list[int] = []
        properties: dict[str, Any] = {}
        names = dict.fromkeys(
            name
            for alternative in ones
            for name in (*alternative.properties, *alternative.required)
        )
        musts = [set(alternative.required) for alternative in ones]
        needed = {name for name in names if all(name in must for must in musts)}
        for name in names:
            self._functions.work.count(len(ones) * (2 + len(name) // 16))
            at = below(place, f"properties.{name}")
            schemas = [
                property_schemas(alternative, name)
                for alternative, must in zip(ones, musts, strict=True)
                if (name in alternative.properties or name in must)
                and name not in alternative.forbidden
                and alternative.values is None
            ]
            distinct = {conjunction_key(every): every for every in schemas}.values()
            values = [self._value(every, at, within) for every in distinct]
            shapes = [value for value in values if value is not None]
            if {} in shapes:
                properties[name] = {}
            elif shapes:
                properties[name] = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
            elif name in needed and schemas:
                self._note(at)
                properties[name] = {}
        return {
            "type": "object",
            "properties": properties,
            "required": [name for name in names if name in needed and name in properties],
            "additionalProperties": {"const": self._mark(ones, place, numbers, within)},
        }

    def _value(self, schemas: Conjunction, place: str, numbers: list[int]) -> dict[str, Any] | None:
        """The shape of a value; None where there is no value."""
        try:
            ones = self._normal.of(schemas)
        except (SchemaError, RecursionError):
            self._note(place)
            return {}
        if not ones:
            return None
        if is_free(ones):
            return {}
        key = conjunction_key(schemas)
        has_structure = any(map(_is_structure, ones)) and all(o.kind != "string" for o in ones)
        is_far = len(self._way) == _LEVELS_MOST or self._n >= _STRUCTURES_MOST
        if not has_structure or key in self._way or is_far:
            return self._leaf(ones, place, numbers)
        self._way.add(key)
        shapes = [self._one(alternative, place, numbers) for alternative in ones]
        self._way.remove(key)
        return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}

    def _one(self, alternative: Alternative, place: str, numbers: list[int]) -> dict[str, Any]:
        self._n += 1
        if _is_structure(alternative) and alternative.kind == "object":
            return self._object([alternative], place, numbers)
        within: list[int] = []
        items = None
        if _is_structure(alternative):
            items = self._value(alternative.items or (), below(place, "items"), within)
        if items is None:
            return self._leaf([alternative], place, numbers)
        return {
            "type": "array",
            "items": items,
            "minItems": self._mark([alternative], place, numbers, within),
        }

    def _leaf(self, ones: Sequence[Alternative], place: str, numbers: list[int]) -> dict[str, Any]:
        """The shape of a value whose parts a format cannot tell apart."""
        number = self._mark(ones, place, numbers, is_leaf=True)
        kinds = {alternative.kind: alternative for alternative in ones}
        samples = [1 if kind == "number" and alternative.whole else _SAMPLES[kind]
                   for kind, alternative in kinds.items() if kind != "string"]  # fmt: skip
        shape: dict[str, Any] = {"enum": [str(number) if "string" in kinds else number, *samples]}
        if len(kinds) == 1:
            (alternative,) = kinds.values()
            shape["type"] = "integer" if alternative.whole else alternative.kind
            if alternative.kind == "array":  # templates look for them
                shape["items"] = {}
        return shape

    def _mark(
        self,
        ones: Sequence[Alternative],
        place: str,
        numbers: list[int],
        within: Sequence[int] = (),
        *,
        is_leaf: bool = False,
    ) -> int:
        at = f"{self._place}.{place}".rstrip(".")
        number = self._functions.mark(_ParameterPart(self._normal, ones, at, within, is_leaf))
        numbers.append(number)
        return number


def _is_structure(alternative: Alternative) -> bool:
    """Whether a format may write the parts of a value one by one."""
    if alternative.values is not None:
        return False
    if alternative.kind == "object":
        return bool(alternative.properties)
    return alternative.kind == "array" and not alternative.prefix
