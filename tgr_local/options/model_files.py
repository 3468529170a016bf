"""The models on this machine: finding one by name, describing one from its header alone."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.options import gguf_header, model_names, settings
from tgr_local.options.gguf_header import GgufHeader
from tgr_local.options.model_parts import is_later_part, plain_name
from tgr_local.options.resolve import advice
from tgr_local.system import paths
from tgr_local.system.errors import ModelError, describe
from tgr_local.system.near_names import did_you_mean
from tgr_local.system.sanitize import printable_line

EMBEDDED = {"tgr-mini": "embedded.gguf", "tgr-mini-code": "embedded-code.gguf"}
"""The embedded models by name, with their files in an installed package. In the source tree they
are `models/NAME-q8_0.gguf`."""


_FILE_TYPES = (
    "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M "
    "Q6_K IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M "
    "BF16 - - - TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0"
)
_PATTERN = "*.[gG][gG][uU][fF]"
FILE_TYPES = {str(i): name for i, name in enumerate(_FILE_TYPES.split()) if name != "-"}
"""llama.cpp's file types: names by number, as ``general.file_type`` has it."""


def embedded_model(name: str = "tgr-mini") -> Path:
    """The file of an embedded model, next to the native extension or in the source tree. Raises
    ModelError if there is none."""
    extension = importlib.util.find_spec("tgr_local._engine")
    looked = [Path(__file__).resolve().parents[2] / "models" / f"{name}-q8_0.gguf"]
    if extension is not None and extension.origin:
        looked.insert(0, Path(extension.origin).with_name(EMBEDDED[name]))
    for path in looked:
        if path.is_file():
            return path
    raise ModelError(
        f"this installation has no embedded model {name} (looked for "
        f"{' and '.join(map(str, looked))}); name one with --model FILE"
    )


def _embedded() -> dict[str, Path]:
    """The files of the embedded models that this installation has."""
    paths = {}
    for name in EMBEDDED:
        with contextlib.suppress(ModelError):
            paths[name] = embedded_model(name)
    return paths


_chosen: list[Path] = []


def choose_folder(path: Path | None) -> None:
    """Makes this the folder of models from now on; None = that of the settings."""
    _chosen[:] = [path] if path else []


def folder() -> Path:
    """The one folder of models: names are looked up in it, downloads go into it, a server may load
    all of it. That of `choose_folder`, else of the option `models_dir`, else one below the user's
    data; it need not exist."""
    chosen = _chosen[0] if _chosen else settings.models_dir()
    return chosen or paths.folder("data") / "models"


def missing_folder() -> Path | None:
    """The folder of models that the user named, if there is no such folder."""
    named = _chosen[0] if _chosen else settings.models_dir()
    return named if named and not named.is_dir() else None


def listed_name(path: Path) -> str:
    """The name by which the list has a model and `find` takes it."""
    own = (name for name, file in _embedded().items() if file == path)
    return next(own, path.stem)


def local() -> list[Path]:
    """The models that `find` knows by name: the embedded ones, then those in the folder."""
    paths = (path for path in folder().rglob(_PATTERN) if path.is_file())
    others = sorted(path for path in paths if not is_later_part(path))
    return [*_embedded().values(), *others]


def find(name: str) -> Path:
    """The file of that path, or the local model of that name, with or without its ``.gguf`` and
    the folders that it is in; a downloaded model has the name that it was pulled by too.

    ModelError if there is none, with names that are near or the command that downloads the model,
    or if there are several.
    """
    if not name:
        raise ModelError("the name of the model is empty; tgr-local models lists those here")
    if "/" not in (short := model_names.plain(name)):
        name = short  # without the address of ollama
    path = paths.expanded("the model", name)
    if path.is_absolute() or {"/", os.sep} & set(name):
        if not (path.exists() or name.startswith(".")):
            inside = plain_name(str(folder() / name))
            same = [p for p in local() if plain_name(str(p)) == inside]
            if len(same) == 1:
                return same[0]
        elsewhere = model_names.parsed(name)
        if elsewhere is None or path.exists() or path.parent.exists():
            return path  # the engine reports what is wrong with it
        return _pulled(name, elsewhere)
    known, own = local(), _embedded().get(name)
    own_path = (own, folder() / name)
    matching = [p for p in known if name in (p.name, p.stem, plain_name(p.name)) or p in own_path]
    if path.exists() and not any(path.samefile(p) for p in matching):
        matching.insert(0, Path.cwd() / path if matching else path)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ModelError(
            f"{name!r} names several models: {', '.join(map(str, matching))}; give the path of one"
        )
    names = sorted({p.stem for p in known} | set(_embedded()))
    hint = did_you_mean(name, names, "tgr-local models lists those here;")
    raise ModelError(f"there is no model {name}; {hint} {model_names.pull_hint(name)}")


def is_known(name: str) -> bool:
    """Whether `find` gives a file for this name."""
    try:
        return find(name).is_file()
    except (ModelError, OSError, ValueError):  # ValueError: it has a null character
        return False


def _pulled(name: str, at_hub: model_names.Name) -> Path:
    """The downloaded file of a repository. Raises ModelError if there is none, or several."""
    here = folder() / at_hub.repo
    if at_hub.file is not None:
        fits = [path] if (path := here / Path(at_hub.file).name).is_file() else []
    else:
        files = [p for p in here.glob(_PATTERN) if not is_later_part(p)]
        fits = [p for p in files if has_quantization(p.name, at_hub.quantization)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise ModelError(f"{name} names several models: {', '.join(p.stem for p in sorted(fits))}")
    raise ModelError(f"there is no model {name} here; {model_names.pull_hint(name)}")


def has_quantization(name: str, quantization: str | None) -> bool:
    """Whether the file of that name has the quantization; None = any."""
    if quantization is None:
        return True
    wanted = re.escape(quantization)
    return re.search(rf"(?<![A-Za-z0-9]){wanted}(?![A-Za-z0-9_])", name, re.I) is not None


def model_file(name: str | None, embedded: str = "tgr-mini") -> Path:
    """The file that `find` gives for a name, or for None that of an embedded model. Raises
    ModelError."""
    return embedded_model(embedded) if name is None else find(name)


@dataclass(frozen=True)
class Card:
    """Summary of the header of a model file."""

    path: Path
    header: GgufHeader

    @property
    def metadata(self) -> dict[str, str]:
        return self.header.metadata

    def facts(self) -> dict[str, Any]:
        """The most important facts by name, as ``models show`` prints them."""
        metadata = self.metadata
        of = metadata.get("general.architecture", "unknown")
        return {
            "name": listed_name(self.path),
            "general.name": metadata.get("general.name"),
            "path": str(self.path),
            "bytes": self.header.n_bytes,
            "architecture": of,
            "parameters": self.header.n_parameters,
            "quantization": FILE_TYPES.get(metadata.get("general.file_type", ""), "unknown"),
            "layers": self.header.whole("block_count"),
            "width": self.header.whole("embedding_length"),
            "trained context": self.header.whole("context_length"),
            "vocabulary": gguf_header.whole_number(
                metadata.get("tokenizer.ggml.tokens", "").strip("[]")
            ),
            "chat template": "tokenizer.chat_template" in metadata,
            "advice": advice(metadata),
        }


def card(path: Path) -> Card:
    """Reads the header of a model file. Raises ModelError and OSError as `gguf_header.read`."""
    return Card(path, gguf_header.read(path))


# ---- output ----

_FACT_LENGTH = 1000  # characters


def listed() -> list[dict[str, Any]]:
    """The facts of every local model, or the error for a file that cannot be read. The name of one
    of several with the same name is its path, which `find` takes."""
    models = [_facts(path) for path in local()]
    n_named = collections.Counter(facts["name"] for facts in models)
    return [
        facts | {"name": facts["path"]} if n_named[facts["name"]] > 1 else facts for facts in models
    ]


def _facts(path: Path) -> dict[str, Any]:
    try:
        return card(path).facts()
    except (ModelError, OSError) as error:
        return {"name": listed_name(path), "path": str(path), "error": describe(error)}


def as_line(facts: dict[str, Any]) -> str:
    """A model as a line of a list: name, size and type, path."""
    about = facts.get("error") or ", ".join(
        (size(facts["bytes"]), facts["architecture"], facts["quantization"])
    )
    if facts.get("fits into memory") is False:
        about += ", too large for the memory that is free"
    name, path = printable_line(facts["name"]), printable_line(facts["path"])
    return f"{name}  {printable_line(about, _FACT_LENGTH)}  {path}"


def as_table(facts: dict[str, Any]) -> list[str]:
    """The facts of a model, one on each line."""
    shown = facts | {"bytes": size(facts["bytes"])}
    return [
        f"{name:16}  {printable_line(_as_text(fact), _FACT_LENGTH)}" for name, fact in shown.items()
    ]


def _as_text(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{key} {value}" for key, value in fact.items()) or "none"
    if isinstance(fact, bool) or fact is None:
        return {True: "yes", False: "no", None: "unknown"}[fact]
    return f"{fact:,}" if isinstance(fact, int) else str(fact)


def size(n_bytes: int) -> str:
    """A size for people, such as ``4.7 GB``."""
    unit = 1e9 if n_bytes >= 1e9 else 1e6
    return f"{n_bytes / unit:.1f} {'GB' if unit == 1e9 else 'MB'}"
