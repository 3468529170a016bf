"""RPC servers on this machine, and what an engine computes on them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator

from command_line import process
from engines import TOKENS, greedy_task, vectors
from surroundings import HANG

from tgr_local.engine import Engine, Output, rpc
from tgr_local.system.errors import ModelError

Server = tuple[str, "subprocess.Popen[bytes]"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def server(*flags: str, port: int = 0) -> Iterator[Server]:
    """A server on this machine, that answers, at a free port unless one is named."""
    port = port or free_port()
    started = process("rpc-server", "--port", str(port), "-t", "1", *flags, double=False)
    try:
        for _ in range(int(HANG / 0.1)):
            with contextlib.suppress(ModelError):
                rpc.check(f"127.0.0.1:{port}")
                break
            assert started.poll() is None
            time.sleep(0.1)
        yield f"127.0.0.1:{port}", started
    finally:
        started.kill()
        started.communicate()


def outputs(engine: Engine) -> list[Output]:
    """A greedy text, plain and steered, with its states; and one from a fork that was shifted."""
    with engine.session(256, 4) as session:
        injection = session.injection(vectors(n_layer=engine.n_layer, d=engine.n_embd)[0])
        plain, steered = session.sequence(), session.sequence()
        texts = session.run(
            [
                greedy_task(engine, plain, TOKENS),
                greedy_task(engine, steered, TOKENS, injection=injection),
            ]
        )
        fork = plain.fork()
        fork.truncate(len(TOKENS) // 2)
        return [*texts, *session.run([greedy_task(engine, fork, TOKENS[:3])])]
