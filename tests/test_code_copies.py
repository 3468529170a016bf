"""Copies: equal to the working tree, independent of it, removed whatever happens."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from code_folders import commit, contents, git, write
from surroundings import HANG, environment
from threads import in_threads

from tgr_local.code.edits import Change, EditError
from tgr_local.code.folder import copies as copies_of
from tgr_local.code.folder import snapshot
from tgr_local.code.folder.copies import Copies
from tgr_local.code.folder.project import Project, RefusedError
from tgr_local.code.folder.snapshot import CopyError

FILES: dict[str, str | bytes] = {
    "a.py": "a = 1\n", "sub/b.py": b"b\r\nc\n\xe9", "ignored/built.bin": b"\0", "x.log": "log",
    "run.sh": "#!/bin/sh\n", ".gitignore": "ignored/\n*.log\n/build/\n", "empty/x/y": "",
    "__pycache__/a.pyc": b"\0", "node_modules/m.js": "x", ".venv/pyvenv.cfg": "",
}  # fmt: skip
NOT_COPIED = ("__pycache__", "node_modules", ".venv", ".git")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/tgr-local/code"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A repository with uncommitted work, links, a submodule, read-only files and folders."""
    other = tmp_path / "other"
    write(other, {"m.py": "m"})
    commit(other, ".")
    folder = tmp_path / "project"
    write(folder, FILES)
    git(folder, "init", "-q")
    git(folder, "add", "a.py", ".gitignore")
    git(folder, "submodule", "-q", "add", str(other), "module")
    git(folder, "commit", "-qm", "x")
    (folder / "a.py").write_text("a = 2\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "sub/b.py").chmod(0o444)
    (folder / "empty/x").chmod(0o555)
    os.symlink("a.py", folder / "link.py")
    os.symlink(folder / "sub", folder / "absolute")
    os.symlink(tmp_path, folder / "outside")
    os.symlink("nowhere", folder / "dangling")
    return folder


def copied(folder: Path) -> dict[str, tuple[int, str | bytes]]:
    return {path: what for path, what in contents(folder).items()
            if path.partition("/")[0] not in NOT_COPIED}  # fmt: skip


@pytest.mark.parametrize("in_git", [False, True])
def test_a_folder_that_holds_our_own_files_is_copied_without_them(
    in_git: bool, tmp_path, monkeypatch
):
    """As a home folder does: the copy itself lies in it."""
    home = tmp_path / "home"
    chats = {".local/state/tgr-local/chats/a.jsonl": "private", ".cache/other/b": "b"}
    write(home, {"a.py": "a", **chats, ".cache/tgr-local/code/old/c.py": "c"})
    if in_git:
        commit(home, ".")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    project = Project(home)
    assert project.listing.paths == (".cache/other/b", "a.py")
    with Copies(project) as copies:
        place = copies.make()
        files = {path.relative_to(place.folder) for path in place.folder.rglob("*")}
        assert {path.as_posix() for path in files if path.parts[0] != ".git"} == {
            "a.py", ".cache", ".cache/other", ".cache/other/b", ".local", ".local/state",
        }  # fmt: skip


def test_a_copy_equals_the_working_tree(folder: Path):
    before = contents(folder)
    with Copies(Project(folder)) as copies:
        place = copies.make()
        expected = copied(folder) | {"absolute": (before["absolute"][0], "sub")}
        assert copied(place.folder) == expected
        for path in ("a.py", "sub/b.py", "module"):
            old, new = (folder / path).stat(), (place.folder / path).stat()
            assert new.st_mtime_ns == old.st_mtime_ns
        assert place.seen_at == folder
        assert set(place.mounted_read_only) == {
            folder / name for name in ("node_modules", ".venv", ".git")
        }
        assert copies.notes("bwrap") == ["outside: the link leaves the folder"]
        assert any(".venv: large or installed" in note for note in copies.notes("limits"))
        (place.folder / "a.py").write_text("x")
        (place.folder / "absolute/new").write_text("x")
        second = copies.make()
        assert copied(second.folder) == expected
    assert contents(folder) == before


def test_a_copy_has_its_changes(folder: Path):
    (folder / "w.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    changes = (
        Change("link.py", "a = 2\n", "a = 3\n"),
        Change("w.txt", "one\ntwo", "one\n2"),
        Change("new/file.py", "", "x = 1\n"),
        Change("run.sh", "#!/bin/sh\n", "exit 1\n"),
    )
    with Copies(Project(folder)) as copies:
        tree = copies.make(changes).folder
        assert (tree / "a.py").read_text() == "a = 3\n" and (tree / "link.py").is_symlink()
        assert (tree / "w.txt").read_bytes() == b"\xef\xbb\xbfone\r\n2"
        assert (tree / "new/file.py").read_text() == "x = 1\n"
        assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (folder / "a.py").read_text() == "a = 2\n" and not (folder / "new").exists()
        for path, why in (("sub/b.py", "read-only"), ("module/m.py", "of its own"),
                          (".venv/x.py", "only read"), ("../x", "must be relative")):  # fmt: skip
            with pytest.raises(RefusedError, match=why):
                copies.make([Change(path, "", "x")])
        with pytest.raises(RefusedError, match="changed meanwhile"):
            copies.make([Change("a.py", "a = 1\n", "x")])
        for text in ("# coding: latin-1\n\u20ac\n", "\0"):
            with pytest.raises(EditError, match="the new text holds"):
                copies.make([Change("a.py", "a = 2\n", text)])


def test_files_are_broken_on_purpose_but_for_links(folder: Path):
    names = ["a.py", "link.py", "absolute/b.py", "outside/x.py", "nosuch.py", "module/m.py"]
    with Copies(Project(folder)) as copies:
        tree = copies.make(broken=names).folder
        assert (tree / "a.py").read_text() == (tree / "link.py").read_text() == copies_of.BROKEN
        assert (tree / "link.py").is_symlink() and not (tree / "nosuch.py").exists()
        assert (tree / "sub/b.py").read_bytes() == FILES["sub/b.py"]
        assert (tree / "module/m.py").read_text() == copies_of.BROKEN
    assert (folder / "a.py").read_text() == "a = 2\n"


def test_a_refused_change_leaves_nothing_in_the_copies_nor_behind_their_links(
    tmp_path, cache: Path
):
    """The link that the copies have is a folder by now."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    write(project, {"a.py": "a = 1\n"})
    outside.mkdir()
    os.symlink(outside, project / "sub")
    with Copies(Project(project)) as copies:
        (project / "sub").unlink()
        (project / "sub").mkdir()
        with pytest.raises(RefusedError, match="symbolic link meanwhile"):
            copies.make([Change("sub/deep/new.py", "", "x = 1\n")])
        assert not list(outside.iterdir())
        (own,) = (path for path in cache.iterdir() if path.is_dir())
        assert [path.name for path in own.iterdir()] == ["snapshot"]


def test_a_copy_is_of_one_moment(folder: Path):
    """What the person does afterwards is not in it."""
    with Copies(Project(folder)) as copies:
        (folder / "a.py").write_text("a = 5\n")
        tree = copies.make([Change("run.sh", "#!/bin/sh\n", "exit 1\n")]).folder
        assert (tree / "a.py").read_text() == "a = 2\n"
        assert copies.document(Project(folder).read("link.py")).text == "a = 2\n"
        (folder / "new.py").write_text("n")
        for path, text in (("new.py", "n"), ("node_modules/m.js", "x")):  # which are not in it
            assert copies.document(Project(folder).read(path)).text == text


def test_several_threads_make_copies(folder: Path):
    with Copies(Project(folder)) as copies:
        found = in_threads(*[lambda: contents(copies.make().folder)] * 4)
    assert all(one == found[0] for one in found)


def test_a_sub_folder_shows_its_repository(folder: Path):
    with Copies(Project(folder / "sub")) as copies:
        place = copies.make()
        assert contents(place.folder).keys() == {"b.py"} and folder in place.mounted_read_only


def test_a_repository_that_holds_the_home_folder_is_not_shown(folder: Path, monkeypatch):
    (folder / "home").mkdir()
    monkeypatch.setenv("HOME", str(folder / "home"))
    with Copies(Project(folder / "sub")) as copies:
        assert copies.make().mounted_read_only == ()
        assert any("holds your home folder" in note for note in copies.notes("bwrap"))
    with Copies(Project(folder)) as copies:
        assert folder / ".git" in copies.make().mounted_read_only and "home" not in "".join(
            copies.notes("bwrap")
        )


def test_large_things_are_shown_or_left_out(folder: Path, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGE_FILE", 100)
    monkeypatch.setattr(snapshot, "LARGE_FOLDER", (1000, 3))
    write(folder, {"model.bin": b"x" * 101, "ignored/b": b"x" * 1001})
    write(folder, {"build/CACHEDIR.TAG": "x" * 2000})
    with Copies(Project(folder)) as copies:
        place = copies.make()
        assert {folder / "model.bin", folder / "ignored"} <= set(place.mounted_read_only)
        assert (place.folder / "model.bin").read_bytes() == b""
        assert list((place.folder / "ignored").iterdir()) == []
        assert not (place.folder / "build").exists()
        assert "build: large, ignored by git, and made by a build" in copies.notes("bwrap")
        with pytest.raises(RefusedError, match="only read"):
            copies.make([Change("ignored/b", "x" * 1001, "y")])


def test_a_folder_that_is_configured_is_copied_and_one_that_is_made_again_is_not(
    folder: Path, monkeypatch
):
    """Builds write there: CMake cannot make it again, Gradle does."""
    monkeypatch.setattr(snapshot, "LARGE_FOLDER", (1000, 3))
    monkeypatch.setattr(snapshot, "LARGE_BUILD", (3000, 30))
    write(folder, {"build/CMakeCache.txt": "x" * 2000})
    with Copies(Project(folder)) as copies:
        assert (copies.make().folder / "build/CMakeCache.txt").stat().st_size == 2000
    write(folder, {"build/CMakeCache.txt": "x" * 4000})
    with Copies(Project(folder)) as copies:
        assert folder / "build" in copies.make().mounted_read_only
    write(folder, {"build.gradle.kts": ""})
    with Copies(Project(folder)) as copies:
        assert not (copies.make().folder / "build").exists()


@pytest.mark.parametrize(("name", "bound"), [("MAX_BYTES", 100), ("MAX_ENTRIES", 5)])
def test_what_is_too_large_is_refused(
    folder: Path, cache: Path, monkeypatch, name: str, bound: int
):
    monkeypatch.setattr(snapshot, name, bound)
    write(folder, {"large": b"x" * 200})
    with pytest.raises(CopyError, match=f"{folder} is too large to be copied.*gitignore"):
        Copies(Project(folder))
    assert list(cache.iterdir()) == []


def test_copies_are_removed(folder: Path, cache: Path):
    with Copies(Project(folder)) as copies:
        place = copies.make()
        (place.folder / "sub").chmod(0)
        copies.remove(place)
        assert not place.folder.exists() and copies.make().folder.exists()
        assert cache.stat().st_mode & 0o077 == 0
    assert list(cache.iterdir()) == []


def test_copies_of_a_killed_process_are_removed(folder: Path, cache: Path):
    code = (
        "import sys, time\nfrom tgr_local.code.folder.copies import Copies\n"
        "from tgr_local.code.folder.project import Project\n"
        f"copies = Copies(Project({str(folder)!r}))\ncopies.make()\nprint(1, flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None and process.stdout.readline() == b"1\n"
    theirs = set(cache.iterdir())
    with Copies(Project(folder)):  # they are in use
        assert theirs < set(cache.iterdir())
    assert set(cache.iterdir()) == theirs
    process.send_signal(signal.SIGKILL)
    process.wait(HANG)
    process.stdout.close()
    with Copies(Project(folder)):
        assert not theirs & set(cache.iterdir())
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_copies_lie_elsewhere_where_the_cache_folder_cannot_hold_them(
    folder: Path, cache: Path, tmp_path, monkeypatch, number: int
):
    """And where nothing else can, the folder and the way out are named."""
    take, other = snapshot.take, tmp_path / "temporary"
    other.mkdir()

    def taken(project: Project, target: Path) -> object:
        if target.is_relative_to(cache) or not has_other:
            raise CopyError("x") from OSError(number, os.strerror(number))
        return take(project, target)

    monkeypatch.setattr(snapshot, "take", taken)
    monkeypatch.setattr(copies_of.tempfile, "gettempdir", lambda: str(other))
    has_other = True
    with Copies(Project(folder)) as copies:
        place = copies.make()
        assert place.folder.is_relative_to(other) and (place.folder / "a.py").exists()
        assert place.folder.parents[2].stat().st_mode & 0o77 == 0
        (note,) = (one for one in copies.notes("bwrap") if "cannot hold copies" in one)
        assert note.startswith(f"{cache} cannot hold") and f"they are in {other}" in note
    assert not list(other.glob("*/*"))
    has_other = False
    with pytest.raises(CopyError, match=f"{cache} cannot hold copies.*or set XDG_CACHE_HOME to"):
        Copies(Project(folder))
    (other / f"tgr-local-{os.getuid()}").chmod(0o755)  # where others may look
    has_other = True
    with pytest.raises(CopyError, match="XDG_CACHE_HOME"):
        Copies(Project(folder))
