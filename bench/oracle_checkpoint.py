"""The records of a run of oracle.py in a file, which a later run goes on with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tgr_local.lab.eval.manifest import without_former

Record = dict[str, Any]


class Checkpoint:
    """The records of a run, a line each; the first line says what they depend on."""

    def __init__(self, path: Path, head: Record) -> None:
        lines = read_lines(path) if path.exists() else []
        if lines and "options" in lines[0]:
            lines[0]["options"] = without_former(lines[0]["options"])
        if lines and lines[0] != head:
            names = sorted({*head, *lines[0]})
            changed = [name for name in names if head.get(name) != lines[0].get(name)]
            raise ValueError(
                f"{path} is of a run with other {', '.join(changed)}; name another file with --out"
            )
        self.records: list[Record] = lines[1:]
        path.write_text("".join(json.dumps(line) + "\n" for line in (head, *self.records)), "utf-8")
        self._path = path

    def add(self, records: Sequence[Record]) -> None:
        """Writes the records of a boundary."""
        self.records += records
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))

    def missing(self, number: int, kinds: Sequence[str], settings: Sequence[str]) -> list[str]:
        """What a boundary still needs, "state" first."""
        have = {(r.get("kind", "state"), r.get("setting")) for r in self.records
                if r["number"] == number}  # fmt: skip
        needed = [] if ("state", None) in have else ["state"]
        return needed + [k for k in kinds if any((k, name) not in have for name in settings)]

    def state(self, number: int) -> Record | None:
        """The record with a boundary's state."""
        return next((r for r in self.records if r["number"] == number and "state" in r), None)


def read_lines(path: Path) -> list[Record]:
    """The whole lines of a checkpoint. ValueError for a file of another kind."""
    try:
        lines = path.read_text("utf-8").splitlines(True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError:
        records = [None]
    if not all(isinstance(record, dict) for record in records):
        raise other_kind(path)
    return records


def other_kind(path: Path) -> ValueError:
    """The error about a file of another kind."""
    return ValueError(f"{path} is not a checkpoint of the oracle; name another file with --out")
