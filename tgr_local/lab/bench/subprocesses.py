"""A peer in a process of its own.

Once a process has more OpenMP threads than the machine has cores, they sleep at every barrier. The
threads of the subject and of a peer in one process would slow each other down, by a quarter on two
cores.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from tgr_local.errors import TgrError


class Subprocess:
    """`make(*args, **options)`, a context manager of an importable module, in a new process.
    A method call runs there; the caller waits for its end. Use it in a ``with`` block."""

    def __init__(self, make: Callable[..., Any], *args: Any, **options: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, remote = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(remote, partial(make, *args, **options)), daemon=True
        )
        self._process.start()
        remote.close()
        self._answer()

    def __getattr__(self, method: str) -> Any:
        return partial(self._call, method)

    def _call(self, method: str, *args: Any) -> None:
        self._pipe.send((method, args))
        self._answer()

    def _answer(self) -> None:
        try:
            failure: str | None = self._pipe.recv()
        except EOFError:
            raise TgrError("the process of the peer ended unexpectedly") from None
        if failure is not None:
            raise TgrError(failure)

    def __enter__(self) -> Subprocess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()


def _serve(pipe: Connection, make: Callable[[], Any]) -> None:
    try:
        with make() as peer:
            pipe.send(None)
            while True:
                method, args = pipe.recv()
                getattr(peer, method)(*args)
                pipe.send(None)
    except EOFError:
        pass
    except Exception as error:
        pipe.send(str(error))
