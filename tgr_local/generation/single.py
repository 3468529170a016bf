"""One reply to a prompt, as a whole, as its events come, or the first that passes a check.

Where a function takes a config, None means the defaults with what the model file advises; a method
is a name or a `Method`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator

from tgr_local import methods
from tgr_local.engine import Cancel, Engine
from tgr_local.generation.many import write_each
from tgr_local.generation.prompt import Prompt, advised, request_of
from tgr_local.generation.reply import Check, Checked, Event, OnEvent, Reply
from tgr_local.generation.request import ReplyRequest
from tgr_local.generation.runs import write_reply
from tgr_local.generation.threads import streamed
from tgr_local.methods import Method
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig
from tgr_local.search.steps import Counts, OnProgress, Progress, Step
from tgr_local.system.errors import CancelledError


def generate(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    check: Check | None = None,
    k: int = 8,
    on_event: OnEvent | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    """Writes one reply. `on_event` is called with every `TextDelta`, `Progress` and `Step` as it
    comes.

    ``check(text)`` says whether an answer is right: True, or a score of 1 or more. Then up to k
    texts are written until one passes, the first alone, the next ones side by side; text i has the
    seed ``config.seed + i``. Where none passes, the reply is the text with the highest score, of
    equal ones the likeliest. `Reply.checked` says what the check said. `counts` and `seconds` are
    those of all texts, the others' positions as `discarded`; `on_event` gets the `Progress` of all
    and nothing else. An exception of `check` ends the work and is raised here.

    `verbatim` returns the text unchanged, with tags and outer space. Where the thinking has to end
    before the answer begins (`thinking_budget`, `loop_guard`, `grammar`, ``cancel.answer_now()``, a
    limit, of which a part is kept), a second run of the method writes the answer: its
    query is Q, the thinking (of which a method with resets retains the newest tokens) and the
    closing tag. A reply without an answer still, other than `verbatim`, gets one that begins with a
    visible character.

    Raises ValueError for bad arguments, CapacityError for a query that cannot fit, and
    CancelledError, with the reply so far, when `cancel` is set.
    """
    start = time.monotonic()
    method = methods.get(method)
    if cancel:  # the reply so far needs the tokens as they come
        on_event = on_event or (lambda event: None)
    request = request_of(
        engine, prompt, advised(engine, config), method, raw=raw, verbatim=verbatim,
        cancel=cancel,
    )  # fmt: skip
    if check is not None:
        return write_checked(engine, request, check, k, on_event=on_event, cancel=cancel)
    reply = write_reply(engine, request, on_event=on_event, cancel=cancel)
    return dataclasses.replace(reply, seconds=time.monotonic() - start)


def generate_steps(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    on_event: OnProgress | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """The steps of one reply, each as its chunk is done. Closing the iterator frees the cache.

    They are those of a single run: no limit of the thinking holds, and ``tgr-think`` is ``base``.
    """
    config, method = advised(engine, config), methods.get(method)
    request = request_of(engine, prompt, config, method, raw=raw, cancel=cancel).fitted(engine)
    return method.run(request.run(engine, on_event=on_event, cancel=cancel))


def stream(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    cancel: Cancel | None = None,
) -> Iterator[Event]:
    """Yields the events of one reply as they come, and last the `Reply` itself.

    Closing the iterator, or an exception in the code that reads it, cancels the work.
    """

    method = methods.loaded(method)

    def work(on_event: OnEvent, stop: Cancel) -> None:
        reply = generate(
            engine, prompt, config, method=method, raw=raw, verbatim=verbatim,
            on_event=on_event, cancel=stop,
        )  # fmt: skip
        on_event(reply)

    return streamed(work, cancel)


# ---- checked ----

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
