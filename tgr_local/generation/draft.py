"""A reply so far, its text, tokens and steps, and the run of a method that goes on with it.

In: an engine, a `ReplyRequest`, then the request of each run. Out: events, and why each run ended:
its text ended, a limit or a loop ended it, or another run is due. It does not know which run that
is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Literal

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.generation.loops import is_loop
from tgr_local.generation.reply import MethodRun, OnEvent, Reply
from tgr_local.generation.request import ReplyRequest, Reserve, length_option, settled
from tgr_local.generation.text import Kind, TextDelta
from tgr_local.search.capacity import context_limit, difference
from tgr_local.search.run import HeldBack
from tgr_local.search.steps import Counts, Finish, Progress, Step
from tgr_local.system.errors import BudgetError, CapacityError

Part = Literal["all", "thinking", "before", "answer", "again"]
"""Part of a reply that a run writes: all that is left of it, its thinking alone, the text before a
thinking that the model opens, the answer, or an answer once more."""


class AnswerNow(Cancel):
    """A cancel of its own for a run: set when `outer` is, and asking for the answer while `is_due`
    returns True."""

    def __init__(self, outer: Cancel | None, is_due: Callable[[], bool]) -> None:
        super().__init__(outer)
        self._is_due = is_due

    def answers_now(self) -> bool:
        return self._is_due()


class Draft:
    """A reply so far: its text, tokens and steps, and the run that goes on with it."""

    def __init__(
        self,
        engine: Engine,
        request: ReplyRequest,
        until: Callable[[str], bool] | None,
        on_event: OnEvent | None,
        cancel: Cancel | None,
    ) -> None:
        self._start, self._method = time.monotonic(), request.method.name  # as it is asked for
        request = settled(engine, request)
        self._engine, self._request, self._config = engine, request, request.config
        self._reserve = reserve = Reserve.of(engine, request)
        self._text = request.splitter(engine)
        self._emit, self._until = on_event or (lambda event: None), until
        self._cancel = cancel
        lines = request.verbatim and request.lines is not None
        # whether the text is read as it comes, else a step at a time
        self._follows = bool(on_event or self._config.max_seconds > 0 or until or lines)
        self._steps: list[Step] = []
        self._runs: list[MethodRun] = []
        self._kept: list[int] = []  # tokens of the steps
        self._unfinished: list[int] = []  # … of the step under way, where the text is followed
        # what may be written, and what ended it
        opens, ruled = request.opens_thinking(engine), self._config.grammar
        other_method = request.method.thinking is not None
        self._may_think = opens or request.may_open_thinking(engine)
        # a reply without an answer gets one, unless the whole text is asked for, or ruled
        self._must_speak = not (request.verbatim or request.continued == "answer" or ruled)
        self._closed: int | None = None
        self._closed_by: str | None = None
        self._due: Finish | Kind = "answer"  # why the last run ended, or the part that is due
        self._why: str | None = None  # the first cause that was seen to ask for the answer
        self._is_over = False  # whether the text has ended before the run does
        # the run under way; a rule or a method is for the answer alone
        self._part: Part = "all"
        if opens and (self._config.thinking_budget or ruled or other_method):
            self._part = "thinking"
        elif other_method and self._may_think:
            self._part = "before"
        # tokens after Q before the answer: tokens of the reply, and the end of the thinking
        self._context: tuple[list[int], list[int]] | None = None
        # the part of the limits that the run leaves for an answer
        self._held = HeldBack(reserve.positions if self._may_think else 0, reserve.thinking)
        self._failure: BudgetError | CapacityError | None = None  # why the run could not begin
        self._n_tokens_before = 0
        # of the first run or the thinking's, and as far as it fits together with Q
        self._asked = self._used = self._config
        self._used_by = 0  # the index of that run

    # --- a run ---

    @property
    def _answering(self) -> bool:
        """Whether the run writes the answer alone."""
        return self._part in ("answer", "again")

    def _write(self, request: ReplyRequest, participant: Participant | None) -> bool:
        """Writes a run; returns False if another request must be tried: the run could not begin,
        which `_failure` explains, or the time ended it before it wrote a visible character. Raises
        CapacityError for a run that had begun, since its text would end early."""
        n_steps, n_runs = len(self._steps), len(self._runs)
        self._n_tokens_before = len(self._kept)
        if not self._answering:
            self._asked, self._used_by = request.config, n_runs
        try:
            request = request.fitted(self._engine)
            if not self._answering:
                self._used = request.config
            run = request.run(
                self._engine,
                participant=participant,
                on_event=self._on_progress if self._follows else None,
                cancel=AnswerNow(self._cancel, self._answers_now),
                held_back=self._held,
            )
            self._runs.append(MethodRun(n_steps, request.query))
            with contextlib.closing(request.method.run(run)) as steps:  # type: ignore[type-var]
                for step in steps:
                    if (verdict := self._added(step)) is not None:
                        break
                else:
                    raise AssertionError("a method ended without saying why")
                if run.unclaimed.total:  # of text that is not wanted any more
                    counts = self._steps[-1].counts + run.unclaimed
                    self._steps[-1] = dataclasses.replace(self._steps[-1], counts=counts)
        except (BudgetError, CapacityError) as error:
            if len(self._steps) == n_steps:
                del self._runs[n_runs:]
                self._failure = error
                return False
            if isinstance(error, CapacityError):
                raise
            # too little is left for a step, or the time is up between two
            verdict = self._verdict("budget", self._kept) or "budget"
        self._failure = None
        seconds = request.config.max_seconds
        late = self._answering and self._config.max_seconds and not seconds
        self._due = "budget" if late and verdict == "length" else verdict
        return not (self._part == "again" and seconds and self._text.is_silent)

    def _added(self, step: Step) -> Finish | Kind | None:
        """Adds a step to the reply; returns why the run ends with it, None where it goes on."""
        n, reserve = len(step.tokens), self._reserve
        if not self._follows:
            n, _ = self._feed(step.tokens.tolist())
        elif self._is_closed:
            n = len(self._unfinished)
        step, self._unfinished = step.beginning(n), []
        text = [*self._kept, *step.tokens.tolist()]
        verdict = self._verdict(step.finish, text)
        if verdict and len(text) >= reserve.limit and self._must_speak and self._text.is_silent:
            # the white space at the end of the limit makes room for an answer
            n = len(step.tokens)
            step = step.beginning(n - min(n, reserve.tokens))
        finish = None if verdict == "thinking" or verdict == "answer" else verdict
        step = dataclasses.replace(step, index=step.index + self._runs[-1].first, finish=finish)
        self._steps.append(step)
        self._kept += step.tokens.tolist()
        # what an answer takes is kept for it, or nothing once there is one
        silent = not (self._answering or self._text.has_answer)
        kept = silent and (self._text.kind == "thinking" or self._held.positions)
        self._held.positions = reserve.positions if kept else 0
        self._emit(step)
        return verdict

    def _on_progress(self, progress: Progress) -> None:
        if n_before := self._runs[-1].first:
            progress = dataclasses.replace(progress, chunk=progress.chunk + n_before)
        pieces: list[TextDelta] = []
        if progress.stage == "tokens":
            if self._is_closed:  # decoded after the text had ended
                return
            tokens = list(progress.tokens)
            n, pieces = self._feed(tokens, progress.text)
            if n < len(tokens):
                text = self._engine.detokenize(tokens[:n], shown=self._request.shown)
                progress = dataclasses.replace(progress, tokens=progress.tokens[:n], text=text)
            self._unfinished += tokens[:n]
        self._emit(progress)
        for piece in pieces:
            self._emit(piece)
        answer = "".join(piece.text for piece in pieces if piece.kind == "answer")
        if self._until and answer and self._until(answer):
            self._is_over = True

    @property
    def _is_closed(self) -> bool:
        """Whether the reply keeps no further tokens of the run."""
        return self._is_over or self._text.is_cut

    def _feed(self, tokens: list[int], data: bytes | None = None) -> tuple[int, list[TextDelta]]:
        """The pieces of text that new tokens complete, and how many of the tokens the reply keeps:
        thinking without an answer is cut where the reserve begins, whatever came after it."""
        n_before = self._n_tokens
        n_free = len(tokens) + 1 if self._answering else self._reserve.thinking - n_before
        n, pieces = self._text.take(tokens, n_free, data)
        self._is_over = self._is_over or self._text.line_limit is not None
        if self._text.is_cut:
            n = min(n, max(0, self._reserve.limit - 1 - n_before))
        return n, pieces

    # --- the ends of a run, of the thinking and of the reply ---

    def _verdict(self, finish: Finish | None, text: list[int]) -> Finish | Kind | None:
        """Whether the reply or its thinking ends after a step that ended so, or what is due then.
        `text` has the tokens of the reply with those of the step."""
        thinks = self._text.kind == "thinking"
        if self._is_over:
            return "length" if self._text.line_limit else "stop"
        if self._part == "before" and finish == "stop" and thinks:
            return finish if self._text.stopped else "thinking"
        n, new = self._config.loop_guard, text[self._n_tokens_before :]
        loops = finish != "stop" and n > 0
        loops = loops and is_loop(self._engine, new, n, thinks=thinks, text_before=self._text.text)
        if not self._answering:
            if thinks:
                self._closed_by = self._closing_option(finish, loops, len(text))
                if self._closed_by:
                    return "answer"
            elif finish == "stop" and self._part == "thinking":
                return "answer"
            elif finish == "budget" and (self._held.positions or self._why):
                return "answer"  # which goes on with what was kept
        return "loop" if loops else finish

    def _closing_option(self, finish: Finish | None, loops: bool, n_tokens: int) -> str | None:
        """Returns what ends the thinking after this step; None = it goes on, or ends the reply."""
        text, budget = self._text, self._config.thinking_budget
        if text.is_cut or (finish == "length" and not text.has_answer):
            if self._is_asked:  # before it was seen, the tokens of the thinking were written
                return "answer_now"
            spent = self._part == "thinking" and 0 < budget <= n_tokens
            return "thinking_budget" if spent else self._reserve.option
        if loops:
            return "loop_guard"
        if finish == "budget" and self._why:
            return self._why
        if finish is None:
            return self._why if not self._follows and self._is_due() else None
        if text.has_answer:
            return None
        if finish == "budget":
            return self._budget_option()
        return "stop" if text.stopped else "end_token"

    def _answers_now(self) -> bool:
        """Whether the run is to end at its next token, where the text is read as it comes."""
        return self._is_over or (self._follows and self._is_due())

    def _is_due(self) -> bool:
        """Whether the text so far is thinking that the user or a limit ends."""
        text, why = self._text, None
        if self._answering or text.kind != "thinking":
            return False
        if self._is_asked:
            why = "answer_now"
        elif text.is_cut:
            # what a chunk costs must not depend on when it was seen
            why = None if self._config.max_forward_tokens else self._reserve.option
        elif text.only_thinks and self._reserve.is_late(
            self._config, self._seconds, self._n_tokens
        ):
            why = "max_seconds"
        self._why = self._why or why
        return why is not None

    @property
    def _is_asked(self) -> bool:
        """Whether the user asks for the answer now."""
        return self._cancel is not None and self._cancel.answers_now()

    @property
    def _n_tokens(self) -> int:
        return len(self._kept) + len(self._unfinished)

    @property
    def _seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - self._start

    @property
    def _is_late(self) -> bool:
        return 0 < self._config.max_seconds <= self._seconds

    def _budget_option(self) -> str:
        """The option that ended a run whose budget is spent."""
        config = self._config
        if config.max_seconds and (not config.max_forward_tokens or self._is_late):
            return "max_seconds"
        return "max_forward_tokens" if config.max_forward_tokens else "answer_now"

    def _ending_option(self, finish: str) -> str | None:
        """The option that ended the reply; None = its text ended."""
        if self._text.line_limit or finish in ("stop", "cancelled"):
            return self._text.line_limit
        if finish == "loop":
            return "loop_guard"
        if finish == "budget":
            return self._budget_option()
        n_steps = len(self._steps) - self._runs[-1].first
        is_whole = len(self._kept) >= self._config.token_limit
        is_whole = is_whole or n_steps >= self._config.max_chunks
        return length_option(self._config) if is_whole else context_limit(self._engine)

    def end_text(self) -> None:
        """Emits the text that was still buffered."""
        for piece in self._text.end():
            self._emit(piece)

    def reply(self, finish: Finish | Literal["cancelled"], more: Counts) -> Reply:
        """The reply, with `more` counts than its steps have."""
        return Reply(
            text=self._text.text,
            thinking=self._text.thinking,
            tokens=self._kept + self._unfinished,
            finish=finish,
            steps=self._steps,
            counts=sum((step.counts for step in self._steps), more),
            seconds=self._seconds,
            seed=self._config.seed,
            method=self._method,
            closed=self._closed,
            runs=self._runs,
            closed_by=self._closed_by,
            limit=self._ending_option(finish),
            stop_text=self._text.stopped if finish == "stop" else "",
            note=self._note(),
        )

    def _note(self) -> str:
        """Changes that the context made to a reply long enough for them; "" = none."""
        written, steps = "reply", self._steps
        if self._request.method.thinking:  # the answer has no chunks
            first, *later = [run.first for run in self._runs[self._used_by :]] or [0]
            written, steps = "thinking", steps[first : later[0] if later else None]
        n_tokens = sum(len(step.tokens) for step in steps)
        if n_tokens < min(self._config.chunk_len, self._used.chunk_len):
            return ""
        return difference(self._asked, self._used, written)
