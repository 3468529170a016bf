"""Dense decoders in plain numpy, slow on purpose: the oracle that the engine is compared with.

Reads a Qwen3, Llama or Phi-3 GGUF through the gguf package, dequantises it, and runs all tokens at
once: no cache, no batch, no graph. It shares no code with llama.cpp or with this project. A file
that it does not understand in full (a bias, a rope factor, an expert) is refused.

On F32 files with an F32 cache llama.cpp's CPU logits agree to 1e-5. Elsewhere its rounding shows
(logits of standard deviation 2, 24 tokens): 1e-2 with an F16 cache or F16 weights, 0.2 with Q8_0
weights. `f16_cache` and, for Q8_0, `round_activations` round at the same places: the difference is
1e-6 then, except after a value that falls on the other side of a rounding boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, dequantize, quantize
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Outputs:
    """One forward pass over n tokens."""

    logits: Array
    """[n, n_vocab]"""
    states: Array
    """[n, n_embd], after the final norm."""
    residual_norms: Array
    """[n_layer, n], ‖h_l‖₂ after layer l and after its injection."""


class Reference:
    """A model file in memory, computed in float64.

    f16_cache rounds queries, keys, values and attention weights to F16, as flash attention off does
    with an F16 cache. round_activations rounds what a matrix multiplies to the matrix's own type.
    """

    def __init__(
        self, path: Path, *, f16_cache: bool = False, round_activations: bool = False
    ) -> None:
        self._f16_cache = f16_cache
        self._round_activations = round_activations
        reader = GGUFReader(path)
        self._fields = {name: field.contents() for name, field in reader.fields.items()}
        self._arch = self._fields["general.architecture"]
        if self._arch not in ("qwen3", "llama", "phi3") or self._has("rope.scaling.type"):
            raise ValueError(f"{path}: no reference for architecture {self._arch} as it is here")
        self._weights: dict[str, Array] = {
            t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors
        }
        self._kinds = {t.name: t.tensor_type for t in reader.tensors}
        self._unread = set(self._weights)
        self.n_layer = int(self._get("block_count"))
        self.n_embd = int(self._get("embedding_length"))
        self._n_head = int(self._get("attention.head_count"))
        self._n_head_kv = int(self._get("attention.head_count_kv"))
        self._head_dim = int(self._get("attention.key_length", self.n_embd // self._n_head))
        self._n_rot = int(self._get("rope.dimension_count", self._head_dim))
        self._freq_base = float(self._get("rope.freq_base", 10000.0))
        self._eps = float(self._get("attention.layer_norm_rms_epsilon"))
        self.forward([0])
        if self._unread:
            raise ValueError(f"{path}: the reference knows no use for {sorted(self._unread)}")

    def forward(self, tokens: list[int], vectors: Array | None = None) -> Outputs:
        """Run tokens [n] from position 0; vectors [n, n_layer, n_embd] are added to h_l."""
        h = self._weight("token_embd")[tokens]
        norms = []
        for layer in range(self.n_layer):
            h = h + self._attention(layer, self._rms_norm(h, f"blk.{layer}.attn_norm"))
            h = h + self._feed_forward(layer, self._rms_norm(h, f"blk.{layer}.ffn_norm"))
            if vectors is not None:
                h = h + vectors[:, layer].astype(h.dtype)
            norms.append(np.linalg.norm(h, axis=-1))
        states = self._rms_norm(h, "output_norm")
        head = "output" if "output.weight" in self._weights else "token_embd"
        return Outputs(self._linear(head, states), states, np.array(norms))

    def _attention(self, layer: int, x: Array) -> Array:
        n, heads, kv_heads, dim = len(x), self._n_head, self._n_head_kv, self._head_dim
        q, k, v = self._qkv(layer, x)
        q, k, v = (part.reshape(n, -1, dim) for part in (q, k, v))  # [n, heads, dim]
        if self._arch == "qwen3":
            q = self._rms_norm(q, f"blk.{layer}.attn_q_norm")
            k = self._rms_norm(k, f"blk.{layer}.attn_k_norm")
        q, k = self._rope(q), self._rope(k)
        # Query heads share kv heads in runs: 0 and 1 read kv head 0 when there are half as many.
        k, v = (np.repeat(part, heads // kv_heads, axis=1) for part in (k, v))
        q, k, v = self._cached(q), self._cached(k), self._cached(v)
        logits = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim).astype(x.dtype)
        logits = np.where(np.tri(n, dtype=bool), logits, -np.inf)
        weights = self._cached(np.exp(log_softmax(logits)))
        out = np.einsum("hqk,khd->qhd", weights, v)
        return self._linear(f"blk.{layer}.attn_output", out.reshape(n, heads * dim))

    def _qkv(self, layer: int, x: Array) -> list[Array]:
        if self._arch != "phi3":
            return [self._linear(f"blk.{layer}.attn_{part}", x) for part in "qkv"]
        n_q, n_kv = self._n_head * self._head_dim, self._n_head_kv * self._head_dim
        return np.split(self._linear(f"blk.{layer}.attn_qkv", x), [n_q, n_q + n_kv], axis=-1)

    def _feed_forward(self, layer: int, x: Array) -> Array:
        up = self._linear(f"blk.{layer}.ffn_up", x)
        if self._arch == "phi3":
            gate, up = np.split(up, 2, axis=-1)
        else:
            gate = self._linear(f"blk.{layer}.ffn_gate", x)
        return self._linear(f"blk.{layer}.ffn_down", gate / (1 + np.exp(-gate)) * up)

    def _rope(self, x: Array) -> Array:
        """Rotate the first n_rot of x [n, heads, dim] by its row's position.

        Pair j turns by position · base^(−2j / n_rot). Llama's GGUF weights are permuted so that a
        pair is (2j, 2j + 1); the others pair j with j + n_rot / 2.
        """
        rot, rest = x[..., : self._n_rot], x[..., self._n_rot :]
        j = np.arange(self._n_rot // 2, dtype=np.float64)
        turns = np.outer(np.arange(len(x)), self._freq_base ** (-2 * j / self._n_rot))[:, None]
        cos, sin = np.cos(turns).astype(x.dtype), np.sin(turns).astype(x.dtype)
        if self._arch == "llama":
            a, b = rot[..., 0::2], rot[..., 1::2]
        else:
            a, b = np.split(rot, 2, axis=-1)
        pair = (a * cos - b * sin, a * sin + b * cos)
        if self._arch == "llama":
            turned = np.stack(pair, axis=-1).reshape(rot.shape)
        else:
            turned = np.concatenate(pair, axis=-1)
        return np.concatenate((turned, rest), axis=-1)

    def _rms_norm(self, x: Array, name: str) -> Array:
        mean_square = np.mean(x**2, axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean_square + self._eps)
        return normed * self._weight(name)

    def _linear(self, name: str, x: Array) -> Array:
        kind = self._kinds[f"{name}.weight"]
        if self._round_activations and kind != GGMLQuantizationType.F32:
            x = dequantize(quantize(x.astype(np.float32), kind), kind).astype(x.dtype)
        return x @ self._weight(name).T

    def _cached(self, x: Array) -> Array:
        return x.astype(np.float16).astype(x.dtype) if self._f16_cache else x

    def _weight(self, name: str) -> Array:
        self._unread.discard(f"{name}.weight")
        return self._weights[f"{name}.weight"]

    def _has(self, key: str) -> bool:
        return f"{self._arch}.{key}" in self._fields

    def _get(self, key: str, default: float | None = None) -> Any:
        return self._fields[f"{self._arch}.{key}"] if self._has(key) else default


def log_softmax(logits: Array) -> Array:
    """Log-probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
