"""Copies of the person's folder, one for each candidate, each with that candidate's changes.

In: a project, changes. Out: places for `system.sandbox.commands`. The copies lie in the user's
cache folder; they are removed when they are closed, and those of a process that was killed when the
next ones are made. They share no file with the project that a command could write through.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tgr_local.code.edits import Change, Document
from tgr_local.code.folder import byte_style, repository, snapshot
from tgr_local.code.folder.byte_style import StyleError
from tgr_local.code.folder.project import Project, RefusedError, SourceFile
from tgr_local.code.folder.snapshot import CopyError
from tgr_local.system import paths
from tgr_local.system.errors import describe
from tgr_local.system.files import Lock
from tgr_local.system.sandbox import usage
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.commands import Place, is_linked

_RESERVE = 256 << 20  # of the disk, bytes


class Copies:
    """A snapshot of a project, and copies of it. Its methods may be called by several threads."""

    def __init__(self, project: Project) -> None:
        """Takes the snapshot, which holds the person's uncommitted work. Raises CopyError."""
        self._project = project
        base = paths.made(paths.folder("cache") / "code", mode=0o700)
        _remove_abandoned(base)
        self._folder = base / uuid.uuid4().hex
        self._lock = Lock(self._folder.with_suffix(".lock"))
        self._lock.take()
        self._numbers = itertools.count(1)
        try:
            self._folder.mkdir(mode=0o700)
            self._taken = snapshot.take(project, self._folder / "snapshot")
            self._size = usage.size(self._folder / "snapshot")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes all of them."""
        usage.remove(self._folder)
        self._lock.release()

    def notes(self, backend: Backend) -> list[str]:
        """What commands in this backend do not see of the project, each with its reason."""
        shown = [path.relative_to(self._project.folder) for path in self._taken.shown]
        missing = [] if backend == "bwrap" else [
            f"{path}: large or installed; only the sandbox bwrap can show it" for path in shown
            if backend != "none" or not is_linked(path)
        ]  # fmt: skip
        home = [] if not self._is_home() else [
            f"{self._project.repository}: the repository holds your home folder; tests see "
            f"nothing of it but {self._project.folder}"
        ]  # fmt: skip
        return [*missing, *home, *self._taken.left_out]

    def document(self, source: SourceFile) -> Document:
        """The text of a file at the time of the snapshot; of one that it does not hold, its own."""
        old = self._folder / "snapshot" / source.place.relative_to(self._project.folder)
        if any(source.place.is_relative_to(path) for path in self._taken.shown):
            return source.document
        try:
            return Document(source.document.path, byte_style.decode(old.read_bytes())[0])
        except (StyleError, OSError):
            return source.document

    def make(self, changes: Sequence[Change] = ()) -> Place:
        """A new copy with these changes. Raises CopyError, and RefusedError for a change of a file
        that must not be changed or had another text at the time of the snapshot."""
        whole = [self._bytes(change) for change in changes]
        about = os.statvfs(self._folder)
        if about.f_bavail * about.f_frsize < self._size + _RESERVE:
            raise CopyError(
                f"the disk of {self._folder.parent} is too full for a copy of "
                f"{self._size >> 20:,} MiB; make room, or set XDG_CACHE_HOME to another disk"
            )
        folder = self._folder / str(next(self._numbers))
        (folder / "scratch").mkdir(parents=True)
        tree = folder / "tree"
        try:
            _duplicate(self._folder / "snapshot", tree)
            for path, data in whole:
                _write(tree, path, data)
        except (OSError, shutil.Error) as error:
            usage.remove(folder)
            raise CopyError(f"the project cannot be copied to {tree}: {describe(error)}") from None
        shown = (*self._around(), *self._taken.shown)
        return Place(tree, self._project.folder, shown, folder / "scratch", self._size)

    def remove(self, place: Place) -> None:
        """Removes one, whatever a command left in it."""
        usage.remove(place.folder.parent)

    def _bytes(self, change: Change) -> tuple[Path, bytes]:
        """Where a changed file lies in the copy, and its bytes."""
        source = self._project.to_change(change.path)
        relative = source.place.relative_to(self._project.folder)
        for path in self._taken.shown:
            if source.place.is_relative_to(path):
                raise RefusedError(f"{change.path} lies in {path}, which tests only read")
        old = self._folder / "snapshot" / relative
        try:
            data = old.read_bytes() if os.path.lexists(old) else b""
            before, style = byte_style.decode(data)
            if before != change.before:
                raise RefusedError(f"{change.path} has been changed meanwhile; begin again")
            return relative, byte_style.encode(before, change.after, style)
        except (StyleError, OSError) as error:
            raise RefusedError(f"{change.path} is not changed: {describe(error)}") from None

    def _is_home(self) -> bool:
        """Whether the repository around the folder holds the person's home, secrets included."""
        top = self._project.repository
        home = Path(os.path.realpath(os.path.expanduser("~")))
        return top is not None and top != self._project.folder and home.is_relative_to(top)

    def _around(self) -> Iterator[Path]:
        """The rest of the repository: settings above a folder hold for it, and git looks there."""
        top = self._project.repository
        if top is None or self._is_home():
            return
        if top != self._project.folder:
            yield top
        if outside := repository.shared(top):
            yield outside


def _remove_abandoned(base: Path) -> None:
    """Removes the copies of processes that are gone."""
    for path in base.glob("*.lock"):
        lock = Lock(path)
        if lock.take(wait=False):
            usage.remove(path.with_suffix(""))
            lock.release()


def _duplicate(source: Path, target: Path) -> None:
    """Copies a folder with `cp`, which is fast and can share blocks, else by Python."""
    if sys.platform == "linux" and (cp := paths.program("cp")):
        quiet = subprocess.DEVNULL
        command = [cp, "-a", "--reflink=auto", "-T", "--", str(source), str(target)]
        done = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )  # Ctrl-C, which would leave the slow way, is for us alone
        if done.returncode == 0:
            return
        usage.remove(target)
    shutil.copytree(source, target, symlinks=True)


def _write(tree: Path, relative: Path, data: bytes) -> None:
    """Writes a file in a copy, which a link there must not lead out of."""
    path = tree / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    if Path(os.path.realpath(path)) != Path(os.path.realpath(tree)) / relative:
        raise RefusedError(f"{relative} has become a symbolic link meanwhile; begin again")
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    if mode is not None:
        path.chmod(mode)
