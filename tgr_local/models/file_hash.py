"""The sha256 of a model file, which is read for it once: the result is kept in the user's cache
folder under the path, the size and the time of the last change of the file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from tgr_local.system import paths

_known: dict[str, str] = {}


def of(path: Path) -> str:
    """The sha256 of a file. Raises OSError."""
    if (found := known(path)) is not None:
        return found
    key = identity(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    found = _known[key] = digest.hexdigest()
    if identity(path) == key:
        with contextlib.suppress(OSError):  # a folder that cannot be written
            place = paths.private(_file(key))
            with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as new:
                new.write(found)
            os.replace(new.name, place)
    return found


def known(path: Path) -> str | None:
    """The sha256 of a file that was read before and has not changed since; None for others."""
    try:
        key = identity(path)
        if key not in _known:
            with _file(key).open("rb") as file:
                text = file.read(65).decode("ascii", "replace")
            if re.fullmatch("[0-9a-f]{64}", text):
                _known[key] = text
    except OSError:
        return None
    return _known.get(key)


def identity(path: Path) -> str:
    """What changes when the file does: its path, size and time. Raises OSError."""
    about = path.stat()
    return f"{path.resolve()}\n{about.st_size}\n{about.st_mtime_ns}"


def _file(key: str) -> Path:
    name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return paths.folder("cache") / "hashes" / name
