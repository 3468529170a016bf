"""A conversation on a terminal: lines from the prompt, replies in the live view."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prompt_toolkit import Application, PromptSession
from prompt_toolkit.completion import Completer, NestedCompleter, PathCompleter, WordCompleter
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.widgets import TextArea

from tgr_local.chat import store
from tgr_local.chat.commands import ALIASES, COMMANDS, handle_line
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.chat.session import ChatSession, FrontEnd, Start
from tgr_local.chat.turn_commands import begin
from tgr_local.console import live, render
from tgr_local.console.command_table import LEAVING, LEAVING_COMMANDS, on_terminal
from tgr_local.console.dialog import no_echo, until_left
from tgr_local.console.input_line import CommandCompleter, InputLine, words
from tgr_local.console.live import Events, OnReplyEvent
from tgr_local.console.wrap import shortened, terminal_width
from tgr_local.generation import METHODS, Reply
from tgr_local.options import model_files
from tgr_local.options.config import ChatConfig, SearchConfig
from tgr_local.system.paths import program
from tgr_local.system.sanitize import printable

_CLIPBOARDS = ("pbcopy", "wl-copy", "xclip -selection clipboard", "xsel --clipboard --input")


def run(conversation: Conversation, start: Start) -> int:
    """Answers until the user leaves; returns the exit code."""
    terminal = Terminal(conversation)
    session = ChatSession(conversation, terminal)
    if conversation.chat_config.save:
        session.path = store.new_path()
    for line in _banner(conversation):
        print(on_terminal(line))
    with contextlib.closing(session.saved):
        begin(session, start)
        for name in start.files:
            print(on_terminal(f"{name} comes before your next question"))
        until_left(
            lambda: terminal.read_line(">>> "),
            lambda line: handle_line(session, line, terminal.read_block_line),
            lambda: _stopped(conversation),
            "Ctrl-D or /bye leaves",
        )
        session.leave()
    return 0


def _stopped(conversation: Conversation) -> str:
    if conversation.turns and not conversation.last.answer:
        return "stopped before the answer; /regen asks the question again"
    return "stopped; the text so far is kept"


def _banner(conversation: Conversation) -> list[str]:
    engine = conversation.engine
    devices = ", ".join(dict.fromkeys(engine.devices()))
    is_first = conversation.chat_config.save and not store.saved_paths()
    hint = "/method tgr-latent searches whole replies, and shows the scores of what it tries"
    return [
        f"{engine.description} ({engine.path.name}) on {devices}",
        f"method {conversation.method.name}; "
        "/help lists the commands, Ctrl-C stops a reply, Ctrl-D leaves",
        *([hint] if is_first and not conversation.method.searches else []),
    ]


class Terminal(FrontEnd):
    """The front end with a user."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        completer = CommandCompleter((*COMMANDS, *ALIASES), _arguments())
        self._line = InputLine(conversation.chat_config.save, completer, "history")

    def read_line(self, prompt: str) -> str:
        """A line that the user types. EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        return self._line.read(prompt, self._conversation.chat_config.keys)

    def read_block_line(self) -> str:
        """Another line of a block. EOFError for Ctrl-D, ValueError for Ctrl-C."""
        try:
            return self.read_line("... ")
        except KeyboardInterrupt:
            raise ValueError("the block is dropped; nothing was asked") from None

    def show(self, events: Events) -> None:
        with no_echo():
            config = self._conversation.chat_config
            reply = live.show(events, config.show_thinking, config.markdown)
            live.print_note(render.cost_line([reply], terminal_width()))

    def show_many(self, k: int, work: Callable[[OnReplyEvent], list[Reply]]) -> list[Reply]:
        try:
            with no_echo():
                return live.show_many(k, work)
        except KeyboardInterrupt:
            raise ValueError("stopped; the earlier reply stays") from None

    def choose(self, replies: Sequence[Reply]) -> int | None:
        chosen = _choice(replies)
        if chosen is not None:
            self._print(replies[chosen].text, replies[chosen].thinking)
        return chosen

    def decide(self, question: str, choices: Sequence[str]) -> int | None:
        print(on_terminal(question))
        for number, choice in enumerate(choices, 1):
            print(on_terminal(f"{number:2}  {choice}"))
        prompt: PromptSession[str] = PromptSession()  # without the history of questions
        while True:
            try:
                answer = prompt.prompt(f"1 to {len(choices)}: ").strip()
            except KeyboardInterrupt:
                return None
            if answer in (*LEAVING, *LEAVING_COMMANDS):
                raise EOFError
            if answer.isdecimal() and 0 < int(answer[:3]) <= len(choices):
                return int(answer) - 1
            if answer:
                print(on_terminal("type a number; Ctrl-C changes nothing, /exit leaves"))

    def show_turn(self, turn: Turn) -> None:
        print(on_terminal(f">>> {shortened(turn.question)}"))
        if turn.answer:
            self._print(turn.answer, turn.thinking)

    def _print(self, text: str, thinking: str) -> None:
        config = self._conversation.chat_config
        live.print_reply(text, thinking if config.show_thinking else "", config.markdown)

    def edit(self, text: str) -> str:
        editor = (
            os.environ.get("VISUAL")
            or os.environ.get("EDITOR")
            or _first_installed(("vi", "nano", "notepad"))
        )
        if editor is None:
            raise ValueError("no editor found: name one in $EDITOR")
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "question.md"
            path.write_text(text, encoding="utf-8")
            _call([*command_words(editor), str(path)])
            return path.read_text(encoding="utf-8-sig")

    def copy(self, text: str) -> None:
        if (command := _first_installed(_CLIPBOARDS)) is not None:
            _call(command_words(command), text.encode())
            return
        # OSC 52: the terminal sets its own clipboard, also over ssh
        code = base64.b64encode(text.encode()).decode()
        print(f"\x1b]52;c;{code}\x07", end="", flush=True)


def _choice(replies: Sequence[Reply]) -> int | None:
    """Shows replies on the whole screen, one at a time; the index of the chosen one, or None."""
    index = 0
    area = TextArea(read_only=True, scrollbar=True, wrap_lines=True)
    keys = KeyBindings()

    def turn_to(number: int) -> None:
        nonlocal index
        index = number % len(replies)
        area.text = _page(replies[index])

    def head() -> str:
        reply = replies[index]
        return (
            f"reply {index + 1} of {len(replies)}, seed {reply.seed}, {reply.n_tokens} tokens, "
            f"{reply.finish}"
        )

    for names, go in {
        ("right", "n", "tab"): lambda event: turn_to(index + 1),
        ("left", "p", "s-tab"): lambda event: turn_to(index - 1),
        ("enter",): lambda event: event.app.exit(index),
        ("q", "escape", "c-c", "c-d"): lambda event: event.app.exit(None),
    }.items():
        for name in names:
            keys.add(name, eager=True)(go)

    @keys.add("<any>")
    def _(event: KeyPressEvent) -> None:
        digit = event.key_sequence[0].data
        if digit.isdecimal() and 0 < int(digit) <= len(replies):
            turn_to(int(digit) - 1)

    turn_to(0)
    foot = "← → other replies, ↑ ↓ scroll, Enter chooses this one, q chooses none"
    screen = HSplit([_bar(head), area, _bar(lambda: foot)])
    application: Application[int | None] = Application(
        Layout(screen, focused_element=area), key_bindings=keys, full_screen=True
    )
    return application.run()


def _bar(text: object) -> Window:
    return Window(FormattedTextControl(text), height=1, style="reverse")  # type: ignore[arg-type]


def _page(reply: Reply) -> str:
    thinking = f"\n\n--- thinking ---\n{reply.thinking}" if reply.thinking else ""
    return printable(f"{reply.text or '(no answer)'}{thinking}")


def _arguments() -> dict[str, Completer]:
    fields = (*dataclasses.fields(SearchConfig), *dataclasses.fields(ChatConfig))
    settable = {spec.name: words(spec.metadata["choices"] or ()) for spec in fields}
    return {
        "/set": NestedCompleter.from_nested_dict(settable),
        "/method": words(METHODS),
        "/markdown": words(("on", "off")),
        "/think": words(("on", "off", "show", "hide")),
        "/budget": words(("thinking", "off")),
        "/show": words(("options", "prompt", "conversation")),
        "/read": PathCompleter(expanduser=True),
        "/model": WordCompleter(lambda: [path.stem for path in model_files.local()], WORD=True),
        "/load": WordCompleter(lambda: [path.stem for path in store.saved_paths()], WORD=True),
    }


def command_words(command: str) -> list[str]:
    """A command as a shell splits it; in those of Windows a backslash is one."""
    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    if os.name == "nt":
        lexer.escape = ""
    return list(lexer)


def _call(command: list[str], data: bytes | None = None) -> None:
    """Runs a program of the user. ValueError if its exit code is not 0."""
    completed = subprocess.run(command, input=data)
    if completed.returncode:
        raise ValueError(f"{command[0]} failed with exit code {completed.returncode}")


def _first_installed(commands: Iterable[str]) -> str | None:
    return next((line for line in commands if program(command_words(line)[0])), None)
