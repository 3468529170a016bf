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
        opened = not verbatim and (continued == "thinking" or ends_with(engine, prompt, OPEN_THINK))
        self.kind: Kind = "thinking" if opened else "answer"
        """Kind of the next text."""
        self.stopped = ""
        """The stop text that was found, the first one; the text after it is dropped."""
        self.line_limit: str | None = None
        """The field of `lines` that has ended the text; ``n_indent`` drops the line."""
        self.has_answer = False
        """Whether the answer has more than white space so far."""
        self.is_cut = False
        """Whether `take` has ended the thinking."""
        self._engine, self._shown, self._lines = engine, shown, lines
        self._began: float | None = None  # the first token, by time.monotonic
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._verbatim, self._keep_tags = verbatim, keep_tags
        self._keeps_space = continued == "answer"
        tags = () if verbatim else (OPEN_THINK, CLOSE_THINK)
        self._stop = stop
        self._ends: dict[Kind, tuple[str, ...]] = {"thinking": (*tags, *closers), "answer": tags}
        self._end = {kind: _pattern(tags, ends) for kind, ends in self._ends.items()}
        n_indent = lines.n_indent if lines and not keep_tags else 0
        indent = rf"\n[ \t]{{0,{n_indent - 1}}}"
        self._dedent = re.compile(rf"{indent}([^ \t]|\Z)") if n_indent else None
        self._only_answer = False
        self._buffer = ""
        self._fresh = opened  # nothing of this part yet: its leading line breaks are layout
        self._parts: dict[Kind, str] = {"thinking": "", "answer": ""}

    def feed(self, tokens: Sequence[int], text: bytes | None = None) -> list[TextDelta]:
        """The pieces that these tokens complete, whose text this is where it is known."""
        if text is None:
            text = self._engine.detokenize(tokens, shown=self._shown)
        return self._take(self._decoder.decode(text), final=False)

    def take(
        self, tokens: Sequence[int], n_free: int, text: bytes | None = None
    ) -> tuple[int, list[TextDelta]]:
        """Feeds tokens, whose text this is where it is known, up to the one at which the text's
        lines end it, or its thinking without an answer, after `n_free` of them. Returns how many
        were fed, and the pieces that they complete."""
        n, is_late = len(tokens), False
        if lines := self._lines:
            n, self._began = 0, self._began or time.monotonic()
            is_late = 0 < lines.t_max_predict_ms < 1000 * (time.monotonic() - self._began)
        elif not self.has_answer:
            n = min(n, max(0, n_free))
        pieces = self.feed(tokens[:n], text if n == len(tokens) else None)
        while n < len(tokens) and not (self.only_thinks or self.line_limit):
            text = self._engine.detokenize(tokens[n : n + 1], shown=self._shown)
            pieces += self.feed(tokens[n : n + 1], text)
            n += 1
            if is_late and b"\n" in text:
                self.line_limit = self.line_limit or "t_max_predict_ms"
        self.is_cut = n >= n_free and self.only_thinks
        return n, pieces

    def begin_answer(self, tokens: Sequence[int]) -> list[TextDelta]:
        """Feeds the tokens that a run puts before the answer, as `feed` does: they close the
        thinking. From then on all text is answer, without tags. A stop text before ends nothing."""
        self.stopped, self.is_cut = "", False
        stop, self._stop = self._stop, ()
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
        if self.stopped or self.line_limit == "n_indent":
            return []
        n_old, text = len(self._buffer), self._buffer + text
        places = [  # no stop text ends within the old part
            (at, stop)
            for stop in self._stop
            if (at := text.find(stop, max(0, n_old + 1 - len(stop)))) >= 0
        ]
        end, stop = min(places, default=(len(text), ""))
        line = self._dedent.search(text) if self._dedent else None
        if line and line[1] and line.start() < end:
            text, self.line_limit, final = text[: line.start()], "n_indent", True
        elif stop:
            text, self.stopped, final = text[:end], stop, True
        pieces: list[TextDelta] = []
        at, keep = 0, 0 if final else _pending(text, self._stop)
        while tag := self._end[self.kind].search(text, at):
            if tag.end() > len(text) - keep:  # a stop text may have begun within it, or before
                keep = max(keep, len(text) - tag.start())
                break
            self._emit(pieces, text[at : tag.start()], tag[0])
            at, self._fresh = tag.end(), bool(tag[0])
            opens = tag[0] == OPEN_THINK and not self._only_answer
            self.kind = "thinking" if opens else "answer"
        keep = keep if final else max(keep, _pending(text[at:], self._ends[self.kind]))
        if line and not final:
            keep = max(keep, len(line[0]))  # how far it is indented is open
        self._emit(pieces, text[at : len(text) - keep])
        self._buffer = text[len(text) - keep :]
        return pieces

    def _emit(self, pieces: list[TextDelta], text: str, tag: str = "") -> None:
        raw = text + tag
        if self._fresh:
            text = text.lstrip("\n")
        if text:
            self._fresh = False
            self._parts[self.kind] += text
            self.has_answer = self.has_answer or (self.kind == "answer" and not text.isspace())
        if shown := raw if self._keep_tags else text:
            pieces.append(TextDelta(shown, self.kind))


def ends_with(engine: Engine, prompt: Sequence[int], tag: str, n_tokens: int = 8) -> bool:
    """Whether the newest tokens of a prompt end with a tag, white space aside."""
    end = engine.detokenize(prompt[-n_tokens:], special=True).decode("utf-8", "replace")
    return end.rstrip().endswith(tag)


def _pattern(tags: Sequence[str], ends: Sequence[str]) -> re.Pattern[str]:
    """A pattern of texts that end a part: of tags, and of the place before any other text."""
    each = (re.escape(end) if end in tags else f"(?={re.escape(end)})" for end in sorted(ends))
    return re.compile("|".join(each) or "(?!)")


def _pending(text: str, ends: Sequence[str]) -> int:
    """Length of the longest end of `text` with which one of the `ends` begins. In a buffer that
    begins so, as it does while one is pending, only new characters take further looks."""
    longest = max(map(len, ends), default=1)
    for n in range(min(len(text), longest - 1), 0, -1):
        if any(end.startswith(text[-n:]) for end in ends):
            return n
    return 0
