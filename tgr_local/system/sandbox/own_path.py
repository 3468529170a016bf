"""The path of a folder in texts, exchanged for that of its copy.

In: a folder, the names under which a person knows it, a text. Out: the text, in which what leads
into the folder leads into the copy. Where a backend shows a copy at the place of the folder nothing
of this is needed; elsewhere a command such as ``make -C FOLDER test`` would leave the copy.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_BEFORE = r"(?:(?<![\w.~-])|(?<=-[A-Za-z]))"
"""Pattern of the place where a path begins, also in -I/FOLDER and -C/FOLDER."""
_AFTER = r"(?![\w~-]|\.[\w.])"
_WORD = re.compile(
    r"""(?:~|\$HOME|\$\{HOME\}|(?<![\w.~}-])|(?<=-[A-Za-z]))/(?:[^\s"'$`;&|()<>\\:]|\\.)*"""
)
"""A path in a command, from / or a home folder on."""
_PLAIN = re.compile(r"[\w/.+@%,:-]+")


@dataclass(frozen=True)
class OwnPath:
    """A folder, and the copy that stands for it."""

    folder: Path
    """Absolute path of the folder, without symbolic links."""
    copy: Path
    excluded: Sequence[Path] = ()
    """Paths that the copy does not hold; their names stay as they are."""

    def in_text(self, text: str) -> str:
        """A text in which the names of the folder are those of the copy."""
        return self._pattern().sub(lambda _: str(self.copy), text)

    def in_bytes(self, data: bytes) -> bytes:
        """Does `in_text` on the bytes of a file."""
        return os.fsencode(self.in_text(os.fsdecode(data))) if self.is_in(data) else data

    def is_in(self, data: bytes) -> bool:
        """Whether a file names the folder."""
        return any(os.fsencode(name) in data for name in self._names())

    def in_path(self, path: str) -> str:
        """A path, which leads into the copy if it led into the folder."""
        if not os.path.isabs(path) or Path(path).is_relative_to(self.copy):
            return path
        parts = Path(os.path.abspath(path)).parts
        for n in range(2, len(parts) + 1):
            place = Path(os.path.realpath(os.path.join(*parts[:n])))
            if place.is_relative_to(self.folder):
                end = place.joinpath(*parts[n:])
                if any(end.is_relative_to(path) for path in self.excluded):
                    return path
                return str(self.copy / end.relative_to(self.folder))
        return path

    def in_paths(self, paths: str) -> str:
        """Does `in_path` on each path of a variable such as PATH."""
        return os.pathsep.join(map(self.in_path, paths.split(os.pathsep)))

    def in_command(self, command: str) -> str:
        """A shell command in which paths into the folder, also by way of links or a home folder,
        lead into the copy."""
        if not _PLAIN.fullmatch(str(self.copy)):
            return command  # what a shell would read in another way

        def move(match: re.Match[str]) -> str:
            word = re.sub(r"\\(.)", r"\1", match[0])
            home = os.path.expanduser("~")
            path = re.sub(r"^(?:~|\$HOME|\$\{HOME\})(?=/)", lambda _: home, word)
            copied = self.in_path(path)
            if copied == path:
                return match[0]
            return copied + "/" * path.endswith("/") if _PLAIN.fullmatch(copied) else match[0]

        return _WORD.sub(move, self.in_text(command))

    def _names(self) -> list[str]:
        """The folder as it is, and as the person's shell names it."""
        shell = os.environ.get("PWD", "")
        names = [str(self.folder)]
        with contextlib.suppress(OSError):
            if os.path.isabs(shell) and os.path.samefile(shell, self.folder):
                names.append(os.path.normpath(shell))
        return list(dict.fromkeys(names))

    def _pattern(self) -> re.Pattern[str]:
        # a copy may lie in the folder itself: a home folder has a cache
        excluded = [str(path.relative_to(self.folder)) for path in [*self.excluded, self.copy]
                if path != self.folder and path.is_relative_to(self.folder)]  # fmt: skip
        but = "".join(rf"(?!/{re.escape(path)}(?![\w.-]))" for path in excluded)
        spaced = [name.replace(" ", "\\ ") for name in self._names()]
        names = "|".join(map(re.escape, dict.fromkeys([*self._names(), *spaced])))
        return re.compile(rf"{_BEFORE}(?:{names}){but}{_AFTER}")


def editable(folder: Path, environments: Sequence[Path]) -> list[Path]:
    """The folders in a project from which these Python environments import packages that are
    installed in editable mode."""
    folders: dict[Path, None] = {}
    for environment in environments:
        for site in environment.glob("lib/python3*/*-packages"):
            for file in [*site.glob("*.pth"), *site.glob("__editable__*finder.py")]:
                with contextlib.suppress(OSError):
                    for place in _imported_from(file):
                        if place.is_relative_to(folder):
                            folders[place] = None
    return list(folders)


def _imported_from(file: Path) -> list[Path]:
    """The folders that a file adds to those that Python imports from."""
    with open(file, encoding="utf-8", errors="replace") as opened:
        text = opened.read(1 << 16)
    if file.suffix == ".pth":
        names = [line.strip() for line in text.splitlines()]
        return [Path(os.path.realpath(name)) for name in names if os.path.isabs(name)]
    packages = re.findall(r"""['"](/[^'"\n]+)['"]""", text)  # a package, or a module
    return [Path(os.path.realpath(name)).parent for name in packages]
