"""Moves the hooks to another version of llama.cpp.

    python csrc/reanchor.py --from 0.3.36 --to 0.3.37

Finds, for each insertion of ``patches/llama.cpp.patch``, the place in the new source that has the
same function around it and the same lines beside it; then writes the patch again, with the new
line numbers and sha256 sums. What it could not place, or placed by one side only, it prints; the
first kind goes to ``patches/llama.cpp.patch.rej``, and the exit status is 1. ``--from`` and
``--to`` are versions of llama-cpp-python, whose source packages are downloaded, or folders.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fetch_llama_cpp import PARTS, PATCH, unpack
from hooks_patch import FilePatch, Hunk, Patch, digest, function_around, parse, written

_MOST = 6  # lines compared on each side


def positions(lines: list[str], before: list[str], after: list[str]) -> list[int]:
    """Where these lines follow each other; the position is that of the first one in `after`."""
    wanted = before + after
    return [
        i + len(before)
        for i in range(len(lines) - len(wanted) + 1)
        if lines[i : i + len(wanted)] == wanted
    ]


def place(hunk: Hunk, old: list[str], new: list[str]) -> tuple[int | None, str]:
    """The position of a hunk in a new file, and how it was found or why not.

    Lines are compared without their indentation.
    """
    function = function_around(old, hunk.at)
    inside = {i for i in range(len(new) + 1) if function_around(new, i) == function}
    if not inside:
        return None, f"the new file has no {function}"
    old, new = [line.strip() for line in old], [line.strip() for line in new]
    for n in range(_MOST, 0, -1):
        before, after = old[max(0, hunk.at - n) : hunk.at], old[hunk.at : hunk.at + n]
        found = [at for at in positions(new, before, after) if at in inside]
        if len(found) > 1:
            return None, f"{n} lines on each side match at {', '.join(str(at) for at in found)}"
        if found:
            return found[0], "" if n == _MOST else f"{n} lines on each side"
    for n in range(_MOST, 1, -1):
        sides = {
            "before": positions(new, old[max(0, hunk.at - n) : hunk.at], []),
            "after": positions(new, [], old[hunk.at : hunk.at + n]),
        }
        for side, all_found in sides.items():
            found = [at for at in all_found if at in inside]
            if len(found) == 1:
                return found[0], f"CHECK: only the {n} lines {side} it match"
    return None, f"no lines beside it are in {function} any more"


def reanchored(patch: Patch, old: Path, new: Path) -> tuple[Patch, list[FilePatch], list[str]]:
    """The patch for the new tree, the insertions that found no place, and a report.

    Raises ValueError when the patch is not for the old tree.
    """
    moved, left, report = Patch(patch.preamble, []), [], []
    for file in patch.files:
        if digest(old / file.name) != file.sha256:
            raise ValueError(f"{old / file.name} is not the file that the patch was made for")
        if not (new / file.name).is_file():
            left.append(file)
            report.append(f"{file.name}: NOT PLACED, the file is gone")
            continue
        before = (old / file.name).read_text(encoding="utf-8").split("\n")
        after = (new / file.name).read_text(encoding="utf-8").split("\n")
        good, bad = FilePatch(file.name, digest(new / file.name), []), []
        for hunk in file.hunks:
            at, how = place(hunk, before, after)
            where = function_around(before, hunk.at)
            if at is None:
                bad.append(hunk)
                report.append(f"{file.name}:{hunk.at} in {where}: NOT PLACED, {how}")
                continue
            good.hunks.append(Hunk(at, function_around(after, at), hunk.lines))
            if at != hunk.at or how:
                report.append(f"{file.name}:{hunk.at} in {where} → {at}{how and ' (' + how + ')'}")
        good.hunks.sort(key=lambda hunk: hunk.at)
        moved.files.append(good)  # without hunks too: those of the .rej file are added below it
        if bad:
            left.append(FilePatch(good.name, good.sha256, bad))
    return moved, left, report


def _tree(name: str, folder: Path) -> Path:
    if Path(name).is_dir():
        return Path(name)
    unpack(name, PARTS, folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--from", dest="old", required=True, help="a version or a folder")
    parser.add_argument("--to", dest="new", required=True, help="a version or a folder")
    parser.add_argument("--patch", type=Path, default=PATCH, help="the patch, which is replaced")
    args = parser.parse_args()

    patch = parse(args.patch.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        old = _tree(args.old, Path(folder) / "old")
        new = _tree(args.new, Path(folder) / "new")
        try:
            moved, left, report = reanchored(patch, old, new)
        except ValueError as error:
            sys.exit(f"{error}; --from must be the version that the hooks are written for")
    print("\n".join(report) or "every insertion stays at its line")
    total = sum(len(file.hunks) for file in patch.files)
    print(f"{sum(len(file.hunks) for file in moved.files)} of {total} insertions placed")
    args.patch.write_text(written(moved), encoding="utf-8")
    if left:
        rejected = args.patch.with_suffix(".patch.rej")
        rejected.write_text(written(Patch("Not placed.", left)), encoding="utf-8")
        print(f"place those in {rejected} by hand")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
