"""Commands that save a conversation or continue a saved one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tgr_local.chat import store
from tgr_local.chat.session import ChatSession, Start
from tgr_local.console.command_table import whole_number
from tgr_local.console.render import plural
from tgr_local.console.text_input import read_file
from tgr_local.console.wrap import shortened
from tgr_local.system.sanitize import printable

N_LISTED = 10  # conversations that /resume lists


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
