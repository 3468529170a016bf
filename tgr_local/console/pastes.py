"""Pasted text in a line that a person types: long texts shown as a short description, and a paste
that comes without marks around it, as some terminals send it."""

from __future__ import annotations

import select
from collections import deque

from prompt_toolkit.application import get_app
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import emacs_insert_mode, has_focus, is_searching, vi_insert_mode
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from tgr_local.console.command_table import LEAVING, is_command

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
