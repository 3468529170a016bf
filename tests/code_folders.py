"""Folders of a person for the tests of the code assistant, and what they hold."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

needs_tree_sitter = pytest.mark.skipif(
    importlib.util.find_spec("tree_sitter_language_pack") is None,
    reason="tree-sitter-language-pack is not installed",
)


def git(folder: Path, *arguments: str) -> None:
    """Runs git without any settings of this machine. Skips the test where git is not installed."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    plain = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *arguments], cwd=folder, env=plain, check=True)


def commit(folder: Path, *names: str) -> None:
    """Makes a repository of a folder, with these files in its first commit."""
    git(folder, "init", "-q")
    git(folder, "add", *names)
    git(folder, "commit", "-qm", "x")


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    """Files by path."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)


def contents(folder: Path) -> dict[str, tuple[int, str | bytes]]:
    """Everything in a folder by path: its type and mode, and its bytes or the end of a link."""
    entries: dict[str, tuple[int, str | bytes]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            mode = path.lstat().st_mode
            data: str | bytes = b""
            if stat.S_ISLNK(mode):
                data = os.readlink(path)
            elif stat.S_ISREG(mode):
                data = path.read_bytes()
            entries[path.relative_to(folder).as_posix()] = (mode, data)
    return entries
