"""A conversation with its front end, its file, and the texts that precede the next question.

A `FrontEnd` shows replies to the user and asks for decisions; there are two, on a terminal and
through pipes. Nothing here parses input.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tgr_local.chat import context, prefixes
from tgr_local.chat.autosave import Autosave
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.console.dialog import print_note
from tgr_local.console.live import Events, OnReplyEvent, show_plain
from tgr_local.console.pace import ReplyProgress
from tgr_local.generation import Reply, text_in_cache
from tgr_local.system.errors import CapacityError, TgrError
from tgr_local.system.files import OwnedFile
from tgr_local.system.sanitize import printable


class FrontEnd:
    """Interface by which the user sees replies and decides. This one, through pipes, has no user:
    it prints, and chooses the first of several replies."""

    def show(self, events: Events) -> None:
        """Shows a reply while it grows."""
        with ReplyProgress(is_shown=True, until_answer=True) as progress:
            reply = show_plain(progress.watch(events), thinking=False)
        if not reply.text.strip():
            raise TgrError(f"the reply has no answer; it ended with {reply.finish}")

    def show_many(self, k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
        """Calls `work`, which writes k replies, and shows their progress. Returns its result."""
        with ReplyProgress(is_shown=True, until_answer=False) as progress:
            return work(lambda index, event: progress.update(event))

    def choose(self, replies: Sequence[Reply]) -> int | None:
        """Shows replies; the index of the one that the user chooses, which is then on the screen,
        or None."""
        for number, reply in enumerate(replies, 1):
            text = f"[{number}] {reply.text}"
            print(printable(text) if sys.stdout.isatty() else text)
        return 0

    def decide(self, question: str, choices: Sequence[str]) -> int | None:
        """Asks a question; the index of the user's choice, or None if there is no user to ask or
        the user chooses none. EOFError for a user who leaves."""
        return None

    def show_turn(self, turn: Turn) -> None:
        """Shows a turn of a conversation that is continued, if anybody looks."""

    def edit(self, text: str) -> str:
        """The text after the user edited it. ValueError if there is no editor."""
        raise ValueError("an editor needs a terminal: pipe the question in")

    def copy(self, text: str) -> None:
        """Puts a text into the clipboard. ValueError if there is none."""
        raise ValueError("the clipboard needs a terminal")


class Start(NamedTuple):
    """Initial settings of a conversation."""

    resume: Path | None = None
    """A saved conversation."""
    options: Mapping[str, Any] = {}
    """Fields of `SearchConfig` that are set whatever the resumed conversation says."""
    method: str = ""
    """Name of its method; empty = that of the resumed conversation."""
    system: str = ""
    """A system prompt; empty = that of the resumed conversation, if any."""
    files: Sequence[str] = ()
    """Text files that precede the first question."""


class ChatSession:
    """One user with one conversation."""

    def __init__(self, conversation: Conversation, front_end: FrontEnd) -> None:
        self.conversation, self.front_end = conversation, front_end
        self.attached: list[str] = []
        """Texts that precede the next question."""
        self.saved = Autosave()
        self.listed: list[Path] = []
        """The conversations as /resume numbered them last."""
        self._known_turns: list[Turn] = []
        """Turns whose prefixes the files hold."""
        self._noted = ""  # what was said of the last reply's search

    @property
    def path(self) -> Path | None:
        """The file that is written after every turn; None = none."""
        return self.saved.file.path if self.saved.file is not None else None

    @path.setter
    def path(self, path: Path | None) -> None:
        self.saved.go_on_in(OwnedFile(path) if path is not None else None)

    def ask(self, question: str) -> None:
        """Shows the reply to a question with the attached texts before it, without the line ends
        after them."""
        texts = [*(text.rstrip("\r\n") for text in self.attached), question]
        self.attached = []
        events = self.conversation.ask("\n\n".join(text for text in texts if text))
        self.save()  # a process that is killed now does not lose the question
        self.show_reply(events)

    def show_reply(self, events: Events) -> None:
        """Shows a reply and saves the conversation, also when the reply is interrupted.

        At the end of the context the user may drop or summarise the oldest turns first; without a
        user the CapacityError says how.
        """
        try:
            try:
                self.front_end.show(events)
            except CapacityError as error:
                self._make_room(error)
                self.front_end.show(self.conversation.ask_last())
        finally:
            self.save()
        note = self.conversation.replies[-1].note if self.conversation.replies else ""
        if note and note != self._noted:
            print_note(note)
        self._noted = note
        if context.is_full(self.conversation):
            print_note(
                "the reply was cut: the context is full; /drop N or /summarise N makes room, "
                "then /regen"
            )

    def _make_room(self, error: CapacityError) -> None:
        """Drops or summarises the oldest turns as the user decides, or raises the error."""
        conversation = self.conversation
        if not (n := context.n_to_drop(conversation)):
            raise error
        turns = "turn" if n == 1 else f"{n} turns"
        most = text_in_cache(conversation.engine)
        question = f"The conversation is at the end of the context ({most} tokens)."
        choices: dict[str, Callable[[], str]] = {
            f"drop the oldest {turns}": lambda: self.drop(n),
            f"summarise the oldest {turns}": lambda: self.summarise(n),
        }
        summary = f", /summarise {n} replaces them by a summary"
        try:
            context.check_summary(conversation, n)
        except CapacityError:  # one of the turns is too long to be summarised
            choices.popitem()
            summary = ""
        choice = self.front_end.decide(question, [*choices, "change nothing"])
        if choice is None or choice == len(choices):
            raise CapacityError(
                f"the conversation is at the end of the context: {error}; /drop {n} removes the "
                f"oldest {turns}{summary}, then /regen asks again"
            )
        where = list(choices.values())[choice]()
        print_note(f"the oldest {turns} left the context{where}")

    def drop(self, n: int) -> str:
        """Removes the oldest `n` turns; says which file still has them."""
        where = self._leave_file()
        self.conversation.turns = self.conversation.turns[n:]
        self.save()
        return where

    def summarise(self, n: int) -> str:
        """Replaces the oldest `n` turns by a summary, which is shown; says which file still has
        them. Turns that are too long to be read together are summarised in parts, each with the
        summary of those before it."""
        old_turns, where = self.conversation.turns, ""
        context.check_summary(self.conversation, n)
        n_left, least = n, 1
        try:
            while n_left >= least:
                n_part = context.n_at_once(self.conversation, n_left, least)
                part = context.summarise(self.conversation, n_part, goes_on=n_part < n_left)
                self.front_end.show(part)
                n_left, least = n_left - n_part + 1, 2
        finally:  # the turns may be replaced before an interruption
            if self.conversation.turns is not old_turns:
                where = self._leave_file()
                self.save()
        return where

    def _leave_file(self) -> str:
        """Goes on in a new file, so that the old one keeps its turns."""
        if (old := self.path) is None or not (old.exists() or self.saved.is_behind):
            return ""
        self.start_new_file()
        return f"; {old.stem} has them (/load {old.stem})"

    def save(self) -> None:
        """Writes the conversation to its file, if it has one."""
        self.saved.save(self.conversation)

    def leave(self) -> None:
        """Saves what the model has read of the conversation, before another one or the end."""
        turns = list(self.conversation.turns)
        if turns != self._known_turns:
            own = [] if self.path is None else [self.path]
            with contextlib.suppress(KeyboardInterrupt):
                prefixes.save(self.conversation, dict.fromkeys([*own, *sorted(self.saved.copies)]))
            self._known_turns = turns

    def arrive(self, file: Path, *, other_model: bool = False) -> None:
        """Loads what the model had read of the conversation in `file`; with `other_model` only if
        this model had."""
        prefixes.load(self.conversation, file, other_model=other_model)
        self._known_turns = list(self.conversation.turns)

    def start_new_file(self) -> None:
        """Saves from now on to a new file, if conversations are saved at all."""
        self._known_turns = []
        self.saved.start_new()
