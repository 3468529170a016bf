"""Several replies at once, written in the same batches."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence

from tgr_local import methods
from tgr_local.engine import Cancel, Engine, LockstepGroup
from tgr_local.generation.prompt import Prompt, advised, request_of
from tgr_local.generation.reply import Event, Reply
from tgr_local.generation.request import ReplyRequest, settled
from tgr_local.generation.runs import ALONE, write_reply
from tgr_local.generation.threads import in_threads
from tgr_local.methods import Method
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig
from tgr_local.search import strength
from tgr_local.search.capacity import pending_measurement
from tgr_local.search.steps import Counts, Progress
from tgr_local.system.errors import CancelledError, CapacityError


def generate_many(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    k: int = 1,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    until: Callable[[int, str], bool] | None = None,
    on_event: Callable[[int, Event], None] | None = None,
    cancel: Cancel | None = None,
) -> list[Reply]:
    """Writes k replies in the same batches; reply i has the seed ``config.seed + i``.

    They advance in lockstep, so the same call to an engine that remembers nothing and has no other
    call, or to one that is `reproducible`, gives the same replies. `on_event` is called with the
    events of reply i as ``on_event(i, event)``, from several threads, and at last with the reply.
    ``until(i, text)`` is called there with each piece of its answer, and True ends the reply. A
    CancelledError has the replies so far, finished ones too, as `replies`.
    """
    return generate_each(
        engine, [prompt], config, k, method=method, raw=raw, verbatim=verbatim,
        until=until, on_event=on_event, cancel=cancel,
    )  # fmt: skip


def generate_each(
    engine: Engine,
    prompts: Sequence[Prompt],
    config: SearchConfig | None = None,
    k: int = 1,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    verbatim: bool = False,
    apart: bool = False,
    answer_tokens: int = 0,
    until: Callable[[int, str], bool] | None = None,
    on_event: Callable[[int, Event], None] | None = None,
    cancel: Cancel | None = None,
) -> list[Reply]:
    """Writes k replies to each of several prompts, all as `generate_many` does. Replies j·k to
    j·k + k - 1 are those to prompt j. Their seeds begin with ``config.seed`` for each prompt; with
    `apart`, reply i of all has the seed ``config.seed + i``. `answer_tokens` are reserved for the
    answer while a reply thinks, as in a `ReplyRequest`."""
    method = methods.get(method)
    config = advised(engine, config)
    requests = [
        request_of(engine, prompt, config, method, raw=raw, verbatim=verbatim, cancel=cancel)
        for prompt in prompts
    ]
    requests = [dataclasses.replace(request, answer_tokens=answer_tokens) for request in requests]
    return write_each(
        engine, requests, k, apart=apart, until=until, on_event=on_event, cancel=cancel
    )


def write_each(
    engine: Engine,
    requests: Sequence[ReplyRequest],
    k: int = 1,
    *,
    apart: bool = False,
    until: Callable[[int, str], bool] | None = None,
    on_event: Callable[[int, Event], None] | None = None,
    cancel: Cancel | None = None,
) -> list[Reply]:
    """Writes k replies to each of several requests, as `generate_each` does. The requests differ
    only in their queries."""
    if not isinstance(k, int):
        raise ValueError(f"k is {k!r:.80}, but must be a whole number")
    if k < 1:
        raise ValueError(f"k is {k}, but must be at least 1")
    if not requests:
        raise ValueError("prompts is empty, but must hold at least one")
    requests = [settled(engine, request) for request in requests]
    config = requests[0].config
    method = next(
        (request.method for request in requests if request.method.thinking), requests[0].method
    )
    n = len(requests) * k
    if cancel:  # the replies so far need the tokens as they come
        on_event = on_event or (lambda number, event: None)
    # of a group all would wait for the one that measures
    n_measured = _measure_strength(engine, config, method, on_event, cancel) if n > 1 else 0
    groups = _lockstep_groups(engine, requests, method, n)
    replies: dict[int, Reply] = {}

    def write(number: int, stop: Cancel) -> Reply:
        on_own = (lambda event: on_event(number, event)) if on_event else None
        seed = config.seed + (number if apart else number % k)
        try:
            with contextlib.ExitStack() as stack:
                own = [stack.enter_context(group.participant(number)) for group in groups]
                reply = write_reply(
                    engine,
                    requests[number // k].with_options(seed=seed),
                    until=functools.partial(until, number) if until else None,
                    participants=own or ALONE,
                    on_event=on_own,
                    cancel=stop,
                )
        except CancelledError as error:
            if error.reply:
                replies[number] = error.reply
            raise
        if n_measured and number == 0:
            reply = dataclasses.replace(reply, counts=reply.counts + Counts(calibration=n_measured))
        if on_own:
            on_own(reply)
        replies[number] = reply
        return reply

    try:
        return in_threads(n, write, cancel)
    except CancelledError as error:
        error.replies = [replies[number] for number in sorted(replies)]
        raise
    finally:
        for number in range(n):  # the group waits for a participant whose thread never started
            for group in groups:
                group.participant(number).leave()


def _measure_strength(
    engine: Engine,
    config: SearchConfig,
    method: Method,
    on_event: Callable[[int, Event], None] | None,
    cancel: Cancel | None,
) -> int:
    """Measures the strength of injections, if that is due and the budget allows it. Returns the
    number of decoded positions."""
    is_paid = not 0 < config.max_forward_tokens < strength.MEASUREMENT.positions
    if not is_paid or not pending_measurement(engine, config, method.of_thinking):
        return 0
    if on_event:
        on_event(0, Progress(0, "calibration"))
    measurement = strength.prepare(engine, config, cancel, config.max_seconds / 2)
    return measurement.n_positions if measurement else 0


def _lockstep_groups(
    engine: Engine, requests: Sequence[ReplyRequest], method: Method, n: int
) -> list[LockstepGroup]:
    """Makes a lockstep group of n replies for each run of a reply, and room for them in the cache;
    a single reply needs no group. Raises CapacityError."""
    n_seqs = method.sequences(engine, requests[0].config)
    if n_seqs > engine.n_seq_max:
        raise CapacityError(
            f"{method.name} needs {n_seqs} sequences at a time, but the engine holds "
            f"{engine.n_seq_max}; raise n_seq_max, or try fewer candidates or texts"
        )
    if n == 1:  # making a group would wait for the end of a step
        return []
    n_cells = [
        method.cells(engine, len(request.query), request.fitted(engine).config)
        for request in requests
    ]
    engine.grow_cache(max(n_cells), min(n, engine.n_seq_max // n_seqs))
    return [engine.lockstep_group(n) for _ in ALONE]
