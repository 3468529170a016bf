"""Talking with a model: `run` opens the conversation on a terminal, or answers lines piped in.

conversation.py   turns, and what the next reply depends on; knows no terminal and no file
commands.py       what a line with a slash does
session.py        a line is nothing, a command, or a question
store.py          conversations as JSONL files
piped.py          lines in, plain text out
terminal.py       prompt, keys, live view; pastes.py and pager.py are parts of it
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tgr_local.chat.conversation import Chat as Chat
from tgr_local.chat.session import decoded as decoded
from tgr_local.options.config import ChatConfig

if TYPE_CHECKING:
    from tgr_local.engine import Engine


def run(engine: Engine, chosen: Mapping[str, Any], method: str, options: ChatConfig) -> int:
    """Talks until the input ends and returns the exit code; `chosen` are the search options that
    the user set. KeyboardInterrupt with input piped in."""
    chat = Chat(engine, chosen, method, options)
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            from tgr_local.chat import terminal

            return terminal.talk(chat)
        from tgr_local.chat import piped

        return piped.talk(chat)
    finally:
        chat.engine.close()  # not the one that it began with after /model
