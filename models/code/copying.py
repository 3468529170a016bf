"""The first weights of a training run: heads that copy.

A model that repairs a function writes most of it again, so it must copy names that it has seen
once. From random weights it learns that late: for millions of tokens nothing seems to happen, then
two heads are found at once. They are known (Olsson et al. 2022, "In-context Learning and Induction
Heads"), so training begins with them, as "mimetic initialization" does (Trockman & Kolter 2023): a
head of the first layer keeps the token before each position in a space of its own, and heads of
the second layer look for positions whose token before is the current token, and raise the token
there. Everything remains free to change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from models.model import Attention, Model

EMBEDDING = 0.3
"""Standard deviation of the embeddings: steps of the optimizer must be small compared with it."""
HEAD = 0.3
"""Scale of the last norm, so that first predictions are cautious."""
CONSTANT = 8.0
"""Size of a component that all embeddings share, compared with the others."""
SCALE = 2.6
"""Scale of queries and keys, so that attention is sharp."""
NEAR, FAR = 6, 14
"""Pairs of rotary dimensions: the fastest, which tell neighbours apart, and the slowest, which
hardly rotate over the length of a text."""
BEFORE, COPIED = 2.0, 6.0
"""Size of the token before, and of the copied token, compared with the embeddings."""


@torch.no_grad()
def start_with_copying(model: Model) -> None:
    """Sets the first two layers so that the model copies what followed a token before."""
    shape = model.shape
    per_group = shape.n_head // shape.n_head_kv
    model.embed.weight.normal_(0.0, EMBEDDING)
    model.embed.weight[:, 0] = CONSTANT * EMBEDDING
    model.norm.weight.fill_(HEAD)
    for block in model.blocks:
        block.attn.output.weight.zero_()
        block.down.weight.zero_()
    first, second = model.blocks[0].attn, model.blocks[1].attn
    before = _orthogonal(shape.n_embd, shape.head_dim)  # where a position keeps the token before
    read = _orthogonal(shape.n_embd, shape.head_dim)
    _look_at_the_token_before(first, shape.rope_base)
    _rows(first.v, 0, shape.head_dim)[:] = read.T
    first.output.weight[:, : shape.head_dim] = BEFORE * EMBEDDING * before
    half = shape.head_dim // 2
    slow = torch.cat((torch.arange(half - FAR, half), torch.arange(2 * half - FAR, 2 * half)))
    for group in range(shape.n_head_kv):
        head = group * per_group
        turned = _orthogonal(shape.head_dim, 2 * FAR)  # each group compares in other directions
        for weight, at in ((second.q, head), (second.k, group)):
            _rows(weight, at, shape.head_dim).zero_()
        _rows(second.q, head, shape.head_dim)[slow] = turned.T @ read.T
        _rows(second.k, group, shape.head_dim)[slow] = turned.T @ before.T
        value = _orthogonal(shape.n_embd, shape.head_dim)
        _rows(second.v, group, shape.head_dim)[:] = value.T
        second.output.weight[:, head * shape.head_dim : (head + 1) * shape.head_dim] = (
            COPIED * EMBEDDING * value
        )
    for layer in (first.v, second.q, second.k, second.v):
        layer.weight[:, 0] = 0.0
    for attention in (first, second):
        attention.q_norm.weight.fill_(SCALE)
        attention.k_norm.weight.fill_(SCALE)


def _look_at_the_token_before(attention: Attention, rope_base: float) -> None:
    """Head 0 attends to the position before: the constant component of the embeddings gives the
    same query and the same key everywhere, and the key is turned by one position."""
    n = attention.shape.head_dim
    half = n // 2
    angle = rope_base ** (-torch.arange(half) / half)
    query, key = torch.zeros(n), torch.zeros(n)
    query[:NEAR] = 1.0
    key[:NEAR], key[half : half + NEAR] = angle[:NEAR].cos(), angle[:NEAR].sin()
    _rows(attention.q, 0, n)[:, 0] = query
    _rows(attention.k, 0, n)[:, 0] = key


def _rows(layer: nn.Linear, head: int, n: int) -> Tensor:
    return layer.weight[head * n : (head + 1) * n]


def _orthogonal(n: int, columns: int) -> Tensor:
    """`columns` random orthonormal vectors of `n` components, (n, columns)."""
    return torch.linalg.qr(torch.randn(n, columns) / math.sqrt(n))[0]
