"""A copy of the person's folder at one moment, uncommitted work included.

In: a project. Out: a folder equal to it, and what was not copied: the folders and files that are
shown to a command read-only instead, and what is left out. It never writes into the project.

All files are copied, whether git knows them or not: tests need generated and built files. Installed
packages (node_modules, virtual environments), large ignored folders, large files and .git are shown
read-only instead; in the copy they are empty. Caches, large folders that a build makes again (of
cargo, Maven or Gradle, or with a CACHEDIR.TAG), tgr-local's own files, links that leave the folder,
pipes and sockets are left out. Dangling symlinks are copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tgr_local.code.folder import listing
from tgr_local.code.folder.project import Project
from tgr_local.system.errors import TgrError
from tgr_local.system.files import open_plain

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 512 << 20
MAX_ENTRIES = 50_000
LARGE_FILE = 32 << 20  # bytes, of a file that is shown instead
LARGE_FOLDER = (32 << 20, 2000)  # bytes and entries, of an ignored folder that is not copied
LARGE_BUILD = (192 << 20, 20_000)  # … of one that CMake or Meson has configured
_CONFIGURED = ("CMakeCache.txt", "meson-private", "build.ninja")
_GRADLE = ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts")
_FICLONE = 0x40049409
_GONE = (FileNotFoundError, NotADirectoryError)  # deleted while it is copied
_MOST_NOTES = 20


class CopyError(TgrError):
    """A folder that is not copied: too large, or the disk is too small."""


def take(project: Project, target: Path) -> Snapshot:
    """Copies a project to a new folder. Raises CopyError."""
    ignored = listing.ignored_folders(project.repository, project.folder)
    own_paths = listing.own_folders(project.folder)
    snapshot = Snapshot(project.folder, target, ignored, own_paths)
    snapshot.copy()
    return snapshot


@dataclass
class Snapshot:
    """Contents of a copy, and the parts left out."""

    root: Path
    target: Path
    ignored: frozenset[str]
    """Folders below the root that version control ignores."""
    own: frozenset[str]
    """Folders below the root with tgr-local's own files, this copy among them."""
    n_bytes: int = 0
    n_entries: int = 0
    mounted_read_only: list[Path] = field(default_factory=list)
    """Paths in the project that are not copied but shown read-only where the sandbox can."""
    left_out: list[str] = field(default_factory=list)
    """Parts that are neither copied nor shown, each with its reason."""

    def copy(self) -> None:
        """Copies the root to the target, which is not there yet. Raises CopyError."""
        about = os.lstat(self.root)
        self.target.mkdir()
        modes = [(self.target, about)]
        waiting = [""]
        try:
            while waiting:
                for path, entry in self._entries(waiting.pop()):
                    if copied_folder := self._copy_entry(path, entry):
                        modes.append(copied_folder)
                        waiting.append(path + "/")
            for folder, about in reversed(modes):  # last: it may be read-only
                os.utime(folder, ns=(about.st_atime_ns, about.st_mtime_ns))
                folder.chmod(stat.S_IMODE(about.st_mode) & 0o777)
        except OSError as error:
            where = error.filename or self.target
            raise CopyError(f"{where} cannot be copied: {error.strerror}") from error
        del self.left_out[_MOST_NOTES:]

    def _count(self, size: int, folder: Path) -> None:
        """Raises CopyError when the copy has become too large."""
        self.n_bytes += size
        self.n_entries += 1
        if self.n_bytes > MAX_BYTES or self.n_entries > MAX_ENTRIES:
            raise CopyError(
                f"{folder} is too large to be copied for each candidate: it has more than "
                f"{MAX_BYTES >> 20:,} MiB or {MAX_ENTRIES:,} files that git does not ignore; begin "
                "in a folder below it, or add what tests do not need to .gitignore"
            )

    def _entries(self, place: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            entries = sorted(os.scandir(self.root / place), key=lambda entry: entry.name)
        except _GONE:
            return
        except PermissionError:
            self.left_out.append(f"{place}: it cannot be read")
            return
        for entry in entries:
            yield place + entry.name, entry

    def _copy_entry(self, path: str, entry: os.DirEntry[str]) -> tuple[Path, os.stat_result] | None:
        """Copies one entry; a folder is only made, and returned."""
        copy = self.target / path
        try:
            about = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                self._count(0, self.root)
                self._link(path)
            elif entry.is_dir(follow_symlinks=False):
                return (copy, about) if self._folder(path, entry) else None
            elif not stat.S_ISREG(about.st_mode):
                self.left_out.append(f"{path}: it is neither a file nor a folder")
            elif about.st_size > LARGE_FILE:
                self.mounted_read_only.append(Path(entry.path))
                copy.touch()
            else:
                self._count(about.st_size, self.root)
                clone(entry.path, copy)
                os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))
                os.chmod(copy, stat.S_IMODE(about.st_mode) & 0o777)
        except _GONE:
            pass
        except PermissionError:
            self.left_out.append(f"{path}: it cannot be read")
        return None

    def _folder(self, path: str, entry: os.DirEntry[str]) -> bool:
        """Makes a folder, unless it is left out; whether what is in it is copied."""
        if entry.name in listing.CACHES or path in self.own:
            return False
        source = Path(entry.path)
        is_shown = entry.name == ".git" or listing.is_installed(source)
        if not is_shown and path in self.ignored and _is_large(source, _largest(source)):
            if _is_made_again(source):
                self.left_out.append(f"{path}: large, ignored by git, and made by a build")
                return False
            is_shown = True
        self._count(0, source)
        (self.target / path).mkdir()
        if is_shown:
            self.mounted_read_only.append(source)
        return not is_shown

    def _link(self, path: str) -> None:
        """Copies a symbolic link. An absolute one that stays in the folder becomes a relative one,
        so that it stays in the copy."""
        source = self.root / path
        link = os.readlink(source)
        end = Path(os.path.realpath(source))
        if not end.is_relative_to(self.root):
            self.left_out.append(f"{path}: the link leaves the folder")
        elif os.path.isabs(link):
            link = os.path.relpath(end, source.parent)
        os.symlink(link, self.target / path)


def _largest(folder: Path) -> tuple[int, int]:
    """The bytes and entries up to which an ignored folder is copied. A command that builds writes
    into the folder that CMake or Meson has configured, and cannot make it again."""
    is_configured = any((folder / name).exists() for name in _CONFIGURED)
    return LARGE_BUILD if is_configured else LARGE_FOLDER


def _is_made_again(folder: Path) -> bool:
    """Whether a build makes a folder again: that of cargo, Maven or Gradle, or one with a tag."""
    is_of_gradle = folder.name in ("build", ".gradle") and any(
        (folder.parent / name).exists() for name in _GRADLE
    )
    return folder.name == "target" or is_of_gradle or (folder / "CACHEDIR.TAG").exists()


def _is_large(folder: Path, most: tuple[int, int]) -> bool:
    n_bytes = n_entries = 0
    for place, folders, files in os.walk(folder):
        n_entries += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                n_bytes += os.lstat(os.path.join(place, name)).st_size
        if n_bytes > most[0] or n_entries > most[1]:
            return True
    return False


def clone(source: str | Path, target: str | Path) -> None:
    """Copies a file's bytes; on file systems that can, both share them until one is changed."""
    with open_plain(source) as old, open(target, "xb") as new:
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
                return
        shutil.copyfileobj(old, new, 1 << 20)
