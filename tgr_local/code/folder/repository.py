"""The git repository of a folder. Neither its settings nor its objects are read.

In: a folder, perhaps a stranger's. Out: where its repository lies, and what git lists of it.

The settings of a repository can name programs that git runs: monitors, filters, helpers, programs
that fetch missing objects. So git never sees them. It runs in a temporary repository with copies of
the index and of the exclude file, without objects, and with settings of ours. The person's and the
system's settings hold: they may name an exclude file for all repositories.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tgr_local.system.files import open_plain
from tgr_local.system.paths import program

MAX_OUTPUT = 32 << 20
"""Bytes of what git prints."""
_MAX_INDEX = 128 << 20
_MAX_TEXT = 64 << 10  # of a file that names a folder, or patterns
_MAX_ENTRIES = 10_000  # of a folder, in which parts of a split index are sought
_MAX_SHARED = 8  # of these
_SECONDS = 60.0
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-pager")
_VARIABLES = {
    "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
}  # fmt: skip
_WORKTREE = re.compile(rb"^\s*worktree\s*=(.*)$", re.MULTILINE)


def find(folder: Path) -> Path | None:
    """The folder of the repository that a folder belongs to, the nearest one that has a ``.git``.

    None without one and without git; and where the nearest one above lies on another file system,
    or belongs to neither this user nor the owner of the folder."""
    if program("git") is None:
        return None
    try:
        start = os.stat(folder)
        owners = {start.st_uid, os.getuid() if hasattr(os, "getuid") else start.st_uid}
        for top in (folder, *folder.parents):
            if os.stat(top).st_dev != start.st_dev:
                return None
            mark = top / ".git"
            if os.path.lexists(mark) and (_git_folder(top) or not os.path.isdir(mark)):
                is_ours = top == folder or os.lstat(mark).st_uid in owners
                return top if is_ours and _git_folder(top) else None
    except OSError:
        pass
    return None


def shared_repository(top: Path) -> Path | None:
    """Returns the repository of a linked worktree or of a submodule; None for every other.

    The file ``.git`` may name any folder, so it is believed only where that folder names this one
    too: files of a stranger cannot make a repository of the person do so.
    """
    if os.path.isdir(top / ".git") or (place := _git_folder(top)) is None:
        return None
    if place.is_relative_to(os.path.realpath(top)):
        return None  # what a stranger's folder holds proves nothing of what lies around it
    if place.parent.name == "worktrees":
        back, expected, common = _text(place / "gitdir"), top / ".git", place.parent.parent
    else:
        worktrees = _WORKTREE.findall(_text(place / "config"))
        back, expected, common = (
            worktrees[0].strip().strip(b'"') if len(worktrees) == 1 else b"",
            top,
            place,
        )
    is_known = _resolve(place, back) == Path(os.path.realpath(expected))
    return common if is_known and _is_git_folder(common) else None


def ls_files(top: Path, folder: Path, *arguments: str) -> bytes | None:
    """Returns the output of ``git ls-files -z`` for a folder of a repository, at most 32 MiB of it;
    None if it fails."""
    git = program("git")
    if git is None:
        return None
    try:
        with _stand_in(top) as place:
            return _output([git, *_OPTIONS, "ls-files", "-z", *arguments], top, folder, place)
    except OSError:
        return None


def _output(command: list[str], top: Path, folder: Path, place: Path) -> bytes | None:
    variables = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    variables |= {**_VARIABLES, "GIT_DIR": str(place), "GIT_WORK_TREE": str(top)}
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    timer = threading.Timer(_SECONDS, process.kill)
    timer.start()
    assert process.stdout is not None
    try:
        data = process.stdout.read(MAX_OUTPUT)
        more = bool(process.stdout.read(1))
        if more:
            process.kill()
        return data if process.wait() == 0 or more else None
    finally:
        timer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


@contextlib.contextmanager
def _stand_in(top: Path) -> Iterator[Path]:
    """A repository of ours that git takes for that of `top`. Raises OSError."""
    source = _git_folder(top)
    with tempfile.TemporaryDirectory(prefix="tgr-git-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        for part in ("objects", "refs", "info"):
            (place / part).mkdir()
        (place / "HEAD").write_text("ref: refs/heads/main\n")
        index = b""
        if source is not None:
            index = _copy(source / "index", place / "index")
            for part in _shared_indexes(source):
                _copy(source / part, place / part)
            exclude = (shared_repository(top) or source) / "info" / "exclude"
            _copy(exclude, place / "info" / "exclude")
        (place / "config").write_text(_settings(top, index))
        yield place


def _shared_indexes(source: Path) -> list[str]:
    with os.scandir(source) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
    return [name for name in names if name.startswith("sharedindex.")][:_MAX_SHARED]


def _settings(top: Path, index: bytes) -> str:
    """Returns the git settings for an index and a file system."""
    is_long = index[-32:] == hashlib.sha256(index[:-32]).digest()
    lines = [
        "[core]", f"repositoryFormatVersion = {int(is_long)}", "bare = false",
        f"ignoreCase = {os.path.lexists(top / '.GIT')}".lower(),
        f"precomposeUnicode = {sys.platform == 'darwin'}".lower(),
    ]  # fmt: skip
    if is_long:
        lines += ["[extensions]", "objectFormat = sha256"]
    return "\n".join([*lines, ""])


def _git_folder(top: Path) -> Path | None:
    """The folder that the ``.git`` of a folder is or names; None for one that is no repository."""
    mark, place = top / ".git", None
    if os.path.isdir(mark):
        place = Path(os.path.realpath(mark))
    elif (text := _text(mark)).startswith(b"gitdir: "):
        place = _resolve(top, text.removeprefix(b"gitdir: "))
    return place if place is not None and _is_git_folder(place) else None


def _is_git_folder(place: Path) -> bool:
    has_objects = os.path.isdir(place / "objects") and os.path.isdir(place / "refs")
    is_worktree = os.path.isfile(place / "commondir")
    return os.path.lexists(place / "HEAD") and (has_objects or is_worktree)


def _resolve(place: Path, text: bytes) -> Path | None:
    """The path that a text names, absolute or relative to a folder; symbolic links are followed."""
    name = os.fsdecode(text.strip(b"\r\n"))
    return Path(os.path.realpath(place / name)) if name and "\0" not in name else None


def _text(path: Path) -> bytes:
    """The beginning of a file; empty where there is no file."""
    with contextlib.suppress(OSError, ValueError), open_plain(path) as file:
        return file.read(_MAX_TEXT)
    return b""


def _copy(source: Path, target: Path) -> bytes:
    """Copies a file, if there is one that is not too large; its bytes."""
    with contextlib.suppress(OSError), open_plain(source) as file:
        data = file.read(_MAX_INDEX + 1)
        if len(data) <= _MAX_INDEX:
            target.write_bytes(data)
            return data
    return b""
