"""Where options come from: defaults, the user's file, the project's file, environment, flags.

The later of these wins. A file is TOML with one ``name = value`` for each option; the variable of
an option is its name in capitals after ``TGR_``. Values from anywhere become what a flag would have
been, so that every subcommand reads its flags and knows nothing of files. The project's file comes
with a folder that may be a stranger's, so it sets no more than how a reply is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tgr_local.console.sanitize import printable_json, printable_line
from tgr_local.options.config import SearchConfig
from tgr_local.options.flags import flag
from tgr_local.system.paths import folder

PREFIX = "TGR_"
PROJECT_FILE = Path("tgr-local.toml")
MAX_BYTES = 1 << 14  # TOML's parser takes time and memory with the square of a dotted key
_OF_A_PROJECT = {"method", *(spec.name for spec in dataclasses.fields(SearchConfig))}
_LONGEST = 200  # characters of a value in the table
_ONE_LINE = "write one option to a line: sigma = 0.1"


@dataclass(frozen=True)
class Setting:
    """An option as one place sets it."""

    name: str
    value: str | list[str]
    """As on the command line; a list for an option that may be given several times."""
    source: str
    """What a person would look for: a file, a variable, or a flag."""


def user_file() -> Path:
    """The file with the user's own options; it need not exist."""
    return folder("config") / "config.toml"


def files() -> list[Path]:
    """The files that are read here, weakest first."""
    return [path for path in (user_file(), PROJECT_FILE) if os.path.lexists(path)]


def fill(args: argparse.Namespace, options: Mapping[str, Any]) -> list[Path]:
    """Sets in `args` each option that no flag gave, from files and environment, else its default.

    `options` are the defaults of all options there are; `args.sources` then says for each that was
    set where that was. Returns the files that were read. Raises ValueError for one that cannot be,
    or that sets what it may not.
    """
    read = files()
    sources = {name: flag(name) for name in options if hasattr(args, name)}
    for setting in _settings(read, options):
        if not sources.get(setting.name, "").startswith("--"):
            setattr(args, setting.name, setting.value)
            sources[setting.name] = setting.source
    for name, default in options.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    args.sources = sources
    return read


def misspelt(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Variables that look like an option and are none, each with what it may have meant."""
    known = [PREFIX + name.upper() for name in options]
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            for near in difflib.get_close_matches(name, known, n=1, cutoff=0.85):
                yield f"{name} is no option; did you mean {near}?"


def _settings(read: list[Path], options: Mapping[str, Any]) -> Iterator[Setting]:
    for path in read:
        yield from _of_file(path, options)
    for name in options:
        variable = PREFIX + name.upper()
        if text := os.environ.get(variable):
            yield Setting(name, text, variable)


def _of_file(path: Path, options: Mapping[str, Any]) -> Iterator[Setting]:
    for name, value in _read(path).items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(one, dict) for one in values):
            raise ValueError(f"{path}: {name:.60} is a table, but a file has none; {_ONE_LINE}")
        if name not in options:
            near = difflib.get_close_matches(name, options, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"{path}: unknown option {name!r:.60}{hint}")
        if path == PROJECT_FILE and name not in _OF_A_PROJECT:
            raise ValueError(
                f"{path} sets {name}, but a project's file may set the method and how a reply is "
                f"written, no more; remove it there, and set it in {user_file()}, with "
                f"{PREFIX}{name.upper()} or with {flag(name)}"
            )
        if not all(isinstance(one, str | bool | int | float) for one in values):
            raise ValueError(f"{path}: {name} must be one value, such as {name} = 1")
        if any(type(one) is int and one.bit_length() > 64 for one in values):
            raise ValueError(
                f"{path}: {name} is a number of more than 64 bits; write a smaller one"
            )
        if name in ("model", "method"):
            if not isinstance(value, str):
                raise ValueError(f"{path}: {name} is {_as_flag(value)}, but must be a text")
            if name == "model":
                value = _model(path, value)
        yield Setting(name, _as_flag(value), str(path))


def _model(path: Path, value: str) -> str:
    """A model as a file names it: what has a slash, or lies beside the file, is a path from there,
    whatever the current folder is."""
    beside = path.parent / Path(value).expanduser()
    return str(beside) if os.sep in value or beside.exists() else value


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError(f"{path} is no file; put the options into a file, or remove it")
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes; keep only options in it")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start}") from None
    except (ValueError, RecursionError) as error:  # of a wrong or long number, of deep nesting
        raise ValueError(f"{path}: {error}; {_ONE_LINE}") from None


def _as_flag(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_flag(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- for people and programs ----


def shown(values: Mapping[str, Any], sources: Mapping[str, str], as_json: bool) -> str:
    """Each option with its value and where that came from, as a table or as one JSON object."""
    if as_json:
        table = {
            name: {"value": value, "source": sources.get(name, "default")}
            for name, value in values.items()
        }
        return printable_json(table)
    rows = [
        (
            name,
            printable_line(as_text(value), _LONGEST),
            printable_line(sources.get(name, "default")),
        )
        for name, value in values.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {at}" for name, value, at in rows)


def as_text(value: Any) -> str:
    """A value as a person writes it; `none` for an empty one."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value not in ("", None) else "none"
