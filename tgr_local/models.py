"""Model files: the embedded one, those in the user's folder, and what a file says of itself.

A file is described from its header alone, without loading it.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local import places
from tgr_local.errors import ModelError, describe

# GGUF's value types by number: formats of struct, and two without a fixed size
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")  # llama.cpp finds it from the first


def embedded_model() -> Path:
    """The embedded GGUF: beside the native extension, or in the source tree; else ModelError."""
    extension = importlib.util.find_spec("tgr_local._engine")
    looked = [Path(__file__).resolve().parent.parent / "models" / "tgr-mini-q8_0.gguf"]
    if extension is not None and extension.origin:
        looked.insert(0, Path(extension.origin).with_name("embedded.gguf"))
    for path in looked:
        if path.is_file():
            return path
    raise ModelError(
        f"this installation has no embedded model (looked for {' and '.join(map(str, looked))}); "
        "name one with --model FILE"
    )


def folder() -> Path:
    """Where fetched models lie; it need not exist."""
    return places.folder("data") / "models"


def local() -> list[Path]:
    """The models that need no path: the embedded one, then those in the folder."""
    try:
        first = [embedded_model()]
    except ModelError:
        first = []
    found = (path for path in folder().rglob("*.gguf") if path.is_file())
    return first + sorted(path for path in found if not _LATER_PART.search(path.name))


def find(name: str) -> Path:
    """The file of that path, or the local model of that name, with or without its ``.gguf``.

    ModelError if there is none, with names that are near, or if there are several.
    """
    path = Path(name).expanduser()
    if path.exists() or len(path.parts) > 1:
        return path  # what is wrong with it, the engine says
    known = local()
    found = [p for p in known if name in (p.name, p.stem) or p == folder() / name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(f"{name!r} names several models: {', '.join(map(str, found))}")
    near = difflib.get_close_matches(name, {p.stem for p in known}, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "tgr-local models lists what there is"
    raise ModelError(f"there is no model {name}; {hint}")


@dataclass(frozen=True)
class Card:
    """What a model file says of itself."""

    path: Path
    size: int
    """Bytes."""
    parameters: int
    """Of this file: a part, if the model is split."""
    metadata: dict[str, str]
    """As llama.cpp writes them; of an array only its length: ``[512]``."""
    tensors: dict[str, int]
    """Where the data of each begins, bytes after the header; of this file."""

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", "unknown")

    @property
    def quantization(self) -> str:
        """Such as Q4_K_M, from the name that llama.cpp has for the file's type."""
        import llama_cpp

        wanted = self.metadata.get("general.file_type", "")
        kinds = {str(v): k for k, v in vars(llama_cpp).items() if k.startswith("LLAMA_FTYPE_")}
        name = kinds.get(wanted, "unknown").removeprefix("LLAMA_FTYPE_")
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")

    @property
    def advice(self) -> dict[str, str]:
        """Options that the file recommends for itself."""
        return {k[4:]: text for k, text in self.metadata.items() if k.startswith("tgr.")}

    def facts(self) -> dict[str, Any]:
        """What a person asks first, by name."""
        of = self.architecture
        return {
            "name": self.metadata.get("general.name", self.path.stem),
            "path": str(self.path),
            "bytes": self.size,
            "architecture": of,
            "parameters": self.parameters,
            "quantization": self.quantization,
            "layers": _whole(self.metadata.get(f"{of}.block_count")),
            "width": _whole(self.metadata.get(f"{of}.embedding_length")),
            "trained context": _whole(self.metadata.get(f"{of}.context_length")),
            "vocabulary": _whole(self.metadata.get("tokenizer.ggml.tokens", "").strip("[]")),
            "chat template": "tokenizer.chat_template" in self.metadata,
            "advice": self.advice,
        }


def card(path: Path) -> Card:
    """Reads the header of a GGUF file. ModelError if it is none or damaged, OSError as `open`."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return Card(path, size, *_Header(data).read())
            except (struct.error, ValueError, KeyError, RecursionError) as error:
                raise ModelError(f"{path} is damaged: its header ends or jumps: {error}") from None


class _Header:
    """Reads forward through the header, which begins after the magic. Little-endian."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4
        self._tensors: dict[str, int] = {}

    def read(self) -> tuple[int, dict[str, str], dict[str, int]]:
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, but must be 2 or 3")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        metadata = {self._text(): self._value(self._number("I")) for _ in range(n_values)}
        return sum(self._tensor() for _ in range(n_tensors)), metadata, self._tensors

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from("<" + kind, self._data, self._at)
        self._at += struct.calcsize(kind)
        return value

    def _skip(self, n: int) -> None:
        self._at += n
        if self._at > len(self._data):
            raise ValueError("it ends too early")

    def _text(self) -> str:
        n = self._number("Q")
        self._skip(n)
        return self._data[self._at - n : self._at].decode("utf-8", "replace")

    def _value(self, kind: int) -> str:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            value = self._number(_SCALARS[kind])
            return str(value).lower() if isinstance(value, bool) else str(value)
        kind, n = self._number("I"), self._number("Q")
        if kind in (_STRING, _ARRAY):
            for _ in range(n):
                self._value(kind)
        else:
            self._skip(n * struct.calcsize(_SCALARS[kind]))
        return f"[{n}]"

    def _tensor(self) -> int:
        """Reads the description of a tensor and returns its number of elements."""
        name, n_dims = self._text(), self._number("I")
        if n_dims > 4:
            raise ValueError(f"a tensor has {n_dims} dimensions")
        shape = [self._number("Q") for _ in range(n_dims)]
        self._skip(4)  # its type
        self._tensors[name] = self._number("Q")
        return math.prod(shape)


# ---- for people and programs ----


def listed() -> list[dict[str, Any]]:
    """The facts of every local model, or why a file has none."""
    return [_facts(path) for path in local()]


def _facts(path: Path) -> dict[str, Any]:
    try:
        return card(path).facts()
    except (ModelError, OSError) as error:
        return {"name": path.stem, "path": str(path), "error": describe(error)}


def as_line(facts: dict[str, Any]) -> str:
    """A model in a list: the name to call it by, what it is, where it lies."""
    about = facts.get("error") or ", ".join(
        (size(facts["bytes"]), facts["architecture"], facts["quantization"])
    )
    return f"{Path(facts['path']).stem}  {about}  {facts['path']}"


def as_table(facts: dict[str, Any]) -> list[str]:
    """All that is known of a model, a fact to a line."""
    shown = facts | {"bytes": size(facts["bytes"])}
    return [f"{name:16}  {_as_text(fact)}" for name, fact in shown.items()]


def _as_text(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{key} {value}" for key, value in fact.items()) or "none"
    if isinstance(fact, bool) or fact is None:
        return {True: "yes", False: "no", None: "unknown"}[fact]
    return f"{fact:,}" if isinstance(fact, int) else str(fact)


def size(n_bytes: int) -> str:
    """``4.7 GB``."""
    unit = 1e9 if n_bytes >= 1e9 else 1e6
    return f"{n_bytes / unit:.1f} {'GB' if unit == 1e9 else 'MB'}"


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
