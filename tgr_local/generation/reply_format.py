"""How replies are written, read and ended: the format of a chat template, limits of lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tgr_local.engine import GrammarTrigger
from tgr_local.engine.templates.messages import Part

Kind = Literal["thinking", "answer"]
"""The parts of a reply."""
KINDS: dict[Part, Kind] = {"content": "answer", "reasoning_content": "thinking"}
"""The part of a reply that each part of a message is."""


@dataclass(frozen=True)
class ReplyFormat:
    """Format of the replies to one prompt, as its template defines it."""

    prefix: str
    """The end of the prompt, where the reply begins; its parser reads it first."""
    parser: str
    """llama.cpp's parser of a reply, in its own notation."""
    kind: int
    """llama.cpp's number of the format."""
    shown: tuple[int, ...] = ()
    """Control tokens that belong to the text."""
    grammar: str = ""
    """GBNF of a reply, or with `trigger` of its end; empty = none."""
    grammar_prefix: str = ""
    """Text that the grammar reads before the answer; without `trigger`."""
    trigger: GrammarTrigger | None = None
    names: tuple[str, ...] = ()
    """Functions that a reply may call, without the tags of its format, too."""
    parallel: bool = True
    """Whether it may have several such calls."""
    begun: tuple[str, str] = ("", "")
    """The beginnings of the thinking and of the answer that `prefix` has."""


@dataclass(frozen=True)
class LineLimits:
    """Limits that end a text at one of its lines, as llama.cpp has for editors; 0 = no limit."""

    n_indent: int = 0
    """Ends the text before a new line that begins with fewer spaces and tabs."""
    t_max_predict_ms: int = 0
    """Ends the text at the first line break after this many milliseconds since its first token."""
