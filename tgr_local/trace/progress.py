"""Progress line on stderr for replies that are written unseen."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from tgr_local.console.progress import ProgressLine
from tgr_local.generation import Event, TextDelta
from tgr_local.search.steps import Progress
from tgr_local.trace.pace import Pace


class ReplyProgress(ProgressLine):
    """Says what is read and written of one reply, or of several together.

    With `until_answer` the line is closed when the first text of the answer arrives.
    """

    def __init__(self, *, shown: bool, until_answer: bool) -> None:
        super().__init__("starting", shown)
        self._until_answer, self._pace = until_answer, Pace()

    def watch(self, events: Iterable[Event]) -> Generator[Event, None, None]:
        """The same events; each updates the line as it passes."""
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
