"""A GGUF file as plain Python values, to be damaged in one place and written again.

Unlike the gguf package it writes whatever it is given: counts that lie, types that do not fit,
tensors that overlap. What is not touched comes out byte for byte as it was.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
I8, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 1, 4, 5, 6, 7, 8, 9, 10


@dataclass
class Array:
    kind: int
    items: list[Any]
    n: int | None = None
    """The length that the file states; None = the true one."""


@dataclass
class Tensor:
    name: bytes
    shape: list[int]
    kind: int
    offset: int


@dataclass
class Gguf:
    """`metadata` maps a key to its (kind, value), a value being a number, bytes or an `Array`."""

    metadata: dict[bytes, tuple[int, Any]] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    n_metadata: int | None = None
    """The counts that the header states; None = the true ones."""
    n_tensors: int | None = None
    alignment: int = 32
    order: str = "<"

    @classmethod
    def parse(cls, raw: bytes) -> Gguf:
        reader = _Reader(raw)
        magic, version, n_tensors, n_metadata = reader.take("4sIQQ")
        assert magic == b"GGUF"
        file = cls(version=version)
        for _ in range(n_metadata):
            key, (kind,) = reader.text(), reader.take("I")
            file.metadata[key] = (kind, reader.value(kind))
        for _ in range(n_tensors):
            name, (n_dims,) = reader.text(), reader.take("I")
            shape = list(reader.take(f"{n_dims}Q"))
            file.tensors.append(Tensor(name, shape, *reader.take("IQ")))
        file.data = raw[reader.at + -reader.at % file.alignment :]
        return file

    def set(self, key: str, value: Any, kind: int | None = None) -> None:
        """Replaces the value of a key, in its own type unless another is given."""
        old = self.metadata.get(key.encode(), (U32, None))[0]
        self.metadata[key.encode()] = (old if kind is None else kind, value)

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name.encode())

    def header(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_metadata = len(self.metadata) if self.n_metadata is None else self.n_metadata
        out = [self._pack("4sIQQ", b"GGUF", self.version, n_tensors, n_metadata)]
        for key, (kind, value) in self.metadata.items():
            out += [self._text(key), self._pack("I", kind), self._value(kind, value)]
        for tensor in self.tensors:
            out.append(self._text(tensor.name))
            out.append(self._pack(f"I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape))
            out.append(self._pack("IQ", tensor.kind, tensor.offset))
        return b"".join(out)

    def to_bytes(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data

    def _pack(self, layout: str, *values: Any) -> bytes:
        return struct.pack(self.order + layout, *values)

    def _text(self, text: bytes) -> bytes:
        return self._pack("Q", len(text)) + text

    def _value(self, kind: int, value: Any) -> bytes:
        if isinstance(value, Array):
            n = len(value.items) if value.n is None else value.n
            head = self._pack("IQ", value.kind, n)
            return head + b"".join(self._value(value.kind, item) for item in value.items)
        if kind == STRING:
            return self._text(value)
        if kind not in SCALARS:
            return bytes(value)  # an unknown type: the bytes as they are
        try:
            return self._pack(SCALARS[kind], value)
        except struct.error:  # a value of another type or range: its low bits
            size = struct.calcsize(SCALARS[kind])
            return int(value).to_bytes(16, "little", signed=True)[:size]


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.raw, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def text(self) -> bytes:
        (n,) = self.take("Q")
        self.at += n
        return self.raw[self.at - n : self.at]

    def value(self, kind: int) -> Any:
        if kind == ARRAY:
            item, n = self.take("IQ")
            return Array(item, [self.value(item) for _ in range(n)])
        return self.text() if kind == STRING else self.take(SCALARS[kind])[0]
