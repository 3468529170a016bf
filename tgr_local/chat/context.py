"""The end of the context: how many of the oldest turns leave it, and a summary in their place.

Nothing is cut unasked: the user drops turns, or has the model write a summary of them.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

from tgr_local import generation
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.generation import Reply, text_in_cache
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import CapacityError, TgrError

if TYPE_CHECKING:
    from tgr_local.console.live import Events

SUMMARY_QUESTION = "Summarise our conversation so far."
SUMMARY_REQUEST = (
    "Summarise our conversation so far in at most 150 words: the facts, names, numbers and "
    "decisions that matter later, and what is still open. Write only the summary."
)
_SUMMARY_TOKENS = 512  # at most
LEAST_SUMMARY = 32  # tokens for which a summary is worth writing
TURN_TOKENS = 16  # of the chat template around a question and its answer, about


def n_to_drop(conversation: Conversation) -> int:
    """Returns the number of oldest turns to drop so that the reply to the last question fits; what
    stays takes at most half of the space, so that there is room for more turns. 0 if the reply fits
    as it is, or even without any turn before the question."""
    earlier = conversation.turns[:-1]
    most = _longest_query(conversation)
    if not earlier or _fits(conversation, earlier, most) or not _fits(conversation, [], most):
        return 0
    fixed = _n_tokens(conversation, [])
    sizes = [_size(conversation, turn) for turn in earlier]
    n = 1
    while n < len(earlier) and sum(sizes[n:]) > (most - fixed) // 2:
        n += 1
    while n < len(earlier) and not _fits(conversation, earlier[n:], most):
        n += 1
    return n


def n_at_once(conversation: Conversation, n: int, least: int = 1) -> int:
    """Returns the number of the oldest `n` turns that a single summary can read: as many as leave
    room for it.

    Raises CapacityError for fewer than `least`.
    """
    for number in range(n, least - 1, -1):
        query = _summary_query(conversation, number)
        if text_in_cache(conversation.engine) - len(query) >= LEAST_SUMMARY:
            return number
    turn = f"the {least} oldest turns" if least > 1 else "the oldest turn"
    raise CapacityError(
        f"{turn} and the request for a summary have {len(query)} tokens, which leaves no room for "
        f"a summary in the context of {text_in_cache(conversation.engine)}; remove turns with /drop"
    )


def check_summary(conversation: Conversation, n: int) -> None:
    """Raises CapacityError where the oldest `n` turns cannot be summarised, not even in parts."""
    if n_at_once(conversation, n) == n:
        return
    for number, turn in enumerate(conversation.turns[:n], 1):
        if _room_beside(conversation, turn) < LEAST_SUMMARY:
            raise CapacityError(
                f"turn {number} is too long to be read with a summary of the turns before it in "
                f"the context of {text_in_cache(conversation.engine)}; remove turns with /drop"
            )


def _room_beside(conversation: Conversation, turn: Turn) -> int:
    """Tokens of a summary at most that is read together with a turn, for another summary."""
    turns = [Turn(SUMMARY_QUESTION, "."), turn]
    config = _summary_config(conversation)
    prompt = conversation.prompt(turns, SUMMARY_REQUEST)
    query = generation.query_tokens(conversation.engine, prompt, config)
    return text_in_cache(conversation.engine) - len(query) - LEAST_SUMMARY


def summarise(conversation: Conversation, n: int, *, goes_on: bool = False) -> Events:
    """The events of a reply that summarises the oldest `n` turns, at most `n_at_once`, written by
    plain sampling without thinking. At its end it takes the place of these turns. Where it
    `goes_on`, it leaves room to be read with the turn after them.

    Raises TgrError if it is empty; then, and when the iterator is closed before the end, the turns
    stay.
    """
    query = _summary_query(conversation, n)
    # what follows the summary needs room too
    fixed = _n_tokens(conversation, [])
    most = (text_in_cache(conversation.engine) - fixed) // 2 - TURN_TOKENS
    n_tokens = min(
        text_in_cache(conversation.engine) - len(query), max(most, LEAST_SUMMARY), _SUMMARY_TOKENS
    )
    if goes_on:
        n_tokens = min(n_tokens, _room_beside(conversation, conversation.turns[n]))
    config = dataclasses.replace(_summary_config(conversation), max_tokens=n_tokens)
    for event in generation.stream(conversation.engine, query, config, method="base"):
        if isinstance(event, Reply):
            conversation.replies.append(event)
            if not event.text:
                raise TgrError("the summary is empty; nothing was changed")
            later = conversation.turns[n:]
            conversation.turns = [Turn(SUMMARY_QUESTION, event.text, event.thinking), *later]
        yield event


def _summary_query(conversation: Conversation, n: int) -> list[int]:
    """The tokens of the request to summarise the oldest `n` turns."""
    prompt = conversation.prompt(conversation.turns[:n], SUMMARY_REQUEST)
    return generation.query_tokens(conversation.engine, prompt, _summary_config(conversation))


def _summary_config(conversation: Conversation) -> SearchConfig:
    return dataclasses.replace(
        conversation.config,
        thinking=False, thinking_budget=0, grammar="", max_forward_tokens=0, max_seconds=0.0,
    )  # fmt: skip


def is_full(conversation: Conversation) -> bool:
    """Whether the last reply was cut because the context was full."""
    return bool(conversation.replies) and conversation.replies[-1].filled_context


# ---- sizes ----


def _fits(conversation: Conversation, earlier: list[Turn], most: int) -> bool:
    try:
        return _n_tokens(conversation, earlier) <= most
    except CapacityError:
        return False


def _n_tokens(conversation: Conversation, earlier: list[Turn]) -> int:
    prompt = conversation.prompt(earlier, conversation.last.question)
    return len(generation.query_tokens(conversation.engine, prompt, conversation.config))


def _longest_query(conversation: Conversation) -> int:
    """Tokens of the longest query whose reply fits; 0 if there is none."""
    engine, method, config = conversation.engine, conversation.method, conversation.config
    cells = engine.most_cells()

    def is_too_long(n_query: int) -> bool:
        try:
            fitted = method.fitted(engine, n_query, config)
            return method.cells(engine, n_query, fitted) > cells
        except CapacityError:
            return True

    return bisect.bisect_left(range(1, text_in_cache(engine) + 1), True, key=is_too_long)


def _size(conversation: Conversation, turn: Turn) -> int:
    texts = (turn.question, turn.answer)
    return TURN_TOKENS + sum(len(conversation.engine.tokenize(text)) for text in texts)
