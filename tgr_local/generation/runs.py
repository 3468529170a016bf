"""Writes a reply: the runs of a method, in their order, and what ends each of them.

In: an engine, a `ReplyRequest`. Out: events and a `Reply`. Most replies are the first run alone.
The answer gets a run of its own if the thinking is ended by an option, by the user, by a loop, or
by a limit, of which a part is reserved for the answer (`Reserve`). If there is still no answer,
because the model ended its text or wrote only white space, another run begins with a visible
character.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.generation.draft import Draft, Part
from tgr_local.generation.reply import OnEvent, Reply
from tgr_local.generation.request import NO_THINKING, ReplyRequest, thinking_request
from tgr_local.generation.text import TextSplitter
from tgr_local.search.capacity import text_in_cache
from tgr_local.search.run import HeldBack
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steps import Counts, Finish, Progress
from tgr_local.system.errors import BudgetError, CancelledError, CapacityError
from tgr_local.system.think_tags import AFTER_THINK, CLOSING, OPEN_THINK

Participants = Sequence[Participant | None]
"""The places in lockstep groups of a reply's runs, in their order."""
ALONE: Participants = (None,) * 4
_BUDGETS = ("max_forward_tokens", "max_seconds")
# of a character class
_INVISIBLE = r"\x00-\x20\x7F-\xA0\xAD\u1680\u2000-\u200F\u2028-\u202F\u205F-\u2064\u3000\uFEFF"


def write_reply(
    engine: Engine,
    request: ReplyRequest,
    *,
    until: Callable[[str], bool] | None = None,
    participants: Participants = ALONE,
    on_event: OnEvent | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """The reply to a request. `until` is called with each piece of the answer, and True ends it
    there. `participants` place its runs in lockstep groups."""
    if request.config.grammar:  # a reply may end before its grammar is used
        engine.check_grammar(request.config.grammar)
    draft = ReplyRuns(engine, request, until, on_event, cancel)
    try:
        return draft.reply(draft.write(participants), Counts())
    except CancelledError as error:
        draft.end_text()
        error.reply = draft.reply("cancelled", error.counts or Counts())
        raise


class ReplyRuns(Draft):
    """The runs that write a reply: the first, the thinking, the answer, and another answer."""

    # --- the runs: each yields requests until one of them could begin ---

    def write(self, participants: Participants) -> Finish:
        """Writes the whole reply, with a participant for each run; returns why it ended."""
        parts = (self._first(), self._thinking(), self._answer(), self._answer_again())
        try:
            for requests, participant in zip(parts, participants, strict=True):
                for request in requests:
                    if self._write(request, participant):
                        break
                    if participant:  # a participant has one session at most
                        participant.leave()
                        participant = None
                if participant:
                    participant.leave()  # others may wait for this one there
        finally:
            self._failure = None  # else it and the frames that it has keep each other
        self.end_text()
        due = self._due
        assert due != "thinking" and due != "answer"
        for i, step in enumerate(self._steps):
            finish = due if step is self._steps[-1] else None
            if step.finish != finish:
                self._steps[i] = dataclasses.replace(step, finish=finish)
        return due

    def _first(self) -> Iterator[ReplyRequest]:
        """The whole reply, its thinking alone, or the text before the tag that opens the
        thinking."""
        request = self._request
        if self._may_think and self._reserve.thinking < 1:
            self._closed_by = self._reserve.option
            return
        if self._part == "thinking":
            request = thinking_request(request)
        elif self._part == "before":
            request = request.by(request.method.answer)
            request = request.with_options(stop=(*request.config.stop, OPEN_THINK))
        yield request
        may_answer = self._held.positions and not self._is_late
        if self._failure and not (may_answer and isinstance(self._failure, BudgetError)):
            raise self._failure
        self._closed_by = "max_forward_tokens"  # it pays for an answer alone

    def _thinking(self) -> Iterator[ReplyRequest]:
        """The thinking, after the tag by which the model opened it. If an answer had begun before
        the tag, this run writes its rest too."""
        if self._due != "thinking":
            return
        self._due = "answer"
        if request := self._remaining(self._seconds):
            request = dataclasses.replace(request, query=[*request.query, *self._kept])
            self._held.tokens = max(1, self._held.tokens - len(self._kept))
            self._part = "all"
            if not self._text.has_answer:
                self._part = "thinking"
                request = thinking_request(request.by(self._request.method))
            yield request
        self._closed_by = self._reserve.option

    def _answer(self) -> Iterator[ReplyRequest]:
        """The answer, if neither the first run nor that of the thinking wrote it."""
        if self._due != "answer":
            return
        n_spent = sum(step.counts.total for step in self._steps)
        is_spent = 0 < self._config.max_forward_tokens <= n_spent
        is_spent = is_spent or self._closed_by in (*_BUDGETS, "answer_now")
        self._due = "budget" if is_spent else "length"
        kept, after = list(self._kept), AFTER_THINK if self._part == "thinking" else ""
        if kept and kept[-1] in self._engine.end_tokens:
            kept.pop()
        if self._text.kind == "thinking":
            self._closed, after = len(self._kept), CLOSING
        elif not kept and self._closed_by:
            self._closed, after = 0, NO_THINKING
        yield from self._answers("answer", kept, self._engine.tokenize(after))

    def _answer_again(self) -> Iterator[ReplyRequest]:
        """An answer after the thinking of the first run, if there is still none."""
        self.end_text()
        if not self._must_speak or self._text.has_answer:
            return
        if self._context is None:
            request, end = self._request, 0
            text = TextSplitter(
                self._engine, request.query, continued=request.continued, shown=request.shown
            )
            for i, token in enumerate(self._kept, 1):
                thought = text.kind == "thinking"
                text.feed([token])
                end = i if thought or text.kind == "thinking" else end
            self._context = self._kept[:end], self._engine.tokenize(AFTER_THINK) if end else []
        yield from self._answers("again", *self._context)

    def _answers(self, part: Part, kept: list[int], after: list[int]) -> Iterator[ReplyRequest]:
        """An answer after the tokens `kept`, and `after`, which end the thinking. The method itself
        writes it, with the part of `kept` that a reset would retain. If the budget is spent or the
        cells are too few, plain sampling writes it, with as much of `kept` as there is room for."""
        again, whole, option = part == "again", self._request, self._config
        self._part, self._context = part, (kept, after)
        for piece in self._text.begin_answer([] if again else after):
            self._emit(piece)
        self._emit(Progress(self._steps[-1].index if self._steps else 0, "answer due"))
        self._failure, self._held = None, HeldBack()  # nothing is held back for an answer any more
        spent = (again and self._due == "budget") or self._closed_by in _BUDGETS
        seconds = self._seconds
        if again and spent:
            seconds = max(seconds, option.max_seconds)
        if request := self._remaining(seconds):
            if again:
                request = request.with_options(grammar=visible_grammar(option.stop))
            config, rest = request.config, len(whole.query) + len(after)
            cells = text_in_cache(self._engine) - rest
            if request.method.resets:
                kept = kept[-config.chunk_len :]
            elif whole.method.thinking:  # longer than the context perhaps: half is the answer's
                kept = kept[-max(cells - config.max_tokens, cells // 2, 1) :]
            request = dataclasses.replace(request, query=[*whole.query, *kept, *after])
            if not spent and request.has_cells(self._engine):
                yield request
            room = cells
            if config.max_forward_tokens:
                room = min(room, config.max_forward_tokens + 1 - rest)
            least = min(config.max_tokens, self._reserve.tokens)
            kept = kept[len(kept) - max(0, min(len(kept), room - least)) :]
            if room > 0:
                query = [*whole.query, *kept, *after]
                plain = dataclasses.replace(request, query=query, method=methods.get("base"))
                yield plain.with_options(max_tokens=min(config.max_tokens, cells - len(kept)))
                late = self._remaining(option.max_seconds)
                if again and option.max_seconds and late:  # no time for a token
                    late = late.with_options(grammar=config.grammar)
                    yield dataclasses.replace(plain, config=late.config)
        if isinstance(self._failure, CapacityError):
            raise self._failure
        if not self._steps:
            raise self._failure or BudgetError(
                f"max_forward_tokens is {option.max_forward_tokens}, but the query with an answer "
                f"takes at least {len(whole.query) + len(after)}; raise it"
            )

    def _remaining(self, seconds: float) -> ReplyRequest | None:
        """The request of a further run, by the method of the answer, whose limits are what the
        steps and `seconds` so far have left; None if nothing is left. If only the time is up, one
        token is left."""
        request = self._request.by(self._request.method.answer)
        config = request.config
        n_tokens = config.token_limit - sum(len(step.tokens) for step in self._steps)
        positions = config.max_forward_tokens - sum(step.counts.total for step in self._steps)
        if n_tokens < 1 or (config.max_forward_tokens and positions < 1):
            return None
        late = 0 < config.max_seconds <= seconds
        return request.with_options(
            max_tokens=1 if late else n_tokens,
            max_forward_tokens=positions if config.max_forward_tokens else 0,
            max_seconds=config.max_seconds - seconds if config.max_seconds and not late else 0.0,
            seed=derived_seed(config.seed, len(self._steps)) >> 1,
        )


def visible_grammar(stop: Sequence[str]) -> str:
    """GBNF of a text whose first character is visible, begins no tag and none of the stop texts."""
    firsts = "".join(f"\\U{ord(text[0]):08X}" for text in stop)
    return f"root ::= [^{_INVISIBLE}<{firsts}] .*"
