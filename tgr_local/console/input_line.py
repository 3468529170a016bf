"""The line that a person types into: completion, history, keys, pastes."""

from __future__ import annotations

import datetime
import os
import select
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER, EditingMode
from prompt_toolkit.filters import emacs_insert_mode, has_focus, is_searching, vi_insert_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.validation import ValidationError, Validator

from tgr_local.console.command_table import LEAVING, is_command
from tgr_local.console.dialog import print_note
from tgr_local.system.errors import describe
from tgr_local.system.files import NOFOLLOW
from tgr_local.system.paths import folder, private

_CHARACTERS, _LINES = 1000, 8
_FIRST = 0x10_0000  # private-use characters, which have no meaning in a text
_PAUSE = 0.02  # seconds without a key that end a paste; nobody types that fast


class Pastes(Processor):
    """Long pasted texts, each as one character in the buffer of the line, which is displayed as a
    short description: editing a line with a megabyte in it is as fast as editing any other."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def bind(self, bindings: KeyBindings) -> None:
        """Handles every paste here."""

        @bindings.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text(self.replaced(event.data))

        typing = has_focus(DEFAULT_BUFFER) & ~is_searching & (emacs_insert_mode | vi_insert_mode)

        @bindings.add("enter", filter=typing)
        def _(event: KeyPressEvent) -> None:
            """Enter with more text right behind it is a line end of a paste without marks. A line
            that is a command is one whatever follows."""
            line = event.current_buffer.text
            is_short = "\n" not in line and (is_command(line) or line.strip() in LEAVING)
            more = "" if is_short else _waiting(event)
            if text := more.rstrip("\n"):
                event.current_buffer.insert_text(self.replaced("\n" + text))
            if not text or text != more:
                event.current_buffer.validate_and_handle()

    def replaced(self, text: str) -> str:
        """The pasted text, or the character for it if it is long."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) <= _CHARACTERS and text.count("\n") < _LINES:
            return text
        character = chr(_FIRST + len(self._texts))
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
                display = self._displayed(letter)
                fragments.append(("reverse" if display != letter else style, display))
                starts.append(starts[-1] + len(display))
        return Transformation(
            fragments,
            source_to_display=lambda i: starts[min(i, len(starts) - 1)],
            display_to_source=lambda i: max(n for n, start in enumerate(starts) if start <= i),
        )


def _waiting(event: KeyPressEvent) -> str:
    """The text that came together with a key, taken from the keys that wait."""
    waiting = event.key_processor.input_queue
    text = _take_text(waiting)
    while not waiting and _comes(event):
        waiting.extend(get_app().input.read_keys())
        if not (more := _take_text(waiting)):
            break
        text += more
    # the key may be the first half of a line end
    return text.removeprefix("\n").replace("\r\n", "\n").replace("\r", "\n")


def _take_text(waiting: deque[KeyPress]) -> str:
    """The text at the beginning of some keys, without them; answers of the terminal stay."""
    text, others = "", []
    while waiting:
        key = waiting.popleft()
        if key.key == Keys.CPRResponse:
            others.append(key)
        elif len(key.data) == 1 and (key.data in "\r\n\t" or _is_text(key.data)):
            text += key.data
        else:
            others.append(key)
            break
    waiting.extendleft(reversed(others))
    return text


def _is_text(letter: str) -> bool:
    return letter >= " " and letter != "\x7f" and not "\ud800" <= letter <= "\udfff"


def _comes(event: KeyPressEvent) -> bool:
    """Whether another key comes at once."""
    try:
        return bool(select.select([get_app().input.fileno()], [], [], _PAUSE)[0])
    except (OSError, ValueError, NotImplementedError):  # no file, or none that can be waited for
        return False


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
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOFOLLOW
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
