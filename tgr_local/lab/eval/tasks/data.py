"""Reads a benchmark's official file: JSON lines, JSON, CSV or Parquet, gzipped or not.

It knows no benchmark. Nothing is fetched without a request, and nothing is cached.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import math
import os
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tgr_local.system.errors import InstallError, TgrError

T = TypeVar("T")
KINDS = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class Source:
    """Places of a benchmark's file."""

    names: tuple[str, ...]
    """File names in the data folder, of which the first existing one is used; may contain ``*``."""
    home: str
    """Address at which it is published."""
    hub: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `datasets.load_dataset`; empty where it is not on the Hugging Face hub."""


@dataclass(frozen=True)
class Row:
    """One row of a file, with its position for errors."""

    where: str
    fields: Mapping[str, Any]

    def get(self, *names: str) -> Any:
        """The first of these fields that the row has. Raises ValueError where it has none."""
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        has = ", ".join(map(str, self.fields)) or "none"
        raise ValueError(f"{self.where} has no field {names[0]!r} (it has {has})")

    def text(self, *names: str) -> str:
        """Returns the field of `get` as text."""
        return str(self.get(*names))

    def list(self, *names: str) -> list[Any]:
        """Returns the field of `get` as a list; a text is read as a JSON or Python list."""
        value = self.get(*names)
        if isinstance(value, str):
            value = literal(value, f"{self.where}, field {names[0]!r}")
        if not isinstance(value, list | tuple):
            raise ValueError(f"{self.where}: field {names[0]!r} is not a list: {str(value)[:60]!r}")
        return list(value)

    def groups(self, *names: str) -> dict[str, str]:
        """Returns those of these fields that the row has, as `Problem.groups`; a fraction is
        rounded down, as a difficulty of 4.5 to 4."""
        values = {name: self.fields.get(name) for name in names}
        return {
            name: str(math.floor(value) if isinstance(value, float) else value)
            for name, value in values.items()
            if isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
            if not isinstance(value, float) or math.isfinite(value)
        }


def literal(text: str, where: str) -> Any:
    """A JSON value or a Python literal."""
    import ast

    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    raise ValueError(f"{where} is neither JSON nor a Python literal: {text[:60]!r}")


def rows(task: str, source: Source, path: Path | None, fetch: bool) -> list[Row]:
    """Every row of a task's file; from the hub where there is none and `fetch` is set.

    Raises ValueError, OSError, or TgrError where fetching fails.
    """
    try:
        files = find(task, source, path)
    except ValueError:
        if not fetch:
            raise
        return _fetch(task, source)
    read = [row for file in files for row in read_file(file)]
    if not read:
        raise ValueError(f"{files[0]} holds no rows; {task} is published at {source.home}")
    return read


def find(task: str, source: Source, path: Path | None) -> list[Path]:
    """The files of a task: `path` itself, or what its names match in that folder or TGR_DATA."""
    folder = path or (Path(os.environ["TGR_DATA"]) if os.environ.get("TGR_DATA") else None)
    if folder is None:
        raise ValueError(
            f"{task} needs its data: name the file ({source.names[0]}, from {source.home}) as the "
            "path (--data), or set TGR_DATA to the folder that holds it, or fetch it (--fetch)"
        )
    if folder.is_dir():
        for name in source.names:
            if files := sorted(folder.glob(name)):
                return files
        raise ValueError(
            f"{task}: {folder} holds none of {', '.join(source.names)} (published at "
            f"{source.home}); name the file itself as the path"
        )
    if not folder.exists():
        raise FileNotFoundError(2, f"no such file, which {task} needs from {source.home}", folder)
    return [folder]


def only_file(source: Source, path: Path | None) -> Path | None:
    """The path for a task that runs alone: the only file such as ``test.jsonl`` in the folder
    `path`, for a task whose data are ``gsm8k/test.jsonl``; else `path` itself."""
    if path is None or not path.is_dir() or any(any(path.glob(name)) for name in source.names):
        return path
    for name in source.names:
        folder, _, own = name.rpartition("/")
        if folder and not own.startswith("*."):  # which others' files may match
            files = [file for file in path.glob(own) if file.is_file()]
            if len(files) == 1:
                return files[0]
    return path


def read_file(file: Path) -> list[Row]:
    """The rows of one file, by its ending."""
    kind = next((k for k in KINDS if k in {file.suffix, Path(file.stem).suffix}), None)
    if kind is None or file.suffix not in {*KINDS, ".gz"}:
        raise ValueError(f"{file}: a data file ends in {', '.join(KINDS)}, or .gz after them")
    data = file.read_bytes()
    try:
        if file.suffix == ".gz":
            data = gzip.decompress(data)
        if kind == ".parquet":
            return _number_rows(file, _parquet(data))
        text = data.decode("utf-8-sig")
        if kind == ".csv":
            return _number_rows(file, csv.DictReader(io.StringIO(text)))
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
        raise ValueError(f"{file}: damaged, or not what its name says ({error})") from error
    return _number_rows(file, _json(file, text))


def _json(file: Path, text: str) -> Iterable[Any]:
    """A JSON array of rows, or one JSON object on each line."""
    if text.lstrip().startswith("["):
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}: damaged JSON, {error}") from error
    values = []
    for i, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{file}, line {i}: damaged JSON, {error}") from error
    return values


def _parquet(data: bytes) -> list[Any]:
    require("pyarrow")
    import pyarrow
    import pyarrow.parquet

    try:
        return list(pyarrow.parquet.read_table(pyarrow.BufferReader(data)).to_pylist())
    except pyarrow.ArrowInvalid as error:
        raise EOFError(error) from error


def _number_rows(where: object, read: Iterable[Any]) -> list[Row]:
    numbered = []
    for i, fields in enumerate(read, start=1):
        if not isinstance(fields, dict):
            raise ValueError(f"{where}, row {i} is not an object: {str(fields)[:60]!r}")
        numbered.append(Row(f"{where}, row {i}", fields))
    return numbered


def _fetch(task: str, source: Source) -> list[Row]:
    if not source.hub:
        raise ValueError(f"{task} is not on the Hugging Face hub; get it from {source.home}")
    require("datasets")
    import datasets

    try:
        return _number_rows(source.hub["path"], datasets.load_dataset(**source.hub))
    except Exception as error:
        words = " ".join(str(error).split())[:200]
        raise TgrError(
            f"{task} could not be fetched from the Hugging Face hub ({words}); get the file from "
            f"{source.home} and name it as the path"
        ) from error


def sample(problems: Sequence[T], limit: int, seed: int) -> list[T]:
    """All problems, or `limit` of them drawn by `seed`, in their order."""
    if limit < 0:
        raise ValueError(f"limit must be 0 (all) or more, got {limit}")
    if limit == 0 or limit >= len(problems):
        return list(problems)
    drawn = random.Random(seed).sample(range(len(problems)), limit)
    return [problems[i] for i in sorted(drawn)]


def require(*packages: str) -> None:
    """Raises InstallError for the first package that cannot be imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InstallError(
                f"this needs the package {package}: pip install 'tgr-local[eval]' brings it"
            )
