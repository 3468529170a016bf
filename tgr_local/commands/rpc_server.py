"""``tgr-local rpc-server``: lends the devices of this machine to a program on another one."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys

from tgr_local.options.flags import Arguments, Parser
from tgr_local.system import paths
from tgr_local.system.errors import TgrError, why_not_bound

PORT = 50052


def add_to(parser: Parser) -> None:
    """Adds the subcommand."""
    text = "lend the GPUs of this machine, or without any its processor, to a model elsewhere"
    server = parser.add_command("rpc-server", _serve, text)
    add = server.add_argument
    text = "address to listen on; anybody who reaches it may use this machine (default: 127.0.0.1)"
    add("--host", default="127.0.0.1", metavar="ADDRESS", help=text)
    add("--port", type=int, default=PORT, metavar="N", help=f"port (default: {PORT})")
    text = "CPU threads; 0 = one for each physical core within the CPU quota (default: 0)"
    add("-t", "--n-threads", type=int, default=0, metavar="N", help=text)
    text = "folder that keeps large tensors, so that they are sent once (default: none)"
    add("--cache", default="", metavar="DIR", help=text)


def _serve(args: Arguments) -> int:
    """Serves until it is interrupted."""
    try:
        address = ipaddress.IPv4Address(args.host)
    except ValueError:
        raise ValueError(
            f"host is {args.host!r}, but must be an IPv4 address of this machine"
        ) from None
    if not 0 < args.port < 65536:
        raise ValueError(f"port is {args.port}, but must be between 1 and 65535")
    if not 0 <= args.n_threads <= 512:
        raise ValueError(f"n_threads is {args.n_threads}, but must be between 0 and 512")
    from tgr_local.engine import physical_cores, serve_devices

    if not address.is_loopback:
        print(
            f"tgr-local: warning: anybody who reaches {address}:{args.port} may use this machine's "
            "memory; use a trusted network only",
            file=sys.stderr,
        )
    try:
        socket.create_server((str(address), args.port)).close()
    except OSError as error:
        raise TgrError(
            f"cannot listen on {address}:{args.port}: {why_not_bound(error)}; choose another "
            "--port or --host"
        ) from None
    if args.cache:
        # ggml keeps nothing in a folder that is missing
        args.cache = str(paths.made(paths.expanded("cache", args.cache)))
    # the server runs no Python, whose handler Ctrl-C would wait for
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        serve_devices(f"{address}:{args.port}", args.cache, args.n_threads or physical_cores())
    finally:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    raise TgrError(f"the server at {address}:{args.port} has ended; the line above says why")
