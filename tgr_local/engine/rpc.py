"""The RPC servers that hold a part of a model: their addresses, and whether they answer.

A server is asked here first, with time limits, because ggml has none: it would wait forever for
one that does not answer.
"""

from __future__ import annotations

import re
import socket
import struct

from tgr_local.engine.native import native
from tgr_local.system.errors import ModelError, describe

ANSWER_SECONDS = 5.0
"""A server's time to accept a connection, and to answer."""
_ADDRESS = re.compile(r"([\w.\-]+):(\d{1,20})", re.ASCII)
_HELLO = 14  # its number never changes
_CAPABILITIES = 24  # bytes


def endpoints(text: str) -> list[str]:
    """The addresses in ``HOST:PORT,HOST:PORT``; none for an empty text. ValueError for other
    texts."""
    addresses = [part.strip() for part in text.split(",")] if text else []
    for endpoint in addresses:
        address = _ADDRESS.fullmatch(endpoint)
        if not address:
            raise ValueError(f"rpc is {text!r:.80}, but must have the form HOST:PORT,HOST:PORT")
        if not 0 < int(address[2]) < 65536:
            raise ValueError(f"rpc is {text!r:.80}, but a port must be between 1 and 65535")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"rpc is {text!r:.80}, but must name each server once")
    return addresses


def check(endpoint: str) -> None:
    """ModelError, naming it, where a server cannot be reached, does not answer in time or speaks
    another version of the protocol."""
    host, _, port = endpoint.rpartition(":")
    try:
        # as ggml does: the first IPv4 address of that name
        with socket.create_connection(
            (socket.gethostbyname(host), int(port)), ANSWER_SECONDS
        ) as connection:
            version = _version(connection)
    except TimeoutError:
        raise ModelError(
            f"the RPC server at {endpoint} does not answer within {ANSWER_SECONDS:g} s; it serves "
            "one program at a time: end the other one, or start another server"
        ) from None
    except (OSError, EOFError, UnicodeError) as error:
        why = "it closed the connection" if isinstance(error, EOFError) else describe(error)
        raise ModelError(
            f"the RPC server at {endpoint} cannot be used ({why}); start it there with "
            f"tgr-local rpc-server --port {port}, or correct --rpc"
        ) from None
    major, minor = native.rpc_version()
    if version[0] != major or version[1] > minor:
        raise ModelError(
            f"the RPC server at {endpoint} speaks version {version[0]}.{version[1]} of the "
            f"protocol, but this program {major}.{minor}; install the same tgr-local there"
        )


def _version(connection: socket.socket) -> tuple[int, int]:
    """The version of the protocol that a server speaks."""
    connection.sendall(struct.pack("<BQ", _HELLO, _CAPABILITIES) + bytes(_CAPABILITIES))
    answer = b""
    while len(answer) < 10:  # a length, then major and minor
        more = connection.recv(64)
        if not more:
            raise EOFError
        answer += more
    return answer[8], answer[9]
