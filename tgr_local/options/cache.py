"""The number types that the KV cache can have."""

from __future__ import annotations

from typing import NamedTuple


class CacheType(NamedTuple):
    """A number type of ggml."""

    ggml_id: int
    """Value in ggml's enum ``ggml_type``."""
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
"""Cache types without scales, which attention reads as they are."""
