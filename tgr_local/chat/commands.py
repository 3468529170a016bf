"""Actions of a line of input: nothing, a slash command, or a question.

A command is a function of the session and the rest of its line; it yields lines to print.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from tgr_local.chat import option_commands, report_commands, turn_commands
from tgr_local.chat.session import ChatSession
from tgr_local.console.command_table import (
    LEAVING,
    Command,
    help_lines,
    is_command,
    leave,
    on_terminal,
    run_command,
)
from tgr_local.console.text_input import BLOCK, read_block


def handle_line(session: ChatSession, line: str, next_line: Callable[[], str]) -> None:
    """Answers a question or runs a command; `next_line` reads the other lines of a block.

    ValueError for a bad command, EOFError for one that leaves, and all errors of a reply.
    """
    if line.strip() in LEAVING:
        raise EOFError
    if is_command(line):
        for text in run_command(session, line, COMMANDS, ALIASES):
            print(on_terminal(text) if sys.stdout.isatty() else text)
    elif line.strip():
        session.ask(read_block(line, next_line))


def _help(_: ChatSession, __: str) -> Iterator[str]:
    yield from help_lines(COMMANDS)
    yield f"{BLOCK:18}  begin and end a question of several lines"
    keys = (
        "Ctrl-C stops a reply and keeps its text, Ctrl-D leaves, Ctrl-R searches the history, "
        "Alt-Enter breaks the line, Ctrl-X Ctrl-E opens the editor"
    )
    yield f"{'keys':18}  {keys}"


ALIASES = {
    "/quit": "/exit",
    "/bye": "/exit",
    "/new": "/clear",
    "/summarize": "/summarise",
    "/?": "/help",
}
COMMANDS: dict[str, Command[ChatSession]] = {
    "/help": Command(_help, "", "list the commands"),
    "/exit": Command(leave, "", "leave; so do /quit, /bye, exit and quit"),
    "/clear": Command(turn_commands.clear, "", "begin a new conversation"),
    "/regen": Command(
        turn_commands.regenerate, "", "reply to the last question again, with another seed"
    ),
    "/retry": Command(
        turn_commands.retry, "N", "write N more replies together and choose one of them"
    ),
    "/undo": Command(turn_commands.undo, "", "remove the last question and its answer"),
    "/drop": Command(
        turn_commands.drop, "N", "remove the oldest N turns, to make room in the context"
    ),
    "/summarise": Command(
        turn_commands.summarise,
        "N",
        "replace the oldest N turns by a summary; without N: all turns",
    ),
    "/model": Command(
        option_commands.model, "MODEL", "switch to another model; without MODEL: show the current"
    ),
    "/method": Command(
        option_commands.method, "NAME", "switch to another method; without NAME: list them"
    ),
    "/set": Command(
        option_commands.set_option,
        "KEY VALUE",
        "change an option; /set lists them, /set all, /set changed",
    ),
    "/think": Command(
        option_commands.think, "WORD", "on, off: think or not; show, hide: display the thinking"
    ),
    "/markdown": Command(
        option_commands.markdown, "WORD", "on, off: format Markdown in answers, or show it as it is"
    ),
    "/budget": Command(
        option_commands.budget, "N", "limit a reply: N forward tokens; Ns seconds; thinking N; off"
    ),
    "/system": Command(turn_commands.system, "TEXT", "set the system prompt; none removes it"),
    "/show": Command(
        report_commands.show, "WHAT", "show the options, the prompt or the conversation"
    ),
    "/trace": Command(
        report_commands.trace, "CHUNK", "candidates and scores in the last reply; one chunk or all"
    ),
    "/stats": Command(
        report_commands.stats, "", "tokens and seconds of the last reply and of all replies"
    ),
    "/save": Command(turn_commands.save, "NAME", "save the conversation under a name or in a file"),
    "/load": Command(turn_commands.load, "NAME", "continue a copy of a saved conversation"),
    "/resume": Command(
        turn_commands.resume,
        "N",
        "continue a saved conversation; without N: list the latest; all: list all",
    ),
    "/read": Command(turn_commands.read, "FILE", "put a text file before the next question"),
    "/copy": Command(turn_commands.copy, "", "copy the last answer to the clipboard"),
    "/editor": Command(turn_commands.edit, "TEXT", "write the question in $EDITOR"),
}
