"""A reply under way: the runs of a method that write it.

In: an engine, a `Request`. Out: steps, tokens and text, as attributes of a `ReplyWriter`, and their
events. One run writes most replies. A second one writes the answer where
the thinking is ended from outside: by an option, by a limit, of which a part is kept for the answer
(`thinking.Reserve`), by a loop or by the user. Where there is no answer still, since the model
ended its text or wrote nothing but white space, another run begins with a visible character.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.generation.text import TextDelta, TextSplitter, is_loop
from tgr_local.generation.thinking import (
    NO_THINKING,
    AnswerNow,
    Reserve,
    answer_request,
    length_option,
    may_think,
    thinking_request,
    visible_grammar,
)
from tgr_local.search.answers import AFTER_THINK, CLOSE_THINK, CLOSING
from tgr_local.search.capacity import SPARE_CELLS, context_limit, difference, longest_text
from tgr_local.search.reply_format import LineLimits
from tgr_local.search.run import HeldBack, Request, Run
from tgr_local.search.steps import Finish, Progress, Step
from tgr_local.system.errors import BudgetError, CapacityError

Participants = tuple[Participant | None, Participant | None, Participant | None]
"""The places in lockstep groups of a reply's runs: the first one, the answer's, and another one
where there is no answer still."""
ALONE: Participants = (None, None, None)
_BUDGETS = ("max_forward_tokens", "max_seconds")
_Verdict = Finish | Literal["answer"] | None


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of the method within a reply."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens of its prompt."""


def _splitter(engine: Engine, request: Request, lines: LineLimits | None) -> TextSplitter:
    """Splits the text of a reply, of which a format is read whole."""
    form, closers = request.form, tuple[str, ...]()
    is_read = form is not None and request.edits is None
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
        tags_are_text=request.edits is not None,
        n_indent=lines.n_indent if lines and not is_read else 0,
        shown=request.shown,
    )


class ReplyWriter:
    """One reply. `write` it once; the attributes hold what there is, after a cancel too. `until` is
    called with each piece of the answer; True ends it."""

    def __init__(
        self,
        engine: Engine,
        request: Request,
        *,
        until: Callable[[str], bool] | None = None,
        on_event: Callable[[TextDelta | Progress | Step], None] | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self.engine, self.request = engine, request
        self.query, self.config = request.query, request.config
        self._lines = request.lines if request.verbatim else None
        self._until, self._is_complete = until, False
        self.text = _splitter(engine, request, self._lines)
        self.steps: list[Step] = []
        self.tokens: list[int] = []
        """Of the steps."""
        self.unfinished: list[int] = []
        """Tokens of the step under way, where the text is followed."""
        self.closed: int | None = None
        self.closed_by: str | None = None
        self.limit: str | None = None
        self.runs: list[MethodRun] = []
        self._emit = on_event or (lambda event: None)
        # else the text is split once a chunk, not at every token
        self._follows = bool(on_event or self.config.max_seconds > 0 or self._lines or until)
        here = weakref.proxy(self)  # no cycle: an engine is freed with its last reference
        self._cancel = AnswerNow(cancel, self.text, self._follows, lambda: here._reached())
        self._start = time.monotonic()
        self._began: float | None = None  # the first token, by time.monotonic
        opened, ruled = self.text.kind == "thinking", self.config.grammar or request.edits
        self._may_think = opened or (
            not (request.raw or request.verbatim or request.edits)
            and may_think(engine, self.query, self.config)
        )
        # an answer may be empty where the whole text is asked for, or a grammar allows it
        self._must_speak = not (request.verbatim or request.continued == "answer" or ruled)
        self._reserve = Reserve.of(engine, request)
        self._held = HeldBack(tokens=self._reserve.thinking)
        self._held.positions = self._reserve.positions if self._may_think else 0
        self._is_cut = self._answers = False
        self._first = self._n_before = 0  # steps and tokens before the run under way
        self._context: tuple[list[int], list[int]] = ([], [])  # of the answer's run, after Q
        self._used = self.config  # of the first run, as far as it fits together with Q
        # a rule holds for the answer alone, so the thinking is a run of its own
        self._thinks_first = opened and bool(self.config.thinking_budget or ruled)

    def write(self, participants: Participants = ALONE) -> Finish:
        """Writes the whole reply; returns why it ended."""
        verdict = self._think(participants[0])
        if participants[0] and not self.runs:
            participants[0].leave()  # others wait for all of the group to begin
        finish = self._answer(participants[1], "budget") if verdict == "answer" else verdict
        self.end_text()
        if self._must_speak and not self.text.has_answer:
            if participants[1]:
                participants[1].leave()  # others may wait for this one there
            finish = self._answer(participants[2], finish, again=True)
            self.end_text()
        self.limit = self._option(finish)
        return finish

    @property
    def note(self) -> str:
        """What the context has changed of a reply that was long enough for it; "" = nothing."""
        if len(self.tokens) < min(self.config.chunk_len, self._used.chunk_len):
            return ""
        return difference(self.config, self._used)

    def end_text(self) -> None:
        """Emits the text that was still buffered."""
        for piece in self.text.end():
            self._emit(piece)

    # --- runs ---

    def _think(self, participant: Participant | None) -> Finish | Literal["answer"]:
        """The first run, which may write the whole reply."""
        if self._may_think and self._reserve.thinking < 1:
            self.closed_by = self._reserve.option
            return "answer"
        request = thinking_request(self.request) if self._thinks_first else self.request
        try:
            return self._write(request, participant)
        except BudgetError:
            if not self._held.positions or self._is_out_of_time:
                raise
            self.closed_by = "max_forward_tokens"  # it pays for an answer alone
            return "answer"

    def _answer(
        self, participant: Participant | None, finish: Finish, *, again: bool = False
    ) -> Finish:
        """The run of the answer, `again` where there was one that wrote none. Returns why it ended,
        or `finish` where the limits leave nothing for it."""
        self._cancel.close()
        self._context = kept, after = self._before_again() if again else self._before_answer()
        for piece in self.text.begin_answer([] if again else after):
            self._emit(piece)
        self._emit(Progress(self.steps[-1].index if self.steps else 0, "answer due"))
        self._answers, self._held = True, HeldBack()
        self._first, self._n_before = len(self.steps), len(self.tokens)
        failure: Exception | None = None
        spent = (again and finish == "budget") or self.closed_by in _BUDGETS
        for request in self._answer_runs(kept, after, again=again, spent=spent):
            try:
                written = self._write(request, participant)
                assert written != "answer"
                failure, seconds = None, request.config.max_seconds
                late = bool(self.config.max_seconds) and not seconds
                finish = "budget" if late and written == "length" else written
                if not (again and seconds and self.text.is_silent):
                    break
                if self._first:
                    self._end(self._first - 1, None)
                self._first, self._n_before = len(self.steps), len(self.tokens)
            except (BudgetError, CapacityError) as error:
                if len(self.steps) > self._first:  # the run had begun: its text would end early
                    raise
                failure = error
            if participant:  # which has one session at most
                participant.leave()
                participant = None
        if self._first and len(self.steps) > self._first:
            self._end(self._first - 1, None)
        if isinstance(failure, CapacityError):
            raise failure
        if not self.steps:
            raise failure or BudgetError(
                f"max_forward_tokens is {self.config.max_forward_tokens}, but the query with an "
                f"answer takes at least {len(self.query) + len(after)}; raise it"
            )
        self._end(-1, finish)
        return finish

    def _end(self, index: int, finish: Finish | None) -> None:
        """Corrects why a step ended."""
        if self.steps[index].finish != finish:
            self.steps[index] = dataclasses.replace(self.steps[index], finish=finish)

    def _write(
        self, request: Request, participant: Participant | None
    ) -> Finish | Literal["answer"]:
        """One run. Returns why the reply ended, or that the answer is due. Raises BudgetError for a
        run without a step, and CapacityError."""
        n_steps, method = len(self.steps), request.method
        request = request.fitted(self.engine)
        if not self._answers:
            self._used = request.config
        if request.edits:  # nothing but their end ends them
            request = request.with_options(stop=())
        run = Run(
            self.engine,
            request,
            participant=participant,
            on_event=self._on_progress if self._follows else None,
            cancel=self._cancel,
            held_back=self._held,
        )
        self.runs.append(MethodRun(n_steps, request.query))
        steps = method.run(run)
        with contextlib.closing(steps):  # type: ignore[type-var]
            try:
                for step in steps:
                    if (finish := self._added(step)) is not None:
                        if run.unclaimed.total:  # of text that is not wanted any more
                            counts = self.steps[-1].counts + run.unclaimed
                            self.steps[-1] = dataclasses.replace(self.steps[-1], counts=counts)
                        return finish
            except (BudgetError, CapacityError) as error:
                if len(self.steps) == n_steps:
                    self.runs.pop()
                elif isinstance(error, BudgetError):
                    # too little is left for a step, or the time is up between two
                    return self._late()
                raise
        raise AssertionError(f"{method.name} ended without saying why")

    @property
    def _is_edits(self) -> bool:
        """Whether what is written now can only be edits."""
        return bool(self.request.edits) and (self._answers or not self._thinks_first)

    def _late(self) -> Finish | Literal["answer"]:
        """The verdict on a run whose budget ended between two steps."""
        last = dataclasses.replace(self.steps[-1], finish="budget")
        verdict = self._verdict(last, self.tokens)
        self.steps[-1] = dataclasses.replace(last, finish=None if verdict == "answer" else "budget")
        return verdict or "budget"

    # --- steps ---

    def _added(self, step: Step) -> _Verdict:
        """Adds a step to the reply; returns its `_verdict`."""
        n = len(step.tokens)
        if not self._follows:
            n, _ = self._feed(step.tokens.tolist())
        elif self._is_over or (self._is_cut and not self._answers):
            n = len(self.unfinished)
        self.unfinished = []
        step = step.beginning(n)
        finish = self._verdict(step, [*self.tokens, *step.tokens.tolist()])
        is_full = len(self.tokens) + n >= self._reserve.limit
        if finish and is_full and self._must_speak and self.text.is_silent:
            # the white space at the end of the limit makes room for an answer
            step = step.beginning(n - min(n, self._reserve.tokens))
        self.tokens += step.tokens.tolist()
        step = dataclasses.replace(
            step,
            index=step.index + self._first,
            finish=None if finish == "answer" else finish,
        )
        self.steps.append(step)
        silent = not (self._answers or self.text.has_answer)
        thinks = self.text.kind == "thinking"
        if not (silent and (thinks or self._held.positions)):
            self._held.positions = 0
        else:
            self._held.positions = self._reserve.positions
        self._emit(step)
        return finish

    def _verdict(self, step: Step, text: list[int]) -> _Verdict:
        """Why the reply ends after this step, or that the answer is due; None = the run goes on.
        `text` has the tokens with those of the step."""
        if self._is_over:
            return "length" if self.limit else "stop"
        finish, guard = step.finish, self.config.loop_guard
        guard = 0 if self._is_edits else guard
        loops = bool(guard) and finish != "stop" and is_loop(text[self._n_before :], guard)
        if not self._answers and self.text.kind == "thinking":
            self.closed_by = self._closing_option(finish, loops, len(text))
            if self.closed_by:
                return "answer"
        elif not self._answers and finish == "stop" and self._thinks_first:
            return "answer"
        elif (
            not self._answers and finish == "budget" and (self._held.positions or self._cancel.why)
        ):
            return "answer"  # which goes on with what was kept
        return "loop" if loops else finish

    def _closing_option(self, finish: Finish | None, loops: bool, n_tokens: int) -> str | None:
        """What ends the thinking after this step; None = it goes on, or ends the reply."""
        budget = self.config.thinking_budget
        if self._is_cut or (finish == "length" and not self.text.has_answer):
            spent = self._thinks_first and 0 < budget <= n_tokens
            return "thinking_budget" if spent else self._reserve.option
        if loops:
            return "loop_guard"
        if finish == "budget" and self._cancel.why:
            return self._cancel.why
        if finish is None:
            return self._cancel.why if not self._follows and self._cancel.is_due() else None
        if self.text.has_answer:
            return None
        if finish == "budget":
            return self._budget_option()
        return "stop" if self.text.stopped else "end_token"

    # --- the answer's run ---

    def _before_answer(self) -> tuple[list[int], list[int]]:
        """What follows Q before an answer: tokens of the reply, and the end of the thinking."""
        kept = list(self.tokens)
        if kept and kept[-1] in self.engine.end_tokens:
            kept.pop()
        if self.text.kind == "thinking":
            self.closed = len(self.tokens)
            return kept, self.engine.tokenize(CLOSING)
        if not kept and self.closed_by:
            self.closed = 0
            return [], self.engine.tokenize(NO_THINKING)
        return kept, self.engine.tokenize(AFTER_THINK if self._thinks_first else "")

    def _before_again(self) -> tuple[list[int], list[int]]:
        """The same for another answer: what was before the first one."""
        if self._answers:
            return self._context
        text = TextSplitter(
            self.engine, self.query, continued=self.request.continued, shown=self.request.shown
        )
        end = 0
        for i, token in enumerate(self.tokens):
            thought = text.kind == "thinking"
            text.feed([token])
            end = i + 1 if thought or text.kind == "thinking" else end
        return self.tokens[:end], self.engine.tokenize(AFTER_THINK) if end else []

    def _answer_runs(
        self, kept: list[int], after: list[int], *, again: bool, spent: bool
    ) -> Iterator[Request]:
        """The requests of the runs to try: that of the method itself, unless its budget is `spent`,
        with what a reset would retain of the thinking; then plain sampling with as much as the
        limits leave room for."""
        seconds = time.monotonic() - self._start
        if again and spent:
            seconds = max(seconds, self.config.max_seconds)
        if (request := answer_request(self.request, self.steps, seconds)) is None:
            return
        if again:
            request = request.with_options(grammar=visible_grammar(self.config.stop))
        if request.method.resets:
            kept = kept[-self.config.chunk_len :]
        config, query = request.config, [*self.query, *kept, *after]
        request = dataclasses.replace(request, query=query)
        if not spent and self._fits(request):
            yield request
        rest = len(self.query) + len(after)
        cells = min(longest_text(self.engine), self.engine.most_cells() - SPARE_CELLS)
        cells -= rest
        room = cells
        if config.max_forward_tokens:
            room = min(room, config.max_forward_tokens + 1 - rest)
        n_kept = max(0, min(len(kept), room - min(config.max_tokens, self._reserve.tokens)))
        if room > 0:
            query = [*self.query, *kept[len(kept) - n_kept :], *after]
            plain = dataclasses.replace(request, query=query, method=methods.get("base"))
            yield plain.with_options(max_tokens=min(config.max_tokens, cells - n_kept))
            late = answer_request(self.request, self.steps, self.config.max_seconds)
            if again and config.max_seconds and late:  # the time was up before the first token
                late = late.with_options(grammar=config.grammar)
                yield dataclasses.replace(plain, config=late.config)

    def _fits(self, request: Request) -> bool:
        try:
            request.method.cells(self.engine, len(request.query), request.config)
        except CapacityError:
            return False
        return True

    # --- text ---

    def _on_progress(self, progress: Progress) -> None:
        if self._first:
            progress = dataclasses.replace(progress, chunk=progress.chunk + self._first)
        if progress.stage != "tokens":
            self._emit(progress)
            return
        if self._is_over or (self._is_cut and not self._answers):
            return  # written before the run ended
        tokens = list(progress.tokens)
        n, pieces = self._feed(tokens, progress.text)
        if n < len(tokens):
            text = self.engine.detokenize(tokens[:n], shown=self.request.shown)
            progress = dataclasses.replace(progress, tokens=progress.tokens[:n], text=text)
        self.unfinished += tokens[:n]
        self._emit(progress)
        for piece in pieces:
            self._emit(piece)
        answer = "".join(piece.text for piece in pieces if piece.kind == "answer")
        if self._until and answer and self._until(answer):
            self._is_complete = True
            self._cancel.end()

    @property
    def _is_over(self) -> bool:
        """Whether the text has ended before the run does."""
        return self.limit is not None or self._is_complete

    def _feed(self, tokens: list[int], text: bytes | None = None) -> tuple[int, list[TextDelta]]:
        """The pieces of text that new tokens complete, and how many of the tokens the reply keeps:
        thinking without an answer is cut where the reserve begins, whatever came after it."""
        if self._lines:
            return self._feed_lines(tokens, self._lines)
        n_before = len(self.tokens) + len(self.unfinished)
        free = self._reserve.thinking - n_before
        if self._answers or self.text.has_answer or len(tokens) < free:
            pieces = self.text.feed(tokens) if text is None else self.text.feed_text(text)
            return len(tokens), pieces
        n = max(0, free)
        pieces = self.text.feed(tokens[:n])
        while not self._thinks_still and n < len(tokens):
            pieces += self.text.feed(tokens[n : n + 1])
            n += 1
        if self._thinks_still:
            self._is_cut = True
            n = min(n, max(0, self._reserve.limit - 1 - n_before))
        return n, pieces

    def _feed_lines(self, tokens: list[int], lines: LineLimits) -> tuple[int, list[TextDelta]]:
        """The same up to the token at which the lines end the text."""
        self._began = self._began or time.monotonic()
        ms = 1000 * (time.monotonic() - self._began)
        is_late = 0 < lines.t_max_predict_ms < ms
        pieces: list[TextDelta] = []
        for n, token in enumerate(tokens, 1):
            text = self.engine.detokenize([token], shown=self.request.shown)
            pieces += self.text.feed_text(text)
            if self.text.dedented or (is_late and b"\n" in text):
                self.limit = "n_indent" if self.text.dedented else "t_max_predict_ms"
                self._cancel.end()
                return n, pieces
        return len(tokens), pieces

    @property
    def _thinks_still(self) -> bool:
        return self.text.kind == "thinking" and not self.text.has_answer

    # --- limits ---

    @property
    def _is_out_of_time(self) -> bool:
        return 0 < self.config.max_seconds <= time.monotonic() - self._start

    def _reached(self) -> str | None:
        """The option whose limit the thinking has come to."""
        if self._is_cut:
            # what a chunk costs must not depend on when it was seen
            return None if self.config.max_forward_tokens else self._reserve.option
        seconds, n_tokens = time.monotonic() - self._start, len(self.tokens) + len(self.unfinished)
        late = self._thinks_still and self._reserve.is_late(self.config, seconds, n_tokens)
        return "max_seconds" if late else None

    def _option(self, finish: Finish) -> str | None:
        """The option that ended the reply; None where its text ended."""
        if self.limit:
            return self.limit
        if finish == "stop":
            return None
        if finish == "loop":
            return "loop_guard"
        if finish == "budget":
            return self._budget_option()
        is_whole = len(self.tokens) >= self.config.token_limit
        is_whole = is_whole or len(self.steps) - self.runs[-1].first >= self.config.max_chunks
        return length_option(self.config) if is_whole else context_limit(self.engine)

    def _budget_option(self) -> str:
        config, seconds = self.config, time.monotonic() - self._start
        if config.max_seconds and (not config.max_forward_tokens or seconds >= config.max_seconds):
            return "max_seconds"
        return "max_forward_tokens" if config.max_forward_tokens else "answer_now"
