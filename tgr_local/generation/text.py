"""Turns tokens into the text of a reply: its thinking, its answer and its stop texts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tgr_local.engine import Engine
from tgr_local.generation.reply_format import Kind
from tgr_local.methods.think_tags import CLOSE_THINK, OPEN_THINK


@dataclass(frozen=True)
class TextDelta:
    """New text of a reply."""

    text: str
    kind: Kind


class TextSplitter:
    """Turns tokens into pieces of thinking and answer. Bytes that may still become a character, a
    tag or a stop text are buffered until it is clear. With `verbatim` all text is answer and does
    not change. With `keep_tags` the pieces together are the whole text, and any of `closers`, which
    belongs to the answer, ends the thinking as its tag does. `continued` = the prompt ends within
    this part of the message; an answer keeps the white space at its beginning then. `n_indent`
    is that of `LineLimits`. `shown` = control tokens that belong to the text."""

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
        n_indent: int = 0,
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
        self._engine, self._shown = engine, shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = stop
        self._keeps_space = continued == "answer"
        self._verbatim, self._keep_tags, self._closers = verbatim, keep_tags, closers
        self._tags = () if verbatim else (OPEN_THINK, CLOSE_THINK)
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
