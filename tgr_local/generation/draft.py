"""The state of a reply so far: its text, its tokens and its steps.

In: tokens as a run decodes them, and steps as they end. Out: pieces of text, and how many of the
tokens the reply keeps, since its text may end before its run does.
"""

from __future__ import annotations

import dataclasses
import time

from tgr_local.engine import Engine
from tgr_local.generation.plan import ReplyRequest, Reserve
from tgr_local.generation.reply_format import LineLimits
from tgr_local.generation.text import TextDelta, TextSplitter
from tgr_local.methods.think_tags import CLOSE_THINK
from tgr_local.search.steps import Counts, Finish, Progress, Step


class Draft:
    """The text of a reply under way, read as it comes with `follows`, else a step at a time."""

    def __init__(
        self, engine: Engine, request: ReplyRequest, reserve: Reserve, follows: bool
    ) -> None:
        self._engine, self._reserve, self._shown = engine, reserve, request.shown
        self._lines = request.lines if request.verbatim else None
        self.follows = follows or self._lines is not None
        self.text = _splitter(engine, request, self._lines)
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        """Tokens of the steps."""
        self.unfinished: list[int] = []
        """Tokens of the step under way, where the text is followed."""
        self.n_steps_before = self.n_tokens_before = 0
        """Steps and tokens before the run under way."""
        self.answers = False
        """Whether the run under way writes the answer alone."""
        self.is_cut = False
        """Whether the thinking was cut where the reserve begins."""
        self.is_over = False
        """Whether the text has ended before the run does."""
        self.line_limit: str | None = None
        """The option that ended the text, where its lines did."""
        self._began: float | None = None  # the first token, by time.monotonic

    @property
    def n_tokens(self) -> int:
        """Tokens so far, with those of the step under way."""
        return len(self.tokens) + len(self.unfinished)

    @property
    def thinks(self) -> bool:
        """Whether the text is thinking, with no answer before it."""
        return self.text.kind == "thinking" and not self.text.has_answer

    def begin_run(self) -> None:
        """Begins another run: later steps belong to it."""
        self.n_steps_before, self.n_tokens_before = len(self.steps), len(self.tokens)

    def follow(self, progress: Progress) -> tuple[Progress, list[TextDelta]] | None:
        """Takes new tokens of the step under way. Returns those that the reply keeps, and the
        pieces of text that they complete; None for tokens decoded after the text had ended."""
        if self._is_closed:
            return None
        tokens = list(progress.tokens)
        n, pieces = self._feed(tokens, progress.text)
        if n < len(tokens):
            text = self._engine.detokenize(tokens[:n], shown=self._shown)
            progress = dataclasses.replace(progress, tokens=progress.tokens[:n], text=text)
        self.unfinished += tokens[:n]
        return progress, pieces

    def taken(self, step: Step) -> Step:
        """The step under way with the tokens that the reply keeps; `add` adds it."""
        n = len(step.tokens)
        if not self.follows:
            n, _ = self._feed(step.tokens.tolist())
        elif self._is_closed:
            n = len(self.unfinished)
        self.unfinished = []
        return step.beginning(n)

    def add(self, step: Step, finish: Finish | None) -> Step:
        """Adds a step, which ended for this reason; returns it with its index in the reply."""
        self.tokens += step.tokens.tolist()
        index = step.index + self.n_steps_before
        self.steps.append(dataclasses.replace(step, index=index, finish=finish))
        return self.steps[-1]

    def end_step(self, index: int, finish: Finish | None) -> None:
        """Corrects why a step ended."""
        if self.steps[index].finish != finish:
            self.steps[index] = dataclasses.replace(self.steps[index], finish=finish)

    def count_more(self, counts: Counts) -> None:
        """Adds decoded positions to the last step."""
        counts += self.steps[-1].counts
        self.steps[-1] = dataclasses.replace(self.steps[-1], counts=counts)

    @property
    def _is_closed(self) -> bool:
        return self.is_over or (self.is_cut and not self.answers)

    def _feed(self, tokens: list[int], text: bytes | None = None) -> tuple[int, list[TextDelta]]:
        """The pieces of text that new tokens complete, and how many of the tokens the reply keeps:
        thinking without an answer is cut where the reserve begins, whatever came after it."""
        if self._lines:
            return self._feed_lines(tokens, self._lines)
        free = self._reserve.thinking - self.n_tokens
        if self.answers or self.text.has_answer or len(tokens) < free:
            pieces = self.text.feed(tokens) if text is None else self.text.feed_text(text)
            return len(tokens), pieces
        n = max(0, free)
        pieces = self.text.feed(tokens[:n])
        while not self.thinks and n < len(tokens):
            pieces += self.text.feed(tokens[n : n + 1])
            n += 1
        if self.thinks:
            self.is_cut = True
            n = min(n, max(0, self._reserve.limit - 1 - self.n_tokens))
        return n, pieces

    def _feed_lines(self, tokens: list[int], lines: LineLimits) -> tuple[int, list[TextDelta]]:
        """Feeds a step's tokens up to the token at which the lines end the text."""
        self._began = self._began or time.monotonic()
        ms = 1000 * (time.monotonic() - self._began)
        is_late = 0 < lines.t_max_predict_ms < ms
        pieces: list[TextDelta] = []
        for n, token in enumerate(tokens, 1):
            text = self._engine.detokenize([token], shown=self._shown)
            pieces += self.text.feed_text(text)
            if self.text.dedented or (is_late and b"\n" in text):
                self.line_limit = "n_indent" if self.text.dedented else "t_max_predict_ms"
                self.is_over = True
                return n, pieces
        return len(tokens), pieces


def _splitter(engine: Engine, request: ReplyRequest, lines: LineLimits | None) -> TextSplitter:
    """Splits the text of a reply, of which a format is read whole."""
    form, closers = request.form, tuple[str, ...]()
    is_read = form is not None
    if is_read and form and form.trigger:  # what has the tag ends with it
        closers = tuple(tag for tag in form.trigger.think_ends if CLOSE_THINK not in tag)
    return TextSplitter(
        engine,
        request.query,
        request.config.stop,
        verbatim=request.verbatim,
        continued=request.continued,
        keep_tags=is_read,
        closers=closers,
        n_indent=lines.n_indent if lines and not is_read else 0,
        shown=request.shown,
    )
