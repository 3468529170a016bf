"""The line that a person types into: completion, history, keys, and long pastes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    WordCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.validation import ValidationError, Validator

from tgr_local.system.paths import folder, private

_PASTE_CHARACTERS, _PASTE_LINES = 1000, 8
_FIRST_PASTE = 0x10_0000  # private-use characters, which have no meaning in a text
_HISTORY_LINE_MAX = 1 << 16  # characters of a line in the history file


class InputLine:
    """Reads the lines that a person types."""

    def __init__(self, save_history: bool, completer: Completer, name: str) -> None:
        """`name` is that of the file with earlier lines."""
        self._pastes = pastes = _Pastes()
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
            history=_history(pastes, name) if save_history else InMemoryHistory(),
            input_processors=[pastes],
            key_bindings=bindings,
            validator=_Utf8Validator(),
            validate_while_typing=False,
        )

    def read(self, prompt: str, keys: str) -> str:
        """A line; `keys` is "vi" or "emacs". EOFError for Ctrl-D, KeyboardInterrupt for
        Ctrl-C."""
        self._prompt.editing_mode = EditingMode.VI if keys == "vi" else EditingMode.EMACS
        return self._pastes.expanded(self._prompt.prompt(prompt))


class _Pastes(Processor):
    """Long pasted texts, each as one character in the buffer of the line, which is displayed as a
    short description: editing a line with a megabyte in it is as fast as editing any other."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def bind(self, bindings: KeyBindings) -> None:
        """Handles every paste here."""

        @bindings.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self.replaced(event.data))

    def replaced(self, text: str) -> str:
        """The pasted text, or the character for it if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) <= _PASTE_CHARACTERS and text.count("\n") < _PASTE_LINES:
            return text
        character = chr(_FIRST_PASTE + len(self._texts))
        self._texts[character] = text
        return character

    def expanded(self, text: str) -> str:
        """The text of a buffer with every character replaced by its paste."""
        return "".join(self._texts.get(letter, letter) for letter in text)

    def _displayed(self, letter: str) -> str:
        if (text := self._texts.get(letter)) is None:
            return letter
        n_lines = text.rstrip("\n").count("\n") + 1
        lines = f"{n_lines:,} lines" if n_lines > 1 else "1 line"
        return f"[{lines} pasted, {len(text):,} characters]"

    def apply_transformation(self, source: TransformationInput) -> Transformation:
        """Displays the description of each paste instead of its character."""
        line = source.document.lines[source.lineno]
        if not any(letter in self._texts for letter in line):
            return Transformation(source.fragments)
        fragments: StyleAndTextTuples = []
        starts = [0]  # column at which each character of the buffer begins
        for style, text, *_ in source.fragments:
            for letter in text:
                shown = self._displayed(letter)
                fragments.append(("reverse" if shown != letter else style, shown))
                starts.append(starts[-1] + len(shown))
        return Transformation(
            fragments,
            source_to_display=lambda i: starts[min(i, len(starts) - 1)],
            display_to_source=lambda i: max(n for n, start in enumerate(starts) if start <= i),
        )


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
        name, space, rest = document.text_before_cursor.partition(" ")
        if space and name in self._arguments:
            yield from self._arguments[name].get_completions(Document(rest), event)
        elif not space and name.startswith("/"):
            yield from self._names.get_completions(document, event)


def words(some: Iterable[str]) -> Completer:
    """Completes one of these words."""
    return WordCompleter(list(some), WORD=True)


def _history(pastes: _Pastes, name: str) -> History:
    """The lines of earlier sessions too, if the user's state folder can be written."""
    path = folder("state") / name
    try:
        private(path).touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _HistoryFile(path, pastes)


class _HistoryFile(FileHistory):
    """Stores lines with their pastes, except very long ones."""

    def __init__(self, path: Path, pastes: _Pastes) -> None:
        super().__init__(path)
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        line = self._pastes.expanded(string)
        if len(line) <= _HISTORY_LINE_MAX:
            super().append_string(line)
