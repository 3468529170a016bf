"""The names of model files, and those of a model that is divided into parts."""

from __future__ import annotations

import re
from pathlib import Path

PART = re.compile(r"-([0-9]{5})-of-([0-9]{5})$")
"""The end of a part's name without its ending: its number, and how many there are."""
# llama.cpp finds them from the first one
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.I)


_ENDING = re.compile(r"\.gguf$", re.I)


def without_ending(name: str) -> str:
    """A name without the ``.gguf`` of a model file, in any case; another name as it is."""
    return _ENDING.sub("", name)


def plain_name(name: str) -> str:
    """A model file's name or path without its ending and the number of its part."""
    return PART.sub("", without_ending(name))


def is_later_part(path: Path) -> bool:
    """Whether the file is a part of a model after its first one."""
    return _LATER_PART.search(path.name) is not None


def parts_of(path: Path) -> list[Path]:
    """All files of a model, from its first one."""
    if not (part := PART.search(path.stem)):
        return [path]
    start, n_parts = path.stem[: part.start()], int(part[2])
    return [path.with_name(f"{start}-{i:05}-of-{n_parts:05}.gguf") for i in range(1, n_parts + 1)]


def bytes_of(path: Path) -> int:
    """The bytes of all files of a model. Raises OSError where one is not there."""
    return sum(part.stat().st_size for part in parts_of(path))
