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
            schemas
            for alternative in ones
            if not alternative.free
            for schemas in self._children(alternative)
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

    def _unfollowed(self, alternative: Alternative, key: str, why: str) -> None:
        self._normal.unfollowed(below(alternative.place, key), why)

    # --- what has a value at all ---

    def _find_possible(self, wanted: Iterable[Conjunction]) -> None:
        """Finds the schemas that have a value, from the ones within to the ones around them."""
        alternatives: dict[tuple[int, ...], Sequence[Alternative]] = {}
        left = list(wanted)
        while left:
            schemas = left.pop()
            key = conjunction_key(schemas)
            if key not in alternatives:
                alternatives[key] = self._normal.of(schemas)
                for alternative in alternatives[key]:
                    left += self._children(alternative)
        grows = True
        while grows:
            grows = False
            for key, ones in reversed(alternatives.items()):  # those within come first
                if key not in self._possible and any(map(self._is_possible, ones)):
                    self._possible.add(key)
                    grows = True

    def _impossible(self, schemas: Conjunction, seen: set[tuple[int, ...]]) -> str:
        """The place of the innermost schema that is needed and has no value."""
        seen.add(conjunction_key(schemas))
        for alternative in self._normal.of(schemas):
            self._normal.count(1 + alternative.weight // 8)
            needed = [property_schemas(alternative, name) for name in alternative.required]
            needed += [*alternative.prefix, alternative.items or ()][: alternative.least]
            for inner in needed:
                if not self._has_value(inner) and conjunction_key(inner) not in seen:
                    return self._impossible(inner, seen)
        return self._normal.references.place(schemas[-1])

    def _children(self, alternative: Alternative) -> Iterator[Conjunction]:
        self._normal.count(1 + alternative.weight // 8)
        if alternative.values is not None:
            return
        yield from alternative.prefix
        yield alternative.items or ()
        for name in (*alternative.properties, *alternative.required):
            yield property_schemas(alternative, name)
        yield alternative.additional or ()
        yield from alternative.by_pattern.values()

    def _has_value(self, schemas: Conjunction) -> bool:
        return conjunction_key(schemas) in self._possible

    def _is_possible(self, alternative: Alternative) -> bool:
        self._normal.count(1 + alternative.weight // 8)
        if alternative.values is not None:
            return True
        if alternative.kind == "number":
            return bool(self._number(alternative))
        if alternative.kind == "array":
            return self._lengths(alternative) is not None
        if alternative.kind == "object":
            names = dict.fromkeys(alternative.required)
            return all(
                self._has_value(property_schemas(alternative, name))
                and self._normal.accepts(name, alternative.names)
                for name in names
            ) and (alternative.most is None or len(names) <= alternative.most)
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
        choices = [
            self._one(alternative)
            for alternative in ones
            if alternative.free or self._is_possible(alternative)
        ]
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
            needed = {rule: self._base(rule) for rule in _BASE if f"{{{rule}}}" in _BASE[name]}
            has_names = needed or "{{" in _BASE[name]
            self._rules[full] = _BASE[name].format(**needed) if has_names else _BASE[name]
        return full

    def _one(self, alternative: Alternative) -> str:
        if alternative.values is not None:
            return " | ".join(map(self._constant, alternative.values.values()))
        if alternative.free or alternative.kind in ("boolean", "null"):
            return self._base(alternative.kind)
        if alternative.kind == "number":
            return self._number(alternative)
        return {"string": self._string, "array": self._array, "object": self._object}[
            alternative.kind
        ](alternative)

    def _constant(self, value: Any) -> str:
        if not isinstance(value, list | dict):
            return literal(_json(value))
        space = self._base("space")
        breaks = {"\0": f'"," {space}', "\1": f'":" {space}'}  # JSON has no such characters
        parts = re.split("([\0\1])", _json(value, ("\0", "\1")))
        return " ".join(breaks.get(part) or literal(part) for part in parts)

    def _number(self, number: Alternative) -> str:
        if not number.whole:
            return numbers.numbers(number.interval)
        if number.step < _MOST and str(number.step).strip("0") == "1":
            return numbers.integers(number.interval, number.step)
        first, last = number.interval.whole()
        first, last = -(-first // number.step), last // number.step
        if last - first > 1000:
            why = f"is {number.step}, but must be a power of 10, or have at most 1,000 multiples"
            self._unfollowed(number, "multipleOf", why)
            return numbers.integers(number.interval)
        return " | ".join(literal(str(number.step * n)) for n in range(first, last + 1))

    def _string(self, string: Alternative) -> str:
        least, most = string.least, string.most
        if len(string.patterns) > 1:
            self._unfollowed(string, "pattern", "is one of several")
        if text := string.patterns[0] if string.patterns else _format(string):
            read = patterns.pattern(text)
            too_long = most is not None and (read.most is None or read.most > most)
            if read.single and (too_long or read.least < least):
                low, high = max(least, read.least), _least(most, read.most)
                if high is None or low <= high:
                    return f'"\\"" {read.single}{self._times(string, "minLength", low, high)} "\\""'
            if too_long or read.least < least:
                key = "maxLength" if too_long else "minLength"
                self._unfollowed(string, key, "is combined with a pattern of other lengths")
            return f'"\\"" ({read.body}) "\\""'
        if not least and most is None:
            return self._base("string")
        return f'"\\"" {self._base("char")}{self._times(string, "minLength", least, most)} "\\""'

    def _times(self, string: Alternative, key: str, least: int, most: int | None) -> str:
        if least > patterns.REPEATS_MOST:
            why = f"is {string.least}, but a grammar can count to {patterns.REPEATS_MOST}"
            self._unfollowed(string, key, why)
            least = patterns.REPEATS_MOST
        return patterns.times(least, None if most is None else min(max(most, least), _MOST))

    def _lengths(self, array: Alternative) -> tuple[int, int, int | None] | None:
        """Returns the numbers of items of `prefix` in a list, and of others; None = it cannot
        be."""
        n_first = next(
            (i for i, item in enumerate(array.prefix) if not self._has_value(item)),
            len(array.prefix),
        )
        has_more = n_first == len(array.prefix) and self._has_value(array.items or ())
        if array.most is not None:
            n_first = min(n_first, array.most)
        least = max(0, array.least - n_first)
        if not has_more:
            return None if least else (n_first, 0, 0)
        most = None if array.most is None else array.most - n_first
        if array.prefix and array.items is None:
            most = least
        return (n_first, least, most)

    def _array(self, array: Alternative) -> str:
        n_first, least, most = self._lengths(array) or (0, 0, 0)
        items = [self._value(item) for item in array.prefix[:n_first]]
        space = self._base("space")
        text = f' "," {space} '.join(items)
        if most != 0:
            item = self._value(array.items or ())
            if items:
                more = f' ( "," {space} {item} )'
                text += more + self._times(array, "minItems", least, most)
            else:
                rest = None if most is None else most - 1
                text = f'{item} ( "," {space} {item} )'
                text += self._times(array, "minItems", max(0, least - 1), rest)
                text = text if least else f"( {text} )?"
        return f'"[" {space} {text} {space} "]"' if text else f'"[" {space} "]"'

    # --- objects ---

    def _object(self, alternative: Alternative) -> str:
        named, required = self._named(alternative)
        must = set(required)
        optional = [name for name in named if name not in must]
        missing = max(0, alternative.least - len(required))
        required += optional[:missing]
        del optional[:missing]
        missing = max(0, alternative.least - len(required))
        if alternative.most is not None:
            del optional[max(0, alternative.most - len(required)) :]
        pairs = {name: self._pair(literal(_json(name)), named[name]) for name in named}
        room = (
            None if alternative.most is None else alternative.most - len(required) - len(optional)
        )
        others = self._others(alternative, list(named)) if room != 0 else None
        if missing > (1 if others else 0):
            why = f"is {alternative.least}, which is more than a grammar can keep apart"
            self._unfollowed(alternative, "minProperties", why)
        return self._members(
            [pairs[name] for name in required], [pairs[name] for name in optional], others,
            min(missing, 1), room,
        )  # fmt: skip

    def _named(self, alternative: Alternative) -> tuple[dict[str, Conjunction], list[str]]:
        """The properties that an object may have, and which of them it must."""
        names = dict.fromkeys((*alternative.properties, *alternative.required))
        for value in self._key_values(alternative):
            names.setdefault(value)
        self._normal.count(len(names) * (1 + len(alternative.by_pattern)) // 8)
        for name in names:
            for expression in alternative.by_pattern:
                if matches(expression, name) is None:
                    why = f"has {expression!r:.60}, which may be about the property {name!r:.40}"
                    self._unfollowed(alternative, "patternProperties", why)
        named = {
            name: property_schemas(alternative, name)
            for name in names
            if name not in alternative.forbidden
        }
        named = {
            name: schemas
            for name, schemas in named.items()
            if self._has_value(schemas) and self._normal.accepts(name, alternative.names)
        }
        required = set(alternative.required)
        return named, [name for name in named if name in required]

    def _key_values(self, alternative: Alternative) -> list[str]:
        """The names that `propertyNames` allows, if it lists them."""
        if not alternative.names or alternative.additional == NEVER:
            return []
        texts = [key for key in self._normal.of(alternative.names) if key.kind == "string"]
        return [value for key in texts for value in (key.values or {}).values()]

    def _others(self, alternative: Alternative, named: list[str]) -> str | None:
        """A pair with another name; None where there is none."""
        schemas = alternative.additional
        if schemas is None and (named or (alternative.listed and not alternative.by_pattern)):
            return None
        excluded = sorted({*named, *alternative.properties, *alternative.forbidden})
        if alternative.by_pattern:
            if excluded or len(alternative.by_pattern) > 1 or alternative.names:
                return None
            ((expression, inner),) = alternative.by_pattern.items()
            if not self._has_value(inner):
                return None
            return self._pair(f'"\\"" ({patterns.pattern(expression).body}) "\\""', inner)
        if schemas is not None and not self._has_value(schemas):
            return None
        key = self._other_key(alternative, excluded)
        return key and self._pair(key, schemas or ())

    def _other_key(self, alternative: Alternative, excluded: list[str]) -> str | None:
        if alternative.names:
            texts = [key for key in self._normal.of(alternative.names) if key.kind == "string"]
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


def _format(string: Alternative) -> str:
    """The expression of a text's format; empty for a format that is a note, as one is whose texts
    do not all have the lengths that are demanded."""
    if string.format not in _FORMATS:
        return ""
    text = f"^({_FORMATS[string.format]})$"
    read = patterns.pattern(text)
    fits = string.most is None or (read.most is not None and read.most <= string.most)
    return text if fits and string.least <= read.least else ""


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
