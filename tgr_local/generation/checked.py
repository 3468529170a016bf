"""Texts until one passes a check."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Generator

from tgr_local.engine import Cancel, Engine
from tgr_local.generation.many import write_each
from tgr_local.generation.reply import Check, Checked, Event, OnEvent, Reply
from tgr_local.generation.request import ReplyRequest
from tgr_local.generation.threads import streamed
from tgr_local.search.steps import Counts, Progress
from tgr_local.system.errors import CancelledError

_GROWTH = 4  # texts after a round, in those before


def write_checked(
    engine: Engine,
    request: ReplyRequest,
    check: Check,
    k: int,
    *,
    on_event: OnEvent | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """The first of up to k replies whose text passes `check`, else the one with the highest score,
    of equal ones the likeliest. Reply i has the seed ``config.seed + i``. Its counts and seconds
    are those of all, the others' positions as `discarded`. `on_event` gets the `Progress` of all.
    An exception of `check` ends the work. A CancelledError has the best reply so far."""
    if not callable(check):
        raise ValueError(f"check is {check!r:.80}, but must be a function of the answer's text")
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r:.80}, but must be a whole number of at least 1")
    config = request.config
    if not (config.temperature or config.dynatemp_range or request.method.of_thinking.steers):
        k = 1  # all texts would be the same
    start = time.monotonic()
    scores: dict[str, float] = {}
    graded: list[tuple[float, Reply]] = []
    written: list[Reply] = []
    """All of them; some were cut short by another one."""

    def best() -> Reply:
        score, reply = max(graded, key=lambda pair: (pair[0], _likelihood(pair[1])))
        others = sum(other.counts.total for other in written if other is not reply)
        return dataclasses.replace(
            reply,
            counts=reply.counts + Counts(discarded=others),
            seconds=time.monotonic() - start,
            checked=Checked(score >= 1, score, len(graded)),
        )

    try:
        while len(graded) < k and not (graded and graded[-1][0] >= 1):
            n = min(k, max(1, _GROWTH * len(graded))) - len(graded)
            replies = _round(engine, request, len(graded), n, written, on_event, cancel)
            with contextlib.closing(replies):
                for reply in replies:
                    if reply.text not in scores:
                        scores[reply.text] = _score(check(reply.text))
                    graded.append((scores[reply.text], reply))
                    if graded[-1][0] >= 1:
                        break
    except CancelledError as error:
        if graded:
            error.reply = best()
        raise
    return best()


def _round(
    engine: Engine,
    request: ReplyRequest,
    first: int,
    n: int,
    written: list[Reply],
    on_event: OnEvent | None,
    cancel: Cancel | None,
) -> Generator[Reply, None, None]:
    """Yields replies `first` to `first` + n - 1 as they end, and adds all to `written`. Closing it
    ends those that are still being written."""
    request = request.with_options(seed=request.config.seed + first)

    def work(put: Callable[[Event], None], stop: Cancel) -> None:
        try:
            replies = write_each(
                engine, [request], n, on_event=lambda _, event: put(event), cancel=stop
            )
        except CancelledError as error:
            written.extend(error.replies)
            raise
        written.extend(replies)

    with contextlib.closing(streamed(work, cancel)) as events:
        for event in events:
            if isinstance(event, Reply):
                yield event
            elif on_event and isinstance(event, Progress):
                on_event(event)


def _score(value: object) -> float:
    with contextlib.suppress(TypeError, ValueError):
        score = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
        if not math.isnan(score):
            return score
    raise ValueError(f"check returned {value!r:.80}, but must return a bool or a number")


def _likelihood(reply: Reply) -> float:
    """Mean log-probability of the tokens, nats."""
    logprobs = [float(logprob) for step in reply.steps for logprob in step.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf
