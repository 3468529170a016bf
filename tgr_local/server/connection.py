"""One client's connection, which a silent, slow or deaf client cannot hold for long.

uvicorn ends a connection that stays silent after a reply. This one also ends when a request does
not come whole in its time or a reply is not read, and gives way to a new one, the longest waiting
first, when there are many. A client that has closed its sending half still gets its reply.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tgr_local.server.bodies import BODY_SECONDS
from tgr_local.server.wire import HALF_CLOSED

HEAD_SECONDS = 10.0  # for the head of a request, from the start or the last reply
REST_SECONDS = BODY_SECONDS + 5.0  # for a body, whether or not somebody reads it
READ_SECONDS = 60.0  # for the client to read what was sent
LEAVE_SECONDS = 1.0  # for a reply in HTTP/1.0 after the end of what the client sends
_PROBE_SECONDS = 0.3


class Connection(H11Protocol):
    """One of at most `limit_concurrency`, of which half may wait for their clients."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: tuple[str, float] | None = None
        self._half_closed = False
        super().connection_made(cast(asyncio.Transport, transport))
        self._watch()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: where a whole request still has no whole reply."""
        self._half_closed = self._request_is_whole and not self.cycle.response_complete
        if self._half_closed:
            self.cycle.keep_alive = False
            self.cycle.scope["state"][HALF_CLOSED] = True
            self.loop.call_later(_PROBE_SECONDS, self._probe)
            self._watch()
        return self._half_closed

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
            self.transport.close()  # its rest may never come
        else:
            super().shutdown()
        self._watch()

    @property
    def _request_is_whole(self) -> bool:
        return self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)

    def _client_must(self) -> tuple[str, float] | None:
        """What the client has to do next, and within how many seconds; None when it is our turn."""
        if self.transport.is_closing() or self.flow.write_paused:
            return "read", READ_SECONDS
        if self.conn.their_state is h11.IDLE:
            return "send a head", HEAD_SECONDS
        if self.conn.their_state is h11.SEND_BODY:
            return "send a body", REST_SECONDS
        if self._half_closed and self.conn.their_http_version == b"1.0":
            return "leave", LEAVE_SECONDS
        return None

    def _watch(self) -> None:
        """Gives the client its time, which runs on while it has the same thing to do."""
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
            self._timer = None  # it waits no longer
        self.transport.abort()

    def _make_room(self) -> None:
        """When half of all places are taken, ends the connection that has waited longest for its
        client. The work of those that have just been ended still takes places for a moment."""
        if not self.limit_concurrency or len(self.connections) <= self.limit_concurrency // 2:
            return
        waiting = [
            (one._timer.when() - one._awaited[1], one)
            for one in self.connections
            if isinstance(one, Connection) and one is not self and one._timer and one._awaited
        ]
        if waiting:
            min(waiting, key=lambda pair: pair[0])[1]._drop()

    def _probe(self) -> None:
        """Asks whether the client is still there.

        A client that has gone looks like one that has closed its sending half until it is sent
        something. An interim response, which every HTTP/1.1 client skips, is something; events of
        a stream are, too.
        """
        if self.transport.is_closing() or self.conn.our_state is not h11.SEND_RESPONSE:
            return
        if self.conn.their_http_version != b"1.0":
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))
            self.loop.call_later(_PROBE_SECONDS, self._probe)
