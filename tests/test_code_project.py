"""The person's folder: what is listed, read, refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from code_folders import commit, git, write

from tgr_local.code.edits import Change
from tgr_local.code.folder import listing
from tgr_local.code.folder.project import MAX_BYTES, Project, RefusedError

FILES: dict[str, str | bytes] = {
    "a.py": "a = 1\n", "b.txt": "b", "pkg/c.py": "c", "pkg/deep/d.py": "d", "out.log": "x",
    "build/x.py": "x", "pkg/keep.log": "k", ".venv/pyvenv.cfg": "", ".venv/m.py": "x",
    "pkg/node_modules/m.js": "x", ".gitignore": "*.log\n/build/\nnode_modules/\n.venv/\n",
    "pkg/.gitignore": "!keep.log\n",
}  # fmt: skip
LISTED = [
    ".gitignore", "a.py", "b.txt", "pkg/.gitignore", "pkg/c.py", "pkg/deep/d.py", "pkg/keep.log",
]  # fmt: skip


@pytest.fixture
def plain(tmp_path) -> Path:
    folder = tmp_path / "plain"
    write(folder, FILES)
    return folder


@pytest.fixture
def tree(tmp_path, plain: Path) -> Path:
    """The same files in a repository, in part uncommitted."""
    folder = plain.rename(tmp_path / "tree")
    commit(folder, "a.py", ".gitignore")
    return folder


def test_git_and_the_walk_list_the_same(plain: Path):
    project = Project(plain)
    assert project.repository is None and list(project.listing.paths) == LISTED
    git(plain, "init", "-q")
    git(plain, "add", "a.py")
    project = Project(plain)
    assert project.repository == plain and list(project.listing.paths) == LISTED
    (plain / "a.py").unlink()
    assert list(Project(plain).listing.paths) == [path for path in LISTED if path != "a.py"]
    assert Project(plain / "pkg").repository == plain
    assert Project(plain / "pkg").listing.paths == (".gitignore", "c.py", "deep/d.py", "keep.log")


def test_without_git_the_walk_lists(tree: Path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    project = Project(tree)
    assert project.repository is None and list(project.listing.paths) == LISTED


def test_our_own_folders_are_no_project(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chats = tmp_path / "tgr-local" / "chats"
    chats.mkdir(parents=True)
    with pytest.raises(RefusedError, match="chats holds tgr-local's own files; name the folder"):
        Project(chats)


def test_lists_are_bounded(plain: Path, monkeypatch):
    monkeypatch.setattr(listing, "MAX_FILES", 3)
    assert len(Project(plain).listing.paths) == 3 and Project(plain).listing.cut
    git(plain, "init", "-q")
    assert list(Project(plain).listing.paths) == LISTED[:3] and Project(plain).listing.cut


def test_no_program_of_a_repository_runs(tree: Path, tmp_path):
    """Variables and settings that make git run or read something else have no effect."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(program))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        assert list(Project(tree).listing.paths) == LISTED
    assert not (tmp_path / "ran").exists()


def test_hostile_patterns_do_not_keep_it(plain: Path):
    (plain / ".gitignore").write_text("*a*a*a*a*a*a*a*a*a*a*b\n[\n!\n\\\n*.log\n")
    (plain / ("a" * 250)).write_text("")
    assert "out.log" not in Project(plain).listing.paths
    assert "a" * 250 in Project(plain).listing.paths


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells what is open")
def test_folders_in_the_place_of_ignore_files_leave_nothing_open(plain: Path):
    def n_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = n_open()
    for number in range(20):
        (plain / f"d{number}" / ".gitignore").mkdir(parents=True)
    assert "a.py" in Project(plain).listing.paths
    assert n_open() < before + 10


def test_a_file_is_read_with_its_style(tree: Path):
    (tree / "w.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2")
    source = Project(tree).read("w.py")
    assert source.document.text == "x = 1\ny = 2" and source.document.path == "w.py"
    for after, expected in [("x = 1\ny = 3", b"x = 1\r\ny = 3"), ("x = 1\n", b"x = 1\r\n")]:
        _, data = Project(tree).after_change(Change("w.py", "x = 1\ny = 2", after))
        assert data == b"\xef\xbb\xbf" + expected


def says(project: Project, path: str) -> str:
    """The one sentence of a refusal, of reading and changing alike."""
    why = project.refusal(path)
    assert why and "\n" not in why
    with pytest.raises(RefusedError) as raised:
        project.read(path)
    assert project.refusal(path) == why or "read-only" in str(raised.value)
    return why


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "pkg/../../x", "./a.py", "a\\b", "a\0b", "a\nb", "pkg//c.py",
     "pkg/", "x" * 2000, ".git/config", ".GIT/hooks/post-commit", "pkg/.git/x", ".git", "\ud800",
     "pkg"],
)  # fmt: skip
def test_paths_that_are_none_are_refused(tree: Path, path: str):
    says(Project(tree), path)


def test_links_are_followed_inside_only(tree: Path, tmp_path):
    (tmp_path / "secret").write_text("hidden")
    os.symlink("pkg/c.py", tree / "link.py")
    os.symlink(tmp_path / "secret", tree / "out.py")
    os.symlink(tmp_path, tree / "outside")
    os.symlink("loop", tree / "loop")
    os.symlink("nowhere", tree / "dangling")
    os.symlink(".git", tree / "dot")
    project = Project(tree)
    assert project.read("link.py").document.text == "c"
    assert project.read("link.py").place == tree / "pkg/c.py" and not project.refusal("link.py")
    assert "leaves" in says(project, "out.py") and "leaves" in says(project, "outside/secret")
    assert "leaves" in says(project, "outside/new.py")
    assert "without an end" in says(project, "loop") and "to git" in says(project, "dot/config")
    assert project.changeable_file("dangling").place == tree / "nowhere"
    os.symlink(tree / "pkg", tree / "whole")
    assert Project(tree).links == {"link.py": "pkg/c.py", "whole": "pkg", "dot": ".git"}


def test_a_link_into_a_folder_that_is_closed_stops_nothing(tree: Path):
    (tree / "closed").mkdir()
    (tree / "closed/x.py").write_text("x")
    os.symlink("closed/x.py", tree / "link.py")
    (tree / "closed").chmod(0)
    try:
        assert Project(tree).links in ({}, {"link.py": "closed/x.py"})  # the second for root
    finally:
        (tree / "closed").chmod(0o700)


def test_submodules_and_other_repositories_are_refused(tree: Path, tmp_path):
    other = tmp_path / "other"
    write(other, {"m.py": "m"})
    commit(other, ".")
    git(tree, "submodule", "-q", "add", str(other), "sub")
    write(tree, {"nested/n.py": "n"})
    git(tree / "nested", "init", "-q")
    project = Project(tree)
    assert project.listing.submodules == {"sub", "nested"}
    assert not {"sub", "sub/m.py", "nested/n.py"} & set(project.listing.paths)
    for path in ("sub/m.py", "sub/new.py", "nested/n.py"):
        assert "a repository of its own" in says(project, path)
    git(tree, "submodule", "-q", "deinit", "-f", "sub")
    assert "a repository of its own" in Project(tree).refusal("sub/new.py")


def test_what_is_no_text_to_change_is_refused(tree: Path):
    (tree / "binary").write_bytes(b"a\0b")
    (tree / "large").write_bytes(b"a" * (MAX_BYTES + 1))
    os.mkfifo(tree / "pipe")
    (tree / "still.py").write_text("x")
    (tree / "still.py").chmod(0o444)
    project = Project(tree)
    assert "binary" in says(project, "binary") and "1,048,577 bytes" in says(project, "large")
    assert "not a file" in says(project, "pipe")
    assert "read-only" in project.refusal("still.py") and project.read("still.py")
    assert not project.refusal("new/folder/file.py")
    assert not project.changeable_file("new/folder/file.py").exists
    assert "not a folder" in project.refusal("a.py/file.py")


def test_a_change_of_another_text_is_refused(tree: Path):
    project = Project(tree)
    with pytest.raises(RefusedError, match=r"a\.py has been changed since"):
        project.after_change(Change("a.py", "a = 0\n", "a = 2\n"))
    with pytest.raises(RefusedError, match=r"gone\.py has been deleted since"):
        project.after_change(Change("gone.py", "a = 0\n", "a = 2\n"))
    with pytest.raises(RefusedError, match="NUL"):
        project.after_change(Change("a.py", "a = 1\n", "\0"))
    with pytest.raises(RefusedError, match="at most"):
        project.after_change(Change("a.py", "a = 1\n", "x" * (MAX_BYTES + 1)))


@pytest.mark.parametrize("folder", ["/", "/nowhere/at/all", __file__])
def test_what_is_no_project_is_refused(folder: str):
    with pytest.raises(RefusedError, match="name the folder of a project"):
        Project(folder)
