"""Measured strengths of injections: a file for each model and settings in the user's cache folder.

`tgr_local.search.strength` measures them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.options.model_parts import parts_of
from tgr_local.system import file_hash, json_checks, paths

HIGHEST = 1e6
"""ζ at most."""
_FORMAT = 2  # 1 had the layers and the maps among the settings
_MOST_BYTES = 1 << 16
_SETTINGS: dict[str, Any] = {
    "model": str, "divergence": float, "rank": int, "d_z": int,
    "injection_seed": int, "type_k": str, "type_v": str, "control_vector": str,
}  # fmt: skip
_SHAPE: dict[str, Any] = {
    "format": int, "settings": _SETTINGS, "zeta": float, "divergence": float,
    "n_positions": json_checks.Count, "seconds": float,
}  # fmt: skip


@dataclass(frozen=True)
class Strength:
    """Result of a measurement."""

    zeta: float
    """ζ: the length of every layer's vector, for η = 1."""
    divergence: float
    """Mean KL divergence that it gave, nats a token."""
    n_positions: int
    """Positions that the measurement decoded."""
    seconds: float

    def __str__(self) -> str:
        return f"ζ {self.zeta:.4g}, {self.divergence:.4f} nats a token"


def read(settings: Mapping[str, Any]) -> Strength | None:
    """The strength for these settings; None where there is none, or its file is damaged."""
    saved = _read(_file(settings))
    return saved[1] if saved and saved[0] == settings else None


def write(settings: Mapping[str, Any], strength: Strength) -> None:
    """Keeps a strength, where the folder can be written."""
    data = {"format": _FORMAT, "settings": settings, **dataclasses.asdict(strength)}
    with contextlib.suppress(OSError):
        paths.write_whole(_file(settings), json.dumps(data).encode())


def of_model(path: Path, **wanted: Any) -> dict[Path, tuple[dict[str, Any], Strength]]:
    """The strengths that were measured for a model file, with their settings, by their files: those
    that have the wanted settings."""
    hashes = [file_hash.known(part) for part in parts_of(path) if part.is_file()]
    known = [sha256 for sha256 in hashes if sha256]
    if not known or len(known) < len(hashes):
        return {}
    wanted["model"] = file_hash.joined(known)
    every = ((file, _read(file)) for file in sorted(_folder().glob("*.json")))
    return {file: kept for file, kept in every if kept and wanted.items() <= kept[0].items()}


def _folder() -> Path:
    return paths.folder("cache") / "strengths"


def _file(settings: Mapping[str, Any]) -> Path:
    name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    return _folder() / f"{name}.json"


def _read(path: Path) -> tuple[dict[str, Any], Strength] | None:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        data = json_checks.loads(path.read_bytes())
        json_checks.check(_SHAPE, data)
        if data["format"] != _FORMAT or not 0 < data["zeta"] <= HIGHEST:
            return None
    except (OSError, ValueError):
        return None
    fields = [field.name for field in dataclasses.fields(Strength)]
    return data["settings"], Strength(*(data[name] for name in fields))
