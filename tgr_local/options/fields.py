"""Config fields: a dataclass field with documentation and bounds, and how values of it are checked,
parsed and replaced."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import typing
from collections.abc import Mapping
from dataclasses import field
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, TypeVar

from tgr_local.options.former import removed_option_error
from tgr_local.system.near_names import did_you_mean


class Config(Protocol):
    """A dataclass whose fields are made by `option`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


_Config = TypeVar("_Config", bound=Config)
LISTING = "tgr-local run --help-all has all"
"""Advice for an unknown option name."""
INT_MAX = 2**31 - 1
"""The largest whole number of an option without an upper bound; the engine counts in 32 bits."""
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


class _Rule:
    """How the values of a field are parsed and checked."""

    def __init__(self, spec: dataclasses.Field[Any], type_: Any) -> None:
        self.name, self.default, self.type = spec.name, spec.default, type_
        self.many = typing.get_origin(type_) is tuple
        self.kind = typing.get_args(type_)[0] if self.many else type_
        self.low, self.high = spec.metadata["low"], spec.metadata["high"]
        if type_ is int and self.high is None:
            self.high = INT_MAX
        self.choices, self.words = spec.metadata["choices"], spec.metadata["words"]
        self.longest, self.most = spec.metadata["longest"], spec.metadata["most"]
        self.is_text = self.kind is str and not spec.metadata["is_path"]
        """Whether it has texts that are no paths."""

    def parsed(self, value: Any) -> Any:
        """The value that a user has written, see `parse`. Raises ValueError."""
        if isinstance(value, list):
            if not self.many:
                raise ValueError(f"{self.name} is a list, but must be one value")
            return tuple(part for item in value for part in self.parsed(item))
        if type(value) is self.type:
            return value
        text = as_written(value)
        try:
            if self.kind is str:
                return (text,) if self.many else text
            if self.kind is bool:
                return _BOOLS[text.lower()]
            if self.many:
                return tuple(float(part) for part in text.split(",") if part)
            return self.words[text] if text in self.words else self.kind(text)
        except (ValueError, KeyError):
            wanted = {bool: "on or off", int: "a whole number", float: "a number"}
            meant = wanted.get(self.type, "numbers, such as 3,1")
            raise ValueError(f"{self.name} is {text!r:.80}, but must be {meant}") from None

    def checked(self, value: Any) -> Any:
        """The value as the field holds it. Raises ValueError."""
        name, low, high = self.name, self.low, self.high
        items = value if self.many and isinstance(value, tuple) else (value,)
        accepted = (int, float) if self.kind is float else self.kind
        is_bool = self.kind is bool
        right = [isinstance(item, accepted) and isinstance(item, bool) == is_bool for item in items]
        if not all(right) or self.many != isinstance(value, tuple):
            wanted = getattr(self.type, "__name__", self.type)
            raise ValueError(f"{name} is {value!r:.80}, but must be of type {wanted}")
        if self.choices and value not in self.choices:
            raise ValueError(
                f"{name} is {value!r:.80}, but must be one of {', '.join(self.choices)}"
            )
        if self.most is not None and (n := len(items)) > self.most:
            raise ValueError(f"{name} holds {n} texts, but may hold {self.most}; leave some out")
        if self.longest is not None and (n := max(map(len, items), default=0)) > self.longest:
            raise ValueError(f"{name} has {n} characters, but may have {self.longest}; shorten it")
        for item in items:
            if isinstance(item, float) and not math.isfinite(item):
                raise ValueError(f"{name} is {item}, but must be a finite number")
            if item == "" and self.many:
                raise ValueError(f"{name} holds an empty text; remove it")
            if (low is not None and item < low) or (high is not None and item > high):
                raise ValueError(f"{name} is {item}, but must be {interval(low, high)}")
            if self.type is float and abs(item) > sys.float_info.max:
                raise ValueError(f"{name} is {item!r:.20}…, but must be a finite number")
        return float(value) if self.type is float else value  # a whole number is one too


@functools.cache
def _rules(config_type: type[Config]) -> dict[str, _Rule]:
    types = types_of(config_type)
    rules = [_Rule(spec, types[spec.name]) for spec in dataclasses.fields(config_type)]
    for rule in rules:
        rule.checked(rule.default)
    return {rule.name: rule for rule in rules}


def validate(config: Config) -> None:
    """Raises ValueError for the first field whose value is of the wrong type or out of bounds."""
    values = vars(config)
    for name, rule in _rules(type(config)).items():
        if (value := values[name]) is not rule.default:  # which is good
            object.__setattr__(config, name, rule.checked(value))


def check_unicode(config: Config) -> None:
    """Raises ValueError for the first text that is not a path and that the engine cannot take: one
    with half a surrogate pair."""
    for name, rule in _rules(type(config)).items():
        if not rule.is_text:
            continue
        value = getattr(config, name)
        for text in value if rule.many else (value,):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{name} is {value!a:.80}, but must be valid Unicode, which it is not at "
                    f"character {error.start}; remove that character"
                ) from None


def interval(low: float | None, high: float | None) -> str:
    """Bounds in words, both inclusive."""
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"between {low} and {high}"


def updated(config: _Config, values: Mapping[str, Any]) -> _Config:
    """`config` with some fields replaced. ValueError for an unknown key, naming near ones."""
    for key in values:
        _rule(type(config), key)
    return dataclasses.replace(config, **values)


def parse(config_type: type[Config], name: str, value: Any) -> Any:
    """The value of a field as a user writes it: a text such as ``0.6``, ``on``, ``3,1``, a value of
    TOML, or a list of these for a field that may be given several times. Raises ValueError."""
    return _rule(config_type, name).parsed(value)


def _rule(config_type: type[Config], name: str) -> _Rule:
    """The rule of a field. Raises ValueError for an unknown one, naming near ones."""
    known = _rules(config_type)
    if name not in known:
        hint = did_you_mean(name, known, LISTING)
        raise ValueError(removed_option_error(name) or f"unknown option {name!r:.80}; {hint}")
    return known[name]


def as_written(value: Any) -> str:
    """A text, or a value of TOML as it stands in the file."""
    return str(value).lower() if isinstance(value, bool) else str(value)
