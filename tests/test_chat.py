"""A conversation and its two ways in, pipes and a terminal, on a double of the engine."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
from command_line import finished
from fake_engine import FakeEngine, fake_stream
from fake_user import make_session

from tgr_local.chat.commands import handle_line
from tgr_local.chat.session import FrontEnd
from tgr_local.methods import METHODS
from tgr_local.options.config import SearchConfig
from tgr_local.system.errors import TgrError


@pytest.fixture
def session(monkeypatch) -> Any:
    return make_session(monkeypatch)


@pytest.fixture
def conversation(session: Any) -> Any:
    return session.conversation


def test_the_history_has_answers_and_no_thinking(conversation: Any):
    list(conversation.ask("first"))
    list(conversation.ask("second"))
    assert conversation.messages == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "#1 first"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "#3 second"},
    ]


def test_an_interrupted_turn_keeps_its_text_so_far(conversation: Any):
    events = conversation.ask("question")
    for event in events:
        if getattr(event, "kind", "") == "answer":
            break
    events.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": "#1"}
    assert len(conversation.steps) == 1 and conversation.replies == []


def test_a_question_that_was_stopped_at_once_can_be_asked_again(conversation: Any):
    list(conversation.ask("first"))
    conversation.ask("second")  # stopped before its first event
    assert conversation.last.question == "second" and len(conversation.turns) == 2
    list(conversation.ask_again())
    assert conversation.messages[-1]["content"] == "#3 second" and len(conversation.turns) == 2


def test_a_turn_without_an_answer_adds_no_message(conversation: Any):
    with pytest.raises(TgrError):
        list(conversation.ask("fail"))
    events = conversation.ask("question")
    next(events)
    events.close()
    assert conversation.messages == []


def test_a_path_is_a_question_and_not_a_command(session: Any):
    handle_line(session, "/usr/bin is what?", lambda: "")
    assert session.conversation.last.question == "/usr/bin is what?"


def test_text_after_a_block_is_refused(session: Any):
    with pytest.raises(ValueError, match="text after the closing"):
        handle_line(session, '"""one"""two', lambda: "")


def test_a_pasted_module_with_a_docstring_is_a_question(session: Any):
    module = '"""One line."""\n\nimport this\n'
    handle_line(session, module, lambda: "")
    assert session.conversation.last.question == module


def piped(text: str | bytes, *flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `tgr-local chat` on the double of the engine."""
    data = text.encode() if isinstance(text, str) else text
    return finished("chat", "--model", "fake.gguf", *flags, data=data)


DIALOGUE = """\
What is 2+2?

and 3+3?\r
\"\"\"two
lines\"\"\"
/method base
/clear
/xyz slash
last, no line end"""
SAID = f"""\
#1 What is 2+2?
#3 and 3+3?
#5 two
lines
method base: {METHODS["base"].about}
a new conversation begins
#1 last, no line end
"""


@pytest.mark.parametrize(
    ("typed", "code", "out", "err"),
    [
        (DIALOGUE, 1, SAID, "unknown command /xyz; /help lists all commands"),
        # a failed turn does not end the conversation, and its half answer is in the history
        ("fail\nbreak\nstill here\n", 1, "#1\n#3 still here\n",
         "the prompt has 999 tokens, but the context has 64\ntgr-local: it broke"),
        (b"one\ntw\xffo\nthree\n", 1, "#1 one\n#3 three\n",
         "stdin is not UTF-8 text: invalid byte at offset 6"),
        ('"""never closed\nmore', 1, "", 'a block that begins with """ must end with """'),
        ("one\nexit\nnever\n", 0, "#1 one\n", ""),
        # no turn without an answer
        ("silent\nmore\n", 1, "\n#1 more\n", "the reply has no answer; it ended with stop"),
        ("", 0, "", ""),
    ],
    ids=("word for word", "failed turns", "no text", "no end", "exit", "no answer", "nothing"),
)  # fmt: skip
def test_a_piped_conversation(typed: str | bytes, code: int, out: str, err: str):
    assert piped(typed) == (code, out, f"tgr-local: {err}\n" if err else "")


def test_the_system_prompt_and_files_come_first(tmp_path):
    (tmp_path / "a").write_text("3\n")
    (tmp_path / "b").write_text("4")
    (tmp_path / "empty").write_text("\n")
    files = [part for name in ("a", "empty", "b") for part in ("--file", str(tmp_path / name))]
    asked = piped("sum\nagain\n", "--system", "be brief", *files)
    assert asked[1] == "#2 3\n\n4\n\nsum\n#4 again\n"
    code, out, err = piped("sum\n", "--file", "/nowhere/x")
    assert (code, out) == (1, "") and "/nowhere/x: No such file" in err


def test_control_characters_in_replies_to_choose_from_are_not_printed(monkeypatch, capsys):
    reply = list(fake_stream(FakeEngine("f"), "2+2?", SearchConfig(), method="base"))[-1]
    replies = [dataclasses.replace(reply, text="\x1b[2J4")]
    FrontEnd().choose(replies)
    assert capsys.readouterr().out == "[1] \x1b[2J4\n"  # a program gets it as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    FrontEnd().choose(replies)
    assert capsys.readouterr().out == "[1] \ufffd[2J4\n"
