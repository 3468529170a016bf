"""Where files of the user lie: the XDG folders, on every system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

_DEFAULTS = {
    "config": ".config", "data": ".local/share", "state": ".local/state", "cache": ".cache",
}  # fmt: skip


def folder(kind: Literal["config", "data", "state", "cache"]) -> Path:
    """The folder of tgr-local for what the user wrote (config), fetched (data) or did (state), or
    what can be made again (cache). It need not exist. As the XDG rules say, a variable whose folder
    would depend on the current one is ignored."""
    home = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / _DEFAULTS[kind]
    return base / "tgr-local"


def private(path: Path) -> Path:
    """`path` with its folder made, for files that their owner alone may read. OSError if not."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
