"""The files of a folder: git's own list, or a walk that knows .gitignore.

A folder of somebody else may hold anything: every list and walk is bounded.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tgr_local.code.folder import repository
from tgr_local.system.errors import InstallError
from tgr_local.system.files import open_plain
from tgr_local.system.paths import every_folder

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MAX_FILES = 50_000
_MAX_ENTRIES = 500_000  # seen by a walk, the ignored ones included
_MAX_IGNORE_FILE = 64 << 10
CACHES = frozenset({
    "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox",
})  # fmt: skip
"""Names of folders that programs make again."""
_LONGEST_PATTERN = 1000  # characters
_SLOW_PATTERN = re.compile(r"(?:[^/*]*\*){5}")  # takes long in a regular expression


@dataclass(frozen=True)
class Listing:
    """Paths relative to a folder, with "/" between their parts, sorted."""

    paths: tuple[str, ...]
    """Files and symbolic links that version control has or would add."""
    submodules: frozenset[str] = frozenset()
    """Folders that belong to another repository."""
    cut: bool = False
    """Whether there are more, which were not listed."""


def of_git(top: Path, folder: Path) -> Listing | None:
    """Returns git's listing of a folder in the repository `top`: its files and those it would add.
    None if it fails."""
    tracked = repository.ls_files(top, folder, "--stage")
    untracked = repository.ls_files(top, folder, "--others", "--exclude-standard")
    if tracked is None or untracked is None:
        return None
    cut = max(len(tracked), len(untracked)) >= repository.MAX_OUTPUT
    own_prefixes = tuple(f"{place}/" for place in own_folders(folder))
    paths: set[str] = set()
    submodules: set[str] = set()
    for entry in tracked.split(b"\0")[:-1]:
        about, _, name = entry.partition(b"\t")
        (submodules if about.startswith(b"160000") else paths).add(os.fsdecode(name))
    for name in untracked.split(b"\0")[:-1]:
        # git lists another repository as one folder
        (submodules if name.endswith(b"/") else paths).add(os.fsdecode(name).rstrip("/"))
    present = [
        path for path in sorted(paths)
        if not path.startswith(own_prefixes) and _is_inside(path) and os.path.lexists(folder / path)
    ]  # fmt: skip
    cut |= len(present) > MAX_FILES
    return Listing(tuple(present[:MAX_FILES]), frozenset(submodules), cut)


def _is_inside(path: str) -> bool:
    """Whether a path lies in the folder. A git index made by a stranger may have others, such as
    absolute paths."""
    return not os.path.isabs(path) and {"", ".", ".."}.isdisjoint(path.split("/"))


def ignored_folders(top: Path | None, folder: Path) -> frozenset[str]:
    """The outermost folders below this one, of the repository `top`, that version control
    ignores."""
    if top is not None:
        arguments = ("--others", "--ignored", "--exclude-standard", "--directory")
        output = repository.ls_files(top, folder, *arguments)
        if output is not None:
            names = map(os.fsdecode, output.split(b"\0")[:-1])
            folders = (name.rstrip("/") for name in names if name.endswith("/"))
            return frozenset(filter(_is_inside, folders))
    return frozenset(
        path for path, entry, ignored in itertools.islice(walk(folder), _MAX_ENTRIES)
        if ignored and entry.is_dir(follow_symlinks=False)
    )  # fmt: skip


def of_walk(folder: Path) -> Listing:
    """Returns the listing of a walk that respects .gitignore. Raises InstallError without
    pathspec."""
    paths: list[str] = []
    submodules: set[str] = set()
    n_seen = 0
    for path, entry, ignored in walk(folder):
        n_seen += 1
        if n_seen > _MAX_ENTRIES or len(paths) > MAX_FILES:
            break
        if entry.is_dir(follow_symlinks=False):
            if not ignored and os.path.lexists(os.path.join(entry.path, ".git")):
                submodules.add(path)
        elif not ignored and (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
            paths.append(path)
    cut = n_seen > _MAX_ENTRIES or len(paths) > MAX_FILES
    return Listing(tuple(sorted(paths)[:MAX_FILES]), frozenset(submodules), cut)


def walk(folder: Path) -> Iterator[tuple[str, os.DirEntry[str], bool]]:
    """Yields every entry below a folder: its path, the entry, and whether it is ignored by
    .gitignore or as a virtual environment, a cache or a folder of tgr-local's own. Descends neither
    into ignored folders nor into other repositories, and follows no symbolic link. Raises
    InstallError without pathspec."""
    waiting: list[tuple[str, list[tuple[str, GitIgnoreSpec]]]] = [("", [])]
    own_paths = own_folders(folder)
    while waiting:
        place, specs = waiting.pop()
        if spec := _ignore_file(folder / place / ".gitignore"):
            specs = [*specs, (place, spec)]
        try:
            entries = list(os.scandir(folder / place))
        except OSError:  # not ours to read
            continue
        for entry in entries:
            path = place + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git":
                continue
            # a folder that a tool fills, whatever .gitignore says
            is_made = is_folder and (
                path in own_paths or entry.name in CACHES or is_installed(Path(entry.path))
            )
            ignored = is_made or _ignored(path + "/" * is_folder, specs)
            yield path, entry, ignored
            nested = os.path.lexists(os.path.join(entry.path, ".git")) if is_folder else False
            if is_folder and not ignored and not nested:
                waiting.append((path + "/", specs))


def own_folders(folder: Path) -> frozenset[str]:
    """The folders below this one where tgr-local keeps its settings, models, conversations and
    copies of projects."""
    return frozenset(
        own.relative_to(folder).as_posix() for own in every_folder() if own.is_relative_to(folder)
    )


def is_installed(folder: Path) -> bool:
    """Whether a folder holds installed packages."""
    return folder.name == "node_modules" or os.path.lexists(folder / "pyvenv.cfg")


def _ignored(path: str, specs: list[tuple[str, GitIgnoreSpec]]) -> bool:
    """Returns the verdict of the innermost .gitignore that has one."""
    for place, spec in reversed(specs):
        verdict = spec.check_file(path[len(place) :]).include
        if verdict is not None:
            return verdict
    return False


def _ignore_file(path: Path) -> GitIgnoreSpec | None:
    try:
        with open_plain(path) as file:
            lines = file.read(_MAX_IGNORE_FILE).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    try:
        from pathspec import GitIgnoreSpec
    except ImportError:
        raise InstallError(
            "a folder without git is read with pathspec, which is not installed; run: pip install "
            '"tgr-local[code]"'
        ) from None
    good = []
    for line in lines:
        if len(line) <= _LONGEST_PATTERN and not _SLOW_PATTERN.search(line.replace("**", "")):
            try:
                GitIgnoreSpec.from_lines([line])
            except ValueError:  # git ignores such a line too
                continue
            good.append(line)
    return GitIgnoreSpec.from_lines(good) if good else None
