"""Commands that make room in the context: /drop and /summarise."""

from __future__ import annotations

from collections.abc import Iterable

from tgr_local.chat.arguments import whole_number
from tgr_local.chat.session import ChatSession
from tgr_local.trace.render import plural


def drop(session: ChatSession, argument: str) -> Iterable[str]:
    n = _n_turns(session, argument or "1")
    where = session.drop(n)
    left = plural(len(session.conversation.turns), "turn")
    return [f"dropped the oldest {plural(n, 'turn')}, {left} left{where}"]


def summarise(session: ChatSession, argument: str) -> Iterable[str]:
    n = _n_turns(session, argument or str(len(session.conversation.messages) // 2))
    where = session.summarise(n)
    return [f"the summary replaces the oldest {plural(n, 'turn')}{where}"]


def _n_turns(session: ChatSession, argument: str) -> int:
    _ = session.conversation.last  # raises if there is none
    return whole_number(argument, "the number of turns", 1, len(session.conversation.turns))
