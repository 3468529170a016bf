"""The process of an agent: its streams, its requests and their errors, its signals, its end.

stdout carries the protocol alone: the two streams are taken away from everything else, so that what
any part of the process prints goes to stderr, and no program that it starts reads the client's
messages. The process ends with the client's stream, also in the middle of a prompt.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO

from acp import RequestError
from acp.agent.router import build_agent_router
from acp.connection import Connection
from pydantic import ValidationError

from tgr_local.code.acp.agent import Agent, AgentSettings
from tgr_local.code.acp.wire import Wire
from tgr_local.system.errors import describe
from tgr_local.system.sanitize import printable_line

_BAD, _FAILED, _UNKNOWN = -32602, -32603, -32601
_LAST_SECONDS = 2.0  # for the answers to prompts that were stopped


def run(settings: AgentSettings) -> int:
    """Serves the client on stdin and stdout until one of them ends; returns the exit code."""
    if sys.stdin.isatty():
        print("tgr-local: an editor starts this command: docs/code.md", file=sys.stderr)
    asyncio.run(_run(settings, *_streams()))
    return 0


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """stdin and stdout for the protocol alone; instead of them stdin is empty, stdout is stderr."""
    sys.stdout.flush()
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return source, sink


async def _run(settings: AgentSettings, source: BinaryIO, sink: BinaryIO) -> None:
    wire = Wire(source, sink)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _end, wire, number)
    await serve(settings, wire)


async def serve(settings: AgentSettings, wire: Wire) -> None:
    """Serves the client at the other end until the wire ends."""
    agent = Agent(settings)
    requests = _Requests(agent)
    connection = agent.connection = Connection(requests.handle, wire, listening=False)
    try:
        await connection.main_loop()
    finally:
        await agent.close()
        await requests.answered()
        await connection.close()


def _end(wire: Wire, number: int) -> None:
    """Ends the process; at once, the second time."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, os._exit, 128 + number)
    wire.end()


class _Requests:
    """Requests to an agent; every error is one sentence."""

    def __init__(self, agent: Agent) -> None:
        self._route = build_agent_router(agent)  # type: ignore[arg-type]
        self._tasks: set[asyncio.Task[Any]] = set()

    async def handle(self, method: str, params: Any, is_notification: bool) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if isinstance(params, dict):  # the SDK would let the keys of _meta replace the others
            params = {key: value for key, value in params.items() if key != "_meta"}
        try:
            return await self._route(method, params, is_notification)
        except Exception as error:
            request_error = _as_request_error(method, error)
        if not is_notification:
            raise request_error
        if request_error.code != _UNKNOWN:  # a notification need not be understood
            print(f"tgr-local: {printable_line(str(request_error))}", file=sys.stderr)

    async def answered(self) -> None:
        """Waits for the answers to all requests, but not for long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_SECONDS)


def _as_request_error(method: str, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        text = f"unknown method {method:.80}" if error.code == _UNKNOWN else str(error)
        return RequestError(error.code, printable_line(text))
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        text = f"{method}: {place}: {first['msg']}" if place else f"{method}: {first['msg']}"
        return RequestError(_BAD, printable_line(text, 500))
    if os.environ.get("TGR_DEBUG"):
        traceback.print_exception(error)
    return RequestError(_BAD if isinstance(error, ValueError) else _FAILED, describe(error))
