"""Lines of input to a conversation: each is nothing, a command, or a question.

What a person sees and touches is the business of a `Front`, of which there are two: a terminal and
a pipe.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tgr_local.chat import store
from tgr_local.chat.conversation import Chat
from tgr_local.console.sanitize import printable
from tgr_local.errors import TgrError
from tgr_local.generation import Event, Reply
from tgr_local.trace.live import Events

BLOCK = '"""'
_COMMAND = re.compile(r"/[a-z]*(?=\s|$)")
Listener = Callable[[int, Event], None]


class Front(Protocol):
    """How a conversation meets a person."""

    def show(self, events: Events) -> None:
        """Shows a reply as it grows."""

    def gather(self, k: int, work: Callable[[Listener], list[Reply]]) -> list[Reply]:
        """Does `work` and shows how far each of its k replies is."""
        ...

    def choose(self, replies: Sequence[Reply]) -> int | None:
        """Shows replies of which one is to be kept; None to keep none of them."""
        ...

    def edit(self, text: str) -> str:
        """Lets a text be edited. ValueError where nobody can."""
        ...

    def copy(self, text: str) -> None:
        """Puts a text into the clipboard. ValueError where there is none."""


def decoded(data: bytes, where: str, offset: int = 0) -> str:
    """Bytes, the first of them at `offset`, as text; TgrError naming the byte that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = offset + error.start
        raise TgrError(f"{where} is not UTF-8 text: invalid byte at offset {place}") from None


class Session:
    """A conversation, where it is kept, and what goes before the next question."""

    def __init__(self, chat: Chat, front: Front) -> None:
        self.chat, self.front = chat, front
        self.attached: list[str] = []
        self.path: Path | None = None
        """Where the conversation is kept; None = nowhere."""
        self.copies: set[Path] = set()
        """Where else it lies: what it was loaded from, and saved as."""

    def handle(self, line: str, more: Callable[[], str]) -> None:
        """One line of input; a question that opens a block gets its other lines from `more`.

        ValueError for a bad command, EOFError for the one that leaves.
        """
        if _COMMAND.match(line):
            from tgr_local.chat.commands import run

            for text in run(self, line):
                print(printable(text) if sys.stdout.isatty() else text)
        elif line.strip():
            self.ask(_block(line, more))

    def ask(self, question: str) -> None:
        """Shows the reply to a question, with what was attached before it."""
        texts, self.attached = [*self.attached, question], []
        self.reply(self.chat.turn("\n\n".join(texts)))

    def reply(self, events: Events) -> None:
        """Shows a reply and keeps the conversation, also when the reply is interrupted."""
        try:
            self.front.show(events)
        finally:
            self.keep()

    def keep(self) -> None:
        """Writes the conversation to its place, if it has one. A place that cannot be written is
        given up, once and aloud."""
        if self.path is None or not (self.chat.turns or self.path.exists()):
            return
        try:
            store.save(self.path, self.chat)
        except OSError as error:
            print(f"tgr-local: this conversation is not kept: {error}", file=sys.stderr)
            self.path = None

    def begin(self) -> None:
        """Keeps what follows in a place of its own."""
        self.copies.clear()
        self.path = store.fresh_place() if self.path is not None else None


def _block(line: str, more: Callable[[], str]) -> str:
    """The question that begins with `line`: up to the closing quotes if it opens a block."""
    before, quotes, text = line.partition(BLOCK)
    if not quotes or before.strip():
        return line
    lines = [text]
    while BLOCK not in lines[-1]:
        try:
            lines.append(more())
        except EOFError:
            raise ValueError(f"a block that begins with {BLOCK} must end with it") from None
    text, _, after = "\n".join(lines).partition(BLOCK)
    if after.strip():
        raise ValueError(f"nothing may follow the {BLOCK} that ends a block, but {after!r} does")
    return text.strip("\n")
