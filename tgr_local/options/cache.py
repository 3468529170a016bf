"""The KV cache: the number types it can have, and the width of what a cell holds.

A cell holds the key and the value of one token in all layers. Pure functions of a model's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CacheType(NamedTuple):
    """A number type of ggml."""

    ggml_id: int
    """Its number in ggml's enum ``ggml_type``."""
    n_bytes: float
    """Bytes for each number, the scales of its block included."""


CACHE_TYPES = {
    "f32": CacheType(0, 4),
    "f16": CacheType(1, 2),
    "bf16": CacheType(30, 2),
    "q8_0": CacheType(8, 34 / 32),
    "q5_1": CacheType(7, 24 / 32),
    "q5_0": CacheType(6, 22 / 32),
    "q4_1": CacheType(3, 20 / 32),
    "q4_0": CacheType(2, 18 / 32),
}
PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")
"""Those without scales, which attention reads as they are."""


class Attention(NamedTuple):
    """The attention of a model; widths in numbers per head."""

    n_head: int
    n_head_kv: int
    key_width: int
    value_width: int


def attention(metadata: Mapping[str, str], n_embd: int) -> Attention:
    """The attention that a GGUF file's metadata describe; llama.cpp's defaults where they do not,
    or give one value per layer."""
    architecture = metadata.get("general.architecture", "")

    def number(key: str, default: int) -> int:
        text = metadata.get(f"{architecture}.attention.{key}", "")
        return int(text) if text.isdecimal() else default

    n_head = max(1, number("head_count", 1))
    n_head_kv = number("head_count_kv", n_head)
    width = n_embd // n_head
    return Attention(n_head, n_head_kv, number("key_length", width), number("value_length", width))
