"""The command line's parser, and one flag for each config field: ``--n-mc`` sets `n_mc`."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from tgr_local.options import foreign_flags
from tgr_local.options.config import (
    ChatConfig,
    CodeConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
)
from tgr_local.options.fields import group_of, parse, types_of
from tgr_local.options.former import removed_option_error
from tgr_local.options.model_names import is_elsewhere, pull_hint
from tgr_local.system.near_names import near_names
from tgr_local.system.sanitize import printable_line

AnyConfig = EngineConfig | SearchConfig | ChatConfig | CodeConfig | ServerConfig
_Config = TypeVar("_Config", EngineConfig, SearchConfig, ChatConfig, CodeConfig, ServerConfig)
Command = Callable[["Arguments"], int]
"""Runs a subcommand with its parsed arguments and returns the exit code."""
Completion = Callable[["Parser"], None]
"""Adds the arguments and the subcommands of a subcommand to its parser."""

SHORT = {
    "model": "-m", "n_ctx": "-c", "max_tokens": "-n", "n_threads": "-t", "n_gpu_layers": "-ngl",
    "system": "-sys", "candidates": "-k",
}  # fmt: skip
"""Short flags of options; but for `candidates`, as in llama.cpp."""
EVERYDAY = {
    "max_tokens", "temperature", "seed", "stop", "thinking", "thinking_budget", "max_seconds",
    "n_ctx", "n_threads", "n_gpu_layers", "show_thinking", "markdown", "save", "host", "port",
    "alias", "api_key", "max_running", "test", "candidates", "rounds", "budget", "edit_format",
}  # fmt: skip
"""Fields of configs whose flags ``--help`` shows; ``--help-all`` shows those of all fields."""
_ERROR_LENGTH = 2000  # characters


class Arguments(argparse.Namespace):
    """The words of a command line by name, and the options of its subcommand, parsed."""

    command: Command
    parser: Parser
    sources: dict[str, str]
    """The place of each option that is set: a flag, a variable or the path of a file."""
    user_options: dict[str, Any]
    """The fields of SearchConfig that are set."""
    engine: EngineConfig
    chat: ChatConfig
    code: CodeConfig
    server: ServerConfig

    def parse_options(self) -> None:
        """Parses the options that are set and that the subcommand has. Raises ValueError for a bad
        value; unless a flag set it, the message names the place that did."""
        self.user_options, _ = self._parsed(SearchConfig)
        _, self.engine = self._parsed(EngineConfig)
        _, self.chat = self._parsed(ChatConfig)
        _, self.code = self._parsed(CodeConfig)
        _, self.server = self._parsed(ServerConfig)

    def _parsed(self, config_type: type[_Config]) -> tuple[dict[str, Any], _Config]:
        known = self.sources.keys() & self.parser.options
        try:
            values = {
                spec.name: parse(config_type, spec.name, getattr(self, spec.name))
                for spec in dataclasses.fields(config_type)
                if spec.name in known
            }
            return values, config_type(**values)
        except ValueError as error:
            source = self.sources.get(str(error).partition(" ")[0], "--")
            if source.startswith("--") or source in str(error):
                raise
            raise ValueError(f"{error} (set in {source})") from None


class Parser(argparse.ArgumentParser):
    """An argument parser with nested subcommands, whose errors are one line.

    The namespace that it returns has the function to run as `command` and the parser of the chosen
    subcommand as `parser`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.options: dict[str, Any] = {}
        """Default of each argument that a settings file or the environment may set too; None where
        a config holds the default."""
        self.rest = ""
        """The argument that takes the words after flags too; empty = such words are an error."""
        self.takes_model = False
        """Whether the first word without a flag may be the model, before the text."""
        self.embedded = "tgr-mini"
        """The embedded model that the command uses where no other is named."""
        self.text = ""
        """The argument that is a text; empty = there is none."""
        self.word_hint = f"{self.prog} --help shows what it takes"
        """Advice for a word that no argument takes."""
        self.commands: dict[str, Parser] = {}
        self._complete: Completion | None = None
        self._adder: Any = None
        self._rare: list[argparse.Action] = []

    def error(self, message: str) -> NoReturn:
        line = printable_line(message, _ERROR_LENGTH)
        more = "" if line.endswith("?") else f"; see {self.prog} --help"
        self.exit(2, f"tgr-local: {line}{more}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Writes a help or an error; argparse would ignore that stdout is full."""
        if file is sys.stdout:
            file.write(message)
        else:
            super()._print_message(message, file)

    def add_command(
        self, name: str, command: Command | None, text: str, arguments: str = ""
    ) -> Parser:
        """Adds a subcommand and returns its parser.

        `text` is its help and `arguments` the end of its usage line. With `command` None it is a
        group: one of its own subcommands must follow.
        """
        if self._adder is None:
            is_group = self.get_default("command") is None
            self._adder = self.add_subparsers(prog=self.prog, metavar="COMMAND", required=is_group)
        sub: Parser = self._adder.add_parser(name, help=text, description=text)
        sub.set_defaults(command=None, parser=sub)
        if command is not None:
            sub.runs(command, arguments)
        self.commands[name] = sub
        return sub

    def add_later(self, name: str, text: str, complete: Completion) -> None:
        """Adds a subcommand whose help is `text`; `complete` adds the rest when it is used. Its
        options must be options of other subcommands too: `all_options` has no others."""
        self.add_command(name, None, text)._complete = complete

    def runs(self, command: Command, arguments: str = "") -> None:
        """Makes `command` what this parser runs, and `arguments` the end of its usage line."""
        self.usage = f"{self.prog} [options]{arguments}"
        self.set_defaults(command=command)

    def complete(self) -> Parser:
        """Adds what `add_later` left out, once."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete(self)
        return self

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `argparse`'s on the complete parser. Raises ValueError for a flag that a group of
        commands does not have in front of the command."""
        given = args[0] if args else kwargs.get("args")
        words = sys.argv[1:] if given is None else given
        first = words[0].partition("=")[0] if words else ""
        known = self.complete()._option_string_actions
        is_group = self._adder is not None and self._adder.required
        if is_group and first.strip("-") and first[0] == "-" and first not in known:
            raise self.unknown_argument(words[0])
        for word in words if self._adder is None else ():
            if word == "--":
                break
            if foreign_flags.is_foreign(word, known):
                raise self.unknown_argument(word)
        return super().parse_known_args(*args, **kwargs)

    def add_option(self, name: str, default: Any, **about: Any) -> None:
        """Adds a flag that is absent from the parsed arguments unless it is given."""
        self.options[name] = default
        self.add_argument(*_flags(name), default=argparse.SUPPRESS, **about)

    def add_help_all(self) -> None:
        """Adds ``--help-all``, which also shows what is hidden."""
        self.add_argument("--help-all", action=_HelpAll, help="show every option, and exit")

    def add_show_config(self) -> None:
        """Adds ``--show-config`` and what belongs to it."""
        text = "print the options with their values and sources, and exit; --changed, --all"
        self.add_argument("--show-config", action="store_true", help=text)
        text = "with --show-config: only what is not the default; or those of other methods too"
        chosen = self.add_mutually_exclusive_group()
        self.hide(chosen.add_argument("--changed", action="store_true", help=text))
        self.hide(chosen.add_argument("--all", action="store_true", help=text))

    def hide(self, action: argparse.Action) -> None:
        """Leaves a flag out of ``--help``."""
        self._rare.append(action)

    def format_help(self) -> str:
        texts = [action.help for action in self._rare]
        for action in self._rare:
            action.help = argparse.SUPPRESS
        try:
            text = super().format_help()
        finally:
            for action, full in zip(self._rare, texts, strict=True):
                action.help = full
        more = f"\n{len(texts)} more options: {self.prog} --help-all\n"
        return text + more if texts else text

    def format_help_all(self) -> str:
        """The help with every flag."""
        return super().format_help()

    def all_options(self) -> dict[str, Any]:
        """The options of this parser and of all subcommands under it: what a file may set."""
        return {name: value for parser in self._walk() for name, value in parser.options.items()}

    def _walk(self) -> Iterator[Parser]:
        yield self
        for command in self.commands.values():
            yield from command._walk()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses an unknown subcommand, naming the commands that may be meant."""
        if action is self._adder and value not in self.commands:
            hint = self._command_hint(value)
            if hint:
                self.error(f"unknown command {value!r}; {hint}")
        super()._check_value(action, value)

    def _command_hint(self, word: str) -> str:
        if is_elsewhere(word) or word.lower().endswith(".gguf"):
            how = ""
            if any("--model" in action.option_strings for action in self._actions):
                how = f"a model is named with --model {word}"
            elif chat := self.commands.get("chat"):
                how = f"to talk with a model, type: {chat.prog} {word}"
            elif run := self.commands.get("run"):
                how = f"a model is named behind the task: {run.prog} TASK --model {word}"
            if how:
                return f"{how}; {pull_hint(word)}" if is_elsewhere(word) else how
        named = foreign_flags.COMMANDS.get(word, word)
        every = [
            parser for command in self.commands.values() for parser in command.complete()._walk()
        ]
        programs = [parser.prog for parser in every if parser.prog.rpartition(" ")[2] == named]
        near = difflib.get_close_matches(word, self.commands, n=2, cutoff=0.75)
        programs = programs or [self.commands[name].prog for name in near]
        return f"did you mean {' or '.join(programs[:2])}?" if programs else ""

    def unknown_argument(self, text: str, unless: str = "") -> ValueError:
        """The error for an argument that this parser does not have, naming similar flags. `unless`
        is the word before it, which may have been meant as a model."""
        known = [name for action in self._actions for name in action.option_strings]
        if not text.startswith("-"):
            model = f"; there is no model {unless}, {pull_hint(unless)}" if unless else ""
            return ValueError(f"unknown argument {text!r}; {self.word_hint}{model}")
        name = text.partition("=")[0]
        field = name.removeprefix("--no-").removeprefix("--").replace("-", "_")
        if left := removed_option_error(field, name):
            return ValueError(left)
        if any(
            name in command.complete()._option_string_actions for command in self.commands.values()
        ):
            behind = f"flags stand behind the command: {self.prog} COMMAND {name}"
            return ValueError(f"unknown argument {text!r}; {behind}")
        near = near_names(name, known)
        if name in foreign_flags.OURS and flag(foreign_flags.OURS[name]) in known:
            near = [flag(foreign_flags.OURS[name])]
        elif advice := foreign_flags.advice(name):
            return ValueError(f"unknown argument {text!r}; {advice}")
        if near:
            return ValueError(f"unknown argument {text!r}; did you mean {', '.join(near)}?")
        listing = "--help-all" if "--help-all" in known else "--help"
        hint = f"{self.prog} {listing} has all flags"
        hint = hint if text.startswith("--") else "a text that begins with - goes after --"
        return ValueError(f"unknown argument {text!r}; {hint}")


class _HelpAll(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **about: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **about)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        assert isinstance(parser, Parser)
        print(parser.format_help_all(), end="")
        parser.exit()


def flag(name: str) -> str:
    """The flag of a field: ``--n-mc`` for ``n_mc``."""
    return f"--{name.replace('_', '-')}"


def _flags(name: str) -> list[str]:
    return [SHORT[name], flag(name)] if name in SHORT else [flag(name)]


def add_config_flags(
    parser: Parser,
    config_type: type[AnyConfig],
    title: str,
    *,
    only: Collection[str] = (),
    folded: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Adds a flag for each field of a config, or for those in `only`, in a help group with that
    title, and one for each base of the config. If `folded`, ``--help`` shows those of `EVERYDAY`
    alone. `defaults` are what the help calls a subcommand's own defaults."""
    groups: dict[type, Any] = {config_type: parser.add_argument_group(title)}
    types = types_of(config_type)
    for spec in dataclasses.fields(config_type):
        if only and spec.name not in only:
            continue
        kind = types[spec.name]
        parser.options[spec.name] = None
        about: dict[str, Any] = {
            "help": _help(spec, (defaults or {}).get(spec.name)).replace("%", "%%"),
            "default": argparse.SUPPRESS,
        }
        if kind is bool:
            about["action"] = argparse.BooleanOptionalAction
        else:
            choices = spec.metadata["choices"]
            many = {tuple[float, ...]: "X,X", tuple[str, ...]: "TEXT"}
            simple = {int: "N", float: "X", str: "TEXT"}
            about["metavar"] = "{" + ",".join(choices) + "}" if choices else (many | simple)[kind]
            about["action"] = "append" if kind == tuple[str, ...] else "store"
        owner = group_of(config_type, spec.name)
        if owner not in groups:
            also = (owner.__doc__ or "").lower().rstrip(".")
            groups[owner] = parser.add_argument_group(f"{title}: {also}")
        action = groups[owner].add_argument(*_flags(spec.name), **about)
        if folded and spec.name not in EVERYDAY:
            parser.hide(action)


def _help(spec: dataclasses.Field[Any], own_default: Any) -> str:
    low, high = spec.metadata["low"], spec.metadata["high"]
    bounds = "" if low is None else f"; at least {low}" if high is None else f"; {low} to {high}"
    default = own_default or spec.default
    for word, number in spec.metadata["words"].items():
        default = word if default == number else default
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif default in ("", ()):
        default = "none"
    elif isinstance(default, tuple):
        default = ", ".join(map(repr, default))
    return f"{spec.metadata['doc']} (default: {default}{bounds})"
