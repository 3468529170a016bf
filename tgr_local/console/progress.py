"""A sign of life on stderr for anything that lasts: one line that is redrawn on a terminal, and
elsewhere a plain line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from tgr_local.console.sanitize import one_line

if TYPE_CHECKING:
    from tgr_local.generation import Event

AFTER = 2.0  # seconds of silence that a person takes
PLAIN_EVERY = 15.0  # seconds between lines in a log


class Status:
    """Shows `line` and the seconds since its start, from two seconds on, until it is closed."""

    def __init__(self, line: str, shown: bool = True) -> None:
        self.line = line
        self._start = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)
        if shown:
            self._thread.start()

    def __enter__(self) -> Status:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the line away from a terminal. May be called again."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _draw(self) -> None:
        terminal = sys.stderr.isatty()
        wait = AFTER
        while not self._done.wait(wait):
            wait = 0.2 if terminal else PLAIN_EVERY
            line = f"{one_line(self.line)}, {time.monotonic() - self._start:.0f} s"
            start, end = ("\r\x1b[K", "") if terminal else ("", "\n")
            print(start + line, end=end, file=sys.stderr, flush=True)
        if terminal and wait != AFTER:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class ReplyStatus(Status):
    """Shows how far replies are that nobody sees grow; with `until_answer`, until text comes."""

    def __init__(self, *, shown: bool, until_answer: bool) -> None:
        super().__init__("starting", shown)
        self._until_answer, self._tokens = until_answer, 0

    def watch(self, events: Iterable[Event]) -> Generator[Event, None, None]:
        """The same events, each noted as it passes."""
        for event in events:
            self.note(event)
            yield event

    def note(self, event: Event) -> None:
        from tgr_local.generation.text import TextDelta
        from tgr_local.search.steps import Progress

        if isinstance(event, Progress):
            self._tokens += len(event.tokens)
            self.line = f"chunk {event.chunk + 1}, {self._tokens} tokens"
        elif isinstance(event, TextDelta) and event.kind == "answer" and self._until_answer:
            self.close()
