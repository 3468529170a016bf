"""GBNF of a JSON schema: every text that it allows is a value that the schema allows.

It may allow less: objects have no other properties than those that are named, unless the schema
speaks of others, and required ones come first; a list with `prefixItems` has all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tgr_local.generation.schemas import numbers, patterns
from tgr_local.generation.schemas.alternatives import (
    NEVER,
    Alternative,
    Conjunction,
    conjunction_key,
    matches,
    property_schemas,
)
from tgr_local.generation.schemas.normal import Normal, SchemaError, is_free
from tgr_local.generation.schemas.references import below
from tgr_local.generation.schemas.work import StepBudget, WorkError

_BASE = {
    "space": '" "?',
    "char": f'{patterns.ANY} | "\\\\" ( ["\\\\/bfnrt] | "u" ( [0-9a-cA-CefEF] [0-9a-fA-F]{{3}}'
    ' | [dD] ( [0-7] [0-9a-fA-F]{2} | [89abAB] [0-9a-fA-F]{2} "\\\\u" [dD] [c-fC-F]'
    " [0-9a-fA-F]{2} ) ) )",
    "string": '"\\"" {char}* "\\""',
    "number": numbers.NUMBER,
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "{object} | {array} | {string} | {number} | {boolean} | {null}",
    "object": '"{{" {space} ( {string} ":" {space} {value} '
    '( "," {space} {string} ":" {space} {value} )* )? {space} "}}"',
    "array": '"[" {space} ( {value} ( "," {space} {value} )* )? {space} "]"',
}
_FORMATS = {
    "time": "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{3})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "duration": "P([0-9]{1,4}D|([0-9]{1,4}D)?T([0-9]{1,4}H([0-9]{1,2}M)?([0-9]{1,2}S)?"
    "|[0-9]{1,4}M([0-9]{1,2}S)?|[0-9]{1,4}S))",
    "uuid": "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "email": "[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+)*@[a-zA-Z0-9]+(-[a-zA-Z0-9]+)*(\\.[a-zA-Z0-9]+)+",
    "ipv4": "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}"
    "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
}
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(0[48]|[2468][048]|[13579][26])"
_FORMATS["date"] = (
    f"({_YEAR}-((0[13578]|10|12)-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
_FORMATS |= {f"uuid{version}": _FORMATS["uuid"] for version in range(1, 6)}  # as Pydantic has them
_KEY_MOST = 24  # characters in which a further name must differ from the named ones
_MOST = 1_000_000_000  # repetitions that a grammar can allow


def schema_grammar(schema: Any, check: Callable[[], object] | None = None) -> str:
    """GBNF whose root is a value of a schema. `check` is called again and again. Raises SchemaError
    for a schema without a value, for one that takes too much work, and for what no grammar can
    follow, which it names, and what `check` raises."""

    def refuse(place: str, why: str) -> None:
        raise SchemaError(f"{place or 'it'} {why}")

    try:
        return _GrammarWriter(Normal(schema, refuse, StepBudget(check))).grammar((schema,))
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    except WorkError as error:
        raise SchemaError(str(error)) from None


def alternatives_rules(normal: Normal, ones: Sequence[Alternative], name: str) -> dict[str, str]:
    """Rules for a grammar that has a rule ``space``: the one of `name` is what some alternatives of
    a document allow. The names of the others begin with it, or are those of every such call with
    ``tgr-`` before them. Raises SchemaError, WorkError and RecursionError."""
    return _GrammarWriter(normal, f"{name}-", "tgr-").rules(ones, name)


class _GrammarWriter:
    """`prefix` begins the names of rules, `shared` those of rules that every schema has; with one
    of those the rule ``space`` is somebody else's."""

    def __init__(self, normal: Normal, prefix: str = "", shared: str = "") -> None:
        self._normal, self._prefix, self._shared = normal, prefix, shared
        self._rules: dict[str, str] = {}
        self._names: dict[tuple[int, ...], str] = {}
        self._possible: set[tuple[int, ...]] = set()
        self._n = 0

    def rules(self, ones: Sequence[Alternative], name: str) -> dict[str, str]:
        """The rules of some alternatives, the first of which has a name."""
        self._find_possible(
            schemas for one in ones if not one.free for schemas in self._children(one)
        )
        body = self._choices(ones)
        if not body:
            raise SchemaError("it allows no value, or none that can be written")
        self._normal.count(len(body) // 64)
        return {name: body, **self._rules}

    def grammar(self, whole: Conjunction) -> str:
        self._find_possible([whole])
        if conjunction_key(whole) not in self._possible:
            place = self._impossible(whole, set())
            raise SchemaError(f"{place or 'it'} allows no value, or none that can be written")
        rules = {"root": self._value(whole), **self._rules}
        return "\n".join(f"{name} ::= {body}" for name, body in rules.items()) + "\n"

    def _unfollowed(self, one: Alternative, key: str, why: str) -> None:
        self._normal.unfollowed(below(one.place, key), why)

    # --- what has a value at all ---

    def _find_possible(self, wanted: Iterable[Conjunction]) -> None:
        """Finds the schemas that have a value, from the ones within to the ones around them."""
        found: dict[tuple[int, ...], Sequence[Alternative]] = {}
        left = list(wanted)
        while left:
            schemas = left.pop()
            key = conjunction_key(schemas)
            if key not in found:
                found[key] = self._normal.of(schemas)
                for one in found[key]:
                    left += self._children(one)
        grows = True
        while grows:
            grows = False
            for key, ones in reversed(found.items()):  # those within come first
                if key not in self._possible and any(map(self._is_possible, ones)):
                    self._possible.add(key)
                    grows = True

    def _impossible(self, schemas: Conjunction, seen: set[tuple[int, ...]]) -> str:
        """The place of the innermost schema that is needed and has no value."""
        seen.add(conjunction_key(schemas))
        for one in self._normal.of(schemas):
            self._normal.count(1 + one.weight // 8)
            needed = [property_schemas(one, name) for name in one.required]
            needed += [*one.prefix, one.items or ()][: one.least]
            for inner in needed:
                if not self._has_value(inner) and conjunction_key(inner) not in seen:
                    return self._impossible(inner, seen)
        return self._normal.references.place(schemas[-1])

    def _children(self, one: Alternative) -> Iterator[Conjunction]:
        self._normal.count(1 + one.weight // 8)
        if one.values is not None:
            return
        yield from one.prefix
        yield one.items or ()
        for name in (*one.properties, *one.required):
            yield property_schemas(one, name)
        yield one.additional or ()
        yield from one.by_pattern.values()

    def _has_value(self, schemas: Conjunction) -> bool:
        return conjunction_key(schemas) in self._possible

    def _is_possible(self, one: Alternative) -> bool:
        self._normal.count(1 + one.weight // 8)
        if one.values is not None:
            return True
        if one.kind == "number":
            return bool(self._number(one))
        if one.kind == "array":
            return self._lengths(one) is not None
        if one.kind == "object":
            names = dict.fromkeys(one.required)
            return all(
                self._has_value(property_schemas(one, name))
                and self._normal.accepts(name, one.names)
                for name in names
            ) and (one.most is None or len(names) <= one.most)
        return True

    # --- values ---

    def _value(self, schemas: Conjunction) -> str:
        """The name of the rule of a value."""
        key = conjunction_key(schemas)
        if key not in self._names:
            ones = self._normal.of(schemas)
            if is_free(ones):
                self._names[key] = self._base("value")
            else:
                name = self._names[key] = self._new()
                self._rules[name] = self._choices(ones)
                self._normal.count(len(self._rules[name]) // 64)
                if not self._rules[name]:
                    raise SchemaError("a part of it has no value that can be written")
        return self._names[key]

    def _choices(self, ones: Sequence[Alternative]) -> str:
        choices = [self._one(one) for one in ones if one.free or self._is_possible(one)]
        return " | ".join(dict.fromkeys(filter(None, choices)))

    def _new(self, body: str = "") -> str:
        self._normal.count(1 + len(body) // 64)
        self._n += 1
        name = f"{self._prefix}r{self._n}"
        self._rules[name] = body
        return name

    def _base(self, name: str) -> str:
        if self._shared and name == "space":
            return name
        full = self._shared + name
        if full not in self._rules:
            self._rules[full] = ""
            needed = {other: self._base(other) for other in _BASE if f"{{{other}}}" in _BASE[name]}
            has_names = needed or "{{" in _BASE[name]
            self._rules[full] = _BASE[name].format(**needed) if has_names else _BASE[name]
        return full

    def _one(self, one: Alternative) -> str:
        if one.values is not None:
            return " | ".join(map(self._constant, one.values.values()))
        if one.free or one.kind in ("boolean", "null"):
            return self._base(one.kind)
        if one.kind == "number":
            return self._number(one)
        return {"string": self._string, "array": self._array, "object": self._object}[one.kind](one)

    def _constant(self, value: Any) -> str:
        if not isinstance(value, list | dict):
            return literal(_json(value))
        space = self._base("space")
        breaks = {"\0": f'"," {space}', "\1": f'":" {space}'}  # JSON has no such characters
        parts = re.split("([\0\1])", _json(value, ("\0", "\1")))
        return " ".join(breaks.get(part) or literal(part) for part in parts)

    def _number(self, one: Alternative) -> str:
        if not one.whole:
            return numbers.numbers(one.interval)
        if one.step < _MOST and str(one.step).strip("0") == "1":
            return numbers.integers(one.interval, one.step)
        first, last = one.interval.whole()
        first, last = -(-first // one.step), last // one.step
        if last - first > 1000:
            why = f"is {one.step}, but must be a power of 10, or have at most 1,000 multiples"
            self._unfollowed(one, "multipleOf", why)
            return numbers.integers(one.interval)
        return " | ".join(literal(str(one.step * n)) for n in range(first, last + 1))

    def _string(self, one: Alternative) -> str:
        least, most = one.least, one.most
        if len(one.patterns) > 1:
            self._unfollowed(one, "pattern", "is one of several")
        if text := one.patterns[0] if one.patterns else _format(one):
            read = patterns.pattern(text)
            too_long = most is not None and (read.most is None or read.most > most)
            if read.single and (too_long or read.least < least):
                low, high = max(least, read.least), _least(most, read.most)
                if high is None or low <= high:
                    return f'"\\"" {read.single}{self._times(one, "minLength", low, high)} "\\""'
            if too_long or read.least < least:
                key = "maxLength" if too_long else "minLength"
                self._unfollowed(one, key, "is combined with a pattern of other lengths")
            return f'"\\"" ({read.body}) "\\""'
        if not least and most is None:
            return self._base("string")
        return f'"\\"" {self._base("char")}{self._times(one, "minLength", least, most)} "\\""'

    def _times(self, one: Alternative, key: str, least: int, most: int | None) -> str:
        if least > patterns.REPEATS_MOST:
            why = f"is {one.least}, but a grammar can count to {patterns.REPEATS_MOST}"
            self._unfollowed(one, key, why)
            least = patterns.REPEATS_MOST
        return patterns.times(least, None if most is None else min(max(most, least), _MOST))

    def _lengths(self, one: Alternative) -> tuple[int, int, int | None] | None:
        """Returns the numbers of items of `prefix` in a list, and of others; None = it cannot
        be."""
        n_first = next(
            (i for i, item in enumerate(one.prefix) if not self._has_value(item)), len(one.prefix)
        )
        has_more = n_first == len(one.prefix) and self._has_value(one.items or ())
        if one.most is not None:
            n_first = min(n_first, one.most)
        least = max(0, one.least - n_first)
        if not has_more:
            return None if least else (n_first, 0, 0)
        most = None if one.most is None else one.most - n_first
        if one.prefix and one.items is None:
            most = least
        return (n_first, least, most)

    def _array(self, one: Alternative) -> str:
        n_first, least, most = self._lengths(one) or (0, 0, 0)
        items = [self._value(item) for item in one.prefix[:n_first]]
        space = self._base("space")
        text = f' "," {space} '.join(items)
        if most != 0:
            item = self._value(one.items or ())
            if items:
                more = f' ( "," {space} {item} )'
                text += more + self._times(one, "minItems", least, most)
            else:
                rest = None if most is None else most - 1
                text = f'{item} ( "," {space} {item} )'
                text += self._times(one, "minItems", max(0, least - 1), rest)
                text = text if least else f"( {text} )?"
        return f'"[" {space} {text} {space} "]"' if text else f'"[" {space} "]"'

    # --- objects ---

    def _object(self, one: Alternative) -> str:
        named, required = self._named(one)
        must = set(required)
        optional = [name for name in named if name not in must]
        missing = max(0, one.least - len(required))
        required += optional[:missing]
        del optional[:missing]
        missing = max(0, one.least - len(required))
        if one.most is not None:
            del optional[max(0, one.most - len(required)) :]
        pairs = {name: self._pair(literal(_json(name)), named[name]) for name in named}
        room = None if one.most is None else one.most - len(required) - len(optional)
        others = self._others(one, list(named)) if room != 0 else None
        if missing > (1 if others else 0):
            why = f"is {one.least}, which is more than a grammar can keep apart"
            self._unfollowed(one, "minProperties", why)
        return self._members(
            [pairs[name] for name in required], [pairs[name] for name in optional], others,
            min(missing, 1), room,
        )  # fmt: skip

    def _named(self, one: Alternative) -> tuple[dict[str, Conjunction], list[str]]:
        """The properties that an object may have, and which of them it must."""
        names = dict.fromkeys((*one.properties, *one.required))
        for value in self._key_values(one):
            names.setdefault(value)
        self._normal.count(len(names) * (1 + len(one.by_pattern)) // 8)
        for name in names:
            for expression in one.by_pattern:
                if matches(expression, name) is None:
                    why = f"has {expression!r:.60}, which may be about the property {name!r:.40}"
                    self._unfollowed(one, "patternProperties", why)
        named = {name: property_schemas(one, name) for name in names if name not in one.forbidden}
        named = {
            name: schemas
            for name, schemas in named.items()
            if self._has_value(schemas) and self._normal.accepts(name, one.names)
        }
        required = set(one.required)
        return named, [name for name in named if name in required]

    def _key_values(self, one: Alternative) -> list[str]:
        """The names that `propertyNames` allows, if it lists them."""
        if not one.names or one.additional == NEVER:
            return []
        texts = [key for key in self._normal.of(one.names) if key.kind == "string"]
        return [value for key in texts for value in (key.values or {}).values()]

    def _others(self, one: Alternative, named: list[str]) -> str | None:
        """A pair with another name; None where there is none."""
        schemas = one.additional
        if schemas is None and (named or (one.listed and not one.by_pattern)):
            return None
        excluded = sorted({*named, *one.properties, *one.forbidden})
        if one.by_pattern:
            if excluded or len(one.by_pattern) > 1 or one.names:
                return None
            ((expression, inner),) = one.by_pattern.items()
            if not self._has_value(inner):
                return None
            return self._pair(f'"\\"" ({patterns.pattern(expression).body}) "\\""', inner)
        if schemas is not None and not self._has_value(schemas):
            return None
        key = self._other_key(one, excluded)
        return key and self._pair(key, schemas or ())

    def _other_key(self, one: Alternative, excluded: list[str]) -> str | None:
        if one.names:
            texts = [key for key in self._normal.of(one.names) if key.kind == "string"]
            if not any(key.free for key in texts):
                can_follow = len(texts) == 1 and texts[0].values is None and not excluded
                return self._string(texts[0]) if can_follow else None
        if not excluded:
            return self._base("string")
        return f'"\\"" ({self._not_one_of(excluded)}) "\\""'

    def _not_one_of(self, names: Sequence[str], depth: int = 0) -> str:
        """GBNF of the end of a name that is none of some, whose first `depth` characters it has."""
        groups: dict[str, list[str]] = {}
        for name in names:
            if len(name) > depth:
                groups.setdefault(name[depth], []).append(name)
        self._normal.count(1 + len(names) // 8)
        choices = []
        if all(len(name) > depth for name in names) and depth < _KEY_MOST:
            choices.append('""')
        for char, group in groups.items():
            code = ord(char)
            if depth < _KEY_MOST and any(low <= code <= high for low, high in patterns.PLAIN):
                inner = self._not_one_of(group, depth + 1)
                choices.append(f"{patterns.character(((code, code),))} ({inner})")
        left = patterns.subtracted(patterns.PLAIN, tuple((ord(c), ord(c)) for c in groups))
        choices.append(f"{patterns.character(left)} {self._base('char')}*")
        return " | ".join(choices)

    def _pair(self, key: str, schemas: Conjunction) -> str:
        space = self._base("space")
        return self._new(f'{key} {space} ":" {space} {self._value(schemas)}')

    def _members(
        self, required: list[str], optional: list[str], others: str | None, least: int,
        room: int | None,
    ) -> str:  # fmt: skip
        """An object of pairs: those required, some of the optional ones, then others."""
        space = self._base("space")
        comma = f'"," {space} '
        rest = ""
        if others:
            rest = f"( {comma}{others} ){patterns.times(least, room)}"
        tails = [rest]
        for pair in reversed(optional):
            tail = f"( {comma}{pair} )? {tails[-1]}".rstrip()
            tails.append(self._new(tail))
        if required:
            inner = f" {comma}".join(required) + f" {tails[-1]}".rstrip()
        else:
            firsts = [f"{pair} {tails[-2 - i]}".rstrip() for i, pair in enumerate(optional)]
            if others:
                more = None if room is None else room - 1
                firsts.append(f"{others} ( {comma}{others} ){patterns.times(0, more)}")
            must = "" if least else "?"
            inner = f"( {' | '.join(firsts)} ){must}" if firsts else ""
        return f'"{{" {space} {inner} {space} "}}"' if inner else f'"{{" {space} "}}"'


def _format(one: Alternative) -> str:
    """The expression of a text's format; empty for a format that is a note, as one is whose texts
    do not all have the lengths that are demanded."""
    if one.format not in _FORMATS:
        return ""
    text = f"^({_FORMATS[one.format]})$"
    read = patterns.pattern(text)
    fits = one.most is None or (read.most is not None and read.most <= one.most)
    return text if fits and one.least <= read.least else ""


def literal(text: str) -> str:
    """GBNF of one text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\x7f", "\\x7F")
    return f'"{escaped}"'


def _json(value: Any, separators: tuple[str, str] | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair, which JSON can write
        return json.dumps(value, separators=separators)
    return text


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
