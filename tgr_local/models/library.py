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

from tgr_local.console.sanitize import printable_line
from tgr_local.errors import ModelError, describe
from tgr_local.system import paths as places

# GGUF's value types by number: formats of struct, and two without a fixed size
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 1 << 22  # keys, tensors and texts in lists; a large vocabulary has 2^19
_MAX_TEXT, _MAX_TEXTS = 1 << 20, 1 << 24  # characters that are kept of one text, and of all
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
    if path.is_absolute() or os.sep in name:
        return path  # what is wrong with it, the engine says
    known = local()
    found = [p for p in known if name in (p.name, p.stem) or p == folder() / name]
    if path.exists() and not any(path.samefile(p) for p in found):
        found.insert(0, Path.cwd() / path if found else path)
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelError(
            f"{name!r} names several models: {', '.join(map(str, found))}; give the path of one"
        )
    near = difflib.get_close_matches(name, {p.stem for p in known}, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "tgr-local models lists what there is"
    raise ModelError(f"there is no model {name}; {hint}")


def model_file(name: str | None) -> Path:
    """The file that `find` gives for a name, or for None the embedded model. Raises ModelError."""
    return embedded_model() if name is None else find(name)


@dataclass(frozen=True)
class Card:
    """What a model file says of itself."""

    path: Path
    size: int
    """Bytes."""
    parameters: int
    """Of this file: a part, if the model is split."""
    metadata: dict[str, str]
    """As llama.cpp writes them, at most 2^20 characters of each; of an array only its length:
    ``[512]``."""
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
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ModelError(f"{path} is no file; name a GGUF file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is no GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return Card(path, size, *_Header(data).read())
            except (struct.error, ValueError, RecursionError) as error:
                raise ModelError(f"{path} has a damaged header: {error}") from None


class _Header:
    """Reads forward through the header, which begins after the magic. Little-endian."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4
        self._tensors: dict[str, int] = {}
        self._entries, self._room = 0, _MAX_TEXTS

    def read(self) -> tuple[int, dict[str, str], dict[str, int]]:
        version = self._number("I")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, but must be 2 or 3")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        self._count(n_tensors + n_values)
        metadata = {self._text(): self._value(self._number("I")) for _ in range(n_values)}
        return sum(self._tensor() for _ in range(n_tensors)), metadata, self._tensors

    def _count(self, n: int) -> None:
        self._entries += n
        if self._entries > _MAX_ENTRIES:
            raise ValueError(f"it has {self._entries} entries, but at most {_MAX_ENTRIES} are read")

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
        kept = min(n, _MAX_TEXT)
        self._room -= kept
        if self._room < 0:
            raise ValueError(f"its texts have more than {_MAX_TEXTS} characters together")
        begin = self._at - n
        return self._data[begin : begin + kept].decode("utf-8", "replace")

    def _value(self, kind: int) -> str:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            value = self._number(_scalar(kind))
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
            self._skip(n * struct.calcsize(_scalar(kind)))
        return f"[{n}]"

    def _tensor(self) -> int:
        """Reads the description of a tensor and returns its number of elements."""
        name, n_dims = self._text(), self._number("I")
        if n_dims > 4:
            raise ValueError(f"a tensor has {n_dims} dimensions")
        shape = [self._number("Q") for _ in range(n_dims)]
        self._skip(4)  # its type
        self._tensors[name] = self._number("Q")
        n_elements: int = math.prod(shape)
        if n_elements >= 2**63:
            raise ValueError(f"a tensor has {n_elements} elements")
        return n_elements


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"a value is of type {kind}, but must be of 0 to 12")
    return _SCALARS[kind]


# ---- for people and programs ----

_LONGEST = 1000  # characters of a fact


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
    name, path = printable_line(Path(facts["path"]).stem), printable_line(facts["path"])
    return f"{name}  {printable_line(about, _LONGEST)}  {path}"


def as_table(facts: dict[str, Any]) -> list[str]:
    """All that is known of a model, a fact to a line."""
    shown = facts | {"bytes": size(facts["bytes"])}
    return [
        f"{name:16}  {printable_line(_as_text(fact), _LONGEST)}" for name, fact in shown.items()
    ]


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
    return int(text) if text and re.fullmatch("[0-9]{1,20}", text) else None
