"""Asyncio: replies and responses to await, events and chunks to iterate over.

Every call works in a thread of its own, so any number of them may run in one event loop while the
engine decodes them together. Cancelling the task, or leaving an iterator, cancels the work and
waits until it has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from tgr_local import generation
from tgr_local.apis import completions
from tgr_local.apis.events import JsonObject
from tgr_local.apis.requests import PreparedRequest
from tgr_local.apis.writing import OnReplyEvent
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Event, Method, Prompt, Reply, loaded_method
from tgr_local.options.config import DEFAULT_METHOD, SearchConfig

_Item = TypeVar("_Item")
_Work = Callable[[Callable[[_Item], None], Cancel], None]


async def generate(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    cancel: Cancel | None = None,
) -> Reply:
    """One reply; see `tgr_local.generate`."""
    method = loaded_method(method)
    return await _result(
        lambda stop: generation.generate(
            engine, prompt, config, method=method, raw=raw, cancel=stop
        ),
        cancel,
    )


def stream(
    engine: Engine,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    method: str | Method = DEFAULT_METHOD,
    raw: bool = False,
    cancel: Cancel | None = None,
) -> AsyncGenerator[Event, None]:
    """The events of one reply as they come, and last the reply; see `tgr_local.stream`."""
    method = loaded_method(method)

    def work(on_event: Callable[[Event], None], stop: Cancel) -> None:
        on_event(
            generation.generate(
                engine, prompt, config, method=method, raw=raw, on_event=on_event, cancel=stop
            )
        )

    return _streamed(work, cancel)


async def respond(
    engine: Engine,
    request: PreparedRequest,
    *,
    cancel: Cancel | None = None,
    on_event: OnReplyEvent | None = None,
) -> JsonObject:
    """A whole response; see `tgr_local.apis.completions.respond`. `on_event` is called
    from another thread than the event loop's."""
    return await _result(
        lambda stop: completions.respond(engine, request, cancel=stop, on_event=on_event), cancel
    )


def chunks(
    engine: Engine, request: PreparedRequest, *, cancel: Cancel | None = None
) -> AsyncGenerator[JsonObject, None]:
    """A response as a stream of chunks; see `tgr_local.apis.completions.chunks`."""

    def work(on_event: Callable[[JsonObject], None], stop: Cancel) -> None:
        for chunk in completions.chunks(engine, request, cancel=stop):
            on_event(chunk)

    return _streamed(work, cancel)


@dataclass(frozen=True)
class _StreamEnd:
    error: BaseException | None


async def _streamed(work: _Work[_Item], cancel: Cancel | None) -> AsyncGenerator[_Item, None]:
    """The events of `work`, which runs in a thread of its own, as they come."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[_Item | _StreamEnd] = asyncio.Queue()
    stop = Cancel(cancel)

    def put(event: _Item | _StreamEnd) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(events.put_nowait, event)

    def run() -> None:
        try:
            work(put, stop)
            put(_StreamEnd(None))
        except BaseException as error:
            put(_StreamEnd(error))

    threading.Thread(target=run, daemon=True).start()
    event: _Item | _StreamEnd | None = None
    try:
        while not isinstance(event := await events.get(), _StreamEnd):
            yield event
        if event.error:
            raise event.error
    finally:
        stop.cancel()
        while not isinstance(event, _StreamEnd):
            event = await events.get()
        event = None  # else an error and its frame keep each other, and the engine


async def _result(work: Callable[[Cancel], _Item], cancel: Cancel | None) -> _Item:
    def one_event(on_event: Callable[[_Item], None], stop: Cancel) -> None:
        on_event(work(stop))

    async with aclosing(_streamed(one_event, cancel)) as results:
        return await anext(results)
