"""Options from the user's file, the project's file and the environment.

Flags override the environment, the environment overrides the project's file, that overrides the
user's. A file is TOML with one ``name = value`` for each option; the variable of an option is its
name in capitals after ``TGR_``. All values are put beside those of flags into the arguments, which
parse them (`flags.Arguments.parse_options`). The project's file comes with the current folder,
which may be a stranger's, so it can set only the method and the fields of SearchConfig.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tgr_local.options.config import SearchConfig
from tgr_local.options.fields import LISTING, as_written
from tgr_local.options.flags import Arguments, flag
from tgr_local.options.former import has_left, no_effect
from tgr_local.system.files import toml_tables
from tgr_local.system.near_names import did_you_mean
from tgr_local.system.paths import expanded, folder
from tgr_local.system.sanitize import printable_json, printable_line

PREFIX = "TGR_"
PROJECT_FILE = Path("tgr-local.toml")
MAX_BYTES = 1 << 14  # the TOML parser needs quadratic time and memory for a dotted key
_PROJECT_OPTIONS = {"method", *(spec.name for spec in dataclasses.fields(SearchConfig))}
_PATHS = {
    "models_dir", "prompt_cache", "log_file", "api_key_file", "lora",
}  # fmt: skip
"""Options that are paths."""
_NAMES = {"model", "chat_template"}
"""Options that are names or paths."""
_TEXTS = ("model", "method", "system")
"""Options that no config has."""
_VALUE_LENGTH = 200  # characters of a value in the table
_ONE_LINE = "write one option to a line: sigma = 0.1"
_IN_SINGLE_QUOTES = "write a path of Windows in single quotes: models_dir = 'C:\\models'"


def user_file() -> Path:
    """The file with the user's own options; it need not exist."""
    return folder("config") / "config.toml"


def models_dir() -> Path | None:
    """The folder of models that the environment or the user's file names, for every command.
    Raises ValueError for a malformed file."""
    name = os.environ.get(f"{PREFIX}MODELS_DIR", "")
    if not name and user_file().exists():
        name = _placed(user_file(), "models_dir", _read(user_file()).get("models_dir", ""))
    return expanded("models_dir", name) if name and isinstance(name, str) else None


def files() -> list[Path]:
    """The settings files that exist, the user's first."""
    return [path for path in (user_file(), PROJECT_FILE) if os.path.lexists(path)]


def fill(args: Arguments, options: Mapping[str, Any]) -> tuple[list[Path], list[str]]:
    """Sets each option in `args` that has no flag, from files and environment or to its default.

    `options` has the defaults of all options. Afterwards `args.sources` names the place of each
    option that was set. Returns the files that were read, and a warning for each setting without
    effect. Raises ValueError for a malformed file, and for a file with an option that it may not
    set.
    """
    read = files()
    sources = {name: flag(name) for name in options if hasattr(args, name)}
    warnings = list(_unknown_variables(options))
    for name, value, place in _settings(read, options):
        if has_left(name, value):
            written = place if place.startswith(PREFIX) else f"{place}: {name}"
            warnings.append(f"{no_effect(name, value, written)}; remove it")
        elif not sources.get(name, "").startswith("--"):
            setattr(args, name, value)
            sources[name] = place
    for name, default in options.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    args.sources = sources
    return read, warnings


def _unknown_variables(options: Mapping[str, Any]) -> Iterator[str]:
    """A warning for each variable whose name is almost that of an option, or that of a former
    one."""
    known = [PREFIX + name.upper() for name in options]
    for name in os.environ:
        if name.startswith(PREFIX) and has_left(former := name[len(PREFIX) :].lower(), None):
            yield f"{no_effect(former, None, name)}; remove it"
        elif name.startswith(PREFIX) and name not in known:
            for near in difflib.get_close_matches(name, known, n=1, cutoff=0.85):
                yield f"{name} is not an option; did you mean {near}?"


def _settings(read: list[Path], options: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """The name of each option that is set, its value, a list for one that may be given several
    times, and where: the path of a file, or the name of a variable."""
    for path in read:
        yield from _of_file(path, options)
    for name in options:
        variable = PREFIX + name.upper()
        if text := os.environ.get(variable):
            yield name, text, variable


def _of_file(path: Path, options: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name, value in _read(path).items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict) for item in values):
            raise ValueError(f"{path}: {name:.60} is a table, but tables are not used; {_ONE_LINE}")
        if has_left(name, value):
            yield name, value, str(path)
            continue
        if name not in options:
            hint = did_you_mean(name, options, LISTING)
            raise ValueError(f"{path}: unknown option {name!r:.60}; {hint}")
        if path == PROJECT_FILE and name not in _PROJECT_OPTIONS:
            raise ValueError(
                f"{path} sets {name}, but the file of a project may only set the method and "
                f"options of a reply; remove it there, and set it in {user_file()}, with "
                f"{PREFIX}{name.upper()} or with {flag(name)}"
            )
        if not all(isinstance(item, str | bool | int | float) for item in values):
            raise ValueError(f"{path}: {name} must be one value, such as {name} = 1")
        if any(type(item) is int and item.bit_length() > 64 for item in values):
            raise ValueError(
                f"{path}: {name} is a number of more than 64 bits; write a smaller one"
            )
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"{path}: {name} is {as_written(value)}, but must be a text")
        yield name, _placed(path, name, value), str(path)


def _placed(path: Path, name: str, value: Any) -> Any:
    """The value of an option in the settings file `path`, where a relative path begins at that
    file. An option that takes names too, such as `model`, has a path where its value has a slash or
    is the name of a file next to the settings file."""
    if isinstance(value, list):
        return [_placed(path, name, item) for item in value]
    if name not in _PATHS | _NAMES or not isinstance(value, str) or not value:
        return value
    beside = path.parent / expanded(f"{path}: {name}", value)
    is_path = name in _PATHS or {"/", os.sep} & set(value) or beside.exists()
    return str(beside) if is_path else value


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # reading a pipe would wait
        raise ValueError(f"{path} is not a file; replace it with one, or remove it")
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes; keep only options in it")
    try:
        return toml_tables(data)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {error.start}; save it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:  # a malformed or long number, deep nesting
        raise ValueError(f"{path}: {error}; {_hint(data)}") from None


def _hint(data: bytes) -> str:
    """How to write what was refused; a path of Windows is the commonest reason."""
    is_path = re.search(rb'"[A-Za-z]:\\', data)
    return _IN_SINGLE_QUOTES if is_path else _ONE_LINE


# ---- output ----


def shown(values: Mapping[str, Any], sources: Mapping[str, str], as_json: bool) -> str:
    """Each option with its value and source, as a table or as one JSON object."""
    if as_json:
        table = {
            name: {"value": value, "source": sources.get(name, "default")}
            for name, value in values.items()
        }
        return printable_json(table)
    rows = [
        (
            name,
            printable_line(as_text(value), _VALUE_LENGTH),
            printable_line(sources.get(name, "default")),
        )
        for name, value in values.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {at}" for name, value, at in rows)


def as_text(value: Any) -> str:
    """A value in the notation of flags; `none` for an empty one."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value not in ("", None) else "none"
