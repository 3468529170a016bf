"""One client's connection, with time limits for silent and slow clients.

uvicorn closes a connection that stays silent after a reply. This one is also closed when a request
does not arrive in time or a reply is not read; and when there are many connections, a new one
closes the one that has waited longest for its client. A request costs little until it is whole, or
more of it has come than is buffered: only then the application begins with it. A client that ends
its side of the connection has left. A request of which two servers in a row could see different
ends is refused, and its connection closed.
"""

from __future__ import annotations

import asyncio
import math
from typing import cast

import h11
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tgr_local.server import bodies
from tgr_local.server.bodies import BODY_SECONDS
from tgr_local.server.errors import ApiError
from tgr_local.server.wire import failure

HEAD_SECONDS = 10.0  # for the head of a request, from the start or the last reply
REST_SECONDS = BODY_SECONDS + 5.0  # for a body, whether or not it is read here
READ_SECONDS = 60.0  # for the client to read a reply
CROWD = 256  # connections, with more of which bodies that do not come are dropped unanswered


class Connection(H11Protocol):
    """One of at most `limit_concurrency` connections; half of them may wait for their clients."""

    max_body: float = math.inf
    """Bytes of a body that is not refused before it comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[str, float] | None = None
        self._application, self.app = self.app, self._begin
        super().connection_made(cast(asyncio.Transport, transport))
        self._watch()
        self._limit_connections()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.app = self._application  # else it refers to itself, and stays until a collection
        if self._timer:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def shutdown(self) -> None:
        if self.cycle and not self._request_is_whole:
            self.transport.close()  # the rest may never arrive
        else:
            super().shutdown()
        self._watch()

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application when it can begin to read, or to say that the body did not come."""
        if refusal := _two_ends(scope):
            await failure(refusal, scope["path"])(scope, receive, send)
            return
        if await self._body_fails() and len(self.connections) > CROWD:
            self._drop()
            while not self.cycle.disconnected:  # until uvicorn knows
                self.cycle.message_event.clear()
                await self.cycle.message_event.wait()
            return
        self.cycle.message_event.set()
        await self._application(scope, receive, send)

    async def _body_fails(self) -> bool:
        """Waits until a request is whole, or reading pauses because so much of it is there. Whether
        the client went away or was too slow before that."""
        cycle, begun = self.cycle, self.loop.time()
        while not (self._request_is_whole or self.flow.read_paused or cycle.disconnected):
            refuses = bodies.announced(Headers(raw=list(cycle.scope["headers"]))) > self.max_body
            if refuses or cycle.waiting_for_100_continue:  # the application may, before it is sent
                return False
            n_bytes = len(cycle.body)
            cycle.message_event.clear()
            left = max(begun + bodies.BODY_SECONDS - self.loop.time(), 0.0)
            timer = self.loop.call_later(min(bodies.PART_SECONDS, left), cycle.message_event.set)
            await cycle.message_event.wait()
            timer.cancel()
            if cycle.disconnected:
                return True
            is_silent = len(cycle.body) == n_bytes and cycle.more_body
            if is_silent or self.loop.time() - begun >= bodies.BODY_SECONDS:
                cycle.scope["state"][bodies.LATE] = True
                return True
        return bool(cycle.disconnected)

    @property
    def _request_is_whole(self) -> bool:
        return self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)

    def _client_must(self) -> tuple[str, float] | None:
        """The next step of the client and its limit in seconds; None = the server is to act."""
        if self.transport.is_closing() or self.flow.write_paused:
            return "read", READ_SECONDS
        if self.conn.their_state is h11.IDLE:
            return "send a head", HEAD_SECONDS
        if self.conn.their_state is h11.SEND_BODY:
            return "send a body", REST_SECONDS
        return None

    def _watch(self) -> None:
        """Starts the time limit of the client's next step, unless the step is the same."""
        awaited = self._client_must()
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(awaited[1], self._drop) if awaited else None

    def _drop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.transport.abort()

    def _limit_connections(self) -> None:
        """Closes the connection that has waited longest for its client when half of the connections
        are in use. Requests of closed connections still count for a moment."""
        if not self.limit_concurrency or len(self.connections) <= self.limit_concurrency // 2:
            return
        waiting = [
            (connection._timer.when() - connection._awaited[1], connection)
            for connection in self.connections
            if isinstance(connection, Connection)
            and connection is not self
            and connection._timer
            and connection._awaited
        ]
        if waiting:
            min(waiting, key=lambda pair: pair[0])[1]._drop()


def connections(max_body: int) -> type[Connection]:
    """The class of the connections to a server that refuses longer bodies."""
    return type("Connection", (Connection,), {"max_body": max_body})


def _two_ends(scope: Scope) -> ApiError | None:
    """The refusal of a request whose end is said twice, or in a way that its version does not have;
    h11 refuses lengths that differ or are no numbers, and other encodings."""
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        why = "Content-Length and Transfer-Encoding are both there; leave one of them out"
    elif scope["http_version"] == "1.0":
        why = "HTTP/1.0 has no Transfer-Encoding; send a Content-Length, or HTTP/1.1"
    else:
        return None
    return ApiError(400, why, headers={"Connection": "close"})
