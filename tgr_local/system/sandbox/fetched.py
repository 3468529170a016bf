"""Packages that Go, Maven, Gradle and RubyGems have fetched for the user: a sandbox has no network.

In: a command, its folder. Out: folders, and the variables that name them to the tools. They are
shown where the folder or the command is of their tool. Of a tool's own folder only the packages are
among them: its settings may hold secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_NO_RECORD = "-Daether.enhancedLocalRepository.trackingFilename=none"  # of mirrors, from 3.9 on
_GEMS = (".gem/ruby", ".local/share/gem/ruby", ".bundle/ruby")
"""Folders of the gems of a user, below the home, in which each version of Ruby has its own."""


class Fetched(NamedTuple):
    """Packages of one tool."""

    variable: str
    value: str
    folders: tuple[Path, ...]


class _Keeper(NamedTuple):
    files: tuple[str, ...]
    """Names of files at the top of a folder of this tool."""
    command: str
    """Pattern of words of a command that starts it."""
    find: Callable[[Path], Fetched | None]
    """Returns its packages in a home; None without any."""


def fetched(command: str, folder: Path) -> Iterator[Fetched]:
    """The packages that a command may need in a folder."""
    home = Path(os.path.expanduser("~"))
    for tool in _TOOLS:
        is_used = any((folder / name).exists() for name in tool.files)
        if not is_used and not re.search(rf"(?<![\w.-])(?:{tool.command})(?![\w./-])", command):
            continue
        its = tool.find(home)
        if its and its.folders and all(path.is_absolute() for path in its.folders):
            yield its


def _of_go(home: Path) -> Fetched | None:
    own = os.environ.get("GOPATH", "").partition(os.pathsep)[0] or str(home / "go")
    return _one("GOMODCACHE", Path(os.environ.get("GOMODCACHE") or Path(own, "pkg", "mod")))


def _of_maven(home: Path) -> Fetched | None:
    """Maven takes the packages whichever mirror they are from, which its settings name."""
    repository = home / ".m2/repository"
    if " " in str(repository):  # which would be two options
        return None
    options = f"-Dmaven.repo.local={repository} -Dmaven.legacyLocalRepo=true {_NO_RECORD}"
    return _one("MAVEN_OPTS", repository, options)


def _of_gradle(home: Path) -> Fetched | None:
    """Gradle has a variable for packages that it may not change."""
    own = Path(os.environ.get("GRADLE_USER_HOME") or home / ".gradle")
    return _one("GRADLE_RO_DEP_CACHE", own / "caches/modules-2", str(own / "caches"))


def _of_ruby(home: Path) -> Fetched | None:
    """A colon at the end stands for the folders of the system."""
    named = [os.environ.get("GEM_HOME", ""), *os.environ.get("GEM_PATH", "").split(os.pathsep)]
    folders = [Path(name) for name in named if name and os.path.isdir(name)]
    folders += [path for name in _GEMS for path in sorted((home / name).glob("*"))]
    paths = tuple(dict.fromkeys(path for path in folders if path.is_absolute()))
    return Fetched("GEM_PATH", os.pathsep.join([*map(str, paths), ""]), paths)


def _one(variable: str, folder: Path, value: str = "") -> Fetched | None:
    return Fetched(variable, value or str(folder), (folder,)) if folder.is_dir() else None


_TOOLS = (
    _Keeper(("go.mod", "go.work"), "go", _of_go),
    _Keeper(("pom.xml",), "mvnw?", _of_maven),
    _Keeper(
        ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
        "gradlew?", _of_gradle,
    ),
    _Keeper(("Gemfile", "Rakefile"), "ruby|gem|bundle|rake|rspec", _of_ruby),
)  # fmt: skip
