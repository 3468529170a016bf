"""LoRA adapters: the files that an engine adds to its model, their scales, and checks of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tgr_local.options import gguf_header
from tgr_local.options.model_parts import parts_of
from tgr_local.system import file_hash, paths
from tgr_local.system.errors import ModelError

_TYPES = {0: "F32", 1: "F16", 8: "Q8_0", 30: "BF16"}
"""ggml's types that convert_lora_to_gguf.py writes, by number."""
_ALORA = "adapter.alora.invocation_tokens"
_ALPHA = "adapter.lora.alpha"
_SCALE_MOST = 1e6
_LEFT_OUT = "_norm.weight"  # the end of names of tensors to which llama.cpp adds nothing
_CLASSIFIER = "cls."  # the beginning of such names
_EMBEDDING = "token_embd.weight"  # here lora_a and lora_b change places


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter and its scale, the factor of its weights."""

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
        if scale is not None:
            _check_scale(f"lora is {text!r:.80}, but its scale", scale)
        path = paths.expanded("lora", text if scale is None else name)
        if any(adapter.path == path for adapter in adapters):
            raise ValueError(f"lora names {path} twice; leave one out")
        adapters.append(Adapter(path, 1.0 if scale is None else scale))
    return tuple(adapters)


def rescaled(adapters: Sequence[Adapter], scales: Sequence[float]) -> tuple[Adapter, ...]:
    """Returns the adapters with other scales, one for each. Raises ValueError."""
    if len(scales) != len(adapters):
        raise ValueError(f"there are {len(adapters)} adapters, but {len(scales)} scales; name each")
    for scale in scales:
        _check_scale(f"the scale {scale!r:.40} of an adapter", scale)
    return tuple(
        dataclasses.replace(adapter, scale=float(scale))
        for adapter, scale in zip(adapters, scales, strict=True)
    )


def _check_scale(subject: str, scale: float) -> None:
    if not abs(scale) <= _SCALE_MOST:
        raise ValueError(
            f"{subject} must be a number between -{_SCALE_MOST:.0f} and {_SCALE_MOST:.0f}"
        )


def check(adapter: Adapter) -> None:
    """Raises ModelError for a file that is not an adapter, or of which llama.cpp would ignore a
    part. Whether it fits the model is checked when it is loaded."""
    path = adapter.path
    try:
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
        second = header.tensors.get(f"{changed}.lora_b")
        ranks = [_rank(changed, part, tensor)]
        if part == "lora_a" and second is not None:  # llama.cpp says it of a pair that lacks one
            ranks.append(_rank(changed, "lora_b", second))
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


class LoadedFiles:
    """The files that an engine has loaded: the model's (or all of its parts) and the adapters'. It
    tells whether they have changed since, and their hash. Used from any thread."""

    def __init__(self, model: Path, adapters: tuple[Adapter, ...]) -> None:
        self.adapters = adapters
        """Adapters with their current scales."""
        parts = [part for part in parts_of(model) if part.is_file()] or [model]
        self._n_parts = len(parts)
        self._paths = (*parts, *(adapter.path for adapter in adapters))
        self._loaded: tuple[str, ...] = ()  # their identities
        self._hashes: tuple[str, ...] = ()  # once they are known
        with contextlib.suppress(OSError):  # loading says what is wrong with a file
            self._loaded = tuple(map(file_hash.identity, self._paths))

    @property
    def identity(self) -> str:
        """Identity that changes when a file or a scale does."""
        scales = (repr(adapter.scale) for adapter in self.adapters)
        return "\n".join((*self._loaded, *scales)) if self._loaded else ""

    def replaced(self) -> Path | None:
        """The first of the files that is not, or no longer, the one that was loaded."""
        for i, path in enumerate(self._paths):
            try:
                if self._loaded[i : i + 1] != (file_hash.identity(path),):
                    return path
            except OSError:
                return path
        return None

    def sha256(self) -> str:
        """sha256 of the model file; with several parts or adapters, a digest of all files and the
        scales. Raises OSError, and ModelError where a file was replaced before it was hashed."""
        if not self._hashes:
            self._check_unchanged()
            hashes = tuple(map(file_hash.of, self._paths))
            self._check_unchanged()  # while the files were read
            self._hashes = hashes
        parts, added = self._hashes[: self._n_parts], self._hashes[self._n_parts :]
        pairs = zip(added, self.adapters, strict=True)
        scaled = (f"{digest} {adapter.scale!r}" for digest, adapter in pairs)
        return file_hash.joined([*parts, *scaled])

    def known_sha256(self) -> str | None:
        """Returns `sha256` if all files were hashed before and have not changed; else None."""
        if not self._hashes and (
            self.replaced() is not None or None in map(file_hash.known, self._paths)
        ):
            return None
        try:
            return self.sha256()
        except (ModelError, OSError):  # replaced just now
            return None

    def _check_unchanged(self) -> None:
        file = self.replaced()
        if file is not None:
            raise ModelError(f"{file} was replaced after it was loaded; load the model again")
