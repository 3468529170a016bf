"""Slash commands in a table: a command is a function of a session and the rest of its line, which
yields lines to print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tgr_local.console.wrap import terminal_width, wrapped
from tgr_local.system.near_names import did_you_mean
from tgr_local.system.sanitize import printable

_Session = TypeVar("_Session")
_COMMAND = re.compile(r"/(?:[a-z]*|\?)(?=\s|$)")  # a path such as /usr/bin is none
LEAVING = ("exit", "quit")
"""Lines that leave without a slash."""
LEAVING_COMMANDS = ("/exit", "/quit", "/bye")
"""The commands that leave, for a dialog that takes no others."""


@dataclass(frozen=True)
class Command(Generic[_Session]):
    run: Callable[[_Session, str], Iterable[str]]
    argument: str
    help: str


def is_command(line: str) -> bool:
    return bool(_COMMAND.match(line))


def run_command(
    session: _Session,
    line: str,
    commands: Mapping[str, Command[_Session]],
    aliases: Mapping[str, str],
) -> Iterable[str]:
    """Runs a command; the lines to print. ValueError for an unknown one, naming near ones."""
    name, *argument = line.strip().split(maxsplit=1)
    name = aliases.get(name, name)
    if name not in commands:
        names = [known for known in (*commands, *aliases) if known != "/?"]
        all_names = (
            "/help lists all commands" if "/help" in commands else f"there are {', '.join(names)}"
        )
        hint = did_you_mean(name, names, all_names)
        raise ValueError(f"unknown command {name:.80}; {hint}")
    return commands[name].run(session, argument[0] if argument else "")


def help_lines(commands: Mapping[str, Command[_Session]]) -> Iterator[str]:
    """A line for each command."""
    for name, command in commands.items():
        yield f"{f'{name} {command.argument}':18}  {command.help}"


def leave(_: object, __: str) -> Iterable[str]:
    """The command that leaves a session."""
    raise EOFError


def whole_number(text: str, name: str, low: int, high: int) -> int:
    """The number that an argument is. ValueError, with `name`, if it is not between the bounds."""
    if not text.isdecimal() or not low <= int(text[:9]) <= high:
        raise ValueError(f"{name} is {text!r:.40}, but must be between {low} and {high}")
    return int(text)


def on_terminal(text: str) -> str:
    """A line of output, safe for the terminal and as wide as it is."""
    return wrapped(printable(text), terminal_width())
