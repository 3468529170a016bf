"""Model files: the embedded one, those in the user's folder, and what a file says of itself.

A file is described from its header alone, without loading it.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.console.sanitize import printable_line
from tgr_local.errors import ModelError, describe
from tgr_local.models import gguf_header
from tgr_local.models.gguf_header import Header
from tgr_local.system import paths

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")  # llama.cpp finds it from the first


def embedded_model() -> Path:
    """The embedded GGUF: beside the native extension, or in the source tree; else ModelError."""
    extension = importlib.util.find_spec("tgr_local._engine")
    looked = [Path(__file__).resolve().parents[2] / "models" / "tgr-mini-q8_0.gguf"]
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
    return paths.folder("data") / "models"


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
    header: Header

    @property
    def metadata(self) -> dict[str, str]:
        return self.header.metadata

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
            "bytes": self.header.n_bytes,
            "architecture": of,
            "parameters": self.header.n_parameters,
            "quantization": self.quantization,
            "layers": _whole(self.metadata.get(f"{of}.block_count")),
            "width": _whole(self.metadata.get(f"{of}.embedding_length")),
            "trained context": _whole(self.metadata.get(f"{of}.context_length")),
            "vocabulary": _whole(self.metadata.get("tokenizer.ggml.tokens", "").strip("[]")),
            "chat template": "tokenizer.chat_template" in self.metadata,
            "advice": self.advice,
        }


def card(path: Path) -> Card:
    """Reads the header of a model file. Raises ModelError and OSError as `gguf_header.read`."""
    return Card(path, gguf_header.read(path))


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
