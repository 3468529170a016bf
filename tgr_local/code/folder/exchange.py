"""Gives a file other bytes in one step, and takes them back if the file was not the expected one.

A new file is written to a staging path, and both names are exchanged at once (renameat2 of Linux):
whatever lay there, an edit of the same moment too, is then at the staging path, is looked at, and
is exchanged back where nobody expected it. Where the system cannot exchange, the file is looked at
before a plain rename.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tgr_local.system.files import open_plain

_AT_FDCWD, _EXCHANGE = -100, 2
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


def write(path: Path, data: bytes, mode: int) -> None:
    """Writes a new file that reaches the disk. Raises OSError, also where there is something."""
    with open(path, "xb") as file:  # which follows no link
        try:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            remove(path)
            raise


def sync(folder: Path) -> None:
    """Flushes the names in a folder to the disk."""
    with contextlib.suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def leftover(place: Path) -> Path:
    """The hidden name beside a file, which is there only while it is replaced. The caller makes
    sure that nothing of the person has this name."""
    return place.with_name(f".{place.name[:200]}.tgr-new")


def replace(
    place: Path,
    new: bytes | None,
    mode: int,
    is_expected: Callable[[bytes | None], bool],
    staging: Path,
) -> bool:
    """Gives a file the bytes `new`, or removes it where `new` is None. Returns False and changes
    nothing if its present bytes (None: there is no file) are not the expected ones. `staging` is a
    path that nothing else uses. Where it is on another disk than the file, a second path beside the
    file is used too. Raises OSError."""
    if not is_expected(read(place)):
        return False
    if os.stat(staging.parent).st_dev != os.stat(place.parent).st_dev:
        staging = leftover(place)
    try:
        was_expected = _replace(place, new, mode, is_expected, staging)
    except OSError as error:
        if error.errno != errno.EXDEV or staging == leftover(place):
            raise
        was_expected = _replace(place, new, mode, is_expected, leftover(place))
    sync(place.parent)
    return was_expected


def _replace(
    place: Path,
    new: bytes | None,
    mode: int,
    is_expected: Callable[[bytes | None], bool],
    staging: Path,
) -> bool:
    if new is None:
        os.rename(place, staging)
        if not is_expected(read(staging)):
            _give_back(staging, place)
            return False
    else:
        write(staging, new, mode)
        try:
            was_swapped = _put(staging, place)
        except FileExistsError:
            remove(staging)
            return False
        except OSError:
            remove(staging)
            raise
        if was_swapped and not is_expected(read(staging)):
            swap(staging, place)
            remove(staging)
            return False
    remove(staging)
    return True


def _put(staging: Path, place: Path) -> bool:
    """Gives a new file its name; returns whether the old file has the staging name now. Raises
    FileExistsError where a file has come meanwhile, and OSError; then nothing has changed."""
    if os.path.lexists(place):
        _like(place, staging)
        if swap(staging, place):
            return True
        os.replace(staging, place)
        return False
    try:
        os.link(staging, place)  # fails where a file has come
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.EXDEV):
            raise
        os.rename(staging, place)  # a file system without links
    return False


def settle(place: Path, staging: Path, known: Callable[[bytes], bool]) -> None:
    """Clears up after a killed process. A file that it left at one of the two staging paths is
    removed if its bytes are known. Else it is an edit that the person made at that moment, and is
    moved back."""
    for path in (staging, leftover(place)):
        if path.is_symlink():  # not ours
            continue
        data = read(path)
        if data is not None and not known(data):
            swap(path, place) if os.path.lexists(place) else os.rename(path, place)
        remove(path)


def remove(path: Path) -> None:
    """Removes a file, which need not be there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def read(path: Path) -> bytes | None:
    """A file's bytes; None where there is no file. Raises OSError."""
    try:
        with open_plain(path) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _give_back(hidden: Path, place: Path) -> None:
    try:
        os.link(hidden, place)
    except OSError:
        if not os.path.lexists(place):
            os.rename(hidden, place)


def _like(old: Path, new: Path) -> None:
    """Gives a new file the owner, the mode and the attributes of an old one, as far as possible;
    its times are its own."""
    about = os.lstat(old)
    with contextlib.suppress(OSError):
        os.chown(new, about.st_uid, about.st_gid)
    times = os.stat(new)
    with contextlib.suppress(OSError):
        shutil.copystat(old, new)
    later = times.st_mtime_ns
    if about.st_size == times.st_size and about.st_mtime_ns // 10**9 == later // 10**9:
        later += 10**9  # Python compares full seconds and the size before it compiles again
    os.utime(new, ns=(times.st_atime_ns, later))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    with contextlib.suppress(OSError, AttributeError):
        function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
        return function
    return None


def swap(first: Path, second: Path) -> bool:
    """Exchanges two names; False where the system or the file system cannot. Raises OSError."""
    rename = _renameat2()
    if rename is None:
        return False
    names = (os.fsencode(first), os.fsencode(second))
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(second))
