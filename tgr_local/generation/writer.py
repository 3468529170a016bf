"""A reply under way: the runs of a method that write it.

In: an engine, a `ReplyRequest`. Out: a `Draft`, with its text, tokens and steps, and their events.
One run writes most replies. A second one writes the answer where the thinking is ended from outside
(`ending.py`): by an option, by a limit, of which a part is kept for the answer
(`plan.Reserve`), by a loop or by the user. Where there is no answer still, since the model
ended its text or wrote nothing but white space, another run begins with a visible character.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.generation.draft import Draft
from tgr_local.generation.ending import AnswerNow, Ending, ReplyLimits, Verdict
from tgr_local.generation.plan import (
    NO_THINKING,
    ReplyRequest,
    answer_request,
    opening_request,
    settled,
    thinking_request,
    visible_grammar,
    with_method,
)
from tgr_local.generation.text import TextDelta, TextSplitter
from tgr_local.methods.think_tags import AFTER_THINK, CLOSING
from tgr_local.search.capacity import SPARE_CELLS, difference, longest_text
from tgr_local.search.run import Run
from tgr_local.search.steps import Finish, Progress, Step
from tgr_local.system.errors import BudgetError, CapacityError

Participants = tuple[Participant | None, Participant | None, Participant | None, Participant | None]
"""The places in lockstep groups of a reply's runs: the first one, that of a thinking which the
first one has opened, the answer's, and another one where there is no answer still."""
ALONE: Participants = (None, None, None, None)
RunVerdict = Finish | Literal["thinking", "answer"]
"""Reason why a reply ended with a run, or what is due after it."""
_BUDGETS = ("max_forward_tokens", "max_seconds")


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of the method within a reply."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens of its prompt."""


class ReplyWriter:
    """One reply. `write` it once; the attributes hold what there is, after a cancel too. `until` is
    called with each piece of the answer; True ends it."""

    def __init__(
        self,
        engine: Engine,
        request: ReplyRequest,
        *,
        until: Callable[[str], bool] | None = None,
        on_event: Callable[[TextDelta | Progress | Step], None] | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        request = settled(engine, request)
        self.engine, self.request, self.config = engine, request, request.config
        self._until, self._emit = until, on_event or (lambda event: None)
        self._limits = ReplyLimits(engine, request)
        follows = bool(on_event or self.config.max_seconds > 0 or until)
        self.draft = Draft(engine, request, self._limits.reserve, follows)
        self._cancel = AnswerNow(cancel, self.draft, self._limits)
        self._ending = Ending(engine, request, self.draft, self._limits, self._cancel)
        self.runs: list[MethodRun] = []
        self.closed: int | None = None
        self.limit: str | None = None
        self._context: tuple[list[int], list[int]] = ([], [])  # of the answer's run, after Q
        # of the first run or the thinking's, and as far as it fits together with Q
        self._asked = self._used = self.config
        self._used_by = 0  # the index of that run

    def write(self, participants: Participants = ALONE) -> Finish:
        """Writes the whole reply; returns why it ended."""
        first, opened, answer, again = participants
        verdict = self._begin(first)
        if first and not self.runs:
            first.leave()  # others wait for all of the group to begin
        verdict = self._think(opened) if verdict == "thinking" else verdict
        if opened:
            opened.leave()  # others may wait for this one there
        finish = self._answer(answer, self._unanswered) if verdict == "answer" else verdict
        self.end_text()
        if self._ending.must_speak and not self.draft.text.has_answer:
            if answer:
                answer.leave()
            finish = self._answer(again, finish, again=True)
            self.end_text()
        n_steps = len(self.draft.steps) - self.runs[-1].first
        self.limit = self._limits.option(finish, self.draft, n_steps)
        return finish

    @property
    def closed_by(self) -> str | None:
        """The cause that ended the thinking from outside."""
        return self._ending.closed_by

    @property
    def note(self) -> str:
        """Changes that the context made to a reply long enough for them; "" = none."""
        written, steps = "reply", self.draft.steps
        if self.request.method.thinking:  # the answer has no chunks
            first, *later = [run.first for run in self.runs[self._used_by :]] or [0]
            written, steps = "thinking", steps[first : later[0] if later else None]
        n_tokens = sum(len(step.tokens) for step in steps)
        if n_tokens < min(self.config.chunk_len, self._used.chunk_len):
            return ""
        return difference(self._asked, self._used, written)

    def end_text(self) -> None:
        """Emits the text that was still buffered."""
        for piece in self.draft.text.end():
            self._emit(piece)

    # --- runs ---

    def _begin(self, participant: Participant | None) -> RunVerdict:
        """The first run, which may write the whole reply."""
        ending, reserve, request = self._ending, self._limits.reserve, self.request
        if ending.may_think and reserve.thinking < 1:
            ending.closed_by = reserve.option
            return "answer"
        if ending.thinks_first:
            request = thinking_request(request)
        elif ending.awaits_thinking:
            request = opening_request(request)
        try:
            return self._write(request, participant)
        except BudgetError:
            if not ending.held.positions or self._limits.is_out_of_time:
                raise
            ending.closed_by = "max_forward_tokens"  # it pays for an answer alone
            return "answer"

    def _think(self, participant: Participant | None) -> Finish | Literal["answer"]:
        """The run after a tag with which the model has opened its thinking; where that comes after
        an answer has begun, the run goes on with both."""
        draft, ending = self.draft, self._ending
        request = answer_request(self.request, draft.steps, self._limits.seconds)
        if request is None:
            ending.closed_by = self._limits.reserve.option
            return "answer"
        request = dataclasses.replace(request, query=[*request.query, *draft.tokens])
        apart = not draft.text.has_answer
        ending.begin_thinking(apart=apart)
        if apart:
            request = thinking_request(with_method(request, self.request.method))
        try:
            verdict = self._write(request, participant)
            assert verdict != "thinking"
            return verdict
        except (BudgetError, CapacityError):
            if len(draft.steps) > draft.n_steps_before:
                raise
            ending.closed_by = self._limits.reserve.option
            return "answer"

    @property
    def _unanswered(self) -> Finish:
        """Returns the reason why a reply ends whose limits leave nothing for an answer: a budget,
        or the context."""
        n_spent = sum(step.counts.total for step in self.draft.steps)
        is_spent = 0 < self.config.max_forward_tokens <= n_spent
        if is_spent or self.closed_by in (*_BUDGETS, "answer_now"):
            return "budget"
        return "length"

    def _answer(
        self, participant: Participant | None, finish: Finish, *, again: bool = False
    ) -> Finish:
        """The run of the answer, `again` where there was one that wrote none. Returns why it ended,
        or `finish` where the limits leave nothing for it."""
        draft = self.draft
        self._context = kept, after = self._before_again() if again else self._before_answer()
        for piece in draft.text.begin_answer([] if again else after):
            self._emit(piece)
        self._emit(Progress(draft.steps[-1].index if draft.steps else 0, "answer due"))
        self._ending.begin_answer()
        failure: Exception | None = None
        spent = (again and finish == "budget") or self.closed_by in _BUDGETS
        for request in self._answer_runs(kept, after, again=again, spent=spent):
            try:
                written = self._write(request, participant)
                assert written != "answer" and written != "thinking"
                failure, seconds = None, request.config.max_seconds
                late = bool(self.config.max_seconds) and not seconds
                finish = "budget" if late and written == "length" else written
                if not (again and seconds and draft.text.is_silent):
                    break
                if draft.n_steps_before:
                    draft.end_step(draft.n_steps_before - 1, None)
                draft.begin_run()
            except (BudgetError, CapacityError) as error:
                # a run that had begun would end its text early
                if len(draft.steps) > draft.n_steps_before:
                    raise
                failure = error
            if participant:  # which has one session at most
                participant.leave()
                participant = None
        if 0 < draft.n_steps_before < len(draft.steps):
            draft.end_step(draft.n_steps_before - 1, None)
        if isinstance(failure, CapacityError):
            raise failure
        if not draft.steps:
            raise failure or BudgetError(
                f"max_forward_tokens is {self.config.max_forward_tokens}, but the query with an "
                f"answer takes at least {len(self.request.query) + len(after)}; raise it"
            )
        draft.end_step(-1, finish)
        return finish

    def _write(self, request: ReplyRequest, participant: Participant | None) -> RunVerdict:
        """One run. Returns why the reply ended, or what is due. Raises BudgetError for a run
        without a step, and CapacityError."""
        draft, method = self.draft, request.method
        n_steps = len(draft.steps)
        if not draft.answers:
            self._asked, self._used_by = request.config, len(self.runs)
        request = request.fitted(self.engine)
        if not draft.answers:
            self._used = request.config
        run = Run(
            self.engine,
            request.of_run(self.engine),
            participant=participant,
            on_event=self._on_progress if draft.follows else None,
            cancel=self._cancel,
            held_back=self._ending.held,
        )
        self.runs.append(MethodRun(n_steps, request.query))
        steps = method.run(run)
        with contextlib.closing(steps):  # type: ignore[type-var]
            try:
                for step in steps:
                    if (finish := self._added(step)) is not None:
                        if run.unclaimed.total:  # of text that is not wanted any more
                            draft.count_more(run.unclaimed)
                        return finish
            except (BudgetError, CapacityError) as error:
                if len(draft.steps) == n_steps:
                    self.runs.pop()
                elif isinstance(error, BudgetError):
                    # too little is left for a step, or the time is up between two
                    finish = self._ending.verdict("budget", draft.tokens) or "budget"
                    draft.end_step(-1, None if finish in ("thinking", "answer") else "budget")
                    return finish
                raise
        raise AssertionError(f"{method.name} ended without saying why")

    def _added(self, step: Step) -> Verdict:
        """Adds a step to the reply; returns whether the run goes on."""
        draft, reserve = self.draft, self._limits.reserve
        step = draft.taken(step)
        text = [*draft.tokens, *step.tokens.tolist()]
        verdict = self._ending.verdict(step.finish, text)
        is_full = len(text) >= reserve.limit
        if verdict and is_full and self._ending.must_speak and draft.text.is_silent:
            # the white space at the end of the limit makes room for an answer
            n = len(step.tokens)
            step = step.beginning(n - min(n, reserve.tokens))
        step = draft.add(step, None if verdict == "thinking" or verdict == "answer" else verdict)
        self._ending.hold_back()
        self._emit(step)
        return verdict

    def _on_progress(self, progress: Progress) -> None:
        draft = self.draft
        if draft.n_steps_before:
            progress = dataclasses.replace(progress, chunk=progress.chunk + draft.n_steps_before)
        if progress.stage != "tokens":
            self._emit(progress)
            return
        if (taken := draft.follow(progress)) is None:
            return
        progress, pieces = taken
        self._emit(progress)
        for piece in pieces:
            self._emit(piece)
        answer = "".join(piece.text for piece in pieces if piece.kind == "answer")
        if self._until and answer and self._until(answer):
            draft.is_over = True

    # --- the answer's run ---

    def _before_answer(self) -> tuple[list[int], list[int]]:
        """Returns the tokens after Q before an answer: tokens of the reply, and the end of the
        thinking."""
        kept = list(self.draft.tokens)
        if kept and kept[-1] in self.engine.end_tokens:
            kept.pop()
        if self.draft.text.kind == "thinking":
            self.closed = len(self.draft.tokens)
            return kept, self.engine.tokenize(CLOSING)
        if not kept and self.closed_by:
            self.closed = 0
            return [], self.engine.tokenize(NO_THINKING)
        return kept, self.engine.tokenize(AFTER_THINK if self._ending.thinks_first else "")

    def _before_again(self) -> tuple[list[int], list[int]]:
        """Returns the tokens after Q before another answer: those before the first one."""
        if self.draft.answers:
            return self._context
        request, tokens = self.request, self.draft.tokens
        text = TextSplitter(
            self.engine, request.query, continued=request.continued, shown=request.shown
        )
        end = 0
        for i, token in enumerate(tokens):
            thought = text.kind == "thinking"
            text.feed([token])
            end = i + 1 if thought or text.kind == "thinking" else end
        return tokens[:end], self.engine.tokenize(AFTER_THINK) if end else []

    def _answer_runs(
        self, kept: list[int], after: list[int], *, again: bool, spent: bool
    ) -> Iterator[ReplyRequest]:
        """The requests of the runs to try: that of the method itself, unless its budget is `spent`,
        with what a reset would retain of the thinking; then plain sampling with as much as the
        limits leave room for."""
        whole, steps = self.request, self.draft.steps
        seconds = self._limits.seconds
        if again and spent:
            seconds = max(seconds, self.config.max_seconds)
        if (request := answer_request(whole, steps, seconds)) is None:
            return
        if again:
            request = request.with_options(grammar=visible_grammar(self.config.stop))
        config, rest = request.config, len(whole.query) + len(after)
        cells = min(longest_text(self.engine), self.engine.most_cells() - SPARE_CELLS)
        cells -= rest
        if request.method.resets:
            kept = kept[-config.chunk_len :]
        elif whole.method.thinking:  # it may be longer than the context: the answer gets a half
            kept = kept[-max(cells - config.max_tokens, cells // 2, 1) :]
        query = [*whole.query, *kept, *after]
        request = dataclasses.replace(request, query=query)
        if not spent and self._fits(request):
            yield request
        room = cells
        if config.max_forward_tokens:
            room = min(room, config.max_forward_tokens + 1 - rest)
        n_kept = max(0, min(len(kept), room - min(config.max_tokens, self._limits.reserve.tokens)))
        if room > 0:
            query = [*whole.query, *kept[len(kept) - n_kept :], *after]
            plain = dataclasses.replace(request, query=query, method=methods.get("base"))
            yield plain.with_options(max_tokens=min(config.max_tokens, cells - n_kept))
            late = answer_request(whole, steps, self.config.max_seconds)
            if again and config.max_seconds and late:  # the time was up before the first token
                late = late.with_options(grammar=config.grammar)
                yield dataclasses.replace(plain, config=late.config)

    def _fits(self, request: ReplyRequest) -> bool:
        try:
            request.method.cells(self.engine, len(request.query), request.config)
        except CapacityError:
            return False
        return True
