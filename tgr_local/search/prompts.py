"""Requests to a model about its own text: the user's next turn, in the model's chat template.

A turn ends the reply under way, makes the request, and opens the next reply. A model without a
template gets the request in plain text. Texts are quoted as tokens, so that their length is known
and their tokens do not change.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from tgr_local.answers import CLOSE_THINK, CLOSING, OPEN_THINK
from tgr_local.engine import Engine

REFINE = (
    "Check the solution above, correct its mistakes and improve it. Write the improved solution "
    "from the beginning."
)
_QUOTE, _REPLY = "[[a quoted text]]", "[[the reply so far]]"


def merge_request(n_others: int) -> str:
    """Asks for the merger of the reply with n_others texts, which are to be quoted."""
    others = f"Another attempt at the same question:\n\n{_QUOTE}\n\n" * n_others
    return (
        f"{others}Combine what is right in these attempts and in yours into one better solution. "
        "Write it from the beginning."
    )


class Turn:
    """A request as the user's next turn, ready to follow any context.

    `thinking` lets the reply to it open a thinking block.
    """

    def __init__(self, engine: Engine, request: str, *, thinking: bool) -> None:
        self._engine = engine
        self._pieces = _pieces(engine, request, thinking)
        self._closing = engine.tokenize(CLOSING)

    @property
    def n_tokens(self) -> int:
        """Its tokens at most, without the quoted texts."""
        return len(self._closing) + sum(map(len, self._pieces))

    def after(self, context: Sequence[int], quoted: Sequence[Sequence[int]] = ()) -> list[int]:
        """Its tokens after the query and the reply so far, with the quoted texts in their places.
        A thinking block that is open there is closed first."""
        first, *rest = self._pieces
        tokens = [*self._closing, *first] if _thinks(self._engine, context) else list(first)
        for text, piece in zip(quoted, rest, strict=True):
            tokens += [*text, *piece]
        return tokens


_known: weakref.WeakKeyDictionary[Engine, dict[tuple[str, bool, str], list[list[int]]]] = (
    weakref.WeakKeyDictionary()
)


def _pieces(engine: Engine, request: str, thinking: bool) -> list[list[int]]:
    """The tokens of the turn, cut where texts are quoted; a template is rendered once for each
    request, however many turns are made of it."""
    known = _known.setdefault(engine, {})
    key = (request, thinking, engine.chat_template)
    if key not in known:
        known[key] = [engine.tokenize(part) for part in _parts(engine, request, thinking)]
    return known[key]


def _parts(engine: Engine, request: str, thinking: bool) -> list[str]:
    """The text of the turn, cut where texts are quoted."""
    text = f"\n\n{request}\n\n"
    if engine.chat_template:
        messages = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": request},
        ]
        rendered = engine.chat_prompt(messages, thinking=thinking)
        if _REPLY in rendered:  # else the template rewrites the assistant's text
            text = rendered.rpartition(_REPLY)[2]
    return text.split(_QUOTE)


def _thinks(engine: Engine, context: Sequence[int]) -> bool:
    text = engine.detokenize(context, special=True)
    return text.rfind(OPEN_THINK.encode()) > text.rfind(CLOSE_THINK.encode())
