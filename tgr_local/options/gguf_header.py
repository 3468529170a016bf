"""The header of a GGUF file: metadata, and where each tensor is. No tensor data is read.

Files come from strangers: every count, length and offset is checked against the file and against
fixed limits, so that a damaged or hostile file costs bounded time and memory. Little-endian files
of version 2 and 3.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.system.errors import ModelError

F32 = 0
"""The number of float32 in ggml's enum ``ggml_type``."""
FLOAT32_VALUE = 6
"""The number of float32 among GGUF's value types."""

# GGUF's value types by number: formats of struct, and two without a fixed size
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 22  # keys, tensors and strings in arrays; a large vocabulary has 2^19
_MAX_TEXT, _MAX_TEXTS = 1 << 20, 1 << 24  # bytes read of one string, and of all together
_MAX_DIMENSIONS = 4
_ALIGNMENT = 32  # bytes, unless general.alignment says otherwise


_HEAD = 512  # bytes that tell what a file is; a pointer of Git LFS has about 130
_POINTERS = (b"version https://git-lfs.github.com/spec/", b"# xet version")
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<!--", b"<?xml")
_OTHER_FORMATS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_NAMED = 3  # files of a folder in a sentence
_CONVERT = (
    "convert the model with llama.cpp's convert_hf_to_gguf.py, or download it as GGUF with "
    "tgr-local models pull OWNER/REPO:QUANTIZATION"
)
_DOWNLOAD = (
    "download the file itself, as tgr-local models pull OWNER/REPO:QUANTIZATION does (at Hugging "
    "Face its address has /resolve/, its page's has /blob/)"
)


@dataclass(frozen=True)
class Tensor:
    """A tensor as the header describes it."""

    shape: tuple[int, ...]
    """The fastest-changing dimension first."""
    ggml_type: int
    offset: int
    """Bytes from the beginning of the tensor data."""


@dataclass(frozen=True)
class Array:
    """An array of numbers among the metadata."""

    value_type: int
    """GGUF's number of the type."""
    length: int
    offset: int
    """Bytes from the beginning of the file."""


@dataclass(frozen=True)
class GgufHeader:
    """Contents of the header of this file, which may be one part of a split model."""

    n_bytes: int
    """Size of the file."""
    metadata: dict[str, str]
    """Values in the notation of llama.cpp, at most 2^20 bytes of a string; for an array only its
    length: ``[512]``."""
    arrays: dict[str, Array]
    """The arrays of numbers by key."""
    tensors: dict[str, Tensor]
    data_offset: int
    """Offset of the tensor data, bytes from the beginning of the file."""

    @property
    def n_parameters(self) -> int:
        """Number of elements of all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def whole(self, key: str) -> int | None:
        """A whole number of the model's architecture, such as ``block_count``."""
        of = self.metadata.get("general.architecture", "unknown")
        return whole_number(self.metadata.get(f"{of}.{key}"))


def read(path: Path) -> GgufHeader:
    """Reads the header. Raises ModelError for a file that is not GGUF or is damaged, OSError as
    `open` does."""
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise ModelError(f"{path} is not a file; name a GGUF file")
    with open(path, "rb") as file:
        check_kind(path, file.read(_HEAD))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _HeaderReader(data, os.fstat(file.fileno()).st_size).header()
            except (ValueError, RecursionError) as error:
                raise ModelError(f"{path} has a damaged header: {error}") from None


def whole_number(text: str | None) -> int | None:
    """The number that a text of digits is, else None."""
    return int(text) if text and re.fullmatch("[0-9]{1,20}", text) else None


def check_file(path: Path) -> None:
    """Raises ModelError for a path without a file, and as `check_kind` for a file that can be
    read."""
    if not os.path.lexists(path):
        raise ModelError(f"there is no file {path}; correct the path, or download the model")
    if path.is_dir():
        raise ModelError(f"{path} is a directory; {_in_folder(path)}")
    with contextlib.suppress(OSError):
        if path.is_file():
            with open(path, "rb") as file:
                check_kind(path, file.read(_HEAD))


def _in_folder(path: Path) -> str:
    """Returns advice to name one of a folder's files instead of the folder."""
    names = []
    with contextlib.suppress(OSError):
        names = sorted(entry.name for entry in path.iterdir())
    models = [name for name in names if name.lower().endswith(".gguf")]
    if not models and any(name.endswith(".safetensors") for name in names):
        return f"it has weights in another format; {_CONVERT}"
    more = f" and {len(models) - _NAMED} more" if len(models) > _NAMED else ""
    listed = f": {', '.join(models[:_NAMED])}{more}" if models else ""
    return f"name the GGUF file in it{listed}"


def check_kind(path: Path, head: bytes) -> None:
    """Raises ModelError for a file that begins with `head` and is not GGUF, with what it is
    instead: a download often gives something else under the name of the model."""
    if head.startswith(b"GGUF"):
        return
    start = head.removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if not head:
        fault = "is empty; download it again"
    elif head.startswith(_POINTERS):
        fault = f"is a Git LFS pointer, not the model itself; type git lfs pull, or {_DOWNLOAD}"
    elif start.startswith(_PAGES):
        fault = f"is a web page, not a model; {_DOWNLOAD}"
    elif len(head) < _HEAD and (text := _one_line(head)):
        fault = f"is not a GGUF file but a short text, {text!r:.80}; {_DOWNLOAD}"
    elif head[8:10] == b'{"' or path.suffix.lower() in _OTHER_FORMATS:
        fault = f"has weights in another format, not GGUF; {_CONVERT}"
    else:
        fault = "is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py"
    raise ModelError(f"{path} {fault}")


def _one_line(data: bytes) -> str:
    """A text in one line; empty where the bytes are not text."""
    try:
        text = " ".join(data.decode("utf-8").split())
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() else ""


class _HeaderReader:
    """Reads forward through the header, starting after the magic."""

    def __init__(self, data: mmap.mmap, n_bytes: int) -> None:
        self._data, self._n_bytes, self._at = data, n_bytes, 4
        self._n_entries, self._text_left = 0, _MAX_TEXTS
        self._arrays: dict[str, Array] = {}

    def header(self) -> GgufHeader:
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, but must be 2 or 3")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        self._count(n_tensors + n_values)
        metadata: dict[str, str] = {}
        for _ in range(n_values):
            key = self._text()
            metadata[key] = self._value(self._number("I"), key)
        tensors = {}
        for _ in range(n_tensors):
            name = self._text()
            tensors[name] = self._tensor()
        text = metadata.get("general.alignment", "")
        alignment = int(text) if text.isdecimal() and 0 < int(text) < 2**32 else _ALIGNMENT
        data_offset = -(-self._at // alignment) * alignment
        return GgufHeader(self._n_bytes, metadata, self._arrays, tensors, data_offset)

    def _count(self, n: int) -> None:
        self._n_entries += n
        if self._n_entries > _MAX_ENTRIES:
            raise ValueError(
                f"it has {self._n_entries} entries, but at most {_MAX_ENTRIES} are read"
            )

    def _number(self, kind: str) -> Any:
        begin = self._at
        self._skip(struct.calcsize(kind))
        (value,) = struct.unpack_from("<" + kind, self._data, begin)
        return value

    def _skip(self, n: int) -> None:
        self._at += n
        if self._at > len(self._data):
            raise ValueError("it ends too early")

    def _text(self) -> str:
        n = self._number("Q")
        self._skip(n)
        n_read = min(n, _MAX_TEXT)
        self._text_left -= n_read
        if self._text_left < 0:
            raise ValueError(f"its texts have more than {_MAX_TEXTS} characters together")
        begin = self._at - n
        return self._data[begin : begin + n_read].decode("utf-8", "replace")

    def _value(self, kind: int, key: str = "") -> str:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            value = self._number(_scalar(kind))
            if kind == FLOAT32_VALUE:
                return _shortest(value)
            return str(value).lower() if isinstance(value, bool) else str(value)
        kind, n = self._number("I"), self._number("Q")
        if kind in (_STRING, _ARRAY):
            self._count(n)
            for _ in range(n):
                if kind == _STRING:
                    self._skip(self._number("Q"))
                else:
                    self._value(kind)
        else:
            if key:
                self._arrays[key] = Array(kind, n, self._at)
            self._skip(n * struct.calcsize(_scalar(kind)))
        return f"[{n}]"

    def _tensor(self) -> Tensor:
        n_dimensions = self._number("I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {n_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dimensions))
        if (n_elements := math.prod(shape)) >= 2**63:
            raise ValueError(f"a tensor has {n_elements} elements")
        return Tensor(shape, self._number("I"), self._number("Q"))


def _shortest(value: float) -> str:
    """The shortest decimal that means the same float32: 0.8, not 0.800000011920929."""
    if math.isfinite(value):
        for digits in range(1, 9):
            shorter = float(f"{value:.{digits}g}")
            with contextlib.suppress(OverflowError):  # the greatest ones, rounded up
                if struct.pack("<f", shorter) == struct.pack("<f", value):
                    return str(shorter)
        value = float(f"{value:.9g}")
    return str(value)


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"a value is of type {kind}, but must be of 0 to 12")
    return _SCALARS[kind]
