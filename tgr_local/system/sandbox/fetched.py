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

_GEMS = (".gem/ruby", ".local/share/gem/ruby", ".bundle/ruby")
"""Where RubyGems and Bundler keep the gems of a user, below the home; each version of Ruby has a
folder there."""


class Fetched(NamedTuple):
    """Packages of one tool."""

    variable: str
    value: str
    folders: tuple[Path, ...]


class _Tool(NamedTuple):
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
        found = tool.find(home)
        if found and found.folders and all(path.is_absolute() for path in found.folders):
            yield found


def _of_go(home: Path) -> Fetched | None:
    own = os.environ.get("GOPATH", "").partition(os.pathsep)[0] or str(home / "go")
    return _one("GOMODCACHE", Path(os.environ.get("GOMODCACHE") or Path(own, "pkg", "mod")))


def _of_maven(home: Path) -> Fetched | None:
    found = _one("MAVEN_OPTS", home / ".m2/repository")
    if not found or " " in found.value:  # which would be two options
        return None
    return found._replace(value=f"-Dmaven.repo.local={found.value}")


def _of_gradle(home: Path) -> Fetched | None:
    """Gradle has a variable for packages that it may not change."""
    own = Path(os.environ.get("GRADLE_USER_HOME") or home / ".gradle")
    packages = own / "caches/modules-2"
    found = _one("GRADLE_RO_DEP_CACHE", packages)
    return found and found._replace(value=str(packages.parent))


def _of_ruby(home: Path) -> Fetched | None:
    """A colon at the end stands for the folders of the system."""
    named = [os.environ.get("GEM_HOME", ""), *os.environ.get("GEM_PATH", "").split(os.pathsep)]
    folders = [Path(name) for name in named if name and os.path.isdir(name)]
    folders += [path for name in _GEMS for path in sorted((home / name).glob("*"))]
    paths = tuple(dict.fromkeys(path for path in folders if path.is_absolute()))
    return Fetched("GEM_PATH", os.pathsep.join([*map(str, paths), ""]), paths)


def _one(variable: str, folder: Path) -> Fetched | None:
    return Fetched(variable, str(folder), (folder,)) if folder.is_dir() else None


_TOOLS = (
    _Tool(("go.mod", "go.work"), "go", _of_go),
    _Tool(("pom.xml",), "mvnw?", _of_maven),
    _Tool(
        ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
        "gradlew?", _of_gradle,
    ),
    _Tool(("Gemfile", "Rakefile"), "ruby|gem|bundle|rake|rspec", _of_ruby),
)  # fmt: skip
