"""Reasons why a run of a reply ends, and the reply: the text itself, a limit, a loop, or "answer
now".

In: steps, and the `Draft` with their text. Out: verdicts, and the option that a reply names.
"""

from __future__ import annotations

import time
from typing import Literal

from tgr_local.engine import Cancel, Engine
from tgr_local.generation.draft import Draft
from tgr_local.generation.loops import is_loop
from tgr_local.generation.plan import (
    ReplyRequest,
    Reserve,
    length_option,
    may_open_thinking,
    opens_thinking,
)
from tgr_local.search.capacity import context_limit
from tgr_local.search.run import HeldBack
from tgr_local.search.steps import Finish

Verdict = Finish | Literal["thinking", "answer"] | None
"""Reason why the reply ends, or that its thinking begins in a run of its own, or that its thinking
ends and an answer is due; None = the run goes on."""


class ReplyLimits:
    """The limits of one reply, whose time begins here."""

    def __init__(self, engine: Engine, request: ReplyRequest) -> None:
        self._start = time.monotonic()
        self._engine, self._config = engine, request.config
        self.reserve = Reserve.of(engine, request)

    @property
    def seconds(self) -> float:
        """Wall time so far, in seconds."""
        return time.monotonic() - self._start

    @property
    def is_out_of_time(self) -> bool:
        return 0 < self._config.max_seconds <= self.seconds

    def reached(self, draft: Draft) -> str | None:
        """The option whose limit the thinking has come to."""
        if draft.is_cut:
            # what a chunk costs must not depend on when it was seen
            return None if self._config.max_forward_tokens else self.reserve.option
        late = draft.thinks and self.reserve.is_late(self._config, self.seconds, draft.n_tokens)
        return "max_seconds" if late else None

    def budget_option(self) -> str:
        """The option that ended a run whose budget is spent."""
        config = self._config
        if config.max_seconds and (not config.max_forward_tokens or self.is_out_of_time):
            return "max_seconds"
        return "max_forward_tokens" if config.max_forward_tokens else "answer_now"

    def option(self, finish: Finish, draft: Draft, n_steps: int) -> str | None:
        """The option that ended the reply, whose last run has n steps; None = its text ended."""
        if draft.line_limit or finish == "stop":
            return draft.line_limit
        if finish == "loop":
            return "loop_guard"
        if finish == "budget":
            return self.budget_option()
        is_whole = len(draft.tokens) >= self._config.token_limit
        is_whole = is_whole or n_steps >= self._config.max_chunks
        return length_option(self._config) if is_whole else context_limit(self._engine)


class AnswerNow(Cancel):
    """Passes a cancel on, and "answer now" only while there is thinking to end: at the next token
    where the text is read as it comes, else at the end of a step. A limit that the thinking has
    come to ends it in the same way, and so does a text that is over."""

    def __init__(self, outer: Cancel | None, draft: Draft, limits: ReplyLimits) -> None:
        super().__init__(outer)
        self.why: str | None = None
        """The cause of the request for the answer, once it was seen: "answer_now" or an option."""
        self._draft, self._limits = draft, limits

    def answers_now(self) -> bool:
        return self._draft.is_over or (self._draft.follows and self.is_due())

    @property
    def is_asked(self) -> bool:
        """Whether the user asks for the answer now."""
        return super().answers_now()

    def is_due(self) -> bool:
        """Whether the text so far is thinking that is to be ended."""
        if self._draft.answers or self._draft.text.kind != "thinking":
            return False
        why = "answer_now" if self.is_asked else self._limits.reached(self._draft)
        self.why = self.why or why
        return why is not None


class Ending:
    """Decides after each step whether the run goes on."""

    def __init__(
        self,
        engine: Engine,
        request: ReplyRequest,
        draft: Draft,
        limits: ReplyLimits,
        cancel: AnswerNow,
    ) -> None:
        self._engine, self._config = engine, request.config
        self._draft, self._limits, self._cancel = draft, limits, cancel
        opened, ruled = opens_thinking(engine, request), request.config.grammar
        other = request.method.thinking is not None
        self.thinks_first = opened and bool(request.config.thinking_budget or ruled or other)
        """Whether the thinking is a run of its own: a rule or a method holds for the answer
        alone."""
        self.may_think = opened or may_open_thinking(engine, request)
        self.awaits_thinking = other and not opened and self.may_think
        """Whether the run under way ends where the model opens its thinking."""
        # an answer may be empty where the whole text is asked for, or a grammar allows it
        self.must_speak = not (request.verbatim or request.continued == "answer" or ruled)
        """Whether a reply without an answer gets one."""
        reserve = limits.reserve
        self.held = HeldBack(reserve.positions if self.may_think else 0, reserve.thinking)
        """The part of the limits that the run under way leaves for an answer."""
        self.closed_by: str | None = None
        """The option that ended the thinking, "loop_guard", "answer_now", or how the text did."""

    def begin_answer(self) -> None:
        """The next run writes the answer: nothing is held back for it any more."""
        self.held, self._draft.answers = HeldBack(), True
        self.awaits_thinking = False
        self._draft.begin_run()

    def begin_thinking(self, *, apart: bool) -> None:
        """The next run goes on after the tag that the model has opened its thinking with; `apart`,
        it writes the thinking alone."""
        self.awaits_thinking, self.thinks_first = False, apart
        self.held.tokens = max(1, self.held.tokens - self._draft.n_tokens)
        self._draft.begin_run()

    def verdict(self, finish: Finish | None, text: list[int]) -> Verdict:
        """Whether the reply or its thinking ends after a step that ended so. `text` has the tokens
        of the reply with those of the step."""
        draft = self._draft
        if draft.is_over:
            return "length" if draft.line_limit else "stop"
        if self.awaits_thinking and finish == "stop" and draft.text.kind == "thinking":
            return finish if draft.text.stopped else "thinking"
        loops = finish != "stop" and self._is_loop(text)
        if not draft.answers:
            if draft.text.kind == "thinking":
                self.closed_by = self._closing_option(finish, loops, len(text))
                if self.closed_by:
                    return "answer"
            elif finish == "stop" and self.thinks_first:
                return "answer"
            elif finish == "budget" and (self.held.positions or self._cancel.why):
                return "answer"  # which goes on with what was kept
        return "loop" if loops else finish

    def _is_loop(self, text: list[int]) -> bool:
        draft, n = self._draft, self._config.loop_guard
        thinks = draft.text.kind == "thinking"
        text = text[draft.n_tokens_before :]
        return n > 0 and is_loop(self._engine, text, n, thinks=thinks, before=draft.text.text)

    def hold_back(self) -> None:
        """Keeps for an answer what it takes, or nothing once there is one."""
        draft, held = self._draft, self.held
        silent = not (draft.answers or draft.text.has_answer)
        kept = silent and (draft.text.kind == "thinking" or held.positions)
        held.positions = self._limits.reserve.positions if kept else 0

    def _closing_option(self, finish: Finish | None, loops: bool, n_tokens: int) -> str | None:
        """Returns what ends the thinking after this step; None = it goes on, or ends the reply."""
        text, budget = self._draft.text, self._config.thinking_budget
        if self._draft.is_cut or (finish == "length" and not text.has_answer):
            if self._cancel.is_asked:  # before it was seen, the tokens of the thinking were written
                return "answer_now"
            spent = self.thinks_first and 0 < budget <= n_tokens
            return "thinking_budget" if spent else self._limits.reserve.option
        if loops:
            return "loop_guard"
        if finish == "budget" and self._cancel.why:
            return self._cancel.why
        if finish is None:
            due = not self._draft.follows and self._cancel.is_due()
            return self._cancel.why if due else None
        if text.has_answer:
            return None
        if finish == "budget":
            return self._limits.budget_option()
        return "stop" if text.stopped else "end_token"
