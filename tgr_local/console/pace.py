"""Progress of a reply and its reading and writing speed, from its events; the progress line on
stderr for replies that are written unseen."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable

from tgr_local.generation import Event, Progress, Reply, Scores, TextDelta
from tgr_local.system.progress import ProgressLine

# every other one: "writing"
_STAGES = {
    "rebuild": "reading",
    "calibration": "measuring the strength of the injection, once for this model",
    "rollouts": "trying candidates",
    "texts": "writing texts to compare",
}
_LEAST_SECONDS = 0.5  # before which a speed says nothing


class Pace:
    """The stage of one reply, or of several that are written together, with their tokens and the
    speeds of reading and of writing, each over its own time."""

    def __init__(self) -> None:
        self.stage, self.chunk, self.tokens = "starting", 0, 0
        self.scores: Scores | None = None
        """Scores of the last candidates."""
        self._read = self._query = 0
        self._began: tuple[float, int] | None = None  # when the query's first tokens were read
        self._wrote: float | None = None  # when the first token came
        self._now = time.monotonic()

    def update(self, event: Event) -> None:
        """Takes an event of a reply."""
        self._now = time.monotonic()
        if isinstance(event, Reply):
            self.stage = "done"
        elif isinstance(event, Progress):
            self.chunk, self.stage = event.chunk, _STAGES.get(event.stage, "writing")
            if event.candidates is not None:
                self.scores = event.candidates.scores
            self._read, self._query = event.n_read, event.n_query
            if event.n_read and self._began is None:
                self._began = self._now, event.n_read
            if event.tokens:
                self._wrote = self._wrote or self._now
                self.tokens += len(event.tokens)

    def facts(self) -> list[tuple[int, str]]:
        """``reading 1,400 of 3,984 tokens``, or ``writing``, ``chunk 3``, ``85 tokens`` and
        ``12 tokens/s``, each with its rank; the lowest ranks are the most important."""
        if self.stage == "reading" and self._query:
            about = f" {self._read:,} of {self._query:,} tokens" if self._read else ""
            began, first = self._began or (self._now, 0)
            speed = _speed(self._read - first, self._now - began)
            return [(0, f"reading{about}"), *([(1, speed)] if speed else [])]
        if self.stage == _STAGES["texts"]:  # none of them is the reply yet
            return [(0, self.stage)]
        seconds = 0.0 if self._wrote is None else time.monotonic() - self._wrote
        speed = _speed(self.tokens - 1, seconds)
        return [
            (0, self.stage),
            *([(2, f"chunk {self.chunk + 1}")] if self.chunk else []),
            (1, f"{self.tokens:,} token{'' if self.tokens == 1 else 's'}"),
            *([(3, speed)] if speed else []),
        ]


def _speed(n_tokens: int, seconds: float) -> str:
    if n_tokens < 1 or seconds < _LEAST_SECONDS:
        return ""
    return f"{per_second(n_tokens, seconds)} tokens/s"


def per_second(n_tokens: int, seconds: float) -> str:
    """A speed in as many digits as it deserves: ``4.5``, ``12``, ``1,240``."""
    speed = n_tokens / seconds if seconds > 0 else 0.0
    return f"{speed:,.0f}" if speed >= 9.95 else f"{speed:.1f}"


class ReplyProgress(ProgressLine):
    """Says what is read and written of one reply, or of several together.

    With `until_answer` the line is closed when the first text of the answer arrives.
    """

    def __init__(self, *, is_shown: bool, until_answer: bool) -> None:
        super().__init__("starting", is_shown)
        self._until_answer, self._pace = until_answer, Pace()

    def watch(self, events: Iterable[Event]) -> Generator[Event, None, None]:
        """Yields the given events; each updates the line as it passes."""
        for event in events:
            self.update(event)
            yield event

    def update(self, event: Event) -> None:
        """Updates the line, or closes it, for one event of a reply."""
        if isinstance(event, Progress):
            self._pace.update(event)
            self.line = " · ".join(text for _, text in self._pace.facts())
        elif isinstance(event, TextDelta) and event.kind == "answer" and self._until_answer:
            self.close()
