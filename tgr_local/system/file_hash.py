"""The sha256 of a large file, which is read for it once: the result is kept in the user's cache
folder under the file's path, number, size and times."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from tgr_local.system import paths

_known: dict[str, str] = {}


def of(path: Path) -> str:
    """The sha256 of a file. Raises OSError."""
    if (sha256 := known(path)) is not None:
        return sha256
    key = identity(path)
    sha256 = _known[key] = read(path)
    if identity(path) == key:
        with contextlib.suppress(OSError):  # a folder that cannot be written
            paths.write_whole(_file(key), sha256.encode())
    return sha256


def read(path: Path) -> str:
    """Computes the sha256 of a file's present content. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


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


def joined(hashes: Sequence[str]) -> str:
    """Returns one hash that stands for several; a single one itself."""
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def identity(path: Path) -> str:
    """Returns a key that changes when the file does: path, inode, size, times. Raises OSError."""
    about = path.stat()
    try:
        place = path.resolve()
    except OSError:  # Windows cannot follow some drives and long paths to their end
        place = path.absolute()
    parts = place, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
    return "\n".join(map(str, parts))


def _file(key: str) -> Path:
    name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return paths.folder("cache") / "hashes" / name
