"""A conversation with its front end, its file, and the texts that precede the next question.

A `FrontEnd` shows replies to the user and asks for decisions; there are two, on a terminal and
through pipes. Nothing here parses input.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tgr_local.chat import prefixes, store
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.errors import describe
from tgr_local.generation import Reply
from tgr_local.trace.live import Events, OnReplyEvent


class FrontEnd(Protocol):
    """How the user sees replies and decides."""

    def show(self, events: Events) -> None:
        """Shows a reply while it grows."""

    def show_many(self, k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
        """Calls `work`, which writes k replies, and shows their progress. Returns its result."""
        ...

    def choose(self, replies: Sequence[Reply]) -> int | None:
        """Shows replies; the index of the one that the user chooses, or None."""
        ...

    def edit(self, text: str) -> str:
        """The text after the user edited it. ValueError if there is no editor."""
        ...

    def copy(self, text: str) -> None:
        """Puts a text into the clipboard. ValueError if there is none."""


class ChatSession:
    """One user with one conversation."""

    def __init__(self, conversation: Conversation, front_end: FrontEnd) -> None:
        self.conversation, self.front_end = conversation, front_end
        self.attached: list[str] = []
        """Texts that precede the next question."""
        self.path: Path | None = None
        """The file that is written after every turn; None = none."""
        self.other_files: set[Path] = set()
        """Other files of this conversation: it was loaded from them or saved to them."""
        self._known_turns: list[Turn] = []
        """Those that the files with prefixes have."""

    def ask(self, question: str) -> None:
        """Shows the reply to a question with the attached texts before it."""
        texts, self.attached = [*self.attached, question], []
        self.show_reply(self.conversation.ask("\n\n".join(texts)))

    def show_reply(self, events: Events) -> None:
        """Shows a reply and saves the conversation, also when the reply is interrupted."""
        try:
            self.front_end.show(events)
        finally:
            self.save()

    def save(self) -> None:
        """Writes the conversation to its file, if it has one. If that fails, a warning is printed
        and the conversation has no file any more."""
        if self.path is None or not (self.conversation.turns or self.path.exists()):
            return
        try:
            store.save(self.path, self.conversation)
        except OSError as error:
            print(f"tgr-local: the conversation is not saved: {error}", file=sys.stderr)
            self.path = None

    def leave(self) -> None:
        """Saves what the model has read of the conversation, before another one or the end."""
        turns = list(self.conversation.turns)
        if turns != self._known_turns:
            own = [] if self.path is None else [self.path]
            with contextlib.suppress(KeyboardInterrupt):
                prefixes.save(self.conversation, dict.fromkeys([*own, *sorted(self.other_files)]))
            self._known_turns = turns

    def arrive(self, file: Path) -> None:
        """Loads what the model had read of the conversation in `file`."""
        prefixes.load(self.conversation, file)
        self._known_turns = list(self.conversation.turns)

    def start_new_file(self) -> None:
        """Saves from now on to a new file, if conversations are saved at all."""
        self.other_files.clear()
        self._known_turns = []
        self.path = store.new_path() if self.path is not None else None


def print_error(error: Exception) -> None:
    """Prints an error on stderr; with TGR_DEBUG set, after its traceback."""
    if os.environ.get("TGR_DEBUG"):
        traceback.print_exception(error)
    print(f"tgr-local: {describe(error)}", file=sys.stderr, flush=True)
