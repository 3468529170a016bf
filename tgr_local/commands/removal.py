"""Deletes a model from the folder of models, with what belongs to it alone.

Only names in that folder are deleted: a link is deleted, not what it leads to, and no folder that
is a link is entered.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from tgr_local.options import model_files, model_parts, strength_files
from tgr_local.system.errors import ModelError


def files_of(name: str) -> list[Path]:
    """The files of the model of that name: its parts, and the strengths that were measured for
    it. Raises ModelError for a model that is not in the folder of models."""
    path = model_files.find(name)
    if not os.path.lexists(path):
        raise ModelError(f"there is no file {path}; tgr-local models lists those here")
    folder = model_files.folder()
    if model_files.listed_name(path) in model_files.EMBEDDED:
        raise ModelError(f"{name} belongs to the installation, and is not deleted")
    if not _lies_in(path, folder):
        raise ModelError(
            f"{path} is not in the folder of models, {folder}; delete such a file yourself"
        )
    if model_parts.is_later_part(path):
        raise ModelError(f"{path} is a later part of a model; name its first part")
    parts = [part for part in model_parts.parts_of(path) if os.path.lexists(part)]
    for file in parts:
        if stat.S_ISDIR(os.lstat(file).st_mode):
            raise ModelError(f"{file} is a folder, which is not deleted; delete it yourself")
    # what a link leads to stays, and with it what was measured
    return [*parts, *(() if path.is_symlink() else strength_files.of_model(path))]


def _lies_in(path: Path, folder: Path) -> bool:
    """Whether a name is in a folder or below it, without a way through a link."""
    try:
        return path.parent.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except OSError:
        return False


def n_bytes(files: list[Path]) -> int:
    """Bytes that deleting the files frees."""
    return sum(os.lstat(file).st_size for file in files)


def remove(files: list[Path]) -> None:
    """Deletes the files, then the folders of their repository that are empty. Raises OSError for
    one that cannot be deleted."""
    for file in files:
        file.unlink()
    folder = model_files.folder().resolve()
    place = files[0].parent.resolve()
    while place != folder and place.is_relative_to(folder):
        with contextlib.suppress(OSError):  # it is not empty
            place.rmdir()
        if place.exists():
            return
        place = place.parent
