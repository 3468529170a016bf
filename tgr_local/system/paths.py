"""The folders for the user's files: those of the XDG specification, on every system."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

Kind = Literal["config", "data", "state", "cache"]
_DEFAULTS: dict[Kind, str] = {
    "config": ".config", "data": ".local/share", "state": ".local/state", "cache": ".cache",
}  # fmt: skip
_DRAFT = ".tgr-draft-"  # how the names of drafts begin
_ABANDONED_SECONDS = 3600
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # of some file systems


def folder(kind: Kind) -> Path:
    """The folder of tgr-local for settings (config), downloads (data), history (state), or files
    that can be made again (cache). It need not exist. An XDG variable with a relative path is
    ignored, as the specification demands."""
    home = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~")) / _DEFAULTS[kind]
    return base / "tgr-local"


def program_folders() -> list[Path]:
    """The folders of PATH that have a whole path and can be looked into. A relative one would find
    programs in the current folder, which may be a stranger's."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [Path(entry) for entry in entries if os.path.isabs(entry) and os.access(entry, os.X_OK)]


def program(name: str) -> str | None:
    """The file of a program in these folders; None where there is none."""
    return shutil.which(name, path=os.pathsep.join(map(str, program_folders())))


def every_folder() -> list[Path]:
    """The folders of all kinds, absolute and without symbolic links."""
    return [Path(os.path.realpath(folder(kind))) for kind in _DEFAULTS]


def expanded(option: str, value: str) -> Path:
    """The path that an option has, where ~ is a home folder. Raises ValueError for ~NAME where
    nobody has that name."""
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{option} is {value!r:.200}, but this machine has no home folder of "
            f"{Path(value).parts[0]!r:.40}; write the whole path"
        ) from None


def existing_folder(option: str, value: str) -> Path:
    """The folder that an option names, where ~ is a home folder. Raises ValueError where there is
    none."""
    if (path := expanded(option, value)).is_dir():
        return path
    raise ValueError(
        f"{option} is {value!r}, but must be an existing folder; make it, or name another"
    )


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file in a folder that only the owner may read, whole or not at all, also where the
    machine loses its power. Drafts that killed processes have left there are removed after an hour.
    Raises OSError."""
    remove_abandoned(private(path).parent, f"{_DRAFT}*")
    with replacing(path, _DRAFT) as draft:
        draft.write(data)
        draft.flush()
        try:
            os.fsync(draft.fileno())
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise


@contextlib.contextmanager
def replacing(path: Path, prefix: str, suffix: str = "") -> Iterator[BinaryIO]:
    """A new file that its owner alone may read, which takes the place of `path` at the end of the
    block, or is removed. Its own name begins and ends so."""
    descriptor, name = tempfile.mkstemp(suffix, prefix, path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def latest_first(place: Path, names: str) -> list[tuple[Path, os.stat_result]]:
    """The files in a folder whose names match a pattern, with their times and sizes, those that
    were written last first. Other processes may remove some meanwhile, or the folder."""
    files = []
    with contextlib.suppress(OSError):
        for path in place.glob(names):
            with contextlib.suppress(OSError):
                files.append((path, path.stat()))
    return sorted(files, key=lambda file: (file[1].st_mtime_ns, file[0]), reverse=True)


def remove_abandoned(place: Path, drafts: str) -> None:
    """Removes the files in a folder whose names match the pattern `drafts` and that nobody has
    written to for an hour: the process that wrote them was killed."""
    with contextlib.suppress(OSError):  # the folder is gone
        for path in place.glob(drafts):
            with contextlib.suppress(OSError):  # another process may remove it
                if time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()


def private(path: Path) -> Path:
    """`path`, after making its folder, which only the owner may read. Raises OSError."""
    made(path.parent, mode=0o700)
    return path


def made(folder: Path, mode: int = 0o777) -> Path:
    """`folder`, after making it and those above it. Raises OSError, which names what is no
    folder."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        at = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
        raise NotADirectoryError(
            errno.ENOTDIR, "it is not a folder; move it away, or name another", str(at)
        ) from None
    return folder
