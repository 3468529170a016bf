"""Turns tokens into the text of a reply: pieces of its thinking and of its answer, up to its end.

In: tokens as they come. Out: pieces of text, and how many of the tokens belong to it, since tags,
stop texts, lines and a limit of the thinking end its parts. It does not know what a run is.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tgr_local.engine import Engine
from tgr_local.engine.templates.messages import Part
from tgr_local.system.think_tags import CLOSE_THINK, OPEN_THINK

Kind = Literal["thinking", "answer"]
"""The parts of a reply."""
KINDS: dict[Part, Kind] = {"content": "answer", "reasoning_content": "thinking"}
"""The part of a reply that each part of a message is."""


@dataclass(frozen=True)
class TextDelta:
    """New text of a reply."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class LineLimits:
    """Limits that end a text at one of its lines, as llama.cpp has for editors; 0 = no limit."""

    n_indent: int = 0
    """Ends the text before a new line that begins with fewer spaces and tabs."""
    t_max_predict_ms: int = 0
    """Ends the text at the first line break after this many milliseconds since its first token."""


class TextSplitter:
    """Turns tokens into pieces of thinking and answer. Bytes that may still become a character, a
    tag or a stop text are buffered until it is clear. With `verbatim` all text is answer and does
    not change. With `keep_tags` the pieces together are the whole text, and any of `closers`, which
    belongs to the answer, ends the thinking as its tag does. `continued` = the prompt ends within
    this part of the message; an answer keeps the white space at its beginning then. `shown` =
    control tokens that belong to the text."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        stop: tuple[str, ...] = (),
        *,
        verbatim: bool = False,
        continued: Kind | None = None,
        keep_tags: bool = False,
        closers: tuple[str, ...] = (),
        lines: LineLimits | None = None,
        shown: Sequence[int] = (),
    ) -> None:
        opened = not verbatim and (continued == "thinking" or thinking_is_open(engine, prompt))
        self.kind: Kind = "thinking" if opened else "answer"
        """Kind of the next text."""
        self.stopped = False
        """Whether a stop text was found; the text after it is dropped."""
        self.dedented = False
        """Whether a line with too little indentation was found; it is dropped."""
        self.has_answer = False
        """Whether the answer has more than white space so far."""
        self.is_cut = False
        """Whether `take` has ended the thinking."""
        self.line_limit: str | None = None
        """The field of `lines` that has ended the text in `take`."""
        self._engine, self._shown, self._lines = engine, shown, lines
        self._began: float | None = None  # the first token, by time.monotonic
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._keeps_space = continued == "answer"
        self._verbatim, self._keep_tags, self._closers = verbatim, keep_tags, closers
        self._tags = () if verbatim else (OPEN_THINK, CLOSE_THINK)
        n_indent = lines.n_indent if lines and not keep_tags else 0
        indent = rf"\n[ \t]{{0,{n_indent - 1}}}"
        self._dedent = re.compile(rf"{indent}([^ \t]|\Z)") if n_indent else None
        self._only_answer = False
        self._buffer = ""
        self._fresh = opened  # nothing of this part yet: its leading line breaks are layout
        self._parts: dict[Kind, str] = {"thinking": "", "answer": ""}

    def feed(self, tokens: Sequence[int]) -> list[TextDelta]:
        """The pieces that these tokens complete."""
        return self.feed_text(self._engine.detokenize(tokens, shown=self._shown))

    def feed_text(self, text: bytes) -> list[TextDelta]:
        """Feeds the text of tokens, as `feed` does tokens."""
        return self._take(self._decoder.decode(text), final=False)

    def take(
        self, tokens: Sequence[int], n_free: int, text: bytes | None = None
    ) -> tuple[int, list[TextDelta]]:
        """Feeds tokens, whose text this is where it is known, up to the one at which the text's
        lines end it, or its thinking without an answer, after `n_free` of them. Returns how many
        were fed, and the pieces that they complete."""
        if self._lines:
            return self._take_lines(tokens, self._lines)
        if self.has_answer or len(tokens) < n_free:
            return len(tokens), self.feed(tokens) if text is None else self.feed_text(text)
        n = max(0, n_free)
        pieces = self.feed(tokens[:n])
        while not self.only_thinks and n < len(tokens):
            pieces += self.feed(tokens[n : n + 1])
            n += 1
        self.is_cut = self.only_thinks
        return n, pieces

    def _take_lines(self, tokens: Sequence[int], lines: LineLimits) -> tuple[int, list[TextDelta]]:
        self._began = self._began or time.monotonic()
        is_late = 0 < lines.t_max_predict_ms < 1000 * (time.monotonic() - self._began)
        pieces: list[TextDelta] = []
        for n, token in enumerate(tokens, 1):
            text = self._engine.detokenize([token], shown=self._shown)
            pieces += self.feed_text(text)
            if self.dedented or (is_late and b"\n" in text):
                self.line_limit = "n_indent" if self.dedented else "t_max_predict_ms"
                return n, pieces
        return len(tokens), pieces

    def begin_answer(self, tokens: Sequence[int]) -> list[TextDelta]:
        """Feeds the tokens that a run puts before the answer, as `feed` does: they close the
        thinking. From then on all text is answer, without tags. A stop text before ends nothing."""
        self.stopped, stop, self._stop = False, self._stop, ()
        pieces = self.feed(tokens)
        self._stop, self._only_answer = stop, True
        return pieces

    def end(self) -> list[TextDelta]:
        """The text that was still buffered."""
        return self._take(self._decoder.decode(b"", final=True), final=True)

    @property
    def only_thinks(self) -> bool:
        """Whether the text is thinking, with no answer before it."""
        return self.kind == "thinking" and not self.has_answer

    @property
    def is_silent(self) -> bool:
        """Whether there is no answer so far, and none in what is buffered."""
        return not (self.has_answer or self._buffer.strip() or self._decoder.getstate()[0])

    @property
    def text(self) -> str:
        text = self._parts["answer"]
        if self._verbatim:
            return text
        return text.rstrip() if self._keeps_space else text.strip()

    @property
    def thinking(self) -> str:
        return self._parts["thinking"].strip()

    def _take(self, text: str, *, final: bool) -> list[TextDelta]:
        if self.stopped or self.dedented:
            return []
        self._buffer += text
        places = [at for stop in self._stop if (at := self._buffer.find(stop)) >= 0]
        line = self._dedent.search(self._buffer) if self._dedent else None
        if line and line[1] and line.start() < min(places, default=len(self._buffer)):
            self._buffer, self.dedented, final = self._buffer[: line.start()], True, True
        elif places:
            self._buffer, self.stopped, final = self._buffer[: min(places)], True, True
        pieces: list[TextDelta] = []
        while tag := _first(self._buffer, self._ends):
            head, _, self._buffer = self._buffer.partition(tag)
            is_closer = tag not in self._tags
            self._emit(head, pieces, "" if is_closer else tag)
            self._buffer = tag + self._buffer if is_closer else self._buffer
            opens = tag == OPEN_THINK and not self._only_answer
            self.kind = "thinking" if opens else "answer"
            self._fresh = not is_closer
        keep = 0 if final else _pending(self._buffer, (*self._ends, *self._stop))
        if line and not final:
            keep = max(keep, len(line[0]))  # how far it is indented is open
        ready, self._buffer = (
            self._buffer[: len(self._buffer) - keep],
            self._buffer[len(self._buffer) - keep :],
        )
        self._emit(ready, pieces)
        return pieces

    @property
    def _ends(self) -> tuple[str, ...]:
        """Returns the texts that may end the part under way."""
        return (*self._tags, *self._closers) if self.kind == "thinking" else self._tags

    def _emit(self, text: str, pieces: list[TextDelta], tag: str = "") -> None:
        raw = text + tag
        if self._fresh:
            text = text.lstrip("\n")
        if text:
            self._fresh = False
            self._parts[self.kind] += text
            self.has_answer = self.has_answer or (self.kind == "answer" and not text.isspace())
        if shown := raw if self._keep_tags else text:
            pieces.append(TextDelta(shown, self.kind))


def thinking_is_open(engine: Engine, prompt: Sequence[int]) -> bool:
    """Whether the prompt ends with an opened thinking block."""
    end = engine.detokenize(prompt[-8:], special=True).decode("utf-8", "replace")
    return end.rstrip().endswith(OPEN_THINK)


def _first(text: str, tags: Sequence[str]) -> str | None:
    places = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
    return min(places)[1] if places else None


def _pending(text: str, tags: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a tag."""
    longest = 0
    for tag in tags:
        start = max(0, len(text) - len(tag) + 1)
        while (start := text.find(tag[0], start)) >= 0 and len(text) - start > longest:
            if tag.startswith(text[start:]):
                longest = len(text) - start
            start += 1
    return longest
