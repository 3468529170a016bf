"""A conversation and its two ways in, pipes and a terminal, on a double of the engine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_engine import INSTALLED, FakeEngine, fake_stream
from fake_user import make_session
from surroundings import HANG, environment

from tgr_local.chat.commands import handle_line
from tgr_local.chat.piped import Pipe
from tgr_local.errors import TgrError
from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig

PROGRAM = f"import sys; {INSTALLED} from tgr_local.cli import main; "


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    return make_session(monkeypatch)


@pytest.fixture
def conversation(session: Any) -> Any:
    return session.conversation


def test_the_history_has_answers_and_no_thinking(conversation: Any) -> None:
    list(conversation.ask("first"))
    list(conversation.ask("second"))
    assert conversation.messages == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "#1 first"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "#3 second"},
    ]


def test_an_interrupted_turn_keeps_its_text_so_far(conversation: Any) -> None:
    events = conversation.ask("question")
    for event in events:
        if getattr(event, "kind", "") == "answer":
            break
    events.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "#1"}
    assert len(conversation.steps) == 1 and conversation.replies == []


def test_a_question_that_was_stopped_at_once_can_be_asked_again(conversation: Any) -> None:
    list(conversation.ask("first"))
    conversation.ask("second")  # stopped before its first event
    assert conversation.last.question == "second" and len(conversation.turns) == 2
    list(conversation.ask_again())
    assert conversation.messages[-1]["content"] == "#3 second" and len(conversation.turns) == 2


def test_a_turn_without_an_answer_adds_no_message(conversation: Any) -> None:
    with pytest.raises(TgrError):
        list(conversation.ask("fail"))
    events = conversation.ask("question")
    next(events)
    events.close()
    assert conversation.messages == []


def test_a_path_is_a_question_and_not_a_command(session: Any) -> None:
    handle_line(session, "/usr/bin is what?", lambda: "")
    assert session.conversation.last.question == "/usr/bin is what?"


def test_text_after_a_block_is_refused(session: Any) -> None:
    with pytest.raises(ValueError, match="text after the closing"):
        handle_line(session, '"""one"""two', lambda: "")


def test_a_pasted_module_with_a_docstring_is_a_question(session: Any) -> None:
    module = '"""One line."""\n\nimport this\n'
    handle_line(session, module, lambda: "")
    assert session.conversation.last.question == module


def piped(text: str | bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    """`tgr-local chat` on the double of the engine with `text` on stdin."""
    arguments = ["chat", "--model", "fake.gguf", *flags]
    data = text.encode() if isinstance(text, str) else text
    return subprocess.run(
        [sys.executable, "-c", f"{PROGRAM} sys.exit(main({arguments!r}))"],
        input=data,
        capture_output=True,
        env=environment(),
        timeout=HANG,
    )


def test_a_piped_conversation_word_for_word() -> None:
    done = piped(
        'What is 2+2?\n\nand 3+3?\r\n"""two\nlines"""\n'
        "/method base\n/clear\n/xyz slash\nlast, no line end"
    )
    assert done.stdout.decode() == (
        "#1 What is 2+2?\n"
        "#3 and 3+3?\n"
        "#5 two\nlines\n"
        f"method base: {METHODS['base'].about}\n"
        "a new conversation begins\n"
        "#1 last, no line end\n"
    )
    assert done.stderr.decode() == "tgr-local: unknown command /xyz; /help lists all commands\n"
    assert done.returncode == 1


def test_a_failed_turn_does_not_end_the_conversation() -> None:
    done = piped("fail\nbreak\nstill here\n")
    assert done.stdout.decode() == "#1\n#3 still here\n"  # the half answer is in the history
    assert done.stderr.decode() == (
        "tgr-local: the prompt has 999 tokens, but the context has 64\ntgr-local: it broke\n"
    )
    assert done.returncode == 1


def test_bytes_that_are_not_text_fail_their_turn_and_name_the_offset() -> None:
    done = piped(b"one\ntw\xffo\nthree\n")
    assert done.stdout.decode() == "#1 one\n#3 three\n"
    assert done.stderr.decode() == "tgr-local: stdin is not UTF-8 text: invalid byte at offset 6\n"
    assert done.returncode == 1


def test_an_unclosed_block_is_an_error() -> None:
    done = piped('"""never closed\nmore')
    assert done.stderr.decode() == 'tgr-local: a block that begins with """ must end with """\n'
    assert (done.stdout, done.returncode) == (b"", 1)


def test_a_word_ends_a_piped_conversation() -> None:
    done = piped("one\nexit\nnever\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"#1 one\n", b"", 0)


def test_the_system_prompt_and_files_come_first(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("3\n")
    (tmp_path / "b").write_text("4")
    files = ["--file", str(tmp_path / "a"), "-f", str(tmp_path / "b")]
    done = piped("sum\nagain\n", "--system", "be brief", *files)
    assert done.stdout.decode() == "#2 3\n\n\n4\n\nsum\n#4 again\n"
    done = piped("sum\n", "--file", "/nowhere/x")
    assert (done.returncode, done.stdout) == (1, b"") and b"/nowhere/x: No such file" in done.stderr


def test_a_reply_without_an_answer_fails_its_line() -> None:
    done = piped("silent\nmore\n")
    assert done.stdout.decode() == "\n#1 more\n"  # no turn without an answer
    assert done.stderr.decode() == "tgr-local: the reply has no answer; it ended with stop\n"
    assert done.returncode == 1


def test_empty_input_gives_empty_output() -> None:
    done = piped("")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)


def test_control_characters_in_replies_to_choose_from_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = list(fake_stream(FakeEngine("f"), "2+2?", SearchConfig(), method="base"))[-1]
    replies = [dataclasses.replace(reply, text="\x1b[2J4")]
    Pipe().choose(replies)
    assert capsys.readouterr().out == "[1] \x1b[2J4\n"  # a program gets it as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Pipe().choose(replies)
    assert capsys.readouterr().out == "[1] \ufffd[2J4\n"


class Terminal:
    """tgr-local on the double of the engine, with a pseudo-terminal for all three streams."""

    def __init__(self, *arguments: str) -> None:
        self.own, other = pty.openpty()
        self.unread = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{PROGRAM} sys.exit(main({list(arguments)!r}))"],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment(
                XDG_STATE_HOME="/dev/null", TERM="xterm", NO_COLOR="1", PROMPT_TOOLKIT_NO_CPR="1"
            ),  # nobody here says where the cursor is
            start_new_session=True,
        )
        os.close(other)

    def read_until(self, text: str) -> None:
        """Reads the output up to the end of `text`; fails if it does not come."""
        end = time.monotonic() + HANG
        while text.encode() not in self.unread:
            left = end - time.monotonic()
            shown = self.unread.decode("utf-8", "replace")
            assert left > 0 and select.select([self.own], [], [], left)[0], shown
            self.unread += os.read(self.own, 65536)
        self.unread = self.unread.split(text.encode(), 1)[1]

    def type(self, text: str) -> None:
        os.write(self.own, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.own)


def test_control_c_stops_the_reply_and_keeps_the_session() -> None:
    with contextlib.closing(Terminal("chat", "--model", "fake.gguf")) as terminal:
        terminal.read_until(">>>")
        terminal.type("wait\r")
        terminal.read_until("#1")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped; the text so far is kept")
        terminal.read_until(">>>")
        terminal.type("again\r")
        terminal.read_until("#3 again")  # the half answer is in the history
        terminal.read_until(">>>")
        terminal.type("mute\r")
        terminal.read_until("starting")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("stopped before the answer")
        terminal.read_until(">>>")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=HANG) == 0
