"""LoRA adapters of small models, and the models with the same added to their weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

RANK = 4
ALPHA = 6.0
LAYER = (
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip
NAMES = (*(f"blk.{i}.{name}.weight" for i in range(2) for name in LAYER), "output.weight")
EMBEDDING = "token_embd.weight"
Pairs = dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]]


def pairs_for(model: Path, names: tuple[str, ...] = (*NAMES, EMBEDDING), seed: int = 5) -> Pairs:
    """A [rank, n_in] and B [n_out, rank] of every weight; llama.cpp wants those of the embedding
    the other way round."""
    shapes = {tensor.name: tensor.data.shape for tensor in gguf.GGUFReader(model).tensors}
    rng = np.random.default_rng(seed)
    pairs = {}
    for name in names:
        n_out, n_in = shapes[name]
        a = rng.standard_normal((RANK, n_in), dtype=np.float32) / np.float32(n_in**0.5)
        b = rng.standard_normal((n_out, RANK), dtype=np.float32) / 4
        pairs[name] = (a, b)
    return pairs


def write_adapter(path: Path, pairs: Pairs, arch: str = "qwen3", **changes: Any) -> Path:
    kinds = {"general.type": "adapter", "adapter.type": "lora"} | changes.pop("metadata", {})
    writer = gguf.GGUFWriter(path, arch)
    for key, value in kinds.items():
        if value is not None:
            writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", changes.pop("alpha", ALPHA))
    if tokens := changes.pop("alora", None):
        writer.add_array("adapter.alora.invocation_tokens", tokens)
    for name, (a, b) in pairs.items():
        if name == EMBEDDING:
            a, b = b, np.ascontiguousarray(a.T)
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    for name, tensor in changes.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def merged(model: Path, path: Path, *added: tuple[Pairs, float]) -> Path:
    """A copy of the model whose weights are W + scale · alpha/rank · B A."""
    shutil.copy(model, path)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        for pairs, scale in added:
            if tensor.name in pairs:
                a, b = pairs[tensor.name]
                tensor.data[:] += np.float32(scale * ALPHA / RANK) * (b @ a)
    return path
