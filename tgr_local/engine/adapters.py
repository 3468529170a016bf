"""LoRA adapters: which files an engine adds to its model, and what they must be."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tgr_local.errors import ModelError
from tgr_local.models import file_hash, gguf_header
from tgr_local.system import paths

_TYPES = {0: "F32", 1: "F16", 8: "Q8_0", 30: "BF16"}
"""ggml's types that convert_lora_to_gguf.py writes, by number."""
_ALORA = "adapter.alora.invocation_tokens"
_ALPHA = "adapter.lora.alpha"
_SCALE_MOST = 1e6
_LEFT_OUT = "_norm.weight"  # the end of names of tensors to which llama.cpp adds nothing
_CLASSIFIER = "cls."  # the beginning of such names
_EMBEDDING = "token_embd.weight"  # whose pair is the other way round


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter and the factor of what it adds."""

    path: Path
    scale: float = 1.0


def named_adapters(texts: Sequence[str]) -> tuple[Adapter, ...]:
    """The adapters of `EngineConfig.lora`: FILE, or FILE:SCALE. Raises ValueError for a scale that
    is out of bounds, for a home folder that does not exist, and for a file that is named twice."""
    adapters: list[Adapter] = []
    for text in texts:
        name, colon, last = text.rpartition(":")
        try:
            scale = float(last) if colon and name else None
        except ValueError:
            scale = None
        if scale is not None and not abs(scale) <= _SCALE_MOST:
            raise ValueError(
                f"lora is {text!r:.80}, but its scale must be a number between "
                f"-{_SCALE_MOST:.0f} and {_SCALE_MOST:.0f}"
            )
        path = paths.expanded("lora", text if scale is None else name)
        if any(one.path == path for one in adapters):
            raise ValueError(f"lora names {path} twice; leave one out")
        adapters.append(Adapter(path, 1.0 if scale is None else scale))
    return tuple(adapters)


def check(adapter: Adapter) -> None:
    """Raises ModelError for a file that is not an adapter, or one that could not be followed whole.
    Whether it fits a model is seen when it is loaded."""
    path = adapter.path
    try:
        gguf_header.check_file(path)
        header = gguf_header.read(path)
    except OSError as error:
        raise ModelError(f"cannot read the adapter {path}: {error.strerror or error}") from None
    kind = header.metadata.get("general.type", "model")
    if kind != "adapter":
        raise ModelError(
            f"{path} holds no adapter but is of the type {kind!r:.40}; name a file that "
            "llama.cpp's convert_lora_to_gguf.py made, and the model with --model"
        )
    if (kind := header.metadata.get("adapter.type", "")) != "lora":
        raise ModelError(f"{path} is an adapter of the type {kind!r:.40}, but must be a LoRA")
    if _ALORA in header.metadata:
        raise ModelError(
            f"{path} is an activated LoRA, which begins at certain tokens; only LoRAs of the whole "
            "text can be added"
        )
    _check_alpha(path, header.metadata.get(_ALPHA, "0"))
    for name, tensor in header.tensors.items():
        changed, _, part = name.rpartition(".")
        if (
            part not in ("lora_a", "lora_b")
            or changed.endswith(_LEFT_OUT)
            or changed.startswith(_CLASSIFIER)
        ):
            raise ModelError(
                f"{path} changes {name:.80}, which llama.cpp would leave out: only products of a "
                "LoRA are added, and none to norms and classifiers; merge the adapter into its "
                "model instead"
            )
        if len(tensor.shape) == 3:
            raise ModelError(
                f"{path} holds {name:.80}, a LoRA of experts; merge it into its model instead"
            )
        if len(tensor.shape) != 2 or tensor.ggml_type not in _TYPES:
            raise ModelError(
                f"{path} holds {name:.80} as {len(tensor.shape)} dimensions of ggml's type "
                f"{tensor.ggml_type}, but must hold matrices of {', '.join(_TYPES.values())}; "
                "convert it again"
            )
    for name, tensor in header.tensors.items():
        changed, _, part = name.rpartition(".")
        other = header.tensors.get(f"{changed}.lora_b")
        ranks = [_rank(changed, part, tensor)]
        if part == "lora_a" and other is not None:  # llama.cpp says it of a pair that lacks one
            ranks.append(_rank(changed, "lora_b", other))
        if min(ranks) < 1 or len(set(ranks)) > 1:
            raise ModelError(
                f"{path} is damaged: {changed:.80} has the rank {' and '.join(map(str, ranks))}, "
                "but both matrices must have the same, of at least 1; convert it again"
            )


def _check_alpha(path: Path, text: str) -> None:
    try:
        is_finite = math.isfinite(float(text))
    except ValueError:
        is_finite = False
    if not is_finite:
        raise ModelError(
            f"{path} has the alpha {text:.40}, but it must be a finite number; convert it again"
        )


def _rank(name: str, part: str, tensor: gguf_header.Tensor) -> int:
    return tensor.shape[1 if part == "lora_a" and _EMBEDDING not in name else 0]


def identity(path: Path, adapters: Sequence[Adapter]) -> str:
    """What changes when a model file, an adapter or a scale does. Raises OSError."""
    parts = [file_hash.identity(path)]
    parts += [f"{file_hash.identity(one.path)}\n{one.scale!r}" for one in adapters]
    return "\n".join(parts)


def replaced(path: Path, adapters: Sequence[Adapter], loaded: str) -> Path | None:
    """The first of the files that is not, or no longer, one of the `identity` that is `loaded`."""
    for file in (path, *(one.path for one in adapters)):
        try:
            if f"\n{file_hash.identity(file)}\n" not in f"\n{loaded}\n":
                return file
        except OSError:
            return file
    return None


def combined_hash(model: str, adapters: Sequence[Adapter]) -> str:
    """The sha256 that stands for a model with its adapters; that of the model file without.
    Raises OSError."""
    if not adapters:
        return model
    parts = [model, *(f"{file_hash.of(one.path)} {one.scale!r}" for one in adapters)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
