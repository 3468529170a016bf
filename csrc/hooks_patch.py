"""The patch format of ``patches/llama.cpp.patch``.

``# file NAME SHA256`` begins a file; ``@@ -AT,0 +NEW,N @@ FUNCTION`` inserts the ``+`` lines that
follow after line AT of llama.cpp's file, inside FUNCTION. There is no context, so no line of
llama.cpp is in this repository; the sha256 makes sure that the file is the expected one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

TOP_LEVEL = "(top level)"
_HUNK = re.compile(r"@@ -(\d+),0 \+\d+(?:,\d+)? @@(?: (.+))?")


@dataclass
class Hunk:
    """Lines to insert."""

    at: int
    """Lines of the file before them."""
    function: str
    """The function or type around them."""
    lines: list[str]


@dataclass
class FilePatch:
    name: str
    sha256: str
    hunks: list[Hunk]


@dataclass
class Patch:
    preamble: str
    files: list[FilePatch]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def parse(text: str) -> Patch:
    """Raises ValueError for a line that is not of the format."""
    preamble, *sections = text.rstrip("\n").split("\n# file ")
    files = []
    for section in sections:
        head, *lines = section.split("\n")
        name, sha256 = head.split()
        files.append(FilePatch(name, sha256, []))
        for line in lines:
            if match := _HUNK.fullmatch(line):
                files[-1].hunks.append(Hunk(int(match[1]), match[2] or TOP_LEVEL, []))
            elif line.startswith("+") and files[-1].hunks:
                files[-1].hunks[-1].lines.append(line[1:])
            else:
                raise ValueError(f"the patch of {name} has a line that is no insertion: {line!r}")
    return Patch(preamble, files)


def written(patch: Patch) -> str:
    """The text of a patch; `parse` reads it."""
    out = [patch.preamble]
    for file in patch.files:
        out.append(f"# file {file.name} {file.sha256}")
        added = 0
        for hunk in file.hunks:
            size = f",{len(hunk.lines)}" if len(hunk.lines) > 1 else ""
            out.append(f"@@ -{hunk.at},0 +{hunk.at + added + 1}{size} @@ {hunk.function}")
            out += [f"+{line}" for line in hunk.lines]
            added += len(hunk.lines)
    return "\n".join(out) + "\n"


def inserted(text: str, hunks: list[Hunk]) -> str:
    """A file's text with the lines of the hunks in it."""
    lines = text.split("\n")
    for hunk in reversed(hunks):
        lines[hunk.at : hunk.at] = hunk.lines
    return "\n".join(lines)


def function_around(lines: list[str], at: int) -> str:
    """The function or type that line `at`, counted from 0, would be inserted into.

    It relies on llama.cpp's layout: a definition begins in column 0 and ends with ``}`` there.
    """
    for line in reversed(lines[:at]):
        if line.startswith("}"):
            return TOP_LEVEL
        if line[:1].isalpha() and not line.startswith(("namespace", "using", "extern")):
            if match := re.match(r"(?:struct|class|enum)(?: class)? (\w+)[^;(]*$", line):
                return match[1]
            if (match := re.search(r"([\w:~]+)\s*\(", line)) and not line.endswith(";"):
                return match[1]
            if line.endswith(";"):
                return TOP_LEVEL
    return TOP_LEVEL
