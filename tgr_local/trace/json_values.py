"""Records as plain JSON values and back: dataclasses as dicts, arrays as lists.

Vectors as wide as the model are packed, and written only when asked for.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from typing import Any

import numpy as np
from numpy.typing import NDArray

VECTORS = ("origin", "anchors", "anchor", "state")


def plain(value: Any, vectors: bool = False) -> Any:
    """A record as JSON has it: dicts for dataclasses, lists for arrays, null for inf and nan."""
    if dataclasses.is_dataclass(value):
        return {
            spec.name: _packed(getattr(value, spec.name), vectors)
            if spec.name in VECTORS
            else plain(getattr(value, spec.name), vectors)
            for spec in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # str() of a numpy number is the shortest decimal that gives the same number again
        return [float(str(number)) if np.isfinite(number) else None for number in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one, vectors) for one in value]
    return value


def _packed(array: NDArray[Any] | None, vectors: bool) -> dict[str, Any] | None:
    if array is None or not vectors:
        return None
    data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    return {"shape": list(array.shape), "float32": data}


def parse(kind: Any, value: Any) -> Any:
    """The inverse of `plain` by annotated type; ValueError, TypeError or KeyError if it cannot.

    An array that was left out becomes an empty one where None is not allowed.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        hints = typing.get_type_hints(kind)
        fields = typed(dict, value)
        absent = _with_default(kind) - fields.keys()  # a file of before there was such a field
        return make(
            **{
                name: parse(hint, fields[name])
                for name, hint in hints.items()
                if name not in absent
            }
        )
    if origin in (types.UnionType, typing.Union):
        return None if value is None else parse(args[0], value)
    if origin is np.ndarray:
        dtype = typing.get_args(args[1])[0]
        if isinstance(value, dict):
            data = np.frombuffer(base64.b64decode(value["float32"]), "<f4")
            return data.reshape(value["shape"]).astype(dtype)
        return np.array([] if value is None else typed(list, value), dtype)
    if origin in (list, tuple):
        return origin(parse(args[0], one) for one in typed(list, value))
    if kind is float and type(value) is int:
        return float(value)
    return typed(origin or kind, value)


def _with_default(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    specs = dataclasses.fields(kind)
    return {s.name for s in specs if s.default is not missing or s.default_factory is not missing}


def typed(kind: Any, value: Any) -> Any:
    if kind is not Any and type(value) is not kind:
        raise TypeError(f"{value!r:.40} stands where a {kind.__name__} must be")
    return value
