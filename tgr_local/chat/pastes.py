"""Long pastes at the prompt, each as one character in the buffer of the line.

The character is displayed as a short description of the paste, so that editing a line with a
megabyte in it is as fast as editing any other.
"""

from __future__ import annotations

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

MAX_CHARACTERS, MAX_LINES = 1000, 8
_FIRST = 0x10_0000  # private-use characters, which have no meaning in a text


class Pastes(Processor):
    """The pasted texts by their characters; add it to the input processors of a prompt."""

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
        if len(text) <= MAX_CHARACTERS and text.count("\n") < MAX_LINES:
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
        return f"[{text.count(chr(10)) + 1:,} lines pasted, {len(text):,} characters]"

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
