"""A conversation with a model, on a terminal or through pipes.

In: an engine, the options that the user set, and lines of input. Out: replies on stdout, files with
the conversation, and an exit code. It writes replies through `generation` only, and knows neither
the methods' inner workings nor HTTP.

conversation.py      the turns, and what the next reply depends on; no terminal, no file
store.py             conversations as files of JSON lines
autosave.py          writes the conversation's file after every turn, and copies under other names
prefixes.py          what the model has read of a conversation, as files
context.py           the end of the context: turns dropped or summarised
session.py           a conversation with its front end and its file; the front end through pipes
commands.py          the slash commands; those about options and reports; what a line of input does
turn_commands.py     commands that ask, change, copy, remove, save or continue turns
terminal.py          the front end on a terminal, and what its input line completes
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgr_local.chat import store
from tgr_local.chat.conversation import Conversation
from tgr_local.chat.session import ChatSession, FrontEnd, Start
from tgr_local.console.dialog import is_interactive, until_end
from tgr_local.console.text_input import stdin_lines
from tgr_local.options.config import ChatConfig
from tgr_local.system.errors import ModelError

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.generation import Method

_NEW = Start()


def run(
    engine: Engine,
    user_options: Mapping[str, Any],
    method: Method,
    config: ChatConfig,
    start: Start = _NEW,
) -> int:
    """Answers until the input ends; returns the exit code and closes the engine.

    `user_options` are the fields of `SearchConfig` that the user set. KeyboardInterrupt ends a
    piped conversation, and a signal such as SIGTERM any, with SystemExit.
    """
    conversation = Conversation(engine, user_options, method, config)
    try:
        if is_interactive():
            from tgr_local.chat import terminal

            return terminal.run(conversation, start)
        return _piped(conversation, start)
    finally:
        conversation.engine.close()  # after /model this is not `engine`


def _piped(conversation: Conversation, start: Start) -> int:
    """Answers the lines of stdin. An error is reported on stderr and does not end the conversation;
    the exit code is 1 if a line failed or had no answer."""
    from tgr_local.chat.commands import handle_line
    from tgr_local.chat.turn_commands import begin

    session = ChatSession(conversation, FrontEnd())
    begin(session, start)
    next_line = stdin_lines()
    code = until_end(lambda: handle_line(session, next_line(), next_line))
    session.leave()
    return code


def latest() -> Path:
    """The file of the latest saved conversation. ValueError if there is none."""
    if not (paths := store.saved_paths()):
        raise ValueError("there is no saved conversation yet")
    return paths[0]


def model_of(path: Path) -> Path:
    """The model that a saved conversation was written with. ModelError if it is not there, and the
    errors of a damaged file."""
    saved = store.load(path)
    if (model := saved.model_file()) is None:
        raise ModelError(
            f"the conversation {path.stem} was written with {saved.model}, which is not there; "
            "name a model with -m, such as -m tgr-mini, to go on with another one"
        )
    return model
