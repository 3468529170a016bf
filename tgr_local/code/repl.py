"""A session of tasks in a terminal, on an input line, or through pipes: a task in a line.

A line that is no command is a task. Nothing of the folder is changed before ``/accept`` or the
answer to the question after a task.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tgr_local.code.interrupts import twice_ends
from tgr_local.code.one_task import ask
from tgr_local.code.repl_commands import ALIASES, COMMANDS
from tgr_local.code.session import CodeSession, print_diff
from tgr_local.console.command_table import LEAVING, is_command, on_terminal, run_command
from tgr_local.console.dialog import is_interactive, no_echo, until_end, until_left
from tgr_local.console.text_input import read_block, stdin_lines
from tgr_local.generation import METHODS
from tgr_local.options.config import ChatConfig


def run(session: CodeSession, config: ChatConfig) -> int:
    """Carries out tasks until the input ends; returns the exit code: through pipes 1 if one
    failed."""
    if is_interactive():
        return _on_terminal(session, config)
    return _piped(session)


def _on_terminal(session: CodeSession, config: ChatConfig) -> int:
    from prompt_toolkit.completion import Completer, WordCompleter

    from tgr_local.console.input_line import CommandCompleter, InputLine, words

    arguments: dict[str, Completer] = {
        "/add": WordCompleter(lambda: list(session.workplace.paths()), WORD=True),
        "/drop": WordCompleter(lambda: list(session.named_paths), WORD=True),
        "/method": words(METHODS),
        "/set": words(session.options()),
    }
    completer = CommandCompleter((*COMMANDS, *ALIASES), arguments)
    line = InputLine(config.save, completer, "code_history")

    def answer(typed: str) -> None:
        with twice_ends():
            _handle(session, typed, lambda: line.read("... ", config.keys), no_echo)

    for text in _banner(session):
        print(on_terminal(text))
    until_left(
        lambda: line.read(">>> ", config.keys),
        answer,
        lambda: _stop_message(session),
        "Ctrl-D or /exit leaves",
    )
    return 0


def _stop_message(session: CodeSession) -> str:
    """Returns the message after Ctrl-C: the results until then are still there."""
    best = session.outcome.best if session.outcome else None
    if best is None or best.verdict is None:
        return "stopped; the folder is unchanged"
    result = f"candidate {best.number} is the best so far ({best.verdict.summary})"
    return f"stopped; the folder is unchanged; {result}: /diff, /table, /accept"


def _piped(session: CodeSession) -> int:
    next_line = stdin_lines()

    def answer_line() -> None:
        with twice_ends():
            _handle(session, next_line(), next_line, None)

    return until_end(answer_line)


def _handle(
    session: CodeSession,
    line: str,
    next_line: Callable[[], str],
    quiet: Callable[[], AbstractContextManager[None]] | None,
) -> None:
    """Carries out a task or runs a command. `quiet` hides typed keys meanwhile, where a person is
    there to ask."""
    if line.strip() in LEAVING:
        raise EOFError
    if line.strip() == "/again":
        _carry_out(session, session.last_task(), quiet)
    elif is_command(line):
        for text in run_command(session, line, COMMANDS, ALIASES):
            print(on_terminal(text) if sys.stdout.isatty() else text)
    elif line.strip().lower() in ("y", "yes", "n", "no"):
        raise ValueError(f"{line.strip()} is no task; /accept N takes an edit")
    elif line.strip():
        _carry_out(session, read_block(line, next_line), quiet)


def _carry_out(
    session: CodeSession, text: str, quiet: Callable[[], AbstractContextManager[None]] | None
) -> None:
    if quiet is not None:
        session.ask_for_tests()
    with quiet() if quiet else contextlib.nullcontext():
        outcome = session.carry_out(text, can_stop=quiet is not None)
    if outcome.best is None:
        session.say("no candidate has an edit; /again tries other seeds")
        return
    if outcome.offered:
        print_diff(outcome.offered)
    session.explain()
    if not outcome.offered:
        session.say("no edit gains anything; the folder is unchanged; /diff, /table, /accept N")
    elif quiet is None:
        session.say("/accept changes the folder")
    elif chosen := ask(session, outcome.offered):
        session.say(f"{session.accept(chosen.number)}; /undo restores it")
    else:
        session.say("the folder is unchanged; /accept N takes an edit still")


def _banner(session: CodeSession) -> Iterator[str]:
    engine = session.engine
    yield f"{engine.description} ({engine.path.name}), method {session.method.name}"
    yield f"{session.workplace.describe()}; tests: {session.code.test or 'none, /test names them'}"
    yield "say what to do; /help lists the commands, Ctrl-C stops, Ctrl-D leaves"
