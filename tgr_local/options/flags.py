"""Flags from config fields: one for each, under its name with dashes, and the way back."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import typing
from typing import Any, NoReturn, TypeVar

from tgr_local.console.sanitize import printable_line
from tgr_local.options.config import (
    ChatConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
    parse,
    updated,
)

AnyConfig = EngineConfig | SearchConfig | ChatConfig | ServerConfig
_Config = TypeVar("_Config", EngineConfig, SearchConfig, ChatConfig, ServerConfig)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which knows its options: the arguments
    that a file or the environment may also set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.options: dict[str, Any] = {}
        """The default of each, as `settings.fill` takes them; None where a config has it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tgr-local: {printable_line(message, 2000)}; see {self.prog} --help\n")

    def add_option(self, name: str, default: Any, **about: Any) -> None:
        """A flag that is absent from the parsed arguments when it is not given."""
        self.options[name] = default
        self.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **about)


def subparsers(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parser of each subcommand, by name."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return dict(commands.choices)


def options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options of all subcommands together: what a file may set."""
    return {
        name: value for sub in subparsers(parser).values() for name, value in sub.options.items()
    }


def unknown_argument(parser: argparse.ArgumentParser, command: str, text: str) -> ValueError:
    """What to say of an argument that the subcommand does not know."""
    sub = subparsers(parser)[command]
    known = [flag for action in sub._actions for flag in action.option_strings]
    if not text.startswith("-"):
        return ValueError(f"unknown argument {text!r}; put a text of several words in quotes")
    near = difflib.get_close_matches(text.partition("=")[0], known, n=3)
    if near:
        return ValueError(f"unknown argument {text!r}; did you mean {', '.join(near)}?")
    hint = "" if text.startswith("--") else "; a text that begins with - goes after --"
    return ValueError(f"unknown argument {text!r}{hint}")


def add_config_flags(parser: Parser, config_type: type[AnyConfig], title: str) -> None:
    """One flag for each field, under its name with dashes."""
    group = parser.add_argument_group(title)
    types = typing.get_type_hints(config_type)
    for spec in dataclasses.fields(config_type):
        flag, kind = f"--{spec.name.replace('_', '-')}", types[spec.name]
        parser.options[spec.name] = None
        about: dict[str, Any] = {
            "help": _help(spec).replace("%", "%%"),
            "default": argparse.SUPPRESS,
        }
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **about)
            continue
        choices = spec.metadata["choices"]
        many = {tuple[float, ...]: "X,X", tuple[str, ...]: "TEXT"}
        simple = {int: "N", float: "X", str: "TEXT"}
        metavar = "{" + ",".join(choices) + "}" if choices else (many | simple)[kind]
        action = "append" if kind == tuple[str, ...] else "store"
        group.add_argument(flag, action=action, metavar=metavar, **about)


def _help(spec: dataclasses.Field[Any]) -> str:
    low, high = spec.metadata["low"], spec.metadata["high"]
    bounds = "" if low is None else f"; at least {low}" if high is None else f"; {low} to {high}"
    default = spec.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif default in ("", ()):
        default = "none"
    return f"{spec.metadata['doc']} (default: {default}{bounds})"


def given(args: argparse.Namespace, config_type: type[AnyConfig]) -> dict[str, Any]:
    """The fields that were set, parsed. ValueError for a bad value, naming where it stands unless
    that is a flag."""
    values: dict[str, Any] = {}
    for spec in dataclasses.fields(config_type):
        value = getattr(args, spec.name, None)
        if value is not None:
            try:
                values[spec.name] = _value(config_type, spec, value)
            except ValueError as error:
                raise _located(error, args) from None
    return values


def _value(config_type: type[AnyConfig], spec: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return parse(config_type, spec.name, value)
    if not isinstance(spec.default, tuple):
        raise ValueError(f"{spec.name} is a list, but must be one value")
    return tuple(part for one in value for part in parse(config_type, spec.name, one))


def configured(args: argparse.Namespace, config_type: type[_Config]) -> _Config:
    """The config with the fields that were set. ValueError as `given` has it."""
    try:
        return updated(config_type(), given(args, config_type))
    except ValueError as error:
        raise _located(error, args) from None


def _located(error: ValueError, args: argparse.Namespace) -> ValueError:
    """The error, which begins with the name of a field, with the place that set it."""
    source = getattr(args, "sources", {}).get(str(error).partition(" ")[0], "--")
    known = source.startswith("--") or source in str(error)
    return error if known else ValueError(f"{error} (set in {source})")
