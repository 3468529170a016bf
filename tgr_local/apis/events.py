"""Events while a response is written, which every API translates.

They have no API's format. Those of one choice come in order, those of several choices interleave;
`Totals` is the last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tgr_local.apis.logprobs import Token
from tgr_local.generation import Progress, Reply

JsonObject = dict[str, Any]
Kind = Literal["answer", "thinking", "prompt"]
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class NewText:
    """New text of a choice."""

    index: int
    """Index of the choice."""
    kind: Kind
    """"prompt" is the text that `echo` repeats, whole and before everything else."""
    text: str
    tokens: Sequence[Token] | None = None
    """The tokens that end in it, with their log-probabilities; None where none are asked for. Only
    an answer and a prompt have them."""


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool begins: its name is known, its arguments follow."""

    index: int
    call: int
    """Number of the call within the choice, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call, which are the text of a JSON object."""

    index: int
    call: int
    text: str


@dataclass(frozen=True, slots=True)
class Searched:
    """Progress of the search of a choice."""

    index: int
    progress: Progress
    n_tokens: int = 0
    """Tokens of the choice so far, with "tokens"."""


@dataclass(frozen=True, slots=True)
class ChoiceEnded:
    """A choice is complete."""

    index: int
    finish: Finish
    reply: Reply | None
    """None where nothing was to be written."""
    stop_text: str = ""
    """The text of `stop` that ended it; empty = it ended otherwise."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a response."""

    prompt: int
    """Tokens of the prompts, each counted once."""
    completion: int
    """Tokens of all replies, thinking included, end tokens not."""
    cached: int
    """Tokens of the prompts that were decoded for none of their replies."""
    reasoning: int
    """Tokens of the completion that belong to the thinking, tags included."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The cost of the whole response."""

    usage: Usage
    about: JsonObject
    """The ``tgr`` part."""


ApiEvent = NewText | CallBegun | CallArguments | Searched | ChoiceEnded | Totals
OnApiEvent = Callable[[ApiEvent], None]
