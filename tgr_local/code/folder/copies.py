"""Copies of the person's folder, one for each candidate, each with that candidate's changes.

In: a project, changes. Out: places for `system.sandbox.commands`. The copies lie in the user's
cache folder, or in a folder for temporary files where the cache folder cannot be used. `close`
removes them; copies of a killed process are removed when the next copies are made. A command that
writes into a copy cannot change a file of the project.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from tgr_local.code.edits import Change, EditError, FileText
from tgr_local.code.folder import byte_style, repository, snapshot
from tgr_local.code.folder.byte_style import StyleError
from tgr_local.code.folder.project import Project, RefusedError, SourceFile
from tgr_local.code.folder.snapshot import CopyError
from tgr_local.system import paths
from tgr_local.system.errors import describe
from tgr_local.system.files import Lock
from tgr_local.system.sandbox import commands, usage
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.commands import Place, is_linked
from tgr_local.system.sandbox.own_path import OwnPath

_RESERVE = 256 << 20  # of the disk, bytes
_UNUSABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""A folder that is full, or may not be written."""
_LONGEST_TEXT = 1 << 20  # bytes, of a file that is looked at for the folder's path
BROKEN = (
    ")( tgr-local: this file is broken on purpose, in a copy, to see whether the tests notice\n"
)
"""The text of a file in a copy whose tests must fail."""


class Copies:
    """A snapshot of a project, and copies of it. Its methods may be called by several threads."""

    def __init__(self, project: Project) -> None:
        """Takes the snapshot, which holds the person's uncommitted work. Raises CopyError."""
        self._project = project
        self._numbers = itertools.count(1)
        self._naming: list[Path] | None = None  # the files that name the folder, once known
        self._naming_lock = threading.Lock()
        self._moved = ""  # why the copies are not in the cache folder
        first, *other_bases = _bases(project)
        try:
            self._begin(first)
        except NotADirectoryError:
            raise
        except (CopyError, OSError) as error:
            cause = error.__cause__ if isinstance(error, CopyError) else error
            if not isinstance(cause, OSError) or cause.errno not in _UNUSABLE:
                raise
            why = f"{first} cannot hold copies of the project: {cause.strerror}"
            for base in other_bases:
                with contextlib.suppress(CopyError, OSError):
                    self._begin(base)
                    self._moved = f"{why}; they are in {base}"
                    return
            raise CopyError(f"{why}; {_way_out(cause)}") from None

    def _begin(self, base: Path) -> None:
        """Takes the snapshot in a folder."""
        _remove_abandoned(paths.made(base, mode=0o700))
        self._folder = base / uuid.uuid4().hex
        self._lock = Lock(self._folder.with_suffix(".lock"))
        self._lock.take()
        try:
            self._folder.mkdir(mode=0o700)
            self._snapshot = snapshot.take(self._project, self._folder / "snapshot")
            self._size = usage.size(self._folder / "snapshot")
            self._check_room()
        except BaseException:
            self.close()
            raise

    def _check_room(self) -> None:
        """Raises CopyError where the disk has no room for a copy."""
        about = os.statvfs(self._folder)
        if about.f_bavail * about.f_frsize < self._size + _RESERVE:
            raise CopyError(
                f"the disk of {self._folder.parent} is too full for a copy of "
                f"{self._size >> 20:,} MiB; make room, or set XDG_CACHE_HOME to another disk"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes all of them."""
        usage.remove(self._folder)
        self._lock.release()

    def notes(self, backend: Backend) -> list[str]:
        """Returns the parts of the project that are hidden from commands in this backend, each with
        its reason."""
        folder = self._project.folder
        mounted = [path.relative_to(folder) for path in self._snapshot.mounted_read_only]
        missing = [] if backend == "bwrap" else [
            f"{path}: large or installed; only the sandbox bwrap can show it" for path in mounted
            if backend != "none" or not is_linked(path)
        ]  # fmt: skip
        home = [] if not self._is_home() else [
            f"{self._project.repository}: the repository holds your home folder; tests see "
            f"nothing of it but {self._project.folder}"
        ]  # fmt: skip
        moved = [self._moved] if self._moved else []
        return [*moved, *missing, *home, *self._snapshot.left_out]

    def document(self, source: SourceFile) -> FileText:
        """The text of a file at the time of the snapshot; of one that it does not hold, its own."""
        old = self._folder / "snapshot" / source.place.relative_to(self._project.folder)
        if any(source.place.is_relative_to(path) for path in self._snapshot.mounted_read_only):
            return source.document
        try:
            return FileText(source.document.path, byte_style.decode(old.read_bytes())[0])
        except (StyleError, OSError):
            return source.document

    def make(
        self, changes: Sequence[Change] = (), *, in_place: bool = True, broken: Sequence[str] = ()
    ) -> Place:
        """A new copy with these changes. `in_place`: commands see the copy at the path of the
        folder; else the folder's path in text files is replaced by that of the copy. The files in
        `broken`, except symbolic links and their targets, get a text that is valid in no language.
        Raises CopyError, EditError for a text that the encoding of its file lacks, and RefusedError
        for a change of a file that must not be changed or that had another text in the snapshot."""
        files = [self._bytes(change) for change in changes]
        self._check_room()
        folder = self._folder / str(next(self._numbers))
        tree = folder / "tree"
        try:
            (folder / "scratch").mkdir(parents=True)
            _duplicate(self._folder / "snapshot", tree)
            for path, data in files:
                _write(tree, path, data)
            place = Place(
                tree, self._project.folder, (*self._around(), *self._snapshot.mounted_read_only),
                folder / "scratch", self._size,
            )  # fmt: skip
            for name in broken:
                is_own = _is_own(tree, Path(name)) and not self._is_shown(Path(name))
                if is_own and os.path.isfile(tree / name):
                    _write(tree, Path(name), BROKEN.encode())
            if not in_place:
                self._name_copy(place, [path for path, _ in files])
        except (OSError, shutil.Error) as error:
            usage.remove(folder)
            raise CopyError(
                f"the project cannot be copied to {tree}: {describe(error)}; {_way_out(error)}"
            ) from None
        except BaseException:
            usage.remove(folder)
            raise
        return place

    def remove(self, place: Place) -> None:
        """Removes one, whatever a command left in it."""
        usage.remove(place.folder.parent)

    def leads(self) -> list[Path]:
        """The folders below the project that installed packages lead to: Python packages in
        editable mode, workspaces of node. Without bubblewrap tests may use these."""
        place = Place(
            self._project.folder, self._project.folder, tuple(self._snapshot.mounted_read_only)
        )
        folders = dict.fromkeys(commands.editable(place))
        for folder in self._snapshot.mounted_read_only:
            if folder.name == "node_modules":
                for path in (*folder.glob("*"), *folder.glob("@*/*")):
                    end = Path(os.path.realpath(path))
                    if os.path.islink(path) and end.is_relative_to(self._project.folder):
                        folders[end] = None
        return list(folders)

    def _is_shown(self, relative: Path) -> bool:
        place = self._project.folder / relative
        return any(place.is_relative_to(path) for path in self._snapshot.mounted_read_only)

    def _name_copy(self, place: Place, changed: Sequence[Path]) -> None:
        """Exchanges the folder's path for that of the copy in the files that name it."""
        own_path = place.own_path()
        with self._naming_lock:
            if self._naming is None:
                self._naming = list(_naming(self._folder / "snapshot", own_path))
        for relative in dict.fromkeys((*self._naming, *changed)):
            path = place.folder / relative
            if path.is_symlink() or not path.is_file():
                continue
            data, about = path.read_bytes(), path.stat()
            if b"\0" not in data and (new := own_path.in_bytes(data)) != data:
                _write(place.folder, relative, new)
                os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def _bytes(self, change: Change) -> tuple[Path, bytes]:
        """Returns the place of a changed file in the copy, and its bytes."""
        source = self._project.changeable_file(change.path)
        relative = source.place.relative_to(self._project.folder)
        for path in self._snapshot.mounted_read_only:
            if source.place.is_relative_to(path):
                raise RefusedError(f"{change.path} lies in {path}, which tests only read")
        old = self._folder / "snapshot" / relative
        try:
            data = old.read_bytes() if os.path.lexists(old) else b""
            old_text, style = byte_style.decode(data)
            if old_text != change.before:
                raise RefusedError(f"{change.path} has been changed meanwhile; begin again")
            return relative, byte_style.encode(old_text, change.after, style)
        except StyleError as error:
            raise EditError(f"{change.path} is not changed: {error}") from None
        except OSError as error:
            raise RefusedError(f"{change.path} is not changed: {describe(error)}") from None

    def _is_home(self) -> bool:
        """Whether the repository around the folder holds the person's home, secrets included."""
        top = self._project.repository
        home = Path(os.path.realpath(os.path.expanduser("~")))
        return top is not None and top != self._project.folder and home.is_relative_to(top)

    def _around(self) -> Iterator[Path]:
        """The rest of the repository around the folder: git and other tools read settings there."""
        top = self._project.repository
        if top is None or self._is_home():
            return
        if top != self._project.folder:
            yield top
        if outside := repository.shared_repository(top):
            yield outside


def _bases(project: Project) -> Iterator[Path]:
    """Yields folders for copies: the cache folder, else a folder of this user alone for temporary
    files, where others may write too."""
    yield paths.folder("cache") / "code"
    with contextlib.suppress(OSError):
        base = Path(tempfile.gettempdir()).resolve() / f"tgr-local-{os.getuid()}"
        if base.is_relative_to(project.folder):
            return  # a copy would hold itself
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=0o700)
        about = base.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o77:
            yield base


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
        completed = subprocess.run(
            command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )  # Ctrl-C, which would leave the slow way, is for us alone
        if completed.returncode == 0:
            return
        usage.remove(target)
    shutil.copytree(source, target, symlinks=True)


def _naming(tree: Path, own_path: OwnPath) -> Iterator[Path]:
    """The text files in a copy that name the folder which it is a copy of."""
    for folder, _, names in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                if path.is_symlink() or path.stat().st_size > _LONGEST_TEXT:
                    continue
                data = path.read_bytes()
                if b"\0" not in data and own_path.is_in(data):
                    yield path.relative_to(tree)


def _way_out(error: Exception) -> str:
    """Returns the way out for a full disk, or else for a folder that cannot be written."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room" if is_full else "make that folder writable"
    return f"{remedy}, or set XDG_CACHE_HOME to a folder on another disk"


def _is_own(tree: Path, relative: Path) -> bool:
    """Whether a path stays in the copy and passes through no symbolic link."""
    is_inside = not relative.is_absolute() and ".." not in relative.parts
    return is_inside and Path(os.path.realpath(tree / relative)) == (
        Path(os.path.realpath(tree)) / relative
    )


def _write(tree: Path, relative: Path, data: bytes) -> None:
    """Writes a file in a copy, which a link there must not lead out of."""
    path = tree / relative
    if not _is_own(tree, relative):
        raise RefusedError(f"{relative} has become a symbolic link meanwhile; begin again")
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    if mode is not None:
        path.chmod(mode)
