"""The repository of a folder: none of its settings is read, so no program of them runs, and only
what is the person's own is shown to tests."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import hostile_folders
import pytest
from code_folders import commit, git, write

from tgr_local.code.folder import listing, repository
from tgr_local.code.folder.copies import BROKEN, Copies
from tgr_local.code.folder.project import Project

FILES: dict[str, str | bytes] = {
    "a.py": "x", "kept.log": "x", "out.log": "x", ".gitignore": "*.log\n", "pkg/b.py": "x",
    "pkg/.gitignore": "!c.log\n", "pkg/c.log": "x", "new/d.py": "x", "mine.txt": "x",
    "everywhere.tmp": "x",
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/cache"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def tree(tmp_path) -> Path:
    folder = tmp_path / "tree"
    write(folder, FILES)
    commit(folder, "a.py", ".gitignore", "pkg")
    git(folder, "add", "-f", "kept.log")
    return folder


def shown(folder: Path) -> set[Path]:
    """What tests of a folder are shown of other folders."""
    with Copies(Project(folder)) as copies:
        return {path for path in copies.make().mounted_read_only if not path.is_relative_to(folder)}


@pytest.mark.parametrize("way", hostile_folders.WAYS)
def test_no_program_of_a_folder_runs(tmp_path, way: str):
    ran, folder = tmp_path / "ran", tmp_path / "theirs"
    hostile_folders.make(folder, way, ran)
    project = Project(folder)
    assert "a.py" in project.listing.paths and not shown(folder)
    assert "sub" not in listing.ignored_folders(project.repository, folder)
    assert not Project(folder / "nested").listing.cut
    assert not ran.exists()


def test_no_program_is_sought_in_the_folder(tree: Path, monkeypatch):
    """Where PATH has the current folder, in words or as an empty part."""
    for name in ("git", "cp", "rm", "chmod", "bwrap", "unshare", "setpriv", "chown"):
        (tree / name).write_text(f"#!/bin/sh\ntouch {tree.parent}/ran\n")
        (tree / name).chmod(0o755)
    monkeypatch.chdir(tree)
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")
    assert "a.py" in Project(tree).listing.paths and not shown(tree)
    assert not (tree.parent / "ran").exists()


def test_what_git_lists_is_as_ever(tree: Path, home: Path):
    write(tree, {".git/info/exclude": "mine.txt\n"})
    write(home, {".config/git/ignore": "*.tmp\n"})
    expected = (
        ".gitignore", "a.py", "kept.log", "new/d.py", "pkg/.gitignore", "pkg/b.py", "pkg/c.log",
    )  # fmt: skip
    assert Project(tree).listing.paths == expected
    git(tree, "update-index", "--split-index")
    assert Project(tree).listing.paths == expected
    assert Project(tree / "pkg").listing.paths == (".gitignore", "b.py", "c.log")
    write(tree, {"made.log/x": "x"})
    assert listing.ignored_folders(tree, tree) == {"made.log"}


def test_an_index_with_long_digests_is_read(tmp_path):
    folder = tmp_path / "tree"
    write(folder, FILES)
    git(folder, "init", "-q", "--object-format=sha256")
    git(folder, "add", "-f", "kept.log")
    assert "kept.log" in Project(folder).listing.paths
    assert "out.log" not in Project(folder).listing.paths


def test_a_sparse_index_is_read(tree: Path):
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "x")
    git(tree, "sparse-checkout", "set", "--cone", "--sparse-index", "new")
    assert Project(tree).listing.paths[:2] == (".gitignore", "a.py")
    assert "new/d.py" in Project(tree).listing.paths


def test_an_index_that_names_places_outside_of_the_folder_lists_none_of_them(tmp_path):
    """Nor do copies in which all code is broken on purpose touch one."""
    folder, mine, beside = tmp_path / "tree", tmp_path / "mine.py", tmp_path / "b.py"
    whole, upward = f"X{str(mine)[1:]}", "XX/b.py"  # as long as those that they become
    write(folder, {"a.py": "x", whole: "x", upward: "x", "XXX.py": "x"})
    git(folder, "init", "-q", "--object-format=sha1")
    git(folder, "add", "-A")
    index = (folder / ".git/index").read_bytes()[:-20]
    for name, other in ((whole, str(mine)), (upward, "../b.py")):
        index = index.replace(os.fsencode(name), os.fsencode(other))
    (folder / ".git/index").write_bytes(index + hashlib.sha1(index).digest())
    shutil.rmtree(folder / "XX")
    shutil.rmtree(folder / Path(whole).parts[0])
    for path in (mine, beside):
        path.write_text("mine")
    project = Project(folder)
    assert project.listing.paths == ("XXX.py", "a.py")
    with Copies(project) as copies:
        place = copies.make(broken=[str(mine), "../b.py", "../../b.py", *project.listing.paths])
        assert (place.folder / "a.py").read_text() == BROKEN
    assert mine.read_text() == beside.read_text() == "mine"


def test_a_damaged_index_is_not_fatal(tree: Path):
    for data in (b"", b"DIRC", os.urandom(999)):
        (tree / ".git/index").unlink()
        (tree / ".git/index").write_bytes(data)
        assert "a.py" in Project(tree).listing.paths
    (tree / ".git/index").unlink()
    os.mkfifo(tree / ".git/index")
    assert "a.py" in Project(tree).listing.paths


def test_a_worktree_shows_its_repository(tree: Path, tmp_path):
    git(tree, "worktree", "add", "-q", str(tmp_path / "linked"))
    write(tmp_path / "linked", {"e.log": "x"})
    write(tree, {".git/info/exclude": "f.txt\n"})
    write(tmp_path / "linked", {"f.txt": "x"})
    assert shown(tmp_path / "linked") == {tree / ".git"}
    assert shown(tmp_path / "linked/pkg") == {tree / ".git", tmp_path / "linked"}
    assert Project(tmp_path / "linked").listing.paths == (
        ".gitignore", "a.py", "pkg/.gitignore", "pkg/b.py", "pkg/c.log",
    )  # fmt: skip


def test_a_submodule_shows_its_repository(tree: Path, tmp_path):
    other = tmp_path / "other"
    write(other, {"m.py": "m"})
    commit(other, ".")
    git(tree, "submodule", "-q", "add", str(other), "sub")
    assert shown(tree / "sub") == {tree / ".git/modules/sub"}
    assert Project(tree / "sub").listing.paths == ("m.py",)


def test_a_file_that_names_another_repository_shows_nothing(tree: Path, tmp_path):
    git(tree, "worktree", "add", "-q", str(tmp_path / "linked"))
    theirs = tmp_path / "theirs"
    named = (
        f"{tree}/.git", f"{tree}/.git/worktrees/linked", f"{tree}/.git/../.git", "link", "own",
        "own/worktrees/w", "/", "..", "", "x\0y", "x" * 9999, "own/worktrees/x",
    )  # fmt: skip
    write(theirs, {
        "a.py": "x", "own/HEAD": "x", "own/objects/x": "", "own/refs/x": "",
        "own/config": f"[core]\nworktree = {tree}\n", "own/worktrees/w/HEAD": "x",
        "own/worktrees/w/commondir": f"{tree}/.git", "own/worktrees/w/gitdir": f"{theirs}/.git",
    })  # fmt: skip
    os.symlink(tree / ".git", theirs / "link")
    os.symlink(tree / ".git/worktrees/linked", theirs / "own/worktrees/x")
    for text in named:
        (theirs / ".git").write_text(f"gitdir: {text}\n")
        assert not shown(theirs), text
        assert "a.py" in Project(theirs).listing.paths
    inside = tree / ".git/worktrees/unpacked"  # a folder there names itself
    write(inside, {
        "a.py": "x", "HEAD": "x", "commondir": "../..", "gitdir": f"{inside}/.git",
        ".git": "gitdir: .\n",
    })  # fmt: skip
    assert not shown(inside)
    (theirs / ".git").unlink()
    os.symlink(tree / ".git", theirs / ".git")
    assert not shown(theirs) and "a.py" in Project(theirs).listing.paths


def test_a_setting_that_names_a_folder_shows_nothing(tree: Path, tmp_path):
    secret = tmp_path / "secret"
    write(secret, {"key": "x"})
    commit(secret, ".")
    git(tree, "config", "core.worktree", str(secret))
    assert Project(tree).repository == tree and not shown(tree)
    assert "a.py" in Project(tree).listing.paths


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give files away")
def test_a_repository_above_of_another_user_is_none_of_the_folder(tree: Path):
    assert repository.find(tree / "pkg") == tree
    os.chown(tree / ".git", 12345, 12345)
    assert repository.find(tree / "pkg") is None and repository.find(tree) == tree
    os.chown(tree / "pkg", 12345, 12345)
    assert repository.find(tree / "pkg") == tree
