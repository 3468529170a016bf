"""Changes of the person's files, all or none, that can be undone.

In: a project and changes. Out: changed files. The changes are first written to a journal in the
user's state folder, with the bytes of each file before and after. Then each file is exchanged in
one step: a reader sees its old or its new bytes, never a part. For a moment a reader may see some
files old and others new. After a crash, the next call of any function here completes the changes
(`recover`). Bytes that are not in the journal are never overwritten: a file that the person edits
at the same moment keeps that edit, and the call ends with an error that says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.code.edits import Change
from tgr_local.code.folder import exchange
from tgr_local.code.folder.project import Project, RefusedError
from tgr_local.system import json_checks, paths
from tgr_local.system.errors import TgrError
from tgr_local.system.files import Lock
from tgr_local.system.json_checks import Count

MAX_ENTRIES = 50
MAX_BYTES = 64 << 20
"""Largest size of one project's journal; the oldest entries go first."""
_MAX_PROJECTS = 200
_ENTRY, _DONE, _UNDONE = "entry.json", "done", "undone"


class JournalError(TgrError):
    """A change or an undo that does not happen; the sentence names the file and the way out."""


@dataclass(frozen=True)
class Accepted:
    """Changes that were made."""

    paths: tuple[str, ...]
    copies: tuple[Path, ...] = ()
    """Files that hold the bytes replaced by a forced undo."""


@dataclass(frozen=True)
class _ChangedFile:
    """A file of an entry. Its bytes before and after lie in the journal, beside the entry."""

    path: str
    place: str
    """Absolute, without symbolic links."""
    before: str
    """Hash of its bytes; empty where there was no file."""
    after: str
    """Hash of its bytes; empty where there is none afterwards."""
    mode: int
    new_folders: tuple[str, ...] = ()
    """Folders that are made for it, outermost first."""


@dataclass(frozen=True)
class _ChangeEntry:
    """Changes that belong together."""

    folder: Path
    files: tuple[_ChangedFile, ...]
    undoes: int = 0
    """The number of the entry that this one undoes."""

    @property
    def number(self) -> int:
        return int(self.folder.name)

    def path(self, file: _ChangedFile, kind: str) -> Path:
        """Returns the place of a file's bytes: those before and after, and new ones on their
        way."""
        return self.folder / f"{[f.path for f in self.files].index(file.path)}.{kind}"


def accept(project: Project, changes: Sequence[Change]) -> Accepted:
    """Makes changes in the person's files: all of them, or none.

    Raises RefusedError for a file that must not be changed or is no longer what the change was made
    for, and JournalError, also where the journal cannot be written.
    """
    if len({change.path for change in changes}) < len(changes):
        raise JournalError("a file is changed twice; make one change of it")
    begun = False
    try:
        with _journal(project) as journal:
            new = []
            for change in changes:
                source, data = project.after_change(change)
                old = source.data if source.exists else None
                new.append((change.path, source.place, old, data))
            if len({place for _, place, _, _ in new}) < len(new):
                raise JournalError("two of the paths are one file; make one change of it")
            entry = _begin(journal, new)
            begun = True
            _carry_out(entry)
            return Accepted(tuple(change.path for change in changes))
    except NotADirectoryError:
        raise
    except OSError as error:
        if begun:
            raise
        failure = "the edit is not accepted, as it could not be undone"
        raise _unwritable(failure, _place(project), error) from None


def undo(project: Project, *, force: bool = False) -> Accepted:
    """Gives the files of the last changes the bytes they had before. After that, `undo` goes on
    with the changes before those.

    Raises JournalError where there are none, and where a file has been changed since; with `force`
    it is replaced too, and `copies` of the result says where its bytes are.
    """
    with _journal(project) as journal:
        last = next((entry for entry in reversed(_entries(journal)) if _is_open(entry)), None)
        if last is None:
            raise JournalError(f"there is nothing to undo in {project.folder}")
        new = []
        for file in last.files:
            now = _bytes(Path(file.place))
            if _hash(now) != file.after and not force:
                raise JournalError(
                    f"{file.path} has been changed since; force (--undo --force, or /undo force in "
                    "a session) restores it and keeps a copy"
                )
            new.append((file.path, Path(file.place), now, _saved_bytes(last, file, "before")))
        entry = _begin(journal, new, last)
        _carry_out(entry)
        (last.folder / _UNDONE).touch()
        copies = tuple(
            entry.path(ours, "before")
            for ours, theirs in zip(entry.files, last.files, strict=True)
            if ours.before not in ("", theirs.after)
        )
        return Accepted(tuple(file.path for file in last.files), copies)


def recover(project: Project) -> tuple[str, ...]:
    """Completes the changes of a process that was killed; returns the files that it completed.
    Where nothing was begun, the journal need not be writable. Raises JournalError where the person
    has changed one of the files since."""
    try:
        with _journal(project, complete=False) as journal:
            return _recover(journal)
    except NotADirectoryError:
        raise
    except OSError as error:
        journal = _place(project)
        entries = _entries(journal) if journal.is_dir() else []
        if all((entry.folder / _DONE).exists() for entry in entries):
            return ()
        raise _unwritable("an edit that was interrupted is not completed", journal, error) from None


def _place(project: Project) -> Path:
    """Returns the folder of a project's journal."""
    name = hashlib.blake2b(os.fsencode(project.folder), digest_size=12).hexdigest()
    return paths.folder("state") / "code" / name


def _unwritable(failure: str, journal: Path, error: OSError) -> JournalError:
    where = error.filename or journal
    return JournalError(
        f"{failure}: {where}: {error.strerror}; make room or that folder writable, or set "
        "XDG_STATE_HOME to another folder"
    )


@contextlib.contextmanager
def _journal(project: Project, *, complete: bool = True) -> Iterator[Path]:
    """The journal of a project, locked, after what was begun in it is completed."""
    journal = _place(project)
    base = paths.made(journal.parent, mode=0o700)
    lock = Lock(base / f"{journal.name}.lock")
    if not lock.take():
        raise JournalError(f"another tgr-local changes files in {project.folder}; try again")
    try:
        journal.mkdir(exist_ok=True, mode=0o700)
        (journal / "project").write_bytes(os.fsencode(project.folder))
        if complete:
            _recover(journal)
        yield journal
        with contextlib.suppress(OSError):  # the changes are made; others may clear up too
            _remove_old(journal)
            _remove_old_projects(base, journal)
    finally:
        lock.release()


# ---- entries ----


def _entries(journal: Path) -> list[_ChangeEntry]:
    """All entries that are whole, the oldest first."""
    return [entry for n in sorted(_numbers(journal)) if (entry := _read(journal / str(n)))]


def _numbers(journal: Path) -> list[int]:
    return [int(path.name) for path in journal.iterdir() if path.name.isdecimal()]


_FILE = {**typing.get_type_hints(_ChangedFile), "mode": Count, "new_folders": list[str]}


def _read(folder: Path) -> _ChangeEntry | None:
    try:
        about: dict[str, Any] = json_checks.loads((folder / _ENTRY).read_bytes())
        json_checks.check({"files": [_FILE], "undoes": Count}, about)
        files = tuple(
            _ChangedFile(**{**file, "new_folders": tuple(file["new_folders"])})
            for file in about["files"]
        )
        return _ChangeEntry(folder, files, about["undoes"])
    except (OSError, ValueError, TypeError):
        return None


def _is_open(entry: _ChangeEntry) -> bool:
    """Whether it can be undone."""
    return not entry.undoes and not (entry.folder / _UNDONE).exists()


def _begin(
    journal: Path, new: Sequence[tuple[str, Path, bytes | None, bytes | None]],
    undone: _ChangeEntry | None = None,
) -> _ChangeEntry:  # fmt: skip
    """Writes an entry: for each file its path, place, bytes before and after. It counts from the
    rename on, when everything in it is on the disk."""
    for path, place, _, _ in new:
        hidden = exchange.leftover(place)
        if os.path.lexists(hidden):
            raise JournalError(
                f"{path} cannot be replaced while there is {hidden}; move that away first"
            )
    number = 1 + max([0, *_numbers(journal)])
    draft = journal / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    files: list[_ChangedFile] = []
    for path, place, old_data, new_data in new:
        old = {file.path: file for file in undone.files} if undone else {}
        mode = os.stat(place).st_mode & 0o7777 if old_data is not None else 0o666 & ~_umask()
        if undone and old_data is None:
            mode = old[path].mode
        folders = old[path].new_folders if undone else _missing_folders(place)
        file = _ChangedFile(path, str(place), _hash(old_data), _hash(new_data), mode, folders)
        entry = _ChangeEntry(draft, (*files, file))
        for kind, data in (("before", old_data), ("after", new_data)):
            if data is not None:
                exchange.write(entry.path(file, kind), data, mode)
        files.append(file)
    about = {
        "files": [dataclasses.asdict(file) for file in files],
        "undoes": undone.number if undone else 0,
        "time": time.time(),
    }
    exchange.write(draft / _ENTRY, json.dumps(about).encode(), 0o600)
    exchange.sync(draft)
    os.rename(draft, journal / str(number))
    exchange.sync(journal)
    return _ChangeEntry(journal / str(number), tuple(files), undone.number if undone else 0)


def _saved_bytes(entry: _ChangeEntry, file: _ChangedFile, kind: str) -> bytes | None:
    """The bytes of a file before or after an entry; None where there is none. Raises JournalError
    where the journal no longer has them."""
    expected = file.before if kind == "before" else file.after
    if not expected:
        return None
    copy = entry.path(file, kind)
    if (data := _bytes(copy)) is None or _hash(data) != expected:
        raise JournalError(f"{copy}, which keeps {file.path}, is damaged; delete {entry.folder}")
    return data


def _missing_folders(place: Path) -> tuple[str, ...]:
    return tuple(str(path) for path in reversed(place.parents) if not os.path.lexists(path))


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


# ---- what an entry does ----


def _carry_out(entry: _ChangeEntry) -> None:
    """Gives each file its bytes after. Raises JournalError for a file whose bytes are neither those
    before nor those after: then the others have those before again."""
    exchanged: list[_ChangedFile] = []
    for file in entry.files:
        try:
            _exchange(entry, file)
            exchanged.append(file)
        except (JournalError, OSError) as error:
            for earlier in reversed(exchanged):
                with contextlib.suppress(JournalError, OSError):
                    _exchange(entry, earlier, back=True)
            (entry.folder / _UNDONE).touch()
            exchange.write(entry.folder / _DONE, b"", 0o600)
            if isinstance(error, JournalError):
                raise
            raise JournalError(f"{file.path} cannot be written: {error.strerror}") from None
    exchange.write(entry.folder / _DONE, b"", 0o600)
    exchange.sync(entry.folder)


def _exchange(entry: _ChangeEntry, file: _ChangedFile, *, back: bool = False) -> None:
    """Gives one file its bytes after, or before."""
    place = Path(file.place)
    kind = "before" if back else "after"
    hashes = (file.after, file.before) if back else (file.before, file.after)
    if _hash(_bytes(place)) != hashes[1]:
        if hashes[1]:
            for folder in file.new_folders:
                os.makedirs(folder, exist_ok=True)
        is_replaced = exchange.replace(
            place, _saved_bytes(entry, file, kind), file.mode,
            lambda data: _hash(data) == hashes[0], entry.path(file, "new"),
        )  # fmt: skip
        if not is_replaced:
            raise JournalError(
                f"{file.path} has been changed meanwhile and stays as it is; of these changes "
                "none is made; ask again"
            )
    if not hashes[1]:
        for folder in reversed(file.new_folders):
            with contextlib.suppress(OSError):  # it holds something else
                os.rmdir(folder)


def _recover(journal: Path) -> tuple[str, ...]:
    completed: list[str] = []
    for entry in _entries(journal):
        if (entry.folder / _DONE).exists():
            continue
        for file in entry.files:
            _settle(entry, file)
        _carry_out(entry)
        completed += [file.path for file in entry.files]
    by_number = {entry.number: entry for entry in _entries(journal)}
    for entry in by_number.values():
        if entry.undoes in by_number and not (entry.folder / _UNDONE).exists():
            (by_number[entry.undoes].folder / _UNDONE).touch()
    return tuple(completed)


def _settle(entry: _ChangeEntry, file: _ChangedFile) -> None:
    """Clears up the files that a killed process left beside one file. They are recognised by the
    beginning of known bytes."""
    kept = [
        data
        for kind in ("before", "after")
        if (data := _saved_bytes(entry, file, kind)) is not None
    ]
    place, staging = Path(file.place), entry.path(file, "new")
    exchange.settle(place, staging, lambda data: any(known.startswith(data) for known in kept))


def _bytes(place: Path) -> bytes | None:
    """A file's bytes; None where there is no file. Raises RefusedError."""
    try:
        return exchange.read(place)
    except OSError as error:
        raise RefusedError(f"{place} cannot be read: {error.strerror}") from None


def _hash(data: bytes | None) -> str:
    return "" if data is None else hashlib.blake2b(data, digest_size=20).hexdigest()


# ---- bounds ----


def _remove_old(journal: Path) -> None:
    """Removes the oldest entries beyond the bounds; the newest always stays."""
    total = 0
    for n, entry in enumerate(reversed(_entries(journal))):
        total += sum(path.stat().st_size for path in entry.folder.iterdir())
        if n and (n >= MAX_ENTRIES or total > MAX_BYTES):
            shutil.rmtree(entry.folder, ignore_errors=True)


def _remove_old_projects(base: Path, current: Path) -> None:
    """Removes the journals of projects that were changed longest ago."""
    journals = [path for path in base.iterdir() if path.is_dir() and path != current]
    for journal in sorted(journals, key=lambda path: path.stat().st_mtime)[: 1 - _MAX_PROJECTS]:
        lock = Lock(base / f"{journal.name}.lock")
        if lock.take(wait=False):
            if all((entry.folder / _DONE).exists() for entry in _entries(journal)):
                shutil.rmtree(journal, ignore_errors=True)
            lock.release()
