"""How replies are written and read, as the chat template of a model has it.

A `ReplyFormat` belongs to one request. `Engine.with_format` gives an engine that writes its replies
in it: the grammar begins where the format says, and control tokens that belong to it are text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GrammarTrigger:
    """Where a grammar begins: at the first of some texts outside of the thinking, of 2048
    bytes each at most."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """ECMAScript patterns, at whose first group that matched the grammar begins."""
    think_tag: str = ""
    """Begins thinking; empty = there is none."""
    think_ends: tuple[str, ...] = ()
    """Each ends thinking; one that is a trigger, too, counts."""


@dataclass(frozen=True)
class ReplyFormat:
    """What a template says about the replies to one prompt."""

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
    """What the grammar reads before the answer; without `trigger`."""
    trigger: GrammarTrigger | None = None
    names: tuple[str, ...] = ()
    """Functions that a reply may call, without the tags of its format, too."""
    begun: tuple[str, str] = ("", "")
    """The beginnings of the thinking and of the answer that `prefix` has."""
    is_text: bool = False
    """Whether the replies are plain text, of which no parser reads anything."""
