"""Accept and undo: exactly before or exactly after, whatever happens in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from code_folders import contents, write

from tgr_local.code.edits import Change
from tgr_local.code.folder import exchange, journal
from tgr_local.code.folder.journal import JournalError, accept, recover, undo
from tgr_local.code.folder.project import Project, RefusedError

FILES: dict[str, str | bytes] = {
    "a.py": "a = 1\n",
    "sub/b.py": b"b = 1\r\nc = 2",
    "sub/c.txt": b"\xef\xbb\xbfc\n",
    "run.sh": "#!/bin/sh\n",
    "other": b"\0\xff",
}
CHANGES = (
    Change("a.py", "a = 1\n", "a = 2\n"),
    Change("sub/b.py", "b = 1\nc = 2", "b = 2\nc = 2"),
    Change("run.sh", "#!/bin/sh\n", "#!/bin/sh\nexit 1\n"),
    Change("new/deep/file.py", "", "x = 1\n"),
    Change("new/file.py", "", "y = 1\n"),
)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "project"
    write(folder, FILES)
    (folder / "run.sh").chmod(0o754)
    return folder


def test_accept_changes_and_undo_gives_back(folder: Path):
    before = contents(folder)
    accepted = accept(Project(folder), CHANGES)
    assert accepted.paths == tuple(change.path for change in CHANGES)
    after = contents(folder)
    assert after["sub/b.py"][1] == b"b = 2\r\nc = 2" and after["new/file.py"][1] == b"y = 1\n"
    assert after["run.sh"] == (before["run.sh"][0], b"#!/bin/sh\nexit 1\n")
    assert {path: after[path] for path in ("sub/c.txt", "other")} == {
        path: before[path] for path in ("sub/c.txt", "other")
    }
    assert undo(Project(folder)).paths == accepted.paths and contents(folder) == before
    with pytest.raises(JournalError, match="nothing to undo"):
        undo(Project(folder))


def test_undo_goes_back_step_by_step(folder: Path):
    states = [contents(folder)]
    for n in range(1, 4):
        accept(Project(folder), [Change("a.py", f"a = {n}\n", f"a = {n + 1}\n")])
        states.append(contents(folder))
    for state in reversed(states[:-1]):
        undo(Project(folder))
        assert contents(folder) == state
    accept(Project(folder), [Change("a.py", "a = 1\n", "a = 9\n")])
    undo(Project(folder))
    assert contents(folder) == states[0]


FEW = (CHANGES[0], CHANGES[1], CHANGES[3])


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours runs after it."""


STEPS = ((exchange, "write"), (exchange, "sync"), (exchange, "remove"), (os, "rename"),
         (os, "link"), (os, "replace"), (os, "mkdir"), (os, "rmdir"), (os, "utime"),
         (Path, "touch"))  # fmt: skip


def is_killed(monkeypatch, n: int, work: Callable[[], object]) -> bool:
    """Whether the n-th step on the disk, which ends the process, came before the work's end."""
    left = n

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return function(*arguments, **options)

        return step

    with monkeypatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("what", ["accept", "undo"])
def test_killed_at_any_step_it_is_before_or_after(tmp_path, monkeypatch, what: str, swaps: bool):
    monkeypatch.setenv("PATH", "/nowhere")  # no git: it takes most of the time
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    if not swaps:  # as on systems that cannot
        monkeypatch.setattr(exchange, "swap", lambda one, other: False)
    write(tmp_path / "whole", FILES)
    before = contents(tmp_path / "whole")
    accept(Project(tmp_path / "whole"), FEW)
    after = contents(tmp_path / "whole")
    seen = []
    for n in count(1):
        folder = tmp_path / f"project{n}"
        write(folder, FILES)
        project = Project(folder)
        if what == "undo":
            accept(project, FEW)
        killed = is_killed(
            monkeypatch, n, lambda p=project: accept(p, FEW) if what == "accept" else undo(p)
        )
        recover(project)
        now = contents(folder)
        assert now in (before, after), f"step {n}"
        seen.append(now == after)
        if now == after:  # the entry is there
            undo(project)
            assert contents(folder) == before
        if not killed:
            break
    assert n > 20 and seen == sorted(seen, reverse=what == "undo") and len(set(seen)) == 2


def test_one_file_is_never_between(folder: Path, monkeypatch):
    """Even without a next command."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, texts = contents(folder), {b"a = 1\n", b"a = 2\n"}
    for n in count(1):
        killed = is_killed(monkeypatch, n, lambda: accept(Project(folder), CHANGES[:1]))
        now = contents(folder)
        assert now.pop("a.py")[1] in texts
        assert now == {path: what for path, what in before.items() if path != "a.py"}
        recover(Project(folder))
        if contents(folder) != before:
            undo(Project(folder))
        if not killed:
            break


# ---- what the person does meanwhile ----


def test_a_file_that_was_changed_is_refused(folder: Path):
    (folder / "sub/b.py").write_text("mine")
    (folder / "new").mkdir()
    (folder / "new/file.py").write_text("mine")
    before = contents(folder)
    for change in (CHANGES[1], CHANGES[4]):
        with pytest.raises(RefusedError, match=f"{change.path} has been changed since"):
            accept(Project(folder), (CHANGES[0], change))
    assert contents(folder) == before


def test_undo_refuses_what_was_changed_since(folder: Path):
    accept(Project(folder), CHANGES)
    (folder / "a.py").write_text("mine")
    (folder / "new/file.py").unlink()
    before = contents(folder)
    with pytest.raises(JournalError, match=r"a\.py has been changed since; force .--undo --force"):
        undo(Project(folder))
    assert contents(folder) == before
    undone = undo(Project(folder), force=True)
    assert [path.read_text() for path in undone.copies] == ["mine"]
    assert (folder / "a.py").read_text() == "a = 1\n" and not (folder / "new").exists()


def test_an_edit_of_the_very_moment_is_kept(folder: Path, monkeypatch):
    """The person saves a file between our last look at it and the exchange."""
    before = contents(folder)
    swap = exchange.swap

    def late(one: Path, other: Path) -> bool:
        if other.name == "run.sh" and b"exit" in one.read_bytes():
            other.write_text("mine")
        return swap(one, other)

    monkeypatch.setattr(exchange, "swap", late)
    with pytest.raises(JournalError, match=r"run\.sh has been changed meanwhile and stays"):
        accept(Project(folder), CHANGES)
    assert contents(folder) == before | {"run.sh": (before["run.sh"][0], b"mine")}


@pytest.mark.parametrize("path", ["a.py", "sub/b.py", "run.sh"])
def test_an_edit_after_a_crash_is_kept(folder: Path, monkeypatch, path: str):
    before = contents(folder)
    swap = exchange.swap

    def killed(one: Path, other: Path) -> bool:
        if other.name == path.rpartition("/")[2]:
            other.write_text("mine")
            swap(one, other)
            raise Killed
        return swap(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(exchange, "swap", killed)
        with pytest.raises(Killed):
            accept(Project(folder), CHANGES)
    with pytest.raises(JournalError, match="has been changed meanwhile and stays"):
        recover(Project(folder))
    assert contents(folder) == before | {path: (before[path][0], b"mine")}
    assert recover(Project(folder)) == ()
    with pytest.raises(JournalError, match="nothing to undo"):
        undo(Project(folder))


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("what", ["accept", "undo"])
def test_what_has_the_hidden_name_is_never_touched(folder: Path, kind: str, what: str):
    """A folder of somebody else may hold a link that leads out of it."""
    if what == "undo":
        accept(Project(folder), CHANGES[:1])
    outside = folder.parent / "outside"
    outside.write_text("mine")
    hidden = exchange.leftover(folder / "a.py")
    hidden.symlink_to(outside) if kind == "link" else hidden.write_text("mine")
    before = contents(folder)
    with pytest.raises(JournalError, match=r"a\.py cannot be replaced while there is .*tgr-new"):
        accept(Project(folder), CHANGES) if what == "accept" else undo(Project(folder))
    assert recover(Project(folder)) == ()
    assert contents(folder) == before and outside.read_text() == "mine"
    with pytest.raises(FileExistsError):
        exchange.write(hidden, b"theirs", 0o644)
    hidden.unlink()
    accept(Project(folder), CHANGES[1:]) if what == "accept" else undo(Project(folder))


def test_beside_the_file_where_the_journal_is_on_another_disk(folder: Path, monkeypatch):
    link, swap = os.link, exchange.swap

    def other_disk(one: Path, other: Path) -> None:
        if Path(one).parent != Path(other).parent:
            raise OSError(errno.EXDEV, "other disk")

    monkeypatch.setattr(os, "link", lambda one, other: other_disk(one, other) or link(one, other))
    monkeypatch.setattr(exchange, "swap", lambda one, two: other_disk(one, two) or swap(one, two))
    before = contents(folder)
    accept(Project(folder), CHANGES)
    assert not list(folder.rglob("*tgr-new")) and (folder / "a.py").read_text() == "a = 2\n"
    undo(Project(folder))
    assert contents(folder) == before


# ---- files of all kinds ----


def test_links_stay_links(folder: Path):
    os.symlink("a.py", folder / "link.py")
    os.link(folder / "sub/b.py", folder / "hard.py")
    accept(Project(folder), [Change("link.py", "a = 1\n", "a = 2\n")])
    assert os.readlink(folder / "link.py") == "a.py"
    assert (folder / "a.py").read_text() == "a = 2\n"
    undo(Project(folder))
    assert (folder / "link.py").read_text() == "a = 1\n"
    both = (Change("link.py", "a = 1\n", "a = 2\n"), Change("a.py", "a = 1\n", "a = 3\n"))
    with pytest.raises(JournalError, match="are one file"):
        accept(Project(folder), both)
    with pytest.raises(JournalError, match="changed twice"):
        accept(Project(folder), (CHANGES[0], CHANGES[0]))


def test_read_only_files_are_refused(folder: Path):
    (folder / "a.py").chmod(0o444)
    before = contents(folder)
    with pytest.raises(RefusedError, match=r"a\.py is read-only"):
        accept(Project(folder), CHANGES)
    assert contents(folder) == before


def test_a_compiled_file_is_never_stale(folder: Path):
    """Python compares a file's full second of change and its size."""
    old = (folder / "a.py").stat()
    accept(Project(folder), CHANGES[:1])
    new = (folder / "a.py").stat()
    assert new.st_size == old.st_size and int(new.st_mtime) != int(old.st_mtime)


def test_the_journal_is_bounded(folder: Path, state: Path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_ENTRIES", 3)
    for n in range(1, 6):
        accept(Project(folder), [Change("a.py", f"a = {n}\n", f"a = {n + 1}\n")])
    entries = [path for path in state.rglob("*") if path.name.isdecimal()]
    assert len(entries) == 3 and not list(state.rglob("*.lock"))
    assert (state / "tgr-local/code").stat().st_mode & 0o077 == 0
    for n in (5, 4):
        undo(Project(folder))
        assert (folder / "a.py").read_text() == f"a = {n}\n"


@pytest.mark.parametrize("damage", ["", "{", "[]", "[" * 9999, '{"files": 3}'])
def test_a_damaged_entry_is_passed_over(folder: Path, state: Path, damage: str):
    accept(Project(folder), CHANGES[:1])
    next(state.rglob("entry.json")).write_text(damage)
    accept(Project(folder), [Change("a.py", "a = 2\n", "a = 3\n")])
    undo(Project(folder))
    with pytest.raises(JournalError, match="nothing to undo"):
        undo(Project(folder))


@pytest.mark.parametrize("damage", [b"", b"a = ", b"a = 1\n\n"])
def test_bytes_that_the_journal_lost_are_not_restored(folder: Path, state: Path, damage: bytes):
    accept(Project(folder), CHANGES[:1])
    kept = next(state.rglob("0.before"))
    kept.chmod(0o600)
    kept.write_bytes(damage)
    with pytest.raises(JournalError, match="is damaged; delete"):
        undo(Project(folder))
    assert (folder / "a.py").read_text() == "a = 2\n"
