"""Tests with several threads or processes: run functions in threads, wait for a condition."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surroundings import HANG


def in_threads(*work: Callable[[], Any], seconds: float = HANG) -> list[Any]:
    """Runs each function in a thread of its own; returns their results, or their exceptions."""
    results: list[Any] = [None] * len(work)

    def one(i: int) -> None:
        try:
            results[i] = work[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(len(work))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return results


def wait_until(condition: Callable[[], bool], seconds: float = HANG) -> None:
    """Returns when the condition holds; an error when it does not within a generous time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.001)


def is_running(words: str) -> bool:
    """Whether a process has these words on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words in path.read_bytes().decode(errors="replace"):
                return True
    return False
