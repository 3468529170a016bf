"""Commands on the conversation: they ask a question, change, copy or remove turns, save all of them
or continue saved ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tgr_local.chat import store
from tgr_local.chat.session import ChatSession, Start
from tgr_local.console import render
from tgr_local.console.command_table import whole_number
from tgr_local.console.render import plural
from tgr_local.console.text_input import read_file
from tgr_local.console.wrap import shortened, terminal_width
from tgr_local.system.sanitize import printable

N_LISTED = 10  # conversations that /resume lists


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


# ---- files ----


def save(session: ChatSession, argument: str) -> Iterable[str]:
    if not session.conversation.turns:
        raise ValueError("there is nothing to save yet: ask something first")
    path = store.path_of(argument) if argument else session.path or store.new_path()
    if path != session.path and path not in session.other_files and path.exists():
        if store.is_conversation(path):
            raise ValueError(f"{path} holds another conversation; name another file, or remove it")
        raise ValueError(f"{path} exists and is not a conversation; name another file")
    store.save(path, session.conversation)
    session.other_files.add(path)
    return [f"saved as {path}"]


def load(session: ChatSession, argument: str) -> Iterable[str]:
    if not argument:
        raise ValueError("name the conversation: /load NAME; /resume lists the latest ones")
    return _restore(session, store.path_of(argument))


def resume(session: ChatSession, argument: str) -> Iterator[str]:
    listed = session.listed if argument else []  # whose numbers the person has seen
    paths = listed or [path for path in store.saved_paths() if path != session.path]
    if not paths:
        raise ValueError("there is no saved conversation yet")
    if argument:
        path = paths[whole_number(argument, "the conversation", 1, len(paths)) - 1]
        yield from _restore(session, path)
        if session.path is not None:
            session.path = path  # further turns go to the same file
        return
    session.listed = paths
    for number, path in enumerate(paths[:N_LISTED], 1):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        yield f"{number:2}  {when}  {_first_question(path)}"
    yield "/resume N continues number N"


def begin(session: ChatSession, start: Start) -> None:
    """Begins a conversation. ValueError if there is none to resume, and the errors of a file."""
    texts = [read_file(path) for path in start.files]
    if start.resume:
        for line in resume(session, "1"):
            print(printable(line), file=sys.stderr)
    session.conversation.system = start.system or session.conversation.system
    session.attached += texts


def _restore(session: ChatSession, path: Path) -> Iterator[str]:
    saved = store.load(path)
    session.leave()
    saved.restore(session.conversation)
    session.start_new_file()
    session.arrive(path)
    session.other_files.add(path)
    yield f"{path.stem}: {plural(len(saved.turns), 'turn')}, method {saved.method}"
    if saved.model != str(session.conversation.engine.path):
        yield f"it was written with {saved.model}; /model {saved.model} loads that model"
    if saved.turns:
        session.front_end.show_turn(saved.turns[-1])


def _first_question(path: Path) -> str:
    try:
        turns = store.load(path).turns
    except Exception:
        return f"{path.name} cannot be read"
    return f"{plural(len(turns), 'turn')}: {shortened(turns[0].question)}" if turns else "empty"
