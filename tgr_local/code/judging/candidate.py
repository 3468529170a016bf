"""One candidate: an answer of the model, the edit in it, and what the tests say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tgr_local.code.edits import Change
from tgr_local.code.edits.syntax import new_error, text_error
from tgr_local.code.judging.judge import Verdict

State = Literal["waiting", "writing", "testing", "done", "stopped"]
"""Stopped: another candidate passed before this one was complete, or was tested."""


@dataclass(frozen=True)
class Candidate:
    """One of the k answers of a round, or the combined edits of several. The record is replaced by
    a new one whenever it changes."""

    number: int
    """Counted from 1, over all rounds."""
    seed: int
    state: State = "waiting"
    begun: str = ""
    """The beginning of an answer that departs from the code as it is; empty = it is free."""
    parts: tuple[int, ...] = ()
    """The numbers of the candidates whose edits it combines; empty = the model wrote it."""
    answer: str = ""
    thinking: str = ""
    changes: tuple[Change, ...] = ()
    """The edit; empty if there is none or it does not apply."""
    problem: str = ""
    """Reason why there is no edit, or what is wrong with it."""
    parses: bool = False
    """Whether the changed files parse, where a parser for them is known."""
    verdict: Verdict | None = None
    """Verdict of the tests; None before that, and without an edit."""
    n_tokens: int = 0
    forward_tokens: int = 0
    """Positions that passed through the model for it."""
    logprob: float = float("-inf")
    """The mean log-probability of its tokens, nats."""
    seconds: float = 0.0
    """Time from the beginning of its stage to the end of its tests."""

    @property
    def applies(self) -> bool:
        return bool(self.changes)

    @property
    def passes(self) -> bool:
        """Whether the tests pass; without tests, whether it parses and can be imported."""
        return self.verdict is not None and self.verdict.passes

    def but(self, **changes: Any) -> Candidate:
        """The candidate with some fields replaced."""
        return dataclasses.replace(self, **changes)


def syntax_error(changes: Sequence[Change]) -> str:
    """The first syntax error that the changes introduce into a Python, JSON or TOML file, a
    notebook, or a file of a language that tree-sitter reads here; empty without one. A file with an
    error before the change is ignored: it may be written for a newer Python, or be JSON with
    comments."""
    for change in changes:
        path, before, after = change.path, change.before, change.after
        error = text_error(path, after)
        if error and before.strip() and text_error(path, before):
            error = ""
        if error := error or new_error(path, before, after):
            return f"{path}:{error}"
    return ""
