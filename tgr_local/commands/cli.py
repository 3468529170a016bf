"""The command line: parses the arguments, runs one subcommand, returns an exit code.

0 is success, 1 a failure, 2 bad usage (a bad value included), 130 an interrupt. Every error is one
line on stderr; TGR_DEBUG=1 shows the traceback. A subcommand imports what it needs when it runs, so
that help takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from functools import partial
from pathlib import Path

from tgr_local.code import command as code
from tgr_local.code.acp import command as acp
from tgr_local.commands import models, rpc_server, subcommands
from tgr_local.console import windows
from tgr_local.console.dialog import print_note
from tgr_local.options.flags import Arguments, Parser
from tgr_local.system import paths
from tgr_local.system.errors import ModelError, TgrError, describe
from tgr_local.system.sanitize import printable_line
from tgr_local.system.versions import __version__

LABORATORY = {
    "eval": ("eval", "run benchmarks and compare methods, or report on runs"),
    "bench": ("bench", "measure speed, compared with llama.cpp in the same run"),
}
"""The commands of `tgr_local.lab`: folder and help. A folder is imported when its command is used;
nothing else imports one."""


def main(argv: list[str] | None = None) -> int:
    """Runs a command line, by default that of the process, and returns its exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it; writing to stdout then fails
            mode = os.O_RDONLY if name == "stdout" else os.O_RDWR
            setattr(
                sys, name, os.fdopen(os.open(os.devnull, mode), "r+" if name == "stdin" else "w")
            )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    windows.prepare()
    try:
        try:
            args = arguments(argv)
        except SystemExit:  # after help, or an error
            sys.stdout.flush()
            raise
        shows_config = getattr(args, "show_config", False)
        code = subcommands.show_config(args) if shows_config else args.command(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError as error:
        _drop_stdout()
        # Ctrl-C ends both ends of a pipe; the other may be the first
        is_interrupt = isinstance(error.__context__, KeyboardInterrupt)
        return _failed("interrupted", 130) if is_interrupt else 1
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except Exception as error:
        if os.environ.get("TGR_DEBUG"):
            raise
        message = describe(error)
        # a full disk: what could not be written is still buffered
        if isinstance(error, OSError) and error.filename is None and not _is_written():
            message = f"stdout: {message}"
        return _failed(message, 2 if isinstance(error, ValueError) else 1)


def _drop_stdout() -> None:
    """Points stdout to the null device; else Python would report the same error again when it
    flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_written() -> bool:
    """Flushes stdout; returns whether that worked. Else the buffered text is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_stdout()
        return False
    return True


def _failed(message: str, code: int) -> int:
    _is_written()
    print_note(message)
    return code


def build_parser() -> Parser:
    """The parser of all subcommands."""
    parser = Parser(
        prog="tgr-local",
        description="Test-time reasoning on your own machine, with any GGUF model.",
    )
    parser.add_argument("--version", action="version", version=f"tgr-local {__version__}")
    for module in (subcommands, code, acp, models):
        module.add_to(parser)
    for name, (folder, text) in LABORATORY.items():
        parser.add_later(name, text, partial(_complete, folder))
    rpc_server.add_to(parser)
    return parser


def _complete(folder: str, parser: Parser) -> None:
    """Adds the arguments of a command of the laboratory."""
    importlib.import_module(f"tgr_local.lab.{folder}.command").add_arguments(parser)


def arguments(argv: list[str] | None) -> Arguments:
    """The parsed words of a command line, with the options that files and the environment set.
    Raises ValueError for a bad value."""
    parser = build_parser()
    args: Arguments
    args, unknown = parser.parse_known_args(argv, Arguments())
    _take_words(args, unknown)
    if args.parser.options:
        from tgr_local.options import model_files, settings

        options = parser.all_options() | args.parser.options
        read, warnings = settings.fill(args, options)
        by_flag = args.models_dir and args.sources.get("models_dir", "").startswith("--")
        model_files.choose_folder(
            paths.expanded("models_dir", args.models_dir) if by_flag else None
        )
        if "method" in args.parser.options:
            _check_names(args)
        if read:
            names = " and ".join(printable_line(str(path)) for path in read)
            print(f"tgr-local: options from {names}", file=sys.stderr)
        for line in warnings:
            print(f"tgr-local: warning: {printable_line(line)}", file=sys.stderr)
        args.parse_options()
    return args


def _take_words(args: Arguments, words: list[str]) -> None:
    """Assigns the words that argparse left over to the model, the text and the files: ``chat
    MODEL``, ``run MODEL QUESTION``, ``code MODEL TASK FILES``. Raises ValueError for the first word
    that none of them takes."""
    parser = args.parser
    for word in words:
        if word.startswith("-") and not (word == "-" and parser.text):
            raise parser.unknown_argument(word)
    if parser.takes_model and not hasattr(args, "model"):
        free_words = words
        if parser.text:
            texts = [getattr(args, parser.text), *getattr(args, parser.rest or "", ())]
            free_words = [*(text for text in texts if text is not None), *words]
        if free_words and _names_model(parser, free_words):
            args.model, *words = free_words
            if parser.text:
                setattr(args, parser.text, words.pop(0) if words else None)
            if parser.rest:
                setattr(args, parser.rest, [])
        elif len(free_words) == 2 and words and not Path(free_words[0]).exists():
            raise parser.unknown_argument(words[0], unless=free_words[0])
    for word in words:
        if not parser.rest:
            raise parser.unknown_argument(word)
        getattr(args, parser.rest).append(word)


def _names_model(parser: Parser, words: list[str]) -> bool:
    """Whether the first of the words without a flag names a model. If the command also takes a
    text, a word that could be that text names one only if it is a file of a model, or cannot be
    anything else. Without a text a single word always names one."""
    word, *more_words = words
    one_word = len(word.split()) == 1
    if word.lower().endswith(".gguf") and (one_word or Path(word).is_file()):
        return True
    from tgr_local.options import model_files, model_names

    if not one_word:
        return not parser.text and Path(word).exists()
    if not more_words:
        return not parser.text or model_names.is_unmistakable(word)
    if parser.rest:  # further words may be files, and the first one the task
        known = model_files.is_known(word) and not Path(word).exists()
        return known or model_names.is_unmistakable(word)
    quoted = bool(parser.text) and len(more_words) == 1 and len(more_words[0].split()) > 1
    in_form = model_names.is_elsewhere(word) or "/" in word
    return quoted or in_form or model_files.is_known(word)


def _check_names(args: Arguments) -> None:
    """Raises ValueError for a method and ModelError for a model that does not exist, and names the
    file or variable that set it. The value of a flag is checked where it is used."""
    for name in ("method", "model"):
        source = args.sources.get(name, "--")
        if source.startswith("--"):
            continue
        from tgr_local.generation import method_named
        from tgr_local.options import model_files

        try:
            if name == "method":
                method_named(args.method)
            else:
                model_files.find(args.model).stat()
        except (ValueError, TgrError, OSError) as error:
            kind = ValueError if isinstance(error, ValueError) else ModelError
            raise kind(f"{describe(error)} (set in {source})") from None
