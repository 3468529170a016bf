"""The patch format of ``patches/llama.cpp.patch``: lines to insert, each with its surroundings.

``# file NAME`` begins a file; ``@@ FUNCTION BEFORE AFTER`` inserts the ``+`` lines that follow
inside FUNCTION, between lines with these hashes. A hash is that of the nearest line with a letter
or digit and the braces between it and the insertion, without white space; ``2 of 3`` follows where
the same lines stand three times in the function. So no line of llama.cpp is in this repository, an
insertion finds its place in a file that has changed elsewhere, and has none where its surroundings
changed.

    python csrc/hooks_patch.py PLAIN PATCHED

writes the patch again from a source tree without the hooks and a copy of it with them.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PATCH = Path(__file__).parent / "patches" / "llama.cpp.patch"
TOP_LEVEL = "(top level)"
_HUNK = re.compile(r"@@ (.+) ([0-9a-f]{12}) ([0-9a-f]{12})(?: (\d+) of (\d+))?")


class NotPlaced(ValueError):
    """An insertion has no place in a file."""


@dataclass
class Hunk:
    """Lines to insert, and where."""

    function: str
    """The function or type around them."""
    before: str
    after: str
    """Hashes of the neighbouring lines."""
    index: int
    """Which of the places with these hashes in the function it is, from 1."""
    of: int
    """How many there are."""
    lines: list[str]

    @property
    def name(self) -> str:
        first = next((line.strip() for line in self.lines if line.strip()), "")
        return f"{first!r} in {self.function}"


@dataclass
class FilePatch:
    name: str
    hunks: list[Hunk]


@dataclass
class Patch:
    preamble: str
    files: list[FilePatch]


def parse(text: str) -> Patch:
    """Raises ValueError for a line that is not of the format."""
    preamble, *sections = text.rstrip("\n").split("\n# file ")
    files = []
    for section in sections:
        name, *lines = section.split("\n")
        files.append(FilePatch(name, []))
        hunks = files[-1].hunks
        for line in lines:
            if match := _HUNK.fullmatch(line):
                function, before, after, index, of = match.groups()
                hunks.append(Hunk(function, before, after, int(index or 1), int(of or 1), []))
            elif line.startswith("+") and hunks:
                hunks[-1].lines.append(line[1:])
            else:
                raise ValueError(
                    f"the patch of {name} has a line that is not an insertion: {line!r}"
                )
    return Patch(preamble, files)


def written(patch: Patch) -> str:
    """The text of a patch; `parse` reads it."""
    out = [patch.preamble]
    for file in patch.files:
        out.append(f"# file {file.name}")
        for hunk in file.hunks:
            which = f" {hunk.index} of {hunk.of}" if hunk.of > 1 else ""
            out.append(f"@@ {hunk.function} {hunk.before} {hunk.after}{which}")
            out += [f"+{line}" for line in hunk.lines]
    return "\n".join(out) + "\n"


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


def _hash(lines: list[str], at: int, step: int) -> str:
    """The hash of the lines from `at` on, forwards or backwards, as far as the anchor reaches."""
    seen = []
    while 0 <= at < len(lines):
        if line := "".join(lines[at].split()):
            seen.append(line)
            if re.search(r"\w", line):
                break
        at += step
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:12]


def _places(lines: list[str], function: str, before: str, after: str) -> list[int]:
    """The lines of a file before which an insertion with this anchor can stand."""
    return [
        at
        for at in range(len(lines) + 1)
        if (at == 0 or lines[at - 1].strip())  # of the places among empty lines, the first
        and _hash(lines, at - 1, -1) == before
        and _hash(lines, at, 1) == after
        and function_around(lines, at) == function
    ]


def place(lines: list[str], hunk: Hunk) -> int:
    """The line of a file before which a hunk is inserted.

    Raises NotPlaced, which names the insertion and says what is different.
    """
    found = _places(lines, hunk.function, hunk.before, hunk.after)
    if len(found) == hunk.of:
        return found[hunk.index - 1]
    if found:
        raise NotPlaced(
            f"{hunk.name}: the places with the lines around it are {len(found)}, but were {hunk.of}"
        )
    inside = [at for at in range(len(lines) + 1) if function_around(lines, at) == hunk.function]
    if not inside:
        raise NotPlaced(f"{hunk.name}: there is no {hunk.function}")
    sides = {
        "before": [at for at in inside if _hash(lines, at - 1, -1) == hunk.before],
        "after": [at for at in inside if _hash(lines, at, 1) == hunk.after],
    }
    near = " and ".join(
        f"the line {side} it is at {at[-1] if side == 'before' else at[-1] + 1}"
        for side, at in sides.items()
        if len({_hash(lines, i, 1) + _hash(lines, i - 1, -1) for i in at}) == 1
    )
    raise NotPlaced(f"{hunk.name}: the lines around it have changed{near and '; ' + near}")


def inserted(text: str, hunks: list[Hunk]) -> tuple[str, list[str]]:
    """A file's text with the lines of the hunks in it, and why others have no place."""
    lines = text.split("\n")
    placed, missing = [], []
    for hunk in hunks:
        try:
            placed.append((place(lines, hunk), hunk))
        except NotPlaced as error:
            missing.append(str(error))
    for at, hunk in sorted(placed, key=lambda one: one[0], reverse=True):
        lines[at:at] = hunk.lines
    return "\n".join(lines), missing


def made(plain: str, patched: str) -> list[Hunk]:
    """The hunks that make `patched` of `plain`. Where empty lines follow an insertion, their number
    may differ.

    Raises ValueError when `patched` lacks a line of `plain`.
    """
    old = plain.split("\n")
    hunks: list[Hunk] = []
    gap: list[str] = []
    at = 0  # the line after the last one that was found
    missing = -1  # an empty line that may be missing
    for line in [*patched.split("\n"), None]:
        found = next((i for i in range(at, len(old)) if old[i].strip()), len(old))
        if line is not None and (found == len(old) or line != old[found]):
            gap.append(line)
            continue
        n_empty = found - at  # these stay below the insertion
        if line is not None and sum(not one.strip() for one in gap) < n_empty:
            gap.append(line)  # the same line as below them, but inserted above
            missing = at
            continue
        if line is None and found < len(old):
            raise _missing(old, found if missing < at else missing)
        for end in (-1, 0):
            while n_empty and gap and not gap[end].strip():
                del gap[end]
                n_empty -= 1
        if gap:
            hunks.append(_hunk(old, at, gap))
        gap, at = [], found + 1
    return hunks


def _missing(old: list[str], at: int) -> ValueError:
    return ValueError(f"line {at + 1}, {old[at]!r}, is missing; a patch only inserts lines")


def _hunk(old: list[str], at: int, lines: list[str]) -> Hunk:
    function, before, after = function_around(old, at), _hash(old, at - 1, -1), _hash(old, at, 1)
    found = _places(old, function, before, after)
    return Hunk(function, before, after, found.index(at) + 1, len(found), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plain", type=Path, help="a llama.cpp source tree without the hooks")
    parser.add_argument("patched", type=Path, help="the same with them")
    parser.add_argument("--patch", type=Path, default=PATCH, help="the patch, which is replaced")
    args = parser.parse_args()

    patch = Patch(args.patch.read_text(encoding="utf-8").partition("\n# file ")[0], [])
    folders = (args.plain / "ggml" / "src" / "ggml-rpc", args.plain / "src", args.plain / "common")
    for path in sorted(path for folder in folders for path in folder.rglob("*.*")):
        name = path.relative_to(args.plain).as_posix()
        texts = [(root / name).read_text(encoding="utf-8") for root in (args.plain, args.patched)]
        try:
            if hunks := made(*texts):
                patch.files.append(FilePatch(name, hunks))
        except ValueError as error:
            sys.exit(f"{name}: {error}")
    args.patch.write_text(written(patch), encoding="utf-8")
    n_lines = sum(len(hunk.lines) for file in patch.files for hunk in file.hunks)
    print(f"{n_lines} lines in {len(patch.files)} files")


if __name__ == "__main__":
    main()
