"""What the fixtures of conftest.py are that are functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tgr_local.engine import Engine

Model = Callable[..., Path]
"""`model("llama", tied=True)` is the path of a random model."""
Load = Callable[..., Engine]
"""`load(path, n_ctx=256)` is an exact engine that is closed after the test."""
