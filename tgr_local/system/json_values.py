"""Records (dataclasses with numbers, texts and arrays) as JSON values, and back.

`to_json_value` makes what `json.dumps` takes; `from_json_value` makes the record again from its
annotated types. Vectors as wide as the model (the fields in `VECTORS`) are left out unless asked
for, and then packed as base64 float32. Files are the callers' business.
"""

from __future__ import annotations

import base64
import dataclasses
import types
import typing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.system.json_checks import require_type

VECTORS = ("origin", "anchors", "anchor", "state")
"""Names of fields that hold vectors as wide as the model."""


def to_json_value(value: Any, vectors: bool = False) -> Any:
    """A record as JSON values: dicts for dataclasses, lists for arrays, null for inf and nan.

    With `vectors` the fields in `VECTORS` are packed, else they are null.
    """
    if dataclasses.is_dataclass(value):
        return {
            spec.name: _packed(getattr(value, spec.name), vectors)
            if spec.name in VECTORS
            else to_json_value(getattr(value, spec.name), vectors)
            for spec in dataclasses.fields(value)
        }
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        # str() of a numpy number is the shortest decimal that gives the same number again
        return [float(str(number)) if np.isfinite(number) else None for number in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [to_json_value(item, vectors) for item in value]
    return value


def _packed(array: NDArray[Any] | None, vectors: bool) -> dict[str, Any] | None:
    if array is None or not vectors:
        return None
    data = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    return {"shape": list(array.shape), "float32": data}


def from_json_value(kind: Any, value: Any) -> Any:
    """The inverse of `to_json_value` for an annotated type `kind`.

    An array that was left out is None where the type allows it, else empty. A field that the value
    lacks gets its default. ValueError, TypeError or KeyError for a value of another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        fields = require_type(dict, value)
        absent = _names_with_default(kind) - fields.keys()  # written before the field existed
        hints = typing.get_type_hints(kind).items()
        return make(**{n: from_json_value(t, fields[n]) for n, t in hints if n not in absent})
    if origin in (types.UnionType, typing.Union):
        return None if value is None else from_json_value(args[0], value)
    if origin is typing.Literal:
        if value not in args:
            raise ValueError(f"{value!r:.40} is not one of {', '.join(map(repr, args))}")
        return value
    if origin in (np.ndarray, NDArray):  # NDArray[X] is an alias of its own from numpy 2.5 on
        dtype = args[0] if origin is NDArray else typing.get_args(args[1])[0]
        if isinstance(value, dict):
            data = np.frombuffer(base64.b64decode(value["float32"]), "<f4")
            return data.reshape(value["shape"]).astype(dtype)
        return np.array([] if value is None else require_type(list, value), dtype)
    if origin in (list, tuple):
        return origin(from_json_value(args[0], item) for item in require_type(list, value))
    if kind is float and type(value) is int:
        return float(value)
    return require_type(origin or kind, value)


def _names_with_default(kind: Any) -> set[str]:
    missing = dataclasses.MISSING
    specs = dataclasses.fields(kind)
    return {s.name for s in specs if s.default is not missing or s.default_factory is not missing}
