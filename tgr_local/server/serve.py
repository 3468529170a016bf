"""A server from its socket to its end.

SIGTERM and SIGINT close the socket at once; what runs may finish within `shutdown_seconds` and is
then cancelled. A second SIGINT does not wait.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from tgr_local.config import EngineConfig, ServerConfig
from tgr_local.server.app import create_app
from tgr_local.server.guard import is_loopback
from tgr_local.server.service import Service

_MAX_CONNECTIONS = 1024
_LAST_SECONDS = 5  # for cancelled work to end


def run(
    path: Path,
    limits: ServerConfig,
    *,
    method: str,
    engine_config: EngineConfig,
    options: Mapping[str, Any],
) -> int:
    """Serves until a signal, and returns the exit code. Raises what kept it from serving."""
    keys = _keys(limits)
    service = Service(path, limits, method=method, engine_config=engine_config, options=options)
    listener = _listener(limits)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _say(f"listening on http://{shown}:{port}")
    if not is_loopback(host) and not keys:
        _say(
            f"WARNING: EVERYONE WHO REACHES {shown}:{port} MAY USE THIS SERVER: "
            "no API key is set; give one with --api-key-file, or stay with --host 127.0.0.1"
        )

    if limits.log_prompts and service.log.is_shared:
        _say(f"WARNING: PROMPTS GO TO {limits.log_file}, WHICH OTHERS CAN READ: chmod 600 it")

    def loaded() -> None:
        if service.failure:
            server.should_exit = True
            return
        _say(f"{service.engine.description} ({service.name}) is ready, method {method}")
        if service.warning:
            _say(f"warning: {service.warning}")

    server = _Server(
        uvicorn.Config(
            create_app(service, keys, loaded),
            log_level="error",
            access_log=False,
            server_header=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(limits.shutdown_seconds) + _LAST_SECONDS,
        ),
        service,
    )
    server.run(sockets=[listener])
    if service.failure:
        raise service.failure
    code = 130 if server.interrupted else 0
    if any(thread.name == "load" for thread in threading.enumerate()):
        os._exit(code)  # a load cannot be cancelled, and there is nothing to lose
    return code


class _Server(uvicorn.Server):
    """uvicorn's server, which on a signal gives running requests their time and no more."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own would raise the signal once more at the end, and die of it
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self.interrupted = sig == signal.SIGINT
        wait = 0.0 if self.force_exit else self._service.limits.shutdown_seconds
        if self._loop:
            stop = self._service.jobs.stop
            self._loop.call_soon_threadsafe(self._loop.call_later, wait, stop)


def _keys(limits: ServerConfig) -> tuple[str, ...]:
    """All API keys. ValueError for a file without one."""
    if not limits.api_key_file:
        return limits.api_key
    lines = Path(limits.api_key_file).read_text(encoding="utf-8").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise ValueError(f"api_key_file is {limits.api_key_file!r}, which holds no key")
    return (*limits.api_key, *keys)


def _listener(limits: ServerConfig) -> socket.socket:
    """A bound socket. ValueError for an address that cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(
            limits.host, limits.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=256)
        # asyncio does this for sockets of its own: else each response waits 40 ms for an ACK
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:
        reason: object = error
        if isinstance(error, OSError):  # what the socket module adds to it repeats the address
            known = isinstance(error, socket.gaierror) or not error.errno
            reason = error.strerror if known else os.strerror(error.errno or 0)
        raise ValueError(
            f"cannot listen on {limits.host}, port {limits.port}: {reason}; "
            "choose others with --host and --port"
        ) from None


def _say(text: str) -> None:
    print(f"tgr-local: {text}", file=sys.stderr, flush=True)
