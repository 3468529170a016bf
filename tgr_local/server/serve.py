"""A server from its socket to its end.

SIGTERM, SIGINT and, with `exit_on_eof`, the end of stdin close the socket at once; running requests
may finish within `shutdown_seconds` and are then cancelled. A second SIGINT does not wait. Work
that continues although it was cancelled ends with the process a few seconds later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import uvicorn

from tgr_local.engine import Engine, require_address_space
from tgr_local.engine.installation import slow_cache, unused_gpu
from tgr_local.generation import Method
from tgr_local.options import gguf_header
from tgr_local.options.config import ServerConfig
from tgr_local.options.resolve import former_advice
from tgr_local.server.app import create_app
from tgr_local.server.auth import is_loopback
from tgr_local.server.connection import connections
from tgr_local.server.loaded import Setup as Setup
from tgr_local.server.service import Service
from tgr_local.system.errors import TgrError, describe, is_shortage, why_not_bound
from tgr_local.system.sanitize import printable_line

try:
    import resource
except ImportError:  # not on Windows, whose sockets are not files
    resource = None  # type: ignore[assignment]

_MAX_CONNECTIONS, _FEWEST_CONNECTIONS = 2048, 64
_OTHER_FILES = 128  # open files of the process that are not connections
_SWITCH_SECONDS = 0.001
_BACKGROUND_SECONDS = 0.5
_LAST_SECONDS = 4.0  # for cancelled work to end, and the model to be freed


def run(path: Path | None, setup: Setup) -> int:
    """Serves until a signal, and returns the exit code. `path` is loaded at the start; None = the
    models of `models_dir` on demand. Raises the error that prevented serving."""
    if path is not None:
        gguf_header.check_file(path)  # before anybody is told an address
    limits, method = setup.limits, setup.method
    keys = api_keys(limits)
    service = Service(path, setup, tell=_say)
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
        if service.models.failure:
            server.should_exit = True
            return
        for model in service.models.pool.loaded:
            _say(
                f"{model.engine.description} ({model.name}) is ready, {_use(model.engine, method)}"
            )
            _say(model.cache)
            engine = model.engine
            first = unused_gpu(engine) or slow_cache(engine)
            for warning in filter(None, (first, *former_advice(engine.metadata))):
                _say(f"warning: {warning}")
        if path is None:
            catalog = service.models.catalog
            n, left_out = len(catalog.files), ""
            if catalog.n_outside:
                left_out = f"; links that lead out of it were left out ({catalog.n_outside})"
            _say(
                f"the server is ready; {limits.models_dir} has {n} models, loaded on demand"
                f"{left_out}"
            )
        try:
            require_address_space()
        except MemoryError:
            _say("warning: no request has room; raise the limit on address space (ulimit -v)")

    # a thread that has a new token waits so long at most for one that prepares a request
    sys.setswitchinterval(_SWITCH_SECONDS)
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(_one_line)
    server = _Server(
        uvicorn.Config(
            create_app(service, keys, loaded),
            log_level="error",
            access_log=False,
            server_header=False,
            http=connections(limits.max_body),
            ws="none",
            limit_concurrency=_places(),
        ),
        service,
    )

    def is_told(_: logging.LogRecord) -> bool:
        return not server.force_exit

    # a second Ctrl-C ends uvicorn in the middle, and it logs tracebacks of what it leaves
    log = logging.getLogger("uvicorn.error")
    log.addFilter(is_told)
    if limits.exit_on_eof:
        if hasattr(signal, "SIGTTIN"):  # which stops a process that reads in the background
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        threading.Thread(target=server.stop_at_eof, name="stdin", daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        log.removeFilter(is_told)
    if service.models.failure:
        raise service.models.failure
    if any(thread.name == "load" for thread in threading.enumerate()):
        server.leave()  # a read of the disk that takes long
    return server.code


class _Server(uvicorn.Server):
    """uvicorn's server, with a time limit for running requests after a signal."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own handler would raise the signal again at the end
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self.interrupted = sig == signal.SIGINT
        wait = 0.0 if self.force_exit else self._service.limits.shutdown_seconds
        if self._loop:
            stop = self._service.stop
            self._loop.call_soon_threadsafe(self._loop.call_later, wait, stop)
            self._loop.call_soon_threadsafe(self._service.models.pool.events.end)
        timer = threading.Timer(min(wait + _LAST_SECONDS, threading.TIMEOUT_MAX), self._give_up)
        timer.daemon = True
        timer.start()

    def stop_at_eof(self) -> None:
        """Stops the server, as SIGTERM does, once stdin is closed; what comes before is dropped."""
        with contextlib.suppress(OSError, ValueError):
            while sys.stdin and reads_more(sys.stdin.fileno()):
                pass
        while self._loop is None:  # a signal before that ends the process at once
            time.sleep(0.05)
        if not self.should_exit:
            _say("stdin has ended: the server stops, as --exit-on-eof says")
        with contextlib.suppress(RuntimeError):  # it has stopped already
            self._loop.call_soon_threadsafe(self.handle_exit, signal.SIGTERM, None)

    @property
    def code(self) -> int:
        """The exit code of the process."""
        return 130 if self.interrupted else 0

    def leave(self) -> None:
        """Ends the process without waiting for any thread."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # nobody reads it any more
                stream.flush()
        os._exit(self.code)

    def _give_up(self) -> None:
        _say("cancelled work is still running; the process ends without it")
        self.leave()


def reads_more(file: int) -> bool:
    """Waits for bytes of a file and drops them; False at its end."""
    try:
        return bool(os.read(file, 4096))
    except BlockingIOError:  # the parent shares it, and does not wait for it
        select.select([file], [], [])
        return True
    except OSError:
        if os.name == "nt" or os.tcgetpgrp(file) == os.getpgrp():
            raise
        time.sleep(_BACKGROUND_SECONDS)  # a terminal, whose lines are for another program now
        return True


def _use(engine: Engine, method: Method) -> str:
    """Names the use of a served model: an endpoint, or its method."""
    if engine.pooling:
        return "for /v1/rerank" if engine.pooling == "rank" else "for /v1/embeddings"
    return f"method {method.name}"


def _one_line(record: logging.LogRecord) -> bool:
    """Makes the traceback of a connection that failed for lack of memory a line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, Exception) and is_shortage(error):
        record.msg, record.args, record.exc_info = f"tgr-local: {describe(error)}", (), None
    return True


def api_keys(limits: ServerConfig) -> tuple[str, ...]:
    """All API keys. ValueError for a file without one."""
    if not limits.api_key_file:
        return limits.api_key
    lines = Path(limits.api_key_file).read_text(encoding="utf-8-sig").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise ValueError(f"api_key_file is {limits.api_key_file!r}, but it has no key; add one")
    return (*limits.api_key, *keys)


def _places() -> int:
    """Connections at a time: as many as file descriptors allow, up to a bound."""
    wanted = _MAX_CONNECTIONS + _OTHER_FILES
    if resource is None:
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MAX_CONNECTIONS
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(_FEWEST_CONNECTIONS, soft - _OTHER_FILES)


def _listener(limits: ServerConfig) -> socket.socket:
    """A bound socket. TgrError for an address that cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(
            limits.host, limits.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=256)
        # asyncio sets this on its own sockets; without it each response waits 40 ms for an ACK
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError) as error:
        raise TgrError(
            f"cannot listen on {limits.host}, port {limits.port}: {why_not_bound(error)}; "
            "choose others with --host and --port"
        ) from None


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the program that has read it may have ended
        sys.stderr.write(f"tgr-local: {printable_line(text)}\n")  # at once, beside the log
        sys.stderr.flush()
