"""A reply so far, its text, tokens and steps, and the run of a method that goes on with it.

In: an engine, a `ReplyRequest`, then the request of each run. Out: events, and why each run ended:
with its text, by a limit, by a loop, or since another run is due. It does not know which one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.generation.loops import is_loop
from tgr_local.generation.request import ReplyRequest, Reserve, length_option, settled
from tgr_local.generation.text import TextDelta
from tgr_local.search.capacity import context_limit, difference
from tgr_local.search.run import HeldBack, Run
from tgr_local.search.steps import Finish, Progress, Step
from tgr_local.system.errors import BudgetError, CapacityError

Verdict = Finish | Literal["thinking", "answer"]
"""Reason why a reply ends, or the part of it that is due in a run of its own."""
OnEvent = Callable[[TextDelta | Progress | Step], None]


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of the method within a reply."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens of its prompt."""


class AnswerNow(Cancel):
    """Passes a cancel on, and asks for the answer while `is_due`, whatever the cause."""

    def __init__(self, outer: Cancel | None, is_due: Callable[[], bool]) -> None:
        super().__init__(outer)
        self._is_due = is_due

    def answers_now(self) -> bool:
        return self._is_due()


class Draft:
    """The reply so far. `until` is called with each piece of the answer; True ends it."""

    def __init__(
        self,
        engine: Engine,
        request: ReplyRequest,
        *,
        until: Callable[[str], bool] | None = None,
        on_event: OnEvent | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self._start, request = time.monotonic(), settled(engine, request)
        self.engine, self.request, self.config = engine, request, request.config
        self.reserve = reserve = Reserve.of(engine, request)
        self.text = request.splitter(engine)
        self.emit, self._until = on_event or (lambda event: None), until
        self._cancel = cancel
        lines = request.verbatim and request.lines is not None
        # whether the text is read as it comes, else a step at a time
        self._follows = bool(on_event or self.config.max_seconds > 0 or until or lines)
        self.steps: list[Step] = []
        self.runs: list[MethodRun] = []
        self.kept: list[int] = []
        """Tokens of the steps."""
        self._unfinished: list[int] = []  # … of the step under way, where the text is followed
        # what may be written, and what ended it
        opens, ruled = request.opens_thinking(engine), self.config.grammar
        other_method = request.method.thinking is not None
        self.may_think = opens or request.may_open_thinking(engine)
        self.must_speak = not (request.verbatim or request.continued == "answer" or ruled)
        """Whether a reply without an answer gets one: an answer may be empty where the whole text
        is asked for, or a grammar allows it."""
        self.closed: int | None = None
        self.closed_by: str | None = None
        self.limit: str | None = None
        self.due: Verdict = "answer"
        """The outcome of the runs so far."""
        self._why: str | None = None  # the first cause that was seen to ask for the answer
        self._is_over = False  # whether the text has ended before the run does
        # the run under way
        self.thinks_apart = opens and bool(self.config.thinking_budget or ruled or other_method)
        """Whether the thinking is a run of its own: a rule or a method is for the answer alone."""
        self.awaits_thinking = other_method and not opens and self.may_think
        """Whether the run ends where the model opens its thinking."""
        self.answers = self._answers_again = False
        """Whether the run writes the answer alone, and is another one for that."""
        self.context: tuple[list[int], list[int]] | None = None
        """Tokens after Q before that answer: tokens of the reply, and the end of the thinking."""
        self.held = HeldBack(reserve.positions if self.may_think else 0, reserve.thinking)
        """The part of the limits that the run leaves for an answer."""
        self.failure: BudgetError | CapacityError | None = None
        """Reason why the run could not begin."""
        self._n_steps_before = self._n_tokens_before = 0
        # of the first run or the thinking's, and as far as it fits together with Q
        self._asked = self._used = self.config
        self._used_by = 0  # the index of that run

    @property
    def tokens(self) -> list[int]:
        """All tokens so far, with those of the step under way."""
        return self.kept + self._unfinished

    @property
    def _n_tokens(self) -> int:
        return len(self.kept) + len(self._unfinished)

    @property
    def note(self) -> str:
        """Changes that the context made to a reply long enough for them; "" = none."""
        written, steps = "reply", self.steps
        if self.request.method.thinking:  # the answer has no chunks
            first, *later = [run.first for run in self.runs[self._used_by :]] or [0]
            written, steps = "thinking", steps[first : later[0] if later else None]
        n_tokens = sum(len(step.tokens) for step in steps)
        if n_tokens < min(self.config.chunk_len, self._used.chunk_len):
            return ""
        return difference(self._asked, self._used, written)

    def end_text(self) -> None:
        """Emits the text that was still buffered."""
        for piece in self.text.end():
            self.emit(piece)

    def begin_answer(self, kept: list[int], after: list[int], *, again: bool) -> None:
        """Makes the next run write the answer alone, after Q with tokens of the reply, and those
        that close the thinking, which the text gets unless the answer begins `again`."""
        self.context, self._answers_again = (kept, after), again
        for piece in self.text.begin_answer([] if again else after):
            self.emit(piece)
        self.emit(Progress(self.steps[-1].index if self.steps else 0, "answer due"))
        self.answers, self.awaits_thinking, self.failure = True, False, None
        self.held = HeldBack()  # nothing is held back for an answer any more

    def end(self) -> Finish:
        """Ends the reply and its last step; returns why they end."""
        self.end_text()
        assert self.due != "thinking" and self.due != "answer"
        for i, step in enumerate(self.steps):
            finish = self.due if step is self.steps[-1] else None
            if step.finish != finish:
                self.steps[i] = dataclasses.replace(step, finish=finish)
        self.limit = self._ending_option(self.due)
        return self.due

    def write(self, request: ReplyRequest, participant: Participant | None) -> bool:
        """Writes a run; returns whether it is the last to try: one that could not begin leaves a
        `failure`, and time may end one before it has said anything. Raises CapacityError for a run
        that had begun, which would end its text early."""
        n_steps, n_runs = len(self.steps), len(self.runs)
        self._n_steps_before, self._n_tokens_before = n_steps, len(self.kept)
        if not self.answers:
            self._asked, self._used_by = request.config, n_runs
        try:
            request = request.fitted(self.engine)
            if not self.answers:
                self._used = request.config
            run = Run(
                self.engine,
                request.of_run(self.engine),
                participant=participant,
                on_event=self._on_progress if self._follows else None,
                cancel=AnswerNow(self._cancel, self._answers_now),
                held_back=self.held,
            )
            self.runs.append(MethodRun(n_steps, request.query))
            verdict = self._take_steps(run, request.method.run(run))
        except (BudgetError, CapacityError) as error:
            if len(self.steps) == n_steps:
                del self.runs[n_runs:]
                self.failure = error
                return False
            if isinstance(error, CapacityError):
                raise
            # too little is left for a step, or the time is up between two
            verdict = self._verdict("budget", self.kept) or "budget"
        self.failure = None
        seconds = request.config.max_seconds
        late = self.answers and self.config.max_seconds and not seconds
        self.due = "budget" if late and verdict == "length" else verdict
        return not (self._answers_again and seconds and self.text.is_silent)

    def _take_steps(self, run: Run, steps: Iterator[Step]) -> Verdict:
        """Adds the steps of a run to the reply, up to the one at which it is to end."""
        with contextlib.closing(steps):  # type: ignore[type-var]
            for step in steps:
                if (verdict := self._added(step)) is not None:
                    if run.unclaimed.total:  # of text that is not wanted any more
                        counts = self.steps[-1].counts + run.unclaimed
                        self.steps[-1] = dataclasses.replace(self.steps[-1], counts=counts)
                    return verdict
        raise AssertionError("a method ended without saying why")

    def _added(self, step: Step) -> Verdict | None:
        """Adds a step to the reply; returns why the run ends with it, None where it goes on."""
        n, reserve = len(step.tokens), self.reserve
        if not self._follows:
            n, _ = self._feed(step.tokens.tolist())
        elif self._is_closed:
            n = len(self._unfinished)
        step, self._unfinished = step.beginning(n), []
        text = [*self.kept, *step.tokens.tolist()]
        verdict = self._verdict(step.finish, text)
        if verdict and len(text) >= reserve.limit and self.must_speak and self.text.is_silent:
            # the white space at the end of the limit makes room for an answer
            n = len(step.tokens)
            step = step.beginning(n - min(n, reserve.tokens))
        finish = None if verdict == "thinking" or verdict == "answer" else verdict
        step = dataclasses.replace(step, index=step.index + self._n_steps_before, finish=finish)
        self.steps.append(step)
        self.kept += step.tokens.tolist()
        # what an answer takes is kept for it, or nothing once there is one
        silent = not (self.answers or self.text.has_answer)
        kept = silent and (self.text.kind == "thinking" or self.held.positions)
        self.held.positions = reserve.positions if kept else 0
        self.emit(step)
        return verdict

    def _on_progress(self, progress: Progress) -> None:
        if self._n_steps_before:
            progress = dataclasses.replace(progress, chunk=progress.chunk + self._n_steps_before)
        pieces: list[TextDelta] = []
        if progress.stage == "tokens":
            if self._is_closed:  # decoded after the text had ended
                return
            tokens = list(progress.tokens)
            n, pieces = self._feed(tokens, progress.text)
            if n < len(tokens):
                text = self.engine.detokenize(tokens[:n], shown=self.request.shown)
                progress = dataclasses.replace(progress, tokens=progress.tokens[:n], text=text)
            self._unfinished += tokens[:n]
        self.emit(progress)
        for piece in pieces:
            self.emit(piece)
        answer = "".join(piece.text for piece in pieces if piece.kind == "answer")
        if self._until and answer and self._until(answer):
            self._is_over = True

    @property
    def _is_closed(self) -> bool:
        """Whether the reply keeps no further tokens of the run."""
        return self._is_over or (self.text.is_cut and not self.answers)

    def _feed(self, tokens: list[int], data: bytes | None = None) -> tuple[int, list[TextDelta]]:
        """The pieces of text that new tokens complete, and how many of the tokens the reply keeps:
        thinking without an answer is cut where the reserve begins, whatever came after it."""
        n_before = self._n_tokens
        n_free = len(tokens) + 1 if self.answers else self.reserve.thinking - n_before
        n, pieces = self.text.take(tokens, n_free, data)
        self._is_over = self._is_over or self.text.line_limit is not None
        if self.text.is_cut and not self.answers:
            n = min(n, max(0, self.reserve.limit - 1 - n_before))
        return n, pieces

    # --- the ends of a run, of the thinking and of the reply ---

    def _verdict(self, finish: Finish | None, text: list[int]) -> Verdict | None:
        """Whether the reply or its thinking ends after a step that ended so. `text` has the tokens
        of the reply with those of the step."""
        thinks = self.text.kind == "thinking"
        if self._is_over:
            return "length" if self.text.line_limit else "stop"
        if self.awaits_thinking and finish == "stop" and thinks:
            return finish if self.text.stopped else "thinking"
        n, new = self.config.loop_guard, text[self._n_tokens_before :]
        loops = finish != "stop" and n > 0
        loops = loops and is_loop(self.engine, new, n, thinks=thinks, text_before=self.text.text)
        if not self.answers:
            if thinks:
                self.closed_by = self._closing_option(finish, loops, len(text))
                if self.closed_by:
                    return "answer"
            elif finish == "stop" and self.thinks_apart:
                return "answer"
            elif finish == "budget" and (self.held.positions or self._why):
                return "answer"  # which goes on with what was kept
        return "loop" if loops else finish

    def _closing_option(self, finish: Finish | None, loops: bool, n_tokens: int) -> str | None:
        """Returns what ends the thinking after this step; None = it goes on, or ends the reply."""
        text, budget = self.text, self.config.thinking_budget
        if text.is_cut or (finish == "length" and not text.has_answer):
            if self._is_asked:  # before it was seen, the tokens of the thinking were written
                return "answer_now"
            spent = self.thinks_apart and 0 < budget <= n_tokens
            return "thinking_budget" if spent else self.reserve.option
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
        if self.answers or self.text.kind != "thinking":
            return False
        why = "answer_now" if self._is_asked else self._reached()
        self._why = self._why or why
        return why is not None

    @property
    def _is_asked(self) -> bool:
        """Whether the user asks for the answer now."""
        return self._cancel is not None and self._cancel.answers_now()

    def _reached(self) -> str | None:
        """The option whose limit the thinking has come to."""
        if self.text.is_cut:
            # what a chunk costs must not depend on when it was seen
            return None if self.config.max_forward_tokens else self.reserve.option
        late = self.text.only_thinks and self.reserve.is_late(
            self.config, self.seconds, self._n_tokens
        )
        return "max_seconds" if late else None

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - self._start

    @property
    def is_out_of_time(self) -> bool:
        return 0 < self.config.max_seconds <= self.seconds

    def _budget_option(self) -> str:
        """The option that ended a run whose budget is spent."""
        config = self.config
        if config.max_seconds and (not config.max_forward_tokens or self.is_out_of_time):
            return "max_seconds"
        return "max_forward_tokens" if config.max_forward_tokens else "answer_now"

    def _ending_option(self, finish: Finish) -> str | None:
        """The option that ended the reply; None = its text ended."""
        if self.text.line_limit or finish == "stop":
            return self.text.line_limit
        if finish == "loop":
            return "loop_guard"
        if finish == "budget":
            return self._budget_option()
        n_steps = len(self.steps) - self.runs[-1].first
        is_whole = len(self.kept) >= self.config.token_limit
        is_whole = is_whole or n_steps >= self.config.max_chunks
        return length_option(self.config) if is_whole else context_limit(self.engine)
