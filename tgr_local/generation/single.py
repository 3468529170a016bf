"""One reply to a prompt, as a whole or as its events come.

Where a function takes a config, None means the defaults with what the model file advises; a method
is a name or a `Method`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

from tgr_local import methods
from tgr_local.engine import Cancel, Engine
from tgr_local.generation.checked import write_checked
from tgr_local.generation.prompt import Prompt, advised, request_of
from tgr_local.generation.reply import Check, Event, OnEvent, Reply
from tgr_local.generation.runs import write_reply
from tgr_local.generation.threads import streamed
from tgr_local.methods import Method
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig
from tgr_local.search.steps import OnProgress, Step


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
