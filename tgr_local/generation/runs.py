"""The runs of a method that write a reply, in their order.

In: an empty `Draft`. Out: the whole reply. Most replies are the first run alone. The answer gets a
run of its own where the thinking is ended from outside: by an option, by a limit, of which a part
is kept for the answer (`Reserve`), by a loop or by the user. Where there is no answer still, since
the model ended its text or wrote nothing but white space, another run begins with a visible
character.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tgr_local import methods
from tgr_local.engine import Participant
from tgr_local.generation.draft import Draft
from tgr_local.generation.request import NO_THINKING, ReplyRequest
from tgr_local.generation.text import TextSplitter
from tgr_local.search.capacity import text_in_cache
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steps import Finish, Step
from tgr_local.system.errors import BudgetError, CapacityError
from tgr_local.system.think_tags import AFTER_THINK, CLOSE_THINK, CLOSING, OPEN_THINK

Participants = tuple[Participant | None, Participant | None, Participant | None, Participant | None]
"""The places in lockstep groups of a reply's runs, in the order of `write`."""
ALONE: Participants = (None, None, None, None)
_BUDGETS = ("max_forward_tokens", "max_seconds")
# of a character class
_INVISIBLE = r"\x00-\x20\x7F-\xA0\xAD\u1680\u2000-\u200F\u2028-\u202F\u205F-\u2064\u3000\uFEFF"


def write(draft: Draft, participants: Participants = ALONE) -> Finish:
    """Writes the whole reply, with a participant for each run; returns why it ended."""
    runs = (_first(draft), _thinking(draft), _answer(draft), _answer_again(draft))
    try:
        for requests, participant in zip(runs, participants, strict=True):
            for request in requests:
                if draft.write(request, participant):
                    break
                if participant:  # which has one session at most
                    participant.leave()
                    participant = None
            if participant:
                participant.leave()  # others may wait for this one there
    finally:
        draft.failure = None  # else it and the frames that it has keep each other
    return draft.end()


# ---- the runs: each yields the requests to try, and goes on after them where none can begin ----


def _first(draft: Draft) -> Iterator[ReplyRequest]:
    """The whole reply, its thinking alone, or the text before a thinking that the model opens."""
    request = draft.request
    if draft.may_think and draft.reserve.thinking < 1:
        draft.closed_by = draft.reserve.option
        return
    if draft.thinks_apart:
        request = thinking_request(request)
    elif draft.awaits_thinking:
        request = request.by(request.method.answer)
        request = request.with_options(stop=(*request.config.stop, OPEN_THINK))
    yield request
    may_answer = draft.held.positions and not draft.is_out_of_time
    if draft.failure and not (may_answer and isinstance(draft.failure, BudgetError)):
        raise draft.failure
    draft.closed_by = "max_forward_tokens"  # it pays for an answer alone


def _thinking(draft: Draft) -> Iterator[ReplyRequest]:
    """The thinking, once the model has opened it by its tag. Where an answer had begun before the
    tag, this run writes the rest of that too."""
    if draft.due != "thinking":
        return
    draft.due = "answer"
    if request := remaining_request(draft.request, draft.steps, draft.seconds):
        request = dataclasses.replace(request, query=[*request.query, *draft.kept])
        draft.awaits_thinking, draft.thinks_apart = False, not draft.text.has_answer
        draft.held.tokens = max(1, draft.held.tokens - len(draft.kept))
        if draft.thinks_apart:
            request = thinking_request(request.by(draft.request.method))
        yield request
    draft.closed_by = draft.reserve.option


def _answer(draft: Draft) -> Iterator[ReplyRequest]:
    """The answer, where the first run or the thinking leaves it to another one."""
    if draft.due != "answer":
        return
    n_spent = sum(step.counts.total for step in draft.steps)
    is_spent = 0 < draft.config.max_forward_tokens <= n_spent
    is_spent = is_spent or draft.closed_by in (*_BUDGETS, "answer_now")
    draft.due = "budget" if is_spent else "length"
    yield from _answer_requests(draft, *_before_answer(draft), again=False)


def _answer_again(draft: Draft) -> Iterator[ReplyRequest]:
    """Another answer, where there is none still."""
    draft.end_text()
    if draft.must_speak and not draft.text.has_answer:
        kept, after = draft.context or _before_answer_again(draft)
        yield from _answer_requests(draft, kept, after, again=True)


def _before_answer(draft: Draft) -> tuple[list[int], list[int]]:
    """Returns the tokens after Q before an answer: tokens of the reply, and the end of the
    thinking."""
    kept = list(draft.kept)
    if kept and kept[-1] in draft.engine.end_tokens:
        kept.pop()
    if draft.text.kind == "thinking":
        draft.closed = len(draft.kept)
        return kept, draft.engine.tokenize(CLOSING)
    if not kept and draft.closed_by:
        draft.closed = 0
        return [], draft.engine.tokenize(NO_THINKING)
    return kept, draft.engine.tokenize(AFTER_THINK if draft.thinks_apart else "")


def _before_answer_again(draft: Draft) -> tuple[list[int], list[int]]:
    """Returns the tokens after Q before another answer: the thinking of the first run."""
    request, tokens, end = draft.request, draft.kept, 0
    text = TextSplitter(
        draft.engine, request.query, continued=request.continued, shown=request.shown
    )
    for i, token in enumerate(tokens, 1):
        thought = text.kind == "thinking"
        text.feed([token])
        end = i if thought or text.kind == "thinking" else end
    return tokens[:end], draft.engine.tokenize(AFTER_THINK) if end else []


def _answer_requests(
    draft: Draft, kept: list[int], after: list[int], *, again: bool
) -> Iterator[ReplyRequest]:
    """An answer after these tokens by the method itself, unless the budget is spent, with what a
    reset would retain of the thinking; then by plain sampling with as much as there is room for."""
    draft.begin_answer(kept, after, again=again)
    whole, option = draft.request, draft.config
    spent = (again and draft.due == "budget") or draft.closed_by in _BUDGETS
    seconds = draft.seconds
    if again and spent:
        seconds = max(seconds, option.max_seconds)
    if request := remaining_request(whole, draft.steps, seconds):
        if again:
            request = request.with_options(grammar=visible_grammar(option.stop))
        config, rest = request.config, len(whole.query) + len(after)
        cells = text_in_cache(draft.engine) - rest
        if request.method.resets:
            kept = kept[-config.chunk_len :]
        elif whole.method.thinking:  # longer than the context perhaps: half is the answer's
            kept = kept[-max(cells - config.max_tokens, cells // 2, 1) :]
        request = dataclasses.replace(request, query=[*whole.query, *kept, *after])
        if not spent and request.has_cells(draft.engine):
            yield request
        room = cells
        if config.max_forward_tokens:
            room = min(room, config.max_forward_tokens + 1 - rest)
        least = min(config.max_tokens, draft.reserve.tokens)
        kept = kept[len(kept) - max(0, min(len(kept), room - least)) :]
        if room > 0:
            query = [*whole.query, *kept, *after]
            plain = dataclasses.replace(request, query=query, method=methods.get("base"))
            yield plain.with_options(max_tokens=min(config.max_tokens, cells - len(kept)))
            late = remaining_request(whole, draft.steps, option.max_seconds)
            if again and option.max_seconds and late:  # no time for a token
                late = late.with_options(grammar=config.grammar)
                yield dataclasses.replace(plain, config=late.config)
    if isinstance(draft.failure, CapacityError):
        raise draft.failure
    if not draft.steps:
        raise draft.failure or BudgetError(
            f"max_forward_tokens is {option.max_forward_tokens}, but the query with an answer "
            f"takes at least {len(whole.query) + len(after)}; raise it"
        )


def thinking_request(request: ReplyRequest) -> ReplyRequest:
    """The request of a run that ends with the thinking."""
    request = request.by(request.method.thinking)
    config = request.config
    limit = config.token_limit
    return request.with_options(
        grammar="",
        stop=(*config.stop, CLOSE_THINK),
        max_tokens=min(config.thinking_budget or limit, limit),
    )


def remaining_request(
    request: ReplyRequest, steps: Sequence[Step], seconds: float
) -> ReplyRequest | None:
    """The request of a further run, by the method of the answer, with what the `steps` and
    `seconds` so far leave of the limits; None when that is nothing. Time that is up leaves one
    token."""
    request = request.by(request.method.answer)
    config = request.config
    n_tokens = config.token_limit - sum(len(step.tokens) for step in steps)
    positions = config.max_forward_tokens - sum(step.counts.total for step in steps)
    if n_tokens < 1 or (config.max_forward_tokens and positions < 1):
        return None
    late = 0 < config.max_seconds <= seconds
    return request.with_options(
        max_tokens=1 if late else n_tokens,
        max_forward_tokens=positions if config.max_forward_tokens else 0,
        max_seconds=config.max_seconds - seconds if config.max_seconds and not late else 0.0,
        seed=derived_seed(config.seed, len(steps)) >> 1,
    )


def visible_grammar(stop: Sequence[str]) -> str:
    """GBNF of a text whose first character is visible, begins no tag and none of the stop texts."""
    firsts = "".join(f"\\U{ord(text[0]):08X}" for text in stop)
    return f"root ::= [^{_INVISIBLE}<{firsts}] .*"
