"""A conversation through pipes: one question a line, plain text out.

A line that fails is named on stderr and does not end the conversation; the exit code tells of it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from tgr_local.chat.conversation import Chat
from tgr_local.chat.session import Listener, Session, decoded
from tgr_local.console.sanitize import printable
from tgr_local.errors import describe
from tgr_local.generation import Reply
from tgr_local.trace.live import Events, show_plain
from tgr_local.trace.progress import ReplyProgress


class Pipe:
    """The front end without a person: it prints, and takes the first of what it may choose."""

    def show(self, events: Events) -> None:
        with (progress := ReplyProgress(shown=True, until_answer=True)):
            show_plain(progress.watch(events), thinking=False)

    def gather(self, k: int, work: Callable[[Listener], list[Reply]]) -> list[Reply]:
        with (progress := ReplyProgress(shown=True, until_answer=False)):
            return work(lambda rank, event: progress.update(event))

    def choose(self, replies: Sequence[Reply]) -> int | None:
        for number, reply in enumerate(replies, 1):
            text = f"[{number}] {reply.text}"
            print(printable(text) if sys.stdout.isatty() else text)
        return 0

    def edit(self, text: str) -> str:
        raise ValueError("an editor needs a terminal: pipe the question in")

    def copy(self, text: str) -> None:
        raise ValueError("a clipboard needs a terminal")


def talk(chat: Chat) -> int:
    """Answers stdin until it ends; 1 if a line failed."""
    session = Session(chat, Pipe())
    offset = code = 0

    def more() -> str:
        nonlocal offset
        data = sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        offset += len(data)
        return decoded(data, "stdin", offset - len(data)).rstrip("\r\n")

    while True:
        try:
            session.handle(more(), more)
            sys.stdout.flush()
        except EOFError:
            return code
        except BrokenPipeError:
            raise
        except Exception as error:
            report(error)
            code = 1


def report(error: Exception) -> None:
    """Says on stderr what went wrong with a line."""
    if os.environ.get("TGR_DEBUG"):
        traceback.print_exception(error)
    print(f"tgr-local: {describe(error)}", file=sys.stderr, flush=True)
