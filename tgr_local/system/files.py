"""Files, where systems and Pythons differ: flags of `os.open`, locks, the mark before a text, TOML;
and files that one process at a time writes whole, so that none replaces what another wrote.

Windows has no such flags, locks parts of files, and its programs begin UTF-8 with a byte order
mark.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tgr_local.system.paths import private, write_whole

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open` that refuses a link; 0 where the system cannot."""
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open` that does not wait for a pipe's other end; 0 where the system cannot."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag of `os.open` without which `os.write` changes line ends on Windows; 0 elsewhere."""
_PAUSE, _LONGEST = 0.05, 60.0  # seconds between two attempts to lock, and of all of them


def utf8_text(data: bytes) -> str:
    """The bytes of a file as text, without one byte order mark at the beginning. Raises
    UnicodeDecodeError, whose positions count the mark."""
    return data.decode("utf-8").removeprefix("\ufeff")


def toml_tables(data: bytes) -> dict[str, Any]:
    """The values of a TOML file by key. Raises ValueError for other bytes, and RecursionError."""
    if sys.version_info >= (3, 11):  # imported here, since a short command reads no TOML
        import tomllib  # novermin
    else:
        import tomli as tomllib
    return tomllib.loads(utf8_text(data))


def open_plain(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file to read its bytes; follows no link, and waits for no pipe. Raises OSError."""
    # by an opener, since open() does not close a descriptor that it is given and cannot use
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | NOFOLLOW | NONBLOCK))


@contextlib.contextmanager
def naming(path: object) -> Iterator[None]:
    """Names a file in an OSError of the block that names none, as where the disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def lock(descriptor: int) -> None:
    """Locks an open file, until it is closed or its process ends. Raises BlockingIOError if it is
    locked already."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        lock_far_byte(descriptor)


def lock_far_byte(descriptor: int) -> None:
    # Windows refuses to read what is locked: so it is a byte that no file has
    if sys.platform != "win32":
        raise NotImplementedError
    import ctypes
    import msvcrt

    exclusive, at_once = 2, 1
    overlapped = (ctypes.c_uint32 * 8)(*[0] * 5, 0x7FFFFFFF)  # the sixth: the place's high part
    handle = ctypes.c_void_p(msvcrt.get_osfhandle(descriptor))
    lock_file = ctypes.WinDLL("kernel32").LockFileEx
    if not lock_file(handle, exclusive | at_once, 0, 1, 0, ctypes.byref(overlapped)):
        raise BlockingIOError


class Lock:
    """A lock between processes: a file, which is removed when the lock is released. The system
    releases it when its process ends, however that happens."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self, *, wait: bool = True) -> bool:
        """Takes the lock; False if another process has it, and still had it after a minute. Raises
        OSError."""
        deadline = time.monotonic() + (_LONGEST if wait else 0.0)
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | NOFOLLOW, 0o600)
            try:
                lock(descriptor)
                # its last holder may have removed the file before we had the lock
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    self._descriptor = descriptor
                    return True
            except FileNotFoundError:
                pass
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return False
                time.sleep(_PAUSE)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self) -> None:
        """Releases the lock; nothing happens if it is not held."""
        if self._descriptor >= 0:
            if fcntl is None:  # Windows removes no open file, nor one that another has taken since
                os.close(self._descriptor)
            with contextlib.suppress(OSError):
                self._path.unlink()
            if fcntl is not None:
                os.close(self._descriptor)
            self._descriptor = -1


WITHOUT_LOCKS = {
    errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL,
}  # fmt: skip
"""Error numbers of a file system without locks, such as some network file systems."""
_EMPTY = hashlib.sha256().digest()


class OwnedFile:
    """A file that this process alone replaces while it owns it. Any number of processes may try.

    The owner holds a lock beside the file, which the system releases when the process ends,
    however that happens. Where a file system has no locks, a file belongs to the process that made
    it, and no other owns it ever.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_owned = False
        self._lock = Lock(path.with_name(f".{path.name}.lock"))
        self.last_digest: bytes | None = None
        """Digest of the content as this process saw it last; None = there was no file."""

    def create(self) -> bool:
        """Makes the file, empty, and owns it; False if it is there, or another process is about to
        make it. Raises OSError."""
        private(self.path)
        try:
            if not self._lock.take(wait=False):
                return False
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o600))
        except FileExistsError:
            self.release()
            return False
        except BaseException:
            self.release()
            raise
        self.last_digest, self.is_owned = _EMPTY, True
        return True

    def take(self) -> bool:
        """Owns a file that is there; False if another process does. Raises OSError where that
        cannot be known."""
        self.is_owned = self._lock.take(wait=False)
        if self.is_owned:
            self.last_digest = digest(self.path)
        return self.is_owned

    def write(self, data: bytes) -> bool:
        """Replaces the content of the owned file at once; False, and nothing changes, if the
        content is not what this process saw last: somebody wrote it who knows nothing of owners.
        A file that was removed is made again. Raises OSError; then the old content stays, and one
        that is empty still is removed."""
        if digest(self.path) not in (None, self.last_digest):
            return False
        try:
            write_whole(self.path, data)
        except BaseException:
            if self.last_digest == _EMPTY:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            raise
        self.last_digest = hashlib.sha256(data).digest()
        return True

    def release(self) -> None:
        """Ends the ownership, so that another process may have it."""
        self._lock.release()
        self.is_owned = False


def digest(path: Path) -> bytes | None:
    """Returns the sha256 of the content; None if there is no file. Raises OSError."""
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except FileNotFoundError:
        return None
