"""The record of a reply, and its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tgr_local.generation.text import TextDelta
from tgr_local.search.capacity import CONTEXT_LIMITS
from tgr_local.search.steps import Counts, Finish, Progress, Step

_SHOWN = 40  # characters of a text in a repr


Check = Callable[[str], bool | float]
"""A judge of answers: True, or a score of 1 or more, for a right one. Of others the one with the
highest score is the best."""


@dataclass(frozen=True)
class Checked:
    """Result of a check of a reply."""

    passed: bool
    score: float
    texts: int
    """Number of texts that were checked for it."""


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One run of the method within a reply."""

    first: int
    """Index of its first step in the reply."""
    query: list[int]
    """Q, the tokens of its prompt."""


@dataclass(frozen=True, eq=False, repr=False)
class Reply:
    """A whole reply, its steps and its cost."""

    text: str
    """The answer."""
    thinking: str
    """The text of the thinking block, without its tags."""
    tokens: list[int]
    """All new tokens, thinking and end token included."""
    finish: Finish | Literal["cancelled"]
    """Reason why the reply ended; "cancelled" = it did not, see `CancelledError.reply`."""
    steps: list[Step]
    """One for each chunk, in order."""
    counts: Counts
    """All positions that were decoded for the reply."""
    seconds: float
    """Wall time."""
    seed: int
    method: str
    closed: int | None = None
    """Number of tokens after which the thinking was closed from outside; None = it was not."""
    runs: list[MethodRun] = field(default_factory=list)
    """One; a second one wrote the answer where the thinking was ended before it began, a third one
    where there was none still."""
    closed_by: str | None = None
    """Cause that closed the thinking from outside: name of an option or "n_ctx_train", "answer_now"
    for the user, "end_token" for a model that ended its reply within it; None = nothing did."""
    limit: str | None = None
    """The option that ended the reply, "n_ctx_train", or a field of `LineLimits`; None where its
    text came to an end."""
    stop_text: str = ""
    """The stop text that ended it; "" = none."""
    note: str = ""
    """Changes to the search because the context is small, in a sentence; "" = nothing."""
    checked: Checked | None = None
    """None without a check."""

    def __repr__(self) -> str:
        cut = "…" if len(self.text) > _SHOWN else ""
        why = f" by {self.limit}" if self.limit else ""
        return (
            f"<Reply {self.text[:_SHOWN] + cut!r}: {self.finish}{why}, {self.n_tokens} tokens, "
            f"{self.counts.total} forward tokens, {self.seconds:.2f} s, {self.method}>"
        )

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def filled_context(self) -> bool:
        """Whether the end of the context cut it."""
        return self.limit in CONTEXT_LIMITS

    @property
    def n_plain(self) -> int:
        """Boundaries that were written plainly instead of searched: the guard found the injection
        too strong, or its strength could not be measured within the limits."""
        return sum(bool(step.figures.get("plain")) for step in self.steps)

    @property
    def figures(self) -> dict[str, float]:
        """Numbers that the method reports of the reply, by name: those of the last step that has
        some. Of two runs they are those of the one that wrote the answer."""
        return next((step.figures for step in reversed(self.steps) if step.figures), {})

    @property
    def reading_seconds(self) -> float:
        """Wall time in which the query was read."""
        return min(self.seconds, self.steps[0].seconds.rebuild) if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of the wall time after the query was read, search included."""
        seconds = self.seconds - self.reading_seconds
        return self.n_tokens / seconds if seconds > 0 else 0.0


Event = TextDelta | Progress | Step | Reply
OnEvent = Callable[[Event], None]
