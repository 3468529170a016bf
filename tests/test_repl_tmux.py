"""The conversation on a terminal: keys in, the screen out.

tmux is the terminal; the double of the engine answers, and once the embedded model.
"""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_engine import INSTALLED
from screens import Screen

from tgr_local.chat import store

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
SUMMARY = re.compile(r" s(, [\d.,]+ tokens/s)?(, seed \d+)?\n>>>$")  # below a finished reply


@pytest.fixture
def terminal(tmp_path) -> Iterator[Callable[..., Screen]]:
    """`terminal(width=40, NO_COLOR="1")`: an open conversation, at its prompt."""
    opened: list[Screen] = []

    def open_one(
        *, double: bool = True, width: int = 80, height: int = 24, **variables: str
    ) -> Screen:
        model = ["--model", "fake.gguf"] if double else []
        before = INSTALLED if double else ""
        arguments = ["chat", "--seed", "42", *model]
        screen = Screen(tmp_path, arguments, before, width=width, height=height, **variables)
        opened.append(screen)
        screen.until("\n>>>")
        return screen

    yield open_one
    for screen in opened:
        screen.close()


def ask(screen: Screen, question: str) -> None:
    screen.type(question)
    screen.press("Enter")


def test_a_question_to_the_embedded_model(terminal: Callable[..., Screen]):
    screen = terminal(double=False, width=200)
    ask(screen, "/set search_from 0")
    ask(screen, "What is 2+3?")
    text = screen.until(SUMMARY.search)
    asked, *answer, summary, _ = text[text.index(">>> What") :].splitlines()
    assert asked == ">>> What is 2+3?" and any(answer)
    assert re.match(r"\d+ tokens, [\d.]+ s", summary)
    ask(screen, "/trace")
    screen.until(lambda text: " won by " in text and text.endswith("\n>>>"))
    screen.press("C-d")
    screen.until("left with 0")


def test_only_the_first_conversation_says_how_to_see_the_search(terminal: Callable[..., Screen]):
    hint = "/method tgr-latent searches whole replies"
    screen = terminal()
    assert hint in screen.until("\n>>>")
    ask(screen, "2+2?")
    screen.until("#1")
    screen.press("C-d")
    screen.until("left with 0")
    assert hint not in terminal().until("\n>>>")


def test_control_c_keeps_the_reply_and_the_keys_typed_during_it(terminal: Callable[..., Screen]):
    screen = terminal()
    ask(screen, "wait")
    screen.until("best 1: ")
    assert "▁█ best 1: -1.1750, 0.5750 ahead" in screen.until("#1")
    screen.type("typed early")
    screen.press("C-c")
    text = screen.until(">>> typed early")
    assert "hm, wait\n\n#1\nstopped; the text so far is kept\n>>> typed early" in text
    assert "best 1" not in text  # nothing of the live view stays
    screen.press("Enter")
    screen.until("#3 typed early\n")  # the half answer is in the conversation
    ask(screen, "mute")
    screen.until("starting")
    screen.press("C-c")
    screen.until("stopped before the answer; /regen asks the question again\n>>>")
    screen.press("C-d")
    screen.until("left with 0")


def test_a_window_that_is_resized_during_a_reply(terminal: Callable[..., Screen]):
    screen = terminal()
    ask(screen, "slow")
    screen.until("word15")
    screen.resize(40, 12)
    screen.until("word35")
    screen.resize(100, 30)
    text = screen.until(SUMMARY.search)
    words = re.findall(r"word\d+", text.replace("\n", ""))
    assert words[-60:] == [f"word{i}" for i in range(60)]
    assert "writing · " not in text


def test_ten_thousand_pasted_lines_arrive(terminal: Callable[..., Screen], tmp_path):
    screen = terminal()
    lines = [f"line {i}" for i in range(10_000)]
    screen.paste(tmp_path, "\n".join(lines))
    screen.until(">>> [10,000 lines pasted, 98,889 characters]")
    screen.type(" endx")
    screen.press("BSpace", "Enter")
    text = screen.until(SUMMARY.search)
    answer = text.splitlines()[-10_002:-2]
    assert answer == ["#1 line 0", *lines[1:-1], "line 9999 end"]


def test_a_megabyte_in_one_line_arrives(terminal: Callable[..., Screen], tmp_path):
    screen = terminal()
    screen.paste(tmp_path, "x" * 1_000_000)
    screen.until("[1 line pasted, 1,000,000 characters]")
    screen.press("Left", "Right", "Enter")
    text = screen.until(SUMMARY.search)
    assert "2000007 tokens" in text  # thinking and answer repeat the question
    ask(screen, "and now?")
    screen.until("#3 and now?")


def test_a_paste_during_a_reply_waits_in_one_piece(terminal: Callable[..., Screen], tmp_path):
    screen = terminal()
    ask(screen, "slow")
    screen.until("word5")
    screen.paste(tmp_path, "one\ntwo\nthree")
    screen.until(re.compile(r"tokens/s, seed \d+\n>>> one\ntwo\nthree").search)
    screen.press("Enter")
    screen.until("#3 one\ntwo\nthree\n")


def test_a_paste_while_the_model_is_loaded_waits_in_one_piece(tmp_path):
    """The double loads until a file is there."""
    gate = tmp_path / "gate"
    before = f"""{INSTALLED}
import pathlib, time
def load(self, *arguments, began=fake_engine.FakeEngine.__init__, **more):
    print("loading")
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.01)
    began(self, *arguments, **more)
fake_engine.FakeEngine.__init__ = load
"""
    screen = Screen(tmp_path, ["chat", "--model", "fake.gguf"], before)
    try:
        screen.until("loading")
        screen.paste(tmp_path, "one\ntwo\nthree")
        gate.touch()
        text = screen.until(">>> one\ntwo\nthree")
        assert text.count("one") == 1  # nothing was shown before the prompt
        screen.press("Enter")
        screen.until("#1 one\ntwo\nthree\n")
    finally:
        screen.close()


def test_a_paste_without_marks_is_one_question(terminal: Callable[..., Screen]):
    screen = terminal()
    screen.send(b"one\rtwo\r\nthree")
    screen.until(">>> one\ntwo\nthree")
    screen.press("Enter")
    screen.until("#1 one\ntwo\nthree\n")
    screen.until(SUMMARY.search)
    screen.send(
        b"/set seed 7\r/markdown off\rfour\r" + b"".join(b"line %d\r" % i for i in range(99))
    )
    text = screen.until("#3 four\nline 0\n")  # the last line end asks
    assert "key" not in text and ">>> /markdown off\n" in text
    assert "line 98\n" in screen.until(SUMMARY.search)


@pytest.mark.parametrize(
    ("name", "question"),
    [("SIGTERM", ""), ("SIGTERM", "wait"), ("SIGHUP", "wait"), ("SIGQUIT", "")],
)
def test_a_signal_that_ends_restores_the_terminal_and_saves(
    tmp_path, home: Path, name: str, question: str
):
    """The process sends the signal to itself once a file is there."""
    number, gate = signal.Signals[name], tmp_path / "gate"
    before = f"""{INSTALLED}
import os, pathlib, threading, time
def end():
    while not pathlib.Path({str(gate)!r}).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), {int(number)})
threading.Thread(target=end, daemon=True).start()
"""
    screen = Screen(tmp_path, ["chat", "--model", "fake.gguf"], before)
    try:
        screen.until("\n>>>")
        if question:
            ask(screen, question)
            screen.until("#1")
        gate.touch()
        text = screen.until(f"left with {128 + number}")
        assert f"tgr-local: ended by {name}\n" in text
        assert screen.has_cursor()
        screen.type("echo shows what is typed")
        screen.until("echo shows what is typed")
        chats = list((home / "state/tgr-local/chats").glob("*.jsonl"))
        turns = [turn for path in chats for turn in store.load(path).turns]
        assert [(turn.question, turn.answer) for turn in turns] == (
            [("wait", "#1")] if question else []
        )
    finally:
        screen.close()


def test_an_invalid_byte_is_refused_until_it_is_deleted(terminal: Callable[..., Screen]):
    screen = terminal()
    screen.send(b"ab\xffcd")
    screen.press("Enter")
    screen.until("invalid UTF-8: delete the character under the cursor")
    screen.press("DC", "Enter")
    screen.until("#1 abcd\n")


def test_the_user_pages_through_several_replies_and_chooses_one(terminal: Callable[..., Screen]):
    screen = terminal()
    ask(screen, "one")
    screen.until(SUMMARY.search)
    dim_then_plain = r"\x1b\[2mhm, one\s+\x1b\[0m(\x1b\[\d+m)*#1 one"
    assert re.search(dim_then_plain, screen.text(styled=True))
    ask(screen, "/retry 3")
    screen.until("reply 1 of 3, seed 43")
    screen.press("Right", "Right")
    screen.until("reply 3 of 3, seed 45")
    screen.press("Right")
    screen.until("reply 1 of 3")
    screen.press("2")
    screen.until("reply 2 of 3")
    screen.press("Enter")
    screen.until("hm, one\n\n#1 one\nreply 2 of 3 is chosen")
    ask(screen, "/retry 2")
    screen.until("q chooses none")
    screen.press("q")
    screen.until("no reply is chosen")


def test_blocks_completion_vi_keys_and_history(terminal: Callable[..., Screen]):
    screen = terminal()
    screen.type("never mind")
    screen.press("C-c")
    screen.until("Ctrl-D or /bye leaves\n>>>")
    ask(screen, '"""first')
    screen.until("\n...")
    ask(screen, 'second"""')
    screen.until("#1 first\nsecond\n")
    screen.until(SUMMARY.search)
    screen.type("/set key")
    screen.press("Tab")
    screen.until(">>> /set keys")
    screen.type(" v")
    screen.press("Tab")
    screen.until(">>> /set keys vi")
    screen.press("Enter")
    screen.until("key bindings of the line editor")
    screen.type("xhello")
    screen.press("Escape", "0", "x", "Enter")
    screen.until("#3 hello")
    screen.until(SUMMARY.search)
    screen.press("C-r")
    screen.type("keys")
    screen.until("(reverse-i-search)`keys': /set keys vi")


@pytest.mark.parametrize(
    "variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"]
)
def test_without_colours_there_are_no_escapes(
    terminal: Callable[..., Screen], variables: dict[str, str]
):
    screen = terminal(**variables)
    ask(screen, "hello")
    text = screen.until(SUMMARY.search)
    assert "hm, hello\n\n#1 hello\n" in text
    assert "\x1b" not in screen.text(styled=True)


def test_words_stay_whole_without_colours(terminal: Callable[..., Screen]):
    screen = terminal(width=40, NO_COLOR="1")
    ask(screen, "slow")
    screen.until(SUMMARY.search)
    rows = [line.rstrip() for line in screen.text().splitlines()]
    assert all(re.fullmatch(r"(#1)?( ?word\d+)*|.*slow", row) for row in rows if "word" in row)
    assert len(re.findall(r"\bword\d+\b", " ".join(rows))) == 60


def test_a_long_formatted_answer_is_in_the_scrollback_once(
    terminal: Callable[..., Screen], tmp_path
):
    screen = terminal(width=50, height=12)
    items = [f"{i}. item **{i}**" for i in range(1, 41)]
    screen.paste(tmp_path, "\n".join(["x", "", *items, "", "```py", "x = 2*3", "```", "**end**"]))
    screen.until("lines pasted")
    screen.press("Enter")
    text = screen.until(SUMMARY.search)
    thinking, _, answer = text.partition("hm, x")[2].partition("#1 x")
    assert [line for line in thinking.splitlines() if line[:1].isdigit()] == items
    shown = [f"{i}. item {i}" for i in range(1, 41)]
    code = ["```py", "x = 2*3", "```", "", "end"]
    assert answer.splitlines()[1 : len(shown) + 8] == ["", *shown, "", *code]
    assert re.search(r"item \x1b\[[0-9;]*1m(\x1b\[\d+m)*40", screen.text(styled=True))
    ask(screen, "/markdown off")
    ask(screen, "**raw**")
    screen.until("#3 **raw**\n")
    ask(screen, "/bye")
    screen.until("left with 0")


def test_a_narrow_window(terminal: Callable[..., Screen]):
    screen = terminal(width=40, height=10, COLUMNS="80")  # whatever a shell has exported
    ask(screen, "slow")
    screen.until("word30")
    text = screen.until("15 tokens, 0.5 s, 31 tokens/s")
    words = re.findall(r"word\d+", text.replace("\n", ""))
    assert words == [f"word{i}" for i in range(60)]
