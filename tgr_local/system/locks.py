"""A lock between processes that the system releases when its process ends, however that happens."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tgr_local.system import files

_PAUSE, _LONGEST = 0.05, 60.0  # seconds between two attempts, and of all of them


class Lock:
    """A lock file, which is removed when the lock is released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self, *, wait: bool = True) -> bool:
        """Takes the lock; False if another process has it, and still had it after a minute. Raises
        OSError."""
        deadline = time.monotonic() + (_LONGEST if wait else 0.0)
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | files.NOFOLLOW, 0o600)
            try:
                files.lock(descriptor)
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
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
