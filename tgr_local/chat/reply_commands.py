"""Commands that ask a question, or change, copy or remove turns of the conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tgr_local.chat.session import ChatSession
from tgr_local.console import render
from tgr_local.console.command_table import whole_number
from tgr_local.console.render import plural
from tgr_local.console.text_input import read_file
from tgr_local.console.wrap import shortened, terminal_width


def clear(session: ChatSession, _: str) -> Iterable[str]:
    session.leave()
    session.conversation.clear()
    session.attached.clear()
    session.start_new_file()
    return ["a new conversation begins"]


def regenerate(session: ChatSession, _: str) -> Iterable[str]:
    session.show_reply(session.conversation.ask_again())
    return []


def retry(session: ChatSession, argument: str) -> Iterator[str]:
    k = whole_number(argument or "4", "the number of replies", 2, 64)
    conversation = session.conversation
    replies = session.front_end.show_many(k, lambda on_event: conversation.ask_many(k, on_event))
    chosen = session.front_end.choose(replies)
    if chosen is None:
        yield "no reply is chosen; the earlier one stays"
        return
    conversation.replace_last(replies[chosen])
    session.save()
    yield f"reply {chosen + 1} of {k} is chosen"
    width = terminal_width(default=120)
    yield f"all: {render.cost_line(replies, width - 5)}"


def undo(session: ChatSession, _: str) -> Iterable[str]:
    turn = session.conversation.undo()
    session.save()
    return [f"removed: {shortened(turn.question)}"]


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


def system(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        conversation.system = "" if argument == "none" else argument
        session.save()
    prompt = conversation.system
    return [f"system prompt: {prompt}" if prompt else "no system prompt"]


def read(session: ChatSession, argument: str) -> Iterable[str]:
    if not argument:
        raise ValueError("name the file: /read FILE")
    text = read_file(argument)
    session.attached.append(text)
    lines = plural(len(text.splitlines()), "line")
    tokens = plural(len(session.conversation.engine.tokenize(text)), "token")
    return [f"{argument}: {lines}, {tokens} before your next question"]


def edit(session: ChatSession, argument: str) -> Iterable[str]:
    text = session.front_end.edit(argument).strip("\n")
    if not text.strip():
        return ["the text is empty; nothing was asked"]
    session.ask(text)
    return []


def copy(session: ChatSession, _: str) -> Iterable[str]:
    answer = session.conversation.last.answer
    if not answer:
        raise ValueError("the last question has no answer yet: /regen asks it again")
    session.front_end.copy(answer)
    return [f"copied {len(answer)} characters"]
