"""Files of benchmarks made from rows, and their problems."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grader_cases import CASES, Rows

from tgr_local.lab.eval import tasks
from tgr_local.lab.eval.task import Grade, Problem
from tgr_local.system.errors import InstallError

Load = Callable[..., list[Problem]]


def write(folder: Path, name: str, rows: Rows) -> Path:
    """The rows as a file in the kind that the ending of its name says."""
    file = folder / name
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if name.endswith(".gz"):
        file.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".csv"):
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".json"):
        file.write_text(json.dumps(rows))
    elif name.endswith(".parquet"):
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text(lines)
    return file


def loader(folder: Path) -> Load:
    """A function: ``load("math500")`` are the problems of the sample in `CASES`, or of the given
    rows, written into a folder. It skips the test where a package is missing."""

    def load(name: str, rows: Rows | None = None, **options: Any) -> list[Problem]:
        file_name = "game24.csv" if name == "game24" else f"{name}.jsonl"
        file = write(folder, file_name, rows or CASES[name][0])
        try:
            return tasks.get(name).load(file, **options)
        except InstallError as error:
            pytest.skip(str(error))

    return load


def grade(problem: Problem, text: str) -> Grade:
    return tasks.get(problem.task).grade(problem, text)
