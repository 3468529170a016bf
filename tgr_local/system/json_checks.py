"""Checks that values read from a JSON file have the types that the code relies on.

A shape is a type hint, a list of one shape, or a dict of shapes by key, where ``"key?"`` may be
missing and other keys may hold anything. `Annotated[int, 0]` is a whole number of at least 0.
Numbers must be finite and fit into 64 bits.
"""

from __future__ import annotations

import json
import math
import types
import typing
from typing import Annotated, Any

Count = Annotated[int, 0]
_NAMES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false",
          list: "a list", dict: "an object", types.NoneType: "null"}  # fmt: skip


def loads(text: str | bytes) -> Any:
    """A JSON value; ValueError for invalid JSON, including NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check(shape: Any, value: Any, key: str = "") -> None:
    """ValueError, naming the key and the value, where a value has another shape."""
    origin, args = typing.get_origin(shape), typing.get_args(shape)
    if isinstance(shape, dict):
        _check_keys(shape, value, key)
    elif isinstance(shape, list) or origin in (list, tuple):
        _check_type(list, value, key)
        (inner, *_) = shape if isinstance(shape, list) else args
        for i, item in enumerate(value):
            check(inner, item, f"{key}[{i}]")
    elif origin is Annotated:
        check(args[0], value, key)
        if value < args[1]:
            raise ValueError(f"{_describe(key, value)}, but must be at least {args[1]}")
    elif origin in (types.UnionType, typing.Union):
        kinds = [kind for kind in args if kind is not types.NoneType]
        if value is not None or len(kinds) == len(args):
            _check_any(kinds, value, key)
    elif origin is typing.Literal:
        if value not in args or not isinstance(value, str):
            raise ValueError(f"{_describe(key, value)}, but must be one of {', '.join(args)}")
    elif origin is dict:
        _check_type(dict, value, key)
        for name, item in value.items():
            check(args[1], item, f"{key}.{name}".lstrip("."))
    elif shape is not Any:
        _check_type(shape, value, key)


def _check_type(kind: Any, value: Any, key: str) -> None:
    """ValueError where a value is not of a plain type."""
    if not _is(kind, value):
        raise ValueError(f"{_describe(key, value)}, but must be {_NAMES[kind]}")


def _check_keys(shape: dict[str, Any], value: Any, key: str) -> None:
    _check_type(dict, value, key)
    for name, inner in shape.items():
        plain = name.removesuffix("?")
        if plain in value:
            check(inner, value[plain], f"{key}.{plain}".lstrip("."))
        elif plain == name:
            raise ValueError(f"{f'{key}.{name}'.lstrip('.')} is missing")


def _check_any(kinds: list[Any], value: Any, key: str) -> None:
    for kind in kinds:
        try:
            return check(kind, value, key)
        except ValueError as error:
            if len(kinds) == 1:
                raise
            last = error
    names = " or ".join(_NAMES.get(typing.get_origin(k) or k, str(k)) for k in kinds)
    raise ValueError(f"{_describe(key, value)}, but must be {names}") from last


def _is(kind: Any, value: Any) -> bool:
    if kind is float and type(value) is float:
        return math.isfinite(value)
    if kind in (int, float) and type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is kind and kind is not float


def _describe(key: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"{key or 'it'} is {text if len(text) <= 60 else text[:60] + '…'}"


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name}, which is not JSON")


def require_type(kind: Any, value: Any) -> Any:
    """`value` itself. TypeError unless its type is `kind` exactly; Any allows every type."""
    if kind is not Any and type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not of type {kind.__name__}")
    return value
