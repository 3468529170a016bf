"""Config fields: a dataclass field with documentation and bounds, and how values of it are checked,
parsed and replaced."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import field
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from tgr_local.options.former import removed_option_error


class Config(Protocol):
    """A dataclass whose fields are made by `option`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


_Config = TypeVar("_Config", bound=Config)
LISTING = "tgr-local run --help-all has all"
"""Advice for an unknown option name."""
_INT_MAX = 2**31 - 1  # the engine counts in 32 bits
_NAME_LENGTH = 64  # characters of a name that is compared with known ones
_BOOLS = {
    "true": True, "on": True, "yes": True, "1": True,
    "false": False, "off": False, "no": False, "0": False,
}  # fmt: skip


def option(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    longest: int | None = None,
    most: int | None = None,
    is_path: bool = False,
    words: Mapping[str, int] | None = None,
) -> Any:
    """A dataclass field with its documentation and its bounds, all inclusive: of a number, the
    characters of a text, and the number of items. A text that `is_path` names a file of this
    machine, which no request over HTTP may set. `words` are what a user may write instead of some
    numbers."""
    bounds = {"low": low, "high": high, "choices": choices, "longest": longest, "most": most}
    about = {"doc": doc, "is_path": is_path, "words": words or {}}
    return field(default=default, metadata=about | bounds)


def given_names(config: Config) -> frozenset[str]:
    """The names of the fields that a config of a type with `notes_given` was given."""
    names: frozenset[str] = vars(config)["given"]
    return names


def notes_given(config_type: type[_Config]) -> type[_Config]:
    """Decorates a config that has a pseudo-field ``given: InitVar[frozenset[str] | None]``:
    each instance knows the names of the fields that it was given. `dataclasses.replace` keeps them,
    and adds the fields whose value is not the default's."""
    make: Any = config_type.__init__
    names = [spec.name for spec in dataclasses.fields(config_type)]
    defaults = {spec.name: spec.default for spec in dataclasses.fields(config_type)}

    @functools.wraps(make)
    def init(self: Any, *args: Any, given: frozenset[str] | None = None, **values: Any) -> None:
        make(self, *args, given=None, **values)
        named = frozenset((*names[: len(args)], *values))
        if given is not None:
            named -= given
            named = given | {name for name in named if getattr(self, name) != defaults[name]}
        object.__setattr__(self, "given", named)

    config_type.__init__ = init  # type: ignore[method-assign]
    return config_type


def group_of(config_type: type[Config], name: str) -> type[Config]:
    """The class that declares a field: the config, or a base of it."""
    bases = (base for base in config_type.__bases__ if dataclasses.is_dataclass(base))
    return next((base for base in bases if name in base.__dataclass_fields__), config_type)


def types_of(config_type: Any) -> dict[str, Any]:
    """The types of a config's fields. (``typing.get_type_hints`` of Python 3.10 refuses the class,
    whose pseudo-fields have no types.)"""
    texts = {field.name: field.type for field in dataclasses.fields(config_type)}
    names = vars(sys.modules[config_type.__module__])
    return typing.get_type_hints(SimpleNamespace(__annotations__=texts), names)


class _Rule(NamedTuple):
    """Constraint on the value of a field."""

    name: str
    type: Any
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None
    longest: int | None
    most: int | None
    is_text: bool
    """Whether it has texts that are no paths."""

    def checked(self, value: Any) -> Any:
        """The value as the field holds it. Raises ValueError."""
        _check_type(self.name, value, self.type)
        if self.choices and value not in self.choices:
            raise ValueError(
                f"{self.name} is {value!r:.80}, but must be one of {', '.join(self.choices)}"
            )
        _check_size(self.name, value, self.longest, self.most)
        for number in value if isinstance(value, tuple) else (value,):
            self._check_number(number, value)
        return float(value) if self.type is float else value  # a whole number is one too

    def _check_number(self, number: Any, value: Any) -> None:
        low, high = self.low, self.high
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{self.name} is {number}, but must be a finite number")
        if number == "" and isinstance(value, tuple):
            raise ValueError(f"{self.name} holds an empty text; remove it")
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError(f"{self.name} is {number}, but must be {interval(low, high)}")
        if self.type is float and abs(number) > sys.float_info.max:
            raise ValueError(f"{self.name} is {number!r:.20}…, but must be a finite number")


@functools.cache
def _rules(config_type: type[Config]) -> tuple[_Rule, ...]:
    types = types_of(config_type)
    rules = []
    for spec in dataclasses.fields(config_type):
        bounds = dict(spec.metadata)
        is_text = types[spec.name] in (str, tuple[str, ...]) and not bounds["is_path"]
        del bounds["doc"], bounds["is_path"], bounds["words"]
        rule = _Rule(spec.name, types[spec.name], spec.default, **bounds, is_text=is_text)
        if rule.type is int and rule.high is None:
            rule = rule._replace(high=_INT_MAX)
        rule.checked(spec.default)
        rules.append(rule)
    return tuple(rules)


def validate(config: Config) -> None:
    """Raises ValueError for the first field whose value is of the wrong type or out of bounds."""
    values = vars(config)
    for rule in _rules(type(config)):
        if (value := values[rule.name]) is not rule.default:  # which is good
            object.__setattr__(config, rule.name, rule.checked(value))


def check_unicode(config: Config) -> None:
    """Raises ValueError for the first text that is not a path and that the engine cannot take: one
    with half a surrogate pair."""
    for rule in _rules(type(config)):
        if not rule.is_text:
            continue
        value = getattr(config, rule.name)
        for text in value if isinstance(value, tuple) else (value,):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{rule.name} is {value!a:.80}, but must be valid Unicode, which it is not at "
                    f"character {error.start}; remove that character"
                ) from None


def _check_type(name: str, value: object, expected: Any) -> None:
    many = typing.get_origin(expected) is tuple
    kind = typing.get_args(expected)[0] if many else expected
    accepted = (int, float) if kind is float else kind
    items = value if many and isinstance(value, tuple) else (value,)
    right = [
        isinstance(item, accepted) and (kind is bool or not isinstance(item, bool))
        for item in items
    ]
    if not all(right) or (many and not isinstance(value, tuple)):
        raise ValueError(
            f"{name} is {value!r:.80}, but must be of type "
            f"{getattr(expected, '__name__', expected)}"
        )


def _check_size(name: str, value: Any, longest: int | None, most: int | None) -> None:
    texts = value if isinstance(value, tuple) else (value,)
    if most is not None and len(texts) > most:
        raise ValueError(f"{name} holds {len(texts)} texts, but may hold {most}; leave some out")
    if longest is not None and (length := max(map(len, texts), default=0)) > longest:
        raise ValueError(f"{name} has {length} characters, but may have {longest}; shorten it")


def interval(low: float | None, high: float | None) -> str:
    """Bounds in words, both inclusive."""
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"between {low} and {high}"


def near_names(name: str, known: Collection[str]) -> list[str]:
    """Up to three known names that begin like `name`, or are like it."""
    near = [one for one in known if name and one.startswith(name)][:3]
    return near or difflib.get_close_matches(name[:_NAME_LENGTH], known, n=3)


def updated(config: _Config, values: Mapping[str, Any]) -> _Config:
    """`config` with some fields replaced. ValueError for an unknown key, naming near ones."""
    known = [rule.name for rule in _rules(type(config))]
    for key in values:
        if key not in known:
            near = near_names(key, known)
            hint = f"did you mean {', '.join(near)}?" if near else LISTING
            raise ValueError(removed_option_error(key) or f"unknown option {key!r:.80}; {hint}")
    return dataclasses.replace(config, **values)


def parse(
    config_type: type[Config],
    name: str,
    text: str,
) -> Any:
    """The value of a field as a user writes it: ``0.6``, ``on``, ``3,1``. Raises ValueError."""
    types = types_of(config_type)
    if name not in types:
        updated(config_type(), {name: text})
    kind = types[name]
    words: Mapping[str, int] = config_type.__dataclass_fields__[name].metadata["words"]
    if text in words:
        return words[text]
    try:
        if kind is bool:
            return _BOOLS[text.lower()]
        if kind == tuple[float, ...]:
            return tuple(float(part) for part in text.split(",") if part)
        if kind == tuple[str, ...]:
            return (text,)
        return kind(text)
    except (ValueError, KeyError):
        wanted = {bool: "on or off", int: "a whole number", float: "a number"}.get(
            kind, "numbers, such as 3,1"
        )
        raise ValueError(f"{name} is {text!r}, but must be {wanted}") from None
