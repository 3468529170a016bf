"""Places of a schema's parts, and the targets of its references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

_PLACE_MOST = 200  # characters
_DATA = ("enum", "const", "default", "example", "examples")  # values, no schemas


class References:
    """The parts of one document. `place` names a part for an error: ``properties.a.items``."""

    def __init__(self, document: Any, count: Callable[[int], object]) -> None:
        """`count` is told of the steps that reading takes."""
        self._count = count
        self._places: dict[int, str] = {}
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": document}
        self._anchors: dict[tuple[str, str], Any] = {}
        parts: list[tuple[Any, str, str]] = [(document, "", "")]
        while parts:
            part, base, place = parts.pop()
            if not isinstance(part, dict | list):
                continue
            if isinstance(part, dict):
                base = self._add(part, base, place)
                inner = [(key, value) for key, value in part.items() if key not in _DATA]
            else:
                inner = [(str(i), value) for i, value in enumerate(part)]
            count(1 + len(inner) // 8)
            for key, value in inner:
                parts.append((value, base, below(place, key)))

    def _add(self, part: dict[str, Any], base: str, place: str) -> str:
        for key in ("$id", "id"):
            if isinstance(identifier := part.get(key), str) and not identifier.startswith("#"):
                self._count((len(base) + len(identifier)) // 64)
                base = _without_fragment(_joined(base, identifier))
                self._resources.setdefault(base, part)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := part.get(key), str):
                self._anchors.setdefault((base, anchor), part)
        self._places[id(part)], self._bases[id(part)] = place, base
        return base

    def place(self, part: Any) -> str:
        """The way to a part; empty for the whole."""
        return self._places.get(id(part), "")

    def target(self, part: Any, reference: str) -> Any:
        """Returns the target of a reference in a part. Raises KeyError if the document lacks it."""
        base = self._bases.get(id(part), "")
        if isinstance(reference, str):
            self._count((len(base) + len(reference)) // 64)
        where, fragment = urldefrag(_joined(base, reference))
        target = (
            self._resources[where] if where in self._resources else self._resources[f"{where}#"]
        )
        if fragment and not fragment.startswith("/"):
            return self._anchors[where, fragment]
        for step in unquote(fragment).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isascii() and name.isdigit():
                target = dict(enumerate(target))[int(name[:9])]
            elif isinstance(target, dict):
                target = target[name]
            else:
                raise KeyError(reference)
        if isinstance(target, dict) and id(target) not in self._places:
            self._places[id(target)], self._bases[id(target)] = fragment.strip("/"), where
        return target


def below(place: str, key: str) -> str:
    """The place of a part of what stands at `place`; of a long one its ends."""
    path = f"{place}.{key}".lstrip(".")
    half = _PLACE_MOST // 2
    return path if len(path) <= _PLACE_MOST else f"{path[:half]}…{path[1 - half :]}"


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # no address
        return reference


def _without_fragment(address: str) -> str:
    try:
        return urldefrag(address)[0]
    except ValueError:
        return address
