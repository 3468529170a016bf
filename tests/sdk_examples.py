"""Values of the types that the official packages of OpenAI and Anthropic have."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Any

import typing_extensions


def example(kind: Any) -> Any:
    """A value of a type of the official packages with what it requires, and nothing more."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if typing_extensions.is_typeddict(kind):
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        required = [
            name
            for name, hint in hints.items()
            if typing.get_origin(hint) is typing_extensions.Required
            or (kind.__total__ and typing.get_origin(hint) is not typing_extensions.NotRequired)
        ]
        return {name: example(hints[name]) for name in required}
    if origin in (typing.Literal, typing_extensions.Literal):
        return args[0]
    if origin in (typing.Union, typing.Annotated, typing_extensions.Required):
        return example(args[0])
    if kind in (str, int, float, bool):
        return {str: "x", int: 1, float: 1.0, bool: True}[kind]
    if kind is type(None):
        return None
    if origin is not None and issubclass(origin, Mapping):
        return {}
    if origin is not None and issubclass(origin, Iterable):
        return [example(args[0])]
    return {}


def members(union: Any) -> list[Any]:
    found = [one for one in typing.get_args(union) if typing_extensions.is_typeddict(one)]
    assert found
    return found
