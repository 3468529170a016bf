"""Files that one process at a time writes whole from its memory, so that none replaces what another
has written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from pathlib import Path

from tgr_local.system.files import NOFOLLOW, Lock
from tgr_local.system.paths import private, write_whole

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
