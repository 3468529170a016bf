"""What a line that begins with a slash does: each command is a function of the session and the rest
of the line, and yields lines to show."""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tgr_local import generation, methods
from tgr_local.chat import store
from tgr_local.chat.session import BLOCK, Session, decoded
from tgr_local.errors import ModelError
from tgr_local.models import library
from tgr_local.options import settings
from tgr_local.options.config import SearchConfig
from tgr_local.search.steps import Counts
from tgr_local.trace import record, render

MAX_READ = 16 << 20  # bytes of a file that is put before a question
RECENT = 10


class Command(NamedTuple):
    run: Callable[[Session, str], Iterable[str]]
    argument: str
    help: str


def run(session: Session, line: str) -> Iterable[str]:
    """The lines that a command has to show. ValueError for a bad one, EOFError for /exit."""
    name, *argument = line.strip().split(maxsplit=1)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "/help lists what there is"
        raise ValueError(f"unknown command {name}; {hint}")
    return COMMANDS[name].run(session, argument[0] if argument else "")


# ---- the conversation ----


def _help(_: Session, __: str) -> Iterator[str]:
    for name, command in COMMANDS.items():
        yield f"{f'{name} {command.argument}':18}  {command.help}"
    yield f"{BLOCK:18}  begin and end a question of several lines"
    yield f"{'keys':18}  Ctrl-C stops a reply and keeps it, Ctrl-D leaves, Ctrl-R searches the"
    yield f"{'':18}  history, Alt-Enter breaks the line, Ctrl-X Ctrl-E opens the editor"


def _exit(_: Session, __: str) -> Iterable[str]:
    raise EOFError


def _clear(session: Session, _: str) -> Iterable[str]:
    session.chat.clear()
    session.attached.clear()
    session.begin()
    return ["the conversation begins anew"]


def _regen(session: Session, _: str) -> Iterable[str]:
    session.reply(session.chat.again())
    return []


def _retry(session: Session, argument: str) -> Iterator[str]:
    k = _whole(argument or "4", "how many replies", 2, 64)
    chat = session.chat
    replies = session.front.gather(k, lambda on_event: chat.several(k, on_event))
    chosen = session.front.choose(replies)
    if chosen is None:
        yield f"none of the {k} replies is kept: the earlier one stands"
        return
    chat.keep(replies[chosen])
    session.keep()
    yield f"reply {chosen + 1} of {k} is kept; all together: {render.summary(replies)}"


def _undo(session: Session, _: str) -> Iterable[str]:
    turn = session.chat.undo()
    session.keep()
    return [f"took back: {_snippet(turn.question)}"]


def _system(session: Session, argument: str) -> Iterable[str]:
    chat = session.chat
    if argument:
        chat.system = "" if argument == "none" else argument
        session.keep()
    return [f"system prompt: {chat.system}" if chat.system else "no system prompt"]


def _read(session: Session, argument: str) -> Iterable[str]:
    if not argument:
        raise ValueError("name the file: /read FILE")
    path = Path(argument).expanduser()
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file")
    if path.stat().st_size > MAX_READ:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, but at most {MAX_READ} are read")
    text = decoded(path.read_bytes(), str(path))
    session.attached.append(text)
    n_tokens = len(session.chat.engine.tokenize(text))
    return [f"{path}: {len(text.splitlines())} lines, {n_tokens} tokens go before your question"]


def _editor(session: Session, argument: str) -> Iterable[str]:
    text = session.front.edit(argument).strip("\n")
    if not text.strip():
        return ["the text is empty: nothing is asked"]
    session.ask(text)
    return []


def _copy(session: Session, _: str) -> Iterable[str]:
    answer = session.chat.last.answer
    if not answer:
        raise ValueError("the last question has no answer yet: /regen asks it again")
    session.front.copy(answer)
    return [f"copied {len(answer)} characters"]


# ---- kept conversations ----


def _save(session: Session, argument: str) -> Iterable[str]:
    if not session.chat.turns:
        raise ValueError("there is nothing to save yet: ask something first")
    path = store.place(argument) if argument else session.path or store.fresh_place()
    if path != session.path and path not in session.copies and path.exists():
        if _is_chat(path):
            raise ValueError(f"{path} holds another conversation; name another file, or remove it")
        raise ValueError(f"{path} is there and no conversation; name another file")
    store.save(path, session.chat)
    session.copies.add(path)
    return [f"saved as {path}"]


def _is_chat(path: Path) -> bool:
    if not path.is_file():  # a pipe would be waited for
        return False
    with open(path, "rb") as file:
        return store.FORMAT.encode() in file.read(200)


def _load(session: Session, argument: str) -> Iterable[str]:
    if not argument:
        raise ValueError("name the conversation: /load NAME; /resume lists the latest ones")
    return _restored(session, store.place(argument))


def _restored(session: Session, path: Path) -> Iterator[str]:
    saved = store.load(path)
    saved.restore(session.chat)
    session.begin()
    session.copies.add(path)
    yield f"{path.stem}: {_some(len(saved.turns), 'turn')}, method {saved.method}"
    if saved.model != str(session.chat.engine.path):
        yield f"it was written with {saved.model}; /model {saved.model} goes back to that"
    if saved.turns:
        yield f"last question: {_snippet(saved.turns[-1].question)}"


def _resume(session: Session, argument: str) -> Iterator[str]:
    paths = [path for path in store.kept() if path != session.path]
    if not paths:
        raise ValueError("there is no kept conversation yet")
    if argument:
        path = paths[_whole(argument, "the conversation", 1, len(paths)) - 1]
        yield from _restored(session, path)
        if session.path is not None:
            session.path = path  # it goes on where it was
        return
    for number, path in enumerate(paths[:RECENT], 1):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        yield f"{number:2}  {when}  {_first_question(path)}"
    yield "/resume N goes on with number N"


def _first_question(path: Path) -> str:
    try:
        turns = store.load(path).turns
    except Exception:
        return f"{path.name} cannot be read"
    return f"{_some(len(turns), 'turn')}: {_snippet(turns[0].question)}" if turns else "empty"


# ---- how it replies ----


def _model(session: Session, argument: str) -> Iterator[str]:
    chat = session.chat
    if argument:
        path = library.find(argument)
        # what cannot be talked with is refused while the old one is still there
        if "tokenizer.chat_template" not in library.card(path).metadata:
            raise ModelError(f"{path} has no chat template; name a chat model")
        chat.load(path)
    places = ", ".join(dict.fromkeys(chat.engine.devices()))
    yield f"{chat.engine.description} ({chat.engine.path}) on {places}"
    if not argument:
        yield f"there are {', '.join(path.stem for path in library.local())}"


def _method(session: Session, name: str) -> Iterable[str]:
    if name:
        session.chat.use(name)
    return [f"method {session.chat.method}; there are {', '.join(methods.METHODS)}"]


def _set(session: Session, argument: str) -> Iterable[str]:
    name, _, text = argument.replace("=", " ", 1).partition(" ")
    if name and (text.strip() or name not in _values(session)):
        session.chat.set(name, text.strip())
    values = _values(session)
    return [_option(one, *values[one]) for one in ([name] if name else values)]


def _values(session: Session) -> dict[str, tuple[Any, str]]:
    """Every option that can be set here, with its value and what it means."""
    configs = (session.chat.config, session.chat.options)
    return {
        spec.name: (getattr(config, spec.name), spec.metadata["doc"])
        for config in configs
        for spec in dataclasses.fields(config)
    }


def _option(name: str, value: Any, doc: str) -> str:
    return f"{name:18}  {settings.as_text(value):10}  {doc}"


def _think(session: Session, argument: str) -> Iterable[str]:
    words = {"on": ("thinking", "on"), "off": ("thinking", "off")}
    words |= {"show": ("show_thinking", "on"), "hide": ("show_thinking", "off")}
    chat = session.chat
    if argument:
        if argument not in words:
            raise ValueError(f"/think is {argument!r}, but must be on, off, show or hide")
        chat.set(*words[argument])
    on = "on" if chat.config.thinking else "off"
    return [f"thinking is {on} and {'shown' if chat.options.show_thinking else 'hidden'}"]


def _budget(session: Session, argument: str) -> Iterable[str]:
    chat = session.chat
    names = ("max_forward_tokens", "max_seconds", "thinking_budget")
    if argument in ("off", "none"):
        for name in names:
            chat.set(name, "0")
    elif argument.partition(" ")[0] == "thinking":
        chat.set("thinking_budget", argument.removeprefix("thinking").strip())
    elif argument.endswith("s"):
        chat.set("max_seconds", argument[:-1])
    elif argument:
        chat.set("max_forward_tokens", argument)
    limits = [f"{name} {value}" for name in names if (value := getattr(chat.config, name))]
    return [f"for one reply: {', '.join(limits) or 'no limit'}"]


# ---- what happened ----


def _show(session: Session, argument: str) -> Iterator[str]:
    chat, what = session.chat, argument or "options"
    if what == "options":
        yield from _model(session, "")
        yield f"method {chat.method}"
        config, sources = chat.resolved
        for name, value in dataclasses.asdict(config).items():
            if value != getattr(SearchConfig(), name):
                yield f"{name} {settings.as_text(value)} ({sources[name]})"
        yield from _system(session, "")
        yield f"{_some(len(chat.turns), 'turn')}, kept in {session.path or 'no file'}"
    elif what == "prompt":
        if not chat.messages:
            raise ValueError("there is no prompt yet: ask something first")
        prompt = generation.prompt_tokens(chat.engine, chat.messages, chat.config)
        yield chat.engine.detokenize(prompt, special=True).decode("utf-8", "replace")
    elif what == "conversation":
        for turn in chat.turns:
            yield f">>> {turn.question}"
            yield turn.answer or "(no answer)"
    else:
        raise ValueError(f"/show is {what!r}, but must be options, prompt or conversation")


def _trace(session: Session, argument: str) -> Iterable[str]:
    steps = session.chat.steps
    if not steps:
        raise ValueError("there is nothing to show yet: ask something first")
    if argument:
        number = _whole(argument, "the chunk", 1, len(steps))
        steps = steps[number - 1 : number]
    boundaries = record.make_boundaries(session.chat.engine, steps)
    return render.boundary_table(boundaries, shutil.get_terminal_size((120, 24)).columns)


def _stats(session: Session, _: str) -> Iterator[str]:
    replies = session.chat.replies
    if not replies:
        raise ValueError("there is no finished reply yet: ask something first")
    yield f"last reply: {render.summary(replies[-1:])}"
    counts = sum((reply.counts for reply in replies), Counts())
    seconds = sum(reply.seconds for reply in replies)
    yield f"all {len(replies)}: {render.forward_tokens(counts)}, {seconds:.2f} s"
    stats = session.chat.engine.stats()
    yield f"cache: {stats.cells_used} of {stats.n_ctx} cells, {stats.cells_peak} at the peak"


def _whole(text: str, what: str, low: int, high: int) -> int:
    if not text.isdecimal() or not low <= int(text[:9]) <= high:
        raise ValueError(f"{what} is {text!r:.40}, but must be between {low} and {high}")
    return int(text)


def _some(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _snippet(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


COMMANDS = {
    "/help": Command(_help, "", "list the commands"),
    "/exit": Command(_exit, "", "leave"),
    "/clear": Command(_clear, "", "forget the conversation"),
    "/regen": Command(_regen, "", "reply to the last question again, with another seed"),
    "/retry": Command(_retry, "N", "N replies together, to page through and choose from"),
    "/undo": Command(_undo, "", "take back the last question and its answer"),
    "/model": Command(_model, "MODEL", "go on with another model; without one: say which it is"),
    "/method": Command(_method, "NAME", "how to reason; without a name: list the methods"),
    "/set": Command(_set, "KEY VALUE", "change an option; without a key: list them all"),
    "/think": Command(_think, "WORD", "on or off: whether it thinks; show or hide: the thinking"),
    "/budget": Command(_budget, "N", "forward tokens for a reply; Ns: seconds; thinking N; off"),
    "/system": Command(_system, "TEXT", "the system prompt; none removes it"),
    "/show": Command(_show, "WHAT", "options, prompt or conversation"),
    "/trace": Command(_trace, "CHUNK", "why each candidate won or lost in the last reply"),
    "/stats": Command(_stats, "", "tokens and seconds of the last reply and of all"),
    "/save": Command(_save, "NAME", "write the conversation to a file, or under a name"),
    "/load": Command(_load, "NAME", "go on with a copy of a saved conversation"),
    "/resume": Command(_resume, "N", "go on with a kept conversation; without N: list them"),
    "/read": Command(_read, "FILE", "put a file before the next question"),
    "/copy": Command(_copy, "", "copy the last answer to the clipboard"),
    "/editor": Command(_editor, "TEXT", "write the question in $EDITOR"),
}
