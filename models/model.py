"""The Qwen3 architecture in plain PyTorch, for training only; inference runs in llama.cpp.

In: token ids (B, T). Out: logits (B, T, vocabulary). RMSNorm before each block, grouped-query
attention with normalised queries and keys, rotary positions in the NeoX layout, SwiGLU, and an
output head tied to the embeddings. Sequences start at position 0 and are padded at the right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; every row length is a multiple of 32, as Q8_0 needs."""

    n_vocab: int = 512
    n_embd: int = 192
    n_layer: int = 6
    n_head: int = 6
    n_head_kv: int = 2
    head_dim: int = 32
    n_ff: int = 384
    n_ctx: int = 2048
    """Longest context that the file declares."""
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    is_fast: bool = False
    """Whether training has one kernel for attention and a residual stream in bfloat16: faster from
    about 200 tokens on, and less exact."""


class Norm(nn.Module):
    """Root-mean-square norm over the last axis with a learnt scale."""

    def __init__(self, n: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on (B, H, T, D); pairs are (i, i + D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, width_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        self.q = nn.Linear(shape.n_embd, width, bias=False)
        self.k = nn.Linear(shape.n_embd, width_kv, bias=False)
        self.v = nn.Linear(shape.n_embd, width_kv, bias=False)
        self.output = nn.Linear(width, shape.n_embd, bias=False)
        self.q_norm = Norm(shape.head_dim, shape.norm_eps)
        self.k_norm = Norm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n_batch, n_time, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(n_batch, n_time, -1, self.shape.head_dim)

        q = rotate(self.q_norm(heads(self.q(x))).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k(x))).transpose(1, 2), cos, sin)
        v = heads(self.v(x)).transpose(1, 2)
        group = self.shape.n_head // self.shape.n_head_kv
        if self.shape.is_fast and self.training:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
            return self.output(mixed.transpose(1, 2).reshape(n_batch, n_time, -1))
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        # Written out: on CPUs, with many short sequences, twice as fast as the fused kernel.
        scores = q @ k.transpose(2, 3) * self.shape.head_dim**-0.5
        future = torch.ones(n_time, n_time, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1).to(v.dtype) @ v
        return self.output(mixed.transpose(1, 2).reshape(n_batch, n_time, -1))


class Block(nn.Module):
    """One layer: attention and a gated feed-forward part, each on the normed residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn_norm = Norm(shape.n_embd, shape.norm_eps)
        self.attn = Attention(shape)
        self.ffn_norm = Norm(shape.n_embd, shape.norm_eps)
        self.gate = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.up = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.down = nn.Linear(shape.n_ff, shape.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """The whole model; `forward` gives logits (B, T, n_vocab) of ids (B, T)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = Norm(shape.n_embd, shape.norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                small = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.n_layer) ** 0.5 if small else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        half = self.shape.head_dim // 2
        frequency = self.shape.rope_base ** (-torch.arange(half, device=ids.device) / half)
        angle = torch.outer(torch.arange(ids.shape[1], device=ids.device), frequency)
        x = self.embed(ids)
        if self.shape.is_fast and self.training:
            x = x.bfloat16()
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight)

    def n_parameters(self) -> int:
        """Number of trained weights."""
        return sum(p.numel() for p in self.parameters())
