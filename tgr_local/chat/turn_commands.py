"""Commands on the conversation: they ask a question, change, copy or remove turns, save all of them
or continue saved ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tgr_local.chat import store
from tgr_local.chat.conversation import Turn
from tgr_local.chat.session import ChatSession, Start
from tgr_local.console import render
from tgr_local.console.command_table import on_terminal, whole_number
from tgr_local.console.render import plural
from tgr_local.console.wrap import shortened, terminal_width
from tgr_local.options import model_files
from tgr_local.system.errors import TgrError
from tgr_local.system.files import OwnedFile
from tgr_local.system.sanitize import printable
from tgr_local.system.text_files import read_file

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
    remaining = plural(len(session.conversation.turns), "turn")
    return [f"dropped the oldest {plural(n, 'turn')}, {remaining} left{where}"]


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
    return [f"saved as {session.saved.save_as(path, session.conversation)}"]


def load(session: ChatSession, argument: str) -> Iterable[str]:
    if not argument:
        raise ValueError("name the conversation: /load NAME; /resume lists the latest ones")
    return _restore(session, store.path_of(argument))


def resume(session: ChatSession, argument: str) -> Iterator[str]:
    if argument not in ("", "all"):
        paths = session.listed or _latest_paths(session)[0]  # whose numbers the person has seen
        path = paths[whole_number(argument, "the conversation", 1, len(paths)) - 1]
        yield from go_on(session, path)
        return
    session.listed, n_left_out = _latest_paths(session, all_of_them=bool(argument))
    for number, path in enumerate(session.listed, 1):
        yield f"{number:2}  {_row(path)}"
    more = f"; {n_left_out} more, older or earlier states of these: /resume all"
    yield f"/resume N continues number N{more if n_left_out else ''}"


def _latest_paths(session: ChatSession, *, all_of_them: bool = False) -> tuple[list[Path], int]:
    """The latest conversations, without those that another in the list goes on from, and how many
    are left out. One that a person has named is in the list. ValueError if there is none."""
    paths = [path for path in store.saved_paths() if path != session.path]
    if not paths:
        raise ValueError("there is no saved conversation yet")
    listed: list[Path] = []
    known: list[list[Turn]] = []
    for path in paths:
        if len(listed) == N_LISTED and not all_of_them:
            break
        turns = _turns(path)
        if turns is not None and not (all_of_them or store.is_named(path)):
            if any(longer[: len(turns)] == turns for longer in known):
                continue
            known.append(turns)
        elif turns is not None:
            known.append(turns)
        listed.append(path)
    return listed, len(paths) - len(listed)


def _turns(path: Path) -> list[Turn] | None:
    """The turns in a file; None if it cannot be read."""
    try:
        return store.load(path).turns
    except (TgrError, OSError):
        return None


def _row(path: Path) -> str:
    """Returns a conversation's time of saving, its name if any, and its beginning."""
    try:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    except OSError:
        return f"{path.name} is not there any more"
    if (turns := _turns(path)) is None:
        return f"{when}  {path.name} cannot be read"
    name = f"{path.stem}, " if store.is_named(path) else ""
    question = f": {shortened(turns[0].question)}" if turns else ""
    return f"{when}  {name}{plural(len(turns), 'turn')}{question}"


def begin(session: ChatSession, start: Start) -> None:
    """Begins a conversation. The errors of a file."""
    texts = [read_file(path) for path in start.files]
    if start.resume is not None:
        for line in go_on(session, start.resume):
            text = on_terminal(line) if sys.stderr.isatty() else printable(line)
            print(text, file=sys.stderr)
        session.conversation.user_options |= start.options
        if start.method:
            session.conversation.set_method(start.method)
    session.conversation.system = start.system or session.conversation.system
    session.attached += texts


def go_on(session: ChatSession, path: Path) -> Iterator[str]:
    """Continues a saved conversation in its file, or in a copy if another chat has that open."""
    file, why = OwnedFile(path), ""
    if session.path not in (None, path):
        try:
            why = "" if file.take() else f"another chat has {path.stem} open"
        except OSError as error:
            why = f"{path.stem} cannot be locked ({error.strerror})"
    try:
        yield from _restore(session, path, file)
    except BaseException:
        if session.path != path:
            file.release()
        raise
    if why:
        yield f"{why}; this one goes on in a copy"


def _restore(session: ChatSession, path: Path, file: OwnedFile | None = None) -> Iterator[str]:
    """Continues what is in `path`: in `file` if this chat owns it, else in a new file."""
    saved = store.load(path)
    session.leave()
    saved.restore(session.conversation)
    stays = file is not None and path == session.path and not session.saved.is_behind
    if not stays:
        session.start_new_file()
    if file is not None and file.is_owned:
        session.saved.go_on_in(file)
    session.arrive(path)
    session.saved.copies[path] = saved.digest
    yield f"{path.stem}: {plural(len(saved.turns), 'turn')}, method {saved.method}"
    yield from _other_model(session, saved)
    if saved.turns:
        session.front_end.show_turn(saved.turns[-1])


def _other_model(session: ChatSession, saved: store.Saved) -> Iterator[str]:
    """Yields warnings if a conversation was written with another model than the loaded one."""
    loaded, known = session.conversation.engine.path, saved.model_file()
    if known is None and saved.model != str(loaded):
        name = model_files.listed_name(loaded)
        yield f"it was written with {saved.model}, which is not there; {name} goes on"
    elif known is not None and known != loaded:
        name, own = model_files.listed_name(loaded), model_files.listed_name(known)
        yield f"it was written with {own}; {name} goes on, and /model {known} changes to {own}"
    if known is not None and not saved.is_same(known):
        yield f"{known} has changed since the conversation was written"
