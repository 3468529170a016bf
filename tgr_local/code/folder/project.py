"""The person's folder: a git repository, a folder in one, or a plain folder.

In: paths, as a model or a person writes them. Out: the files' texts, the bytes of changed texts,
and one sentence for everything that must not be read or changed. It never writes.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tgr_local.code.edits import Change, FileText
from tgr_local.code.folder import byte_style, listing, repository
from tgr_local.code.folder.byte_style import ByteStyle, StyleError
from tgr_local.code.folder.listing import Listing
from tgr_local.system.errors import TgrError
from tgr_local.system.files import open_plain
from tgr_local.system.paths import every_folder

MAX_BYTES = 1 << 20
"""Size of a file that is read or changed."""
_MAX_PATH = 1000  # characters


class RefusedError(TgrError):
    """A file that is not read or not changed; the sentence says why."""


@dataclass(frozen=True)
class SourceFile:
    """A file as text, with everything that makes it bytes again."""

    document: FileText
    style: ByteStyle
    data: bytes
    """Bytes of the file; empty if it does not exist yet."""
    place: Path
    """The file itself: symbolic links followed."""
    exists: bool = True


class Project:
    """A folder with the files that the assistant may show and change."""

    def __init__(self, folder: Path | str = ".") -> None:
        """Raises RefusedError for what is no folder, or for the root of the file system."""
        self.folder = Path(os.path.realpath(folder))
        """Absolute, without symbolic links."""
        if not self.folder.is_dir():
            raise RefusedError(f"{folder} is no folder; name the folder of a project")
        if self.folder == Path(self.folder.anchor):
            raise RefusedError(f"{folder} is the whole file system; name the folder of a project")
        if any(self.folder.is_relative_to(own) for own in every_folder()):
            raise RefusedError(
                f"{folder} holds tgr-local's own files; name the folder of a project"
            )
        self.repository = repository.find(self.folder)
        """The folder of its git repository, perhaps one that it lies in; None without git."""

    @cached_property
    def listing(self) -> Listing:
        """Files of the project at the first call. Symbolic links and binary files are among
        them."""
        git_listing = listing.of_git(self.repository, self.folder) if self.repository else None
        return git_listing or listing.of_walk(self.folder)

    @cached_property
    def links(self) -> dict[str, str]:
        """Target of each symbolic link of the listing, as a path in the folder; without those that
        leave it or lead nowhere."""
        targets = {}
        for path in self.listing.paths:
            if os.path.islink(self.folder / path):
                end = Path(os.path.realpath(self.folder / path))
                if end.is_relative_to(self.folder) and end != self.folder and os.path.exists(end):
                    targets[path] = end.relative_to(self.folder).as_posix()
        return targets

    def read(self, path: str) -> SourceFile:
        """A file's text and style. Raises RefusedError."""
        place = self._place(path)
        try:
            with open_plain(place) as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode):
                    raise RefusedError(f"{path} is not a file")
                if about.st_size > MAX_BYTES:
                    raise RefusedError(
                        f"{path} has {about.st_size:,} bytes, but at most {MAX_BYTES:,} are read"
                    )
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise RefusedError(f"{path} cannot be read: {error.strerror}") from None
        try:
            text, style = byte_style.decode(data)
        except StyleError as error:
            raise RefusedError(f"{path} is not read: {error}") from None
        return SourceFile(FileText(path, text), style, data, place)

    def refusal(self, path: str) -> str:
        """Returns the reason why a file, which need not exist, must not be changed; empty where it
        may."""
        try:
            self.changeable_file(path)
        except RefusedError as error:
            return str(error)
        return ""

    def changeable_file(self, path: str) -> SourceFile:
        """A file that may be changed, or made: then it has no bytes. Raises RefusedError."""
        place = self._place(path)
        if not os.path.lexists(place):
            parent = next(folder for folder in place.parents if os.path.lexists(folder))
            if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                raise RefusedError(f"{path} cannot be made: {parent} is not a folder to write in")
            return SourceFile(FileText(path, ""), ByteStyle(), b"", place, exists=False)
        source = self.read(path)
        mode = os.stat(place).st_mode
        # root may write everything, but a file without any write permission is meant to stay
        if not mode & 0o222 or not os.access(place, os.W_OK):
            raise RefusedError(f"{path} is read-only; make it writable first (chmod u+w)")
        if not os.access(place.parent, os.W_OK | os.X_OK):
            raise RefusedError(f"{path} is not changed: its folder is read-only")
        return source

    def after_change(self, change: Change) -> tuple[SourceFile, bytes]:
        """The file of a change as it is now, and its bytes afterwards. Raises RefusedError, also
        where the file's text is no longer the one that the change was made for."""
        source = self.changeable_file(change.path)
        if source.document.text != change.before:
            state = "has been changed" if source.exists else "has been deleted"
            raise RefusedError(f"{change.path} {state} since this change was made; ask again")
        try:
            data = byte_style.encode(change.before, change.after, source.style)
        except StyleError as error:
            raise RefusedError(f"{change.path} is not changed: {error}") from None
        if len(data) > MAX_BYTES:
            raise RefusedError(
                f"{change.path} would have {len(data):,} bytes, but at most {MAX_BYTES:,} are "
                "written"
            )
        return source, data

    def _place(self, path: str) -> Path:
        """Returns the place of a file, symbolic links followed. Raises RefusedError for files
        outside the folder or in another repository, and for git's own files."""
        label = "".join(c if c.isprintable() else "\ufffd" for c in path[:200])
        if not path or len(path) > _MAX_PATH:
            raise RefusedError(f"a path has {len(path)} characters, but must have 1 to {_MAX_PATH}")
        if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in path) or "\\" in path:
            raise RefusedError(f"{label} is no path: it holds a control character or a backslash")
        parts = path.split("/")
        if os.path.isabs(path) or not {"", ".", ".."}.isdisjoint(parts):
            raise RefusedError(f"{label} must be relative to {self.folder}, without . and ..")
        place = Path(os.path.realpath(self.folder / path))
        if os.path.islink(place):
            raise RefusedError(f"{label} is a symbolic link without an end")
        if not place.is_relative_to(self.folder) or place == self.folder:
            raise RefusedError(f"{label} is a symbolic link that leaves {self.folder}")
        for name in {*parts, *place.relative_to(self.folder).parts}:
            if name.casefold().rstrip(" .") in (".git", ".git\u200c", "git~1"):
                raise RefusedError(f"{label} belongs to git itself")
        if inner := next(self._other_repositories(place), None):
            raise RefusedError(f"{label} lies in {inner}, which is a repository of its own")
        return place

    def _other_repositories(self, place: Path) -> Iterator[str]:
        """Submodules and other repositories that a file lies in, relative to this folder."""
        for folder in place.relative_to(self.folder).parents:
            name = folder.as_posix()
            if name != "." and (
                os.path.lexists(self.folder / folder / ".git") or name in self.listing.submodules
            ):
                yield name
