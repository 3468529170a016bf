"""The line that a person types into: completion, history, keys."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.validation import ValidationError, Validator

from tgr_local.console.dialog import print_note
from tgr_local.console.pastes import Pastes
from tgr_local.system.errors import describe
from tgr_local.system.files import BINARY, NOFOLLOW
from tgr_local.system.paths import folder, private

_LONGEST = 1 << 16  # characters of a line in the file
_MOST_WAITING = 1000  # lines that wait for room


class HistoryFile(FileHistory):
    """Stores lines with their pastes, except very long ones. Each is added to the file in one
    piece, so that sessions side by side lose none; one that cannot be written waits for the next.
    """

    def __init__(self, path: Path, pastes: Pastes) -> None:
        super().__init__(path)
        self._path, self._pastes = path, pastes
        self._waiting: list[bytes] = []
        self._failure = ""
        self._is_told = False

    def append_string(self, string: str) -> None:
        line = self._pastes.expanded(string)
        if len(line) <= _LONGEST:
            super().append_string(line)

    def store_string(self, string: str) -> None:
        lines = "".join(f"+{line}\n" for line in string.split("\n"))
        entry = f"\n# {datetime.datetime.now()}\n{lines}"
        self._waiting.append(entry.encode("utf-8", "replace"))
        try:
            self._write()
            self._is_told = False
        except OSError as error:
            del self._waiting[:-_MOST_WAITING]
            self._failure = describe(error)

    def _write(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOFOLLOW | BINARY
        file = os.open(private(self._path), flags, 0o600)
        try:
            while self._waiting:
                # a part that a full disk took is an entry of its own
                n = os.write(file, self._waiting[0])
                if n == len(self._waiting[0]):
                    del self._waiting[0]
        finally:
            os.close(file)

    def load_history_strings(self) -> list[str]:
        try:
            return list(super().load_history_strings())
        except OSError:  # it cannot be read
            return []

    def news(self) -> str:
        """Returns the reason why lines cannot be written since the last call, said once until one
        is written."""
        failure, self._failure = self._failure, ""
        if not failure or self._is_told:
            return ""
        self._is_told = True
        return failure


class InputLine:
    """Reads the lines that a person types."""

    def __init__(self, save_history: bool, completer: Completer, name: str) -> None:
        """`name` is that of the file with earlier lines."""
        self._pastes = pastes = Pastes()
        self._history = HistoryFile(folder("state") / name, pastes) if save_history else None
        bindings = KeyBindings()
        pastes.bind(bindings)

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._prompt: PromptSession[str] = PromptSession(
            completer=completer,
            complete_while_typing=False,
            enable_history_search=True,
            enable_open_in_editor=True,
            enable_suspend=True,
            history=self._history or InMemoryHistory(),
            input_processors=[pastes],
            key_bindings=bindings,
            validator=_Utf8Validator(),
            validate_while_typing=False,
        )

    def read(self, prompt: str, keys: str) -> str:
        """A line; `keys` is "vi" or "emacs". EOFError for Ctrl-D, KeyboardInterrupt for
        Ctrl-C."""
        self._prompt.editing_mode = EditingMode.VI if keys == "vi" else EditingMode.EMACS
        line = self._pastes.expanded(self._prompt.prompt(prompt))
        if self._history is not None and (failure := self._history.news()):
            print_note(f"typed lines are not saved: {failure}")
        return line


class _Utf8Validator(Validator):
    """Refuses a line with an invalid UTF-8 byte: it could be neither tokenized nor saved."""

    def validate(self, document: Document) -> None:
        for position, letter in enumerate(document.text):
            if "\ud800" <= letter <= "\udfff":
                message = "invalid UTF-8: delete the character under the cursor"
                raise ValidationError(position, message)


class CommandCompleter(Completer):
    """Completes the names of commands, and the arguments of some."""

    def __init__(self, names: Iterable[str], arguments: Mapping[str, Completer]) -> None:
        self._names, self._arguments = words(names), arguments

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        name, space, argument = document.text_before_cursor.partition(" ")
        if space and name in self._arguments:
            yield from self._arguments[name].get_completions(Document(argument), event)
        elif not space and name.startswith("/"):
            yield from self._names.get_completions(document, event)


def words(choices: Iterable[str]) -> Completer:
    """Completes one of these words."""
    return WordCompleter(list(choices), WORD=True)
