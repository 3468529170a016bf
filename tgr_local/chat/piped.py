"""A conversation through pipes: one question in a line of stdin, plain answers on stdout.

An error is reported on stderr and does not end the conversation; the exit code is then 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tgr_local.chat.commands import handle_line
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.chat.session import ChatSession, Start
from tgr_local.chat.turn_commands import begin
from tgr_local.console.dialog import until_end
from tgr_local.console.live import Events, OnReplyEvent, show_plain
from tgr_local.console.pace import ReplyProgress
from tgr_local.console.text_input import stdin_lines
from tgr_local.generation import Reply
from tgr_local.system.errors import TgrError
from tgr_local.system.sanitize import printable


class Pipe:
    """The front end without a user: it prints, and chooses the first of several replies."""

    def show(self, events: Events) -> None:
        with ReplyProgress(is_shown=True, until_answer=True) as progress:
            reply = show_plain(progress.watch(events), thinking=False)
        if not reply.text.strip():
            raise TgrError(f"the reply has no answer; it ended with {reply.finish}")

    def show_many(self, k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
        with ReplyProgress(is_shown=True, until_answer=False) as progress:
            return work(lambda index, event: progress.update(event))

    def choose(self, replies: Sequence[Reply]) -> int | None:
        for number, reply in enumerate(replies, 1):
            text = f"[{number}] {reply.text}"
            print(printable(text) if sys.stdout.isatty() else text)
        return 0

    def decide(self, question: str, choices: Sequence[str]) -> int | None:
        return None

    def show_turn(self, turn: Turn) -> None: ...

    def edit(self, text: str) -> str:
        raise ValueError("an editor needs a terminal: pipe the question in")

    def copy(self, text: str) -> None:
        raise ValueError("the clipboard needs a terminal")


def run(conversation: Conversation, start: Start) -> int:
    """Answers the lines of stdin; returns the exit code, 1 if a line failed or had no answer."""
    session = ChatSession(conversation, Pipe())
    begin(session, start)
    next_line = stdin_lines()
    code = until_end(lambda: handle_line(session, next_line(), next_line))
    session.leave()
    return code
