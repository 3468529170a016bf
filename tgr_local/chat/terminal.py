"""A conversation on a terminal: a prompt with history and completion, a live view of the search."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    NestedCompleter,
    PathCompleter,
    WordCompleter,
)
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.validation import ValidationError, Validator

from tgr_local import methods
from tgr_local.chat import store
from tgr_local.chat.commands import COMMANDS
from tgr_local.chat.conversation import Chat
from tgr_local.chat.pastes import Pastes
from tgr_local.chat.piped import report
from tgr_local.chat.session import Listener, Session
from tgr_local.console.sanitize import printable
from tgr_local.generation import Reply
from tgr_local.models import library
from tgr_local.options.config import ChatConfig, SearchConfig
from tgr_local.system.paths import folder, private
from tgr_local.trace import live, render

_LONGEST_REMEMBERED = 1 << 16  # characters of a line in the history file
_CLIPBOARDS = ("pbcopy", "wl-copy", "xclip -selection clipboard", "xsel --clipboard --input")


def talk(chat: Chat) -> int:
    """Talks until the person leaves; the exit code."""
    terminal = Terminal(chat)
    session = Session(chat, terminal)
    if chat.options.save:
        session.path = store.fresh_place()
    for line in _banner(chat):
        print(printable(line))
    while True:
        asked = False
        try:
            line = terminal.ask(">>> ")
            asked = True
            session.handle(line, terminal.more)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print(_stopped(chat) if asked else "Ctrl-D or /exit leaves")
        except Exception as error:
            report(error)


def _stopped(chat: Chat) -> str:
    if chat.turns and not chat.last.answer:
        return "stopped before the answer; /regen asks again, or ask something else instead"
    return "stopped; what is written is kept"


def _banner(chat: Chat) -> list[str]:
    places = ", ".join(dict.fromkeys(chat.engine.devices()))
    return [
        f"{chat.engine.description} ({chat.engine.path.name}) on {places}",
        f"method {chat.method}; /help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves",
    ]


class Terminal:
    """The front end with a person before it."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._pastes = Pastes()
        bindings = KeyBindings()
        self._pastes.bind(bindings)

        @bindings.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._prompt: PromptSession[str] = PromptSession(
            completer=_Commands(),
            complete_while_typing=False,
            enable_history_search=True,
            enable_open_in_editor=True,
            enable_suspend=True,
            history=_history(self._pastes) if chat.options.save else InMemoryHistory(),
            input_processors=[self._pastes],
            key_bindings=bindings,
            validator=_Text(),
            validate_while_typing=False,
        )

    def ask(self, prompt: str) -> str:
        """A line from the person. EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        vi = self._chat.options.keys == "vi"
        self._prompt.editing_mode = EditingMode.VI if vi else EditingMode.EMACS
        return self._pastes.expanded(self._prompt.prompt(prompt))

    def more(self) -> str:
        """Another line of a block. EOFError for Ctrl-D, ValueError for Ctrl-C."""
        try:
            return self.ask("... ")
        except KeyboardInterrupt:
            raise ValueError("the block is dropped: nothing is asked") from None

    def show(self, events: live.Events) -> None:
        with _quiet():
            reply = live.show(events, self._chat.options.show_thinking)
            live.print_note(render.summary([reply]))

    def gather(self, k: int, work: Callable[[Listener], list[Reply]]) -> list[Reply]:
        try:
            with _quiet():
                return live.show_many(k, work)
        except KeyboardInterrupt:
            raise ValueError("stopped: the earlier reply stands") from None

    def choose(self, replies: Sequence[Reply]) -> int | None:
        from tgr_local.chat import pager

        return pager.choose(replies)

    def edit(self, text: str) -> str:
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or _first(("vi", "nano"))
        if editor is None:
            raise ValueError("there is no editor: name one in $EDITOR")
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "question.md"
            path.write_text(text, encoding="utf-8")
            _call(f"{editor} {shlex.quote(str(path))}")
            return path.read_text(encoding="utf-8")

    def copy(self, text: str) -> None:
        if (command := _first(_CLIPBOARDS)) is not None:
            _call(command, text.encode())
            return
        # the terminal's own, also from another machine: OSC 52
        code = base64.b64encode(text.encode()).decode()
        print(f"\x1b]52;c;{code}\x07", end="", flush=True)


def _call(command: str, data: bytes | None = None) -> None:
    """Runs a program of the user's. ValueError when it says that it failed."""
    done = subprocess.run(shlex.split(command), input=data)
    if done.returncode:
        raise ValueError(f"{shlex.split(command)[0]} failed with exit code {done.returncode}")


def _first(commands: Iterable[str]) -> str | None:
    """The first command that is installed."""
    return next((one for one in commands if shutil.which(shlex.split(one)[0])), None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What is typed or pasted meanwhile waits, unseen, for the next prompt; Ctrl-C still stops."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    quiet[3] |= termios.NOFLSH  # else Ctrl-C drops what was typed
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    if live.is_live():
        print("\x1b[?2004h", end="", flush=True)  # a paste arrives in one piece
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


class _Text(Validator):
    """Refuses a line that holds a byte which is no UTF-8: it could be neither asked nor kept."""

    def validate(self, document: Document) -> None:
        for at, letter in enumerate(document.text):
            if "\ud800" <= letter <= "\udfff":
                raise ValidationError(at, "no UTF-8 here: delete the letter under the cursor")


class _Commands(Completer):
    """The commands, and after one of them its arguments."""

    def __init__(self) -> None:
        self._names = _words(COMMANDS)
        self._arguments = _arguments()

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        name, space, rest = document.text_before_cursor.partition(" ")
        if space and name in self._arguments:
            yield from self._arguments[name].get_completions(Document(rest), event)
        elif not space and name.startswith("/"):
            yield from self._names.get_completions(document, event)


def _arguments() -> dict[str, Completer]:
    fields = (*dataclasses.fields(SearchConfig), *dataclasses.fields(ChatConfig))
    settable = {spec.name: _words(spec.metadata["choices"] or ()) for spec in fields}
    return {
        "/set": NestedCompleter.from_nested_dict(settable),
        "/method": _words(methods.METHODS),
        "/think": _words(("on", "off", "show", "hide")),
        "/budget": _words(("thinking", "off")),
        "/show": _words(("options", "prompt", "conversation")),
        "/read": PathCompleter(expanduser=True),
        "/model": WordCompleter(lambda: [path.stem for path in library.local()], WORD=True),
        "/load": WordCompleter(lambda: [path.stem for path in store.kept()], WORD=True),
    }


def _words(words: Iterable[str]) -> Completer:
    return WordCompleter(list(words), WORD=True)


def _history(pastes: Pastes) -> History:
    """Earlier lines, kept over sessions where the user's state folder can be written."""
    path = folder("state") / "history"
    try:
        private(path).touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _Remembered(path, pastes)


class _Remembered(FileHistory):
    """Lines with their pastes, those aside that are too long to call back."""

    def __init__(self, path: Path, pastes: Pastes) -> None:
        super().__init__(path)
        self._pastes = pastes

    def append_string(self, string: str) -> None:
        whole = self._pastes.expanded(string)
        if len(whole) <= _LONGEST_REMEMBERED:
            super().append_string(whole)
