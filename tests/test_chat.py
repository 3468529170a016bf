"""The conversation and its front ends, on a double of the engine that answers by rule."""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import INSTALLED, FakeEngine, fake_stream, install
from surroundings import HANG, environment

from tgr_local.errors import TgrError
from tgr_local.methods import METHODS
from tgr_local.options.config import ChatConfig, EngineConfig, SearchConfig

PROGRAM = f"import sys; {INSTALLED} from tgr_local.cli import main; "


class Person:
    """A front end that takes the replies in and keeps the one that `chooses` says."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.copied = ""
        self.chooses: int | None = None

    def show(self, events: Any) -> None:
        self.shown.append(list(events)[-1].text)

    def gather(self, k: int, work: Any) -> Any:
        return work(lambda rank, event: None)

    def choose(self, replies: Any) -> int | None:
        return self.chooses

    def edit(self, text: str) -> str:
        return f"{text} and more\n"

    def copy(self, text: str) -> None:
        self.copied = text


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch.setattr)
    from tgr_local.chat.conversation import Chat
    from tgr_local.chat.session import Session

    return Session(Chat(FakeEngine("fake.gguf"), {}, "tgr-latent"), Person())  # type: ignore[arg-type]


@pytest.fixture
def chat(session: Any) -> Any:
    return session.chat


def told(session: Any, line: str) -> list[str]:
    """What a command says."""
    from tgr_local.chat.commands import run

    return list(run(session, line))


def piped(text: str | bytes, *flags: str) -> subprocess.CompletedProcess[bytes]:
    """`tgr-local chat` on the double with `text` on stdin."""
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
        f"method base; there are {', '.join(METHODS)}\n"
        "the conversation begins anew\n"
        "#1 last, no line end\n"
    )
    assert done.stderr.decode() == "tgr-local: unknown command /xyz; /help lists what there is\n"
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
    assert done.stderr.decode() == 'tgr-local: a block that begins with """ must end with it\n'
    assert (done.stdout, done.returncode) == (b"", 1)


def test_nothing_in_nothing_out() -> None:
    done = piped("")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)


def test_the_history_has_answers_and_no_thinking(chat: Any) -> None:
    list(chat.turn("first"))
    list(chat.turn("second"))
    assert chat.messages == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "#1 first"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "#3 second"},
    ]


def test_an_interrupted_turn_keeps_what_was_written(chat: Any) -> None:
    events = chat.turn("question")
    for event in events:
        if getattr(event, "kind", "") == "answer":
            break
    events.close()
    assert chat.messages[-1] == {"role": "assistant", "content": "#1"}
    assert len(chat.steps) == 1 and chat.replies == []


def test_a_question_that_was_stopped_at_once_can_be_asked_again(chat: Any) -> None:
    list(chat.turn("first"))
    chat.turn("second")  # stopped before its first event
    assert chat.last.question == "second" and len(chat.turns) == 2
    list(chat.again())
    assert chat.messages[-1]["content"] == "#3 second" and len(chat.turns) == 2


def test_a_turn_without_an_answer_leaves_no_mark(chat: Any) -> None:
    with pytest.raises(TgrError):
        list(chat.turn("fail"))
    events = chat.turn("question")
    next(events)
    events.close()
    assert chat.messages == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hlep", "unknown command /hlep; did you mean /help?"),
        ("/set sigma -1", "sigma is -1.0, but must be at least 0"),
        ("/set sigma x", "sigma is 'x', but must be a number"),
        ("/set sigmo 1", "unknown option 'sigmo'; did you mean sigma?"),
        ("/set sigmo", "unknown option 'sigmo'; did you mean sigma?"),
        ("/set n_ctx 5", "n_ctx is fixed when the model is loaded: start again with --n-ctx"),
        ("/set keys no", "keys is 'no', but must be one of emacs, vi"),
        ("/", "unknown command /; /help lists what there is"),
        ("/trace", "there is nothing to show yet: ask something first"),
        ("/regen", "there is no question yet: ask something first"),
        ("/retry", "there is no question yet: ask something first"),
        ("/retry 1", "how many replies is '1', but must be between 2 and 64"),
        ("/retry -3", "how many replies is '-3', but must be between 2 and 64"),
        ("/undo", "there is no question yet: ask something first"),
        ("/copy", "there is no question yet: ask something first"),
        ("/save", "there is nothing to save yet: ask something first"),
        ("/load", "name the conversation: /load NAME; /resume lists the latest ones"),
        ("/resume", "there is no kept conversation yet"),
        ("/read", "name the file: /read FILE"),
        ("/read /dev/zero", "/dev/zero is no file"),
        ("/think hard", "/think is 'hard', but must be on, off, show or hide"),
        ("/budget much", "max_forward_tokens is 'much', but must be a whole number"),
        ("/budget thinking", "thinking_budget is '', but must be a whole number"),
        ("/budget xs", "max_seconds is 'x', but must be a number"),
        ("/show prompt", "there is no prompt yet: ask something first"),
        ("/show all", "/show is 'all', but must be options, prompt or conversation"),
        ("/stats", "there is no finished reply yet: ask something first"),
    ],
)
def test_a_bad_command_says_why(session: Any, line: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        told(session, line)
    assert str(error.value) == message


def test_an_unknown_method_changes_nothing(session: Any) -> None:
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        told(session, "/method magic")
    assert session.chat.method == "tgr-latent"


def test_set_changes_one_option_and_lists_all(session: Any) -> None:
    chat = session.chat
    assert chat.config == SearchConfig(temperature=0.25, chunk_len=100)  # the model's advice
    assert told(session, "/set temperature 0.9")[0].split()[:2] == ["temperature", "0.9"]
    assert told(session, "/set thinking=off")[0].split()[:2] == ["thinking", "off"]
    assert told(session, "/set keys vi")[0].split()[:2] == ["keys", "vi"]
    assert chat.config == SearchConfig(temperature=0.9, thinking=False, chunk_len=100)
    fields = SearchConfig.__dataclass_fields__ | ChatConfig.__dataclass_fields__
    assert [line.split()[0] for line in told(session, "/set")] == list(fields)


@pytest.mark.parametrize(("name", "text", "empty"), [("stop", "x", ()), ("grammar", "root", "")])
def test_none_empties_an_option_that_may_be_empty(
    session: Any, name: str, text: str, empty: Any
) -> None:
    assert told(session, f"/set {name} {text}")[0].split()[1] == text
    assert told(session, f"/set {name} none")[0].split()[1] == "none"
    assert getattr(session.chat.config, name) == empty


def test_words_for_options(session: Any) -> None:
    assert told(session, "/think off") == ["thinking is off and shown"]
    assert told(session, "/think hide") == ["thinking is off and hidden"]
    assert told(session, "/budget 500") == ["for one reply: max_forward_tokens 500"]
    told(session, "/budget thinking 20")
    (line,) = told(session, "/budget 2.5s")
    assert line.endswith("max_forward_tokens 500, max_seconds 2.5, thinking_budget 20")
    assert told(session, "/budget off") == ["for one reply: no limit"]


def test_help_names_every_command(session: Any) -> None:
    from tgr_local.chat.commands import COMMANDS

    text = "\n".join(told(session, "/help"))
    assert all(name in text for name in COMMANDS)
    promised = (
        "/help /exit /clear /regen /retry /undo /model /load /save /resume /system /set /show "
        "/method /think /budget /trace /stats /read /copy /editor"
    )
    assert set(promised.split()) == set(COMMANDS)


def test_trace_and_stats_after_a_reply(session: Any) -> None:
    list(session.chat.turn("question"))
    lines = told(session, "/trace")
    assert sum("candidate 1 won" in line for line in lines) == 2
    assert sum("candidate 1 won" in line for line in told(session, "/trace 2")) == 1
    with pytest.raises(ValueError, match="the chunk is '3', but must be between 1 and 2"):
        told(session, "/trace 3")
    last, _, cache = told(session, "/stats")
    assert "2 chunks, 23 tokens, 52 forward tokens" in last and "40 at the peak" in cache


def test_exit_ends_the_input(session: Any) -> None:
    with pytest.raises(EOFError):
        told(session, "/exit")


def test_regen_replaces_the_reply_and_draws_another_seed(session: Any) -> None:
    session.ask("one")
    session.ask("two")
    told(session, "/regen")
    told(session, "/regen")
    assert [turn.question for turn in session.chat.turns] == ["one", "two"]
    assert session.front.shown == ["#1 one", "#3 two", "#3 two", "#3 two"]
    assert [reply.seed for reply in session.chat.replies] == [42, 42, 43, 44]
    session.ask("three")
    assert session.chat.replies[-1].seed == 42


def test_a_failed_regen_leaves_the_answer(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tgr_local import generation

    def broken(*_: Any, **__: Any) -> Iterator[Any]:
        raise TgrError("no room")
        yield

    session.ask("one")
    monkeypatch.setattr(generation, "stream", broken)
    with pytest.raises(TgrError):
        told(session, "/regen")
    assert session.chat.messages[-1]["content"] == "#1 one"


def test_a_question_that_failed_can_be_asked_again(session: Any) -> None:
    with pytest.raises(TgrError):
        session.ask("fail")
    with pytest.raises(TgrError):
        told(session, "/regen")
    assert session.chat.messages == []
    assert told(session, "/undo") == ["took back: fail"]


def test_replies_to_choose_from_do_not_rule_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tgr_local.chat.piped import Pipe

    reply = list(fake_stream(FakeEngine("f"), "2+2?", SearchConfig(), method="base"))[-1]
    replies = [dataclasses.replace(reply, text="\x1b[2J4")]
    Pipe().choose(replies)
    assert capsys.readouterr().out == "[1] \x1b[2J4\n"  # a program gets it as it is
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Pipe().choose(replies)
    assert capsys.readouterr().out == "[1] \ufffd[2J4\n"


def test_retry_keeps_the_chosen_reply_or_none(session: Any) -> None:
    session.ask("one")
    assert told(session, "/retry 3") == ["none of the 3 replies is kept: the earlier one stands"]
    session.front.chooses = 2
    (line,) = told(session, "/retry 3")
    assert line.startswith("reply 3 of 3 is kept; all together: tgr-latent x 3: 6 chunks")
    assert [reply.seed for reply in session.chat.replies] == [42, 43, 44, 45, 46, 47, 48]
    assert len(session.chat.turns) == 1 and len(session.chat.steps) == 2


def test_undo_takes_back_one_turn(session: Any) -> None:
    session.ask("one")
    session.ask("two")
    assert told(session, "/undo") == ["took back: two"]
    assert [m["content"] for m in session.chat.messages] == ["one", "#1 one"]


def test_the_system_prompt_comes_first_until_it_is_removed(session: Any) -> None:
    assert told(session, "/system") == ["no system prompt"]
    told(session, "/system be brief,\nand kind")
    session.ask("one")
    assert session.front.shown == ["#2 one"]
    assert session.chat.messages[0] == {"role": "system", "content": "be brief,\nand kind"}
    assert told(session, "/system none") == ["no system prompt"]
    assert session.chat.messages[0]["role"] == "user"


def test_a_file_goes_before_the_next_question_only(session: Any, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("a\nb\n")
    (line,) = told(session, f"/read {tmp_path}/notes")
    assert line.endswith("2 lines, 4 tokens go before your question")
    session.ask("and?")
    session.ask("and now?")
    assert [turn.question for turn in session.chat.turns] == ["a\nb\n\n\nand?", "and now?"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a\xff", "is not UTF-8 text: invalid byte at offset 1"), (None, "at most 16777216 are")],
)
def test_a_file_that_is_no_text_or_too_long_is_refused(
    session: Any, tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content or b"")
    if content is None:
        os.truncate(path, (16 << 20) + 1)
    with pytest.raises((ValueError, TgrError), match=message):
        told(session, f"/read {path}")
    assert session.attached == []


def test_copy_and_editor(session: Any) -> None:
    told(session, "/editor begin")
    assert session.chat.last.question == "begin and more"
    assert told(session, "/copy") == ["copied 17 characters"]
    assert session.front.copied == "#1 begin and more"


def test_a_path_is_a_question_and_no_command(session: Any) -> None:
    session.handle("/usr/bin is what?", lambda: "")
    assert session.chat.last.question == "/usr/bin is what?"


def test_text_after_a_block_is_refused_and_not_dropped(session: Any) -> None:
    with pytest.raises(ValueError, match="nothing may follow"):
        session.handle('"""one"""two', lambda: "")


def test_show_tells_what_differs_from_the_defaults(session: Any) -> None:
    told(session, "/set sigma 0.3")
    told(session, "/think off")
    told(session, "/set stop END")
    lines = told(session, "/show")
    assert "thinking off (set here)" in lines and "stop END (set here)" in lines
    assert "sigma 0.3 (set here)" in lines
    assert "chunk_len 100 (the model file)" in lines
    session.ask("one")
    assert told(session, "/show conversation") == [">>> one", "#1 one"]
    assert told(session, "/show prompt") == ["<user>one|#1 one"]


def card_of(metadata: dict[str, str]) -> Callable[[Path], Any]:
    """A double of library.card for files that say this of themselves."""
    from tgr_local.models.library import Card

    return lambda path: Card(path, 0, 0, metadata, {})


def test_a_model_without_a_chat_template_is_refused_at_once(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local.models import library

    monkeypatch.setattr(library, "card", card_of({}))
    with pytest.raises(TgrError, match=r"plain\.gguf has no chat template; name a"):
        told(session, "/model plain.gguf")
    assert session.chat.engine.path.name == "fake.gguf"


def test_another_model_keeps_the_conversation_and_what_was_set(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local.models import library

    monkeypatch.setattr(library, "card", card_of({"tokenizer.chat_template": "x"}))
    told(session, "/set temperature 0.9")
    session.ask("one")
    assert told(session, "/model other.gguf") == ["fake 1B (other.gguf) on CPU"]
    assert session.chat.config.temperature == 0.9 and len(session.chat.turns) == 1


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local import engine
    from tgr_local.models import library

    class Picky(FakeEngine):
        def __init__(self, path: Any, config: EngineConfig | None = None) -> None:
            if Path(path).name == "bad.gguf":
                raise TgrError("damaged")
            super().__init__(path, config)

    monkeypatch.setattr(engine, "Engine", Picky)
    with pytest.raises(OSError, match="No such file"):
        told(session, "/model bad.gguf")  # its header is read first
    monkeypatch.setattr(library, "card", card_of({"tokenizer.chat_template": "x"}))
    with pytest.raises(TgrError, match="damaged"):
        told(session, "/model bad.gguf")
    assert session.chat.engine.path.name == "fake.gguf"
    session.ask("still here")


# ---- kept conversations ----


def test_a_conversation_comes_back_as_it_was(session: Any, home: Path) -> None:
    told(session, "/system brief")
    told(session, "/set stop END")
    told(session, "/method markov")
    session.ask("héllo\n\x00\u2028")
    (line,) = told(session, "/save mine")
    assert line == f"saved as {home}/state/tgr-local/chats/mine.jsonl"
    before = (session.chat.turns, dict(session.chat.chosen), session.chat.config)
    told(session, "/clear")
    told(session, "/system none")
    told(session, "/set stop OTHER")
    told(session, "/method base")
    assert told(session, "/load mine")[0] == "mine: 1 turn, method markov"
    assert (session.chat.turns, session.chat.chosen, session.chat.config) == before
    assert session.chat.system == "brief" and session.chat.method == "markov"


def test_every_turn_is_kept_and_the_latest_conversations_are_resumed(
    session: Any, home: Path
) -> None:
    from tgr_local.chat import store

    session.path = store.fresh_place().with_name("first.jsonl")
    session.ask("one")
    with pytest.raises(TgrError):
        session.ask("break")
    first = store.load(session.path)
    assert [turn.answer for turn in first.turns] == ["#1 one", "#3"]
    assert oct(session.path.stat().st_mode)[-3:] == "600"
    told(session, "/clear")
    assert session.path.name != "first.jsonl"
    session.ask("another")
    heading, _ = told(session, "/resume")
    assert heading.endswith("2 turns: one")
    assert told(session, "/resume 1")[0] == "first: 2 turns, method tgr-latent"
    session.ask("more")
    assert len(store.load(home / "state/tgr-local/chats/first.jsonl").turns) == 3


def test_what_is_taken_back_is_taken_off_the_disk(session: Any) -> None:
    from tgr_local.chat import store

    session.path = store.fresh_place()
    session.ask("secret")
    told(session, "/undo")
    assert store.load(session.path).turns == [] and "secret" not in session.path.read_text()


def test_a_folder_that_cannot_be_written_is_said_once(
    session: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    session.path = Path("/dev/null/x/chat.jsonl")
    session.ask("one")
    session.ask("two")
    assert capsys.readouterr().err.count("this conversation is not kept") == 1
    assert len(session.chat.turns) == 2


def test_a_file_of_another_kind_is_not_written_over(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("precious")
    session.ask("one")
    with pytest.raises(ValueError, match="is there and no conversation"):
        told(session, f"/save {path}")
    assert path.read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is there and no conversation"):
        told(session, f"/save {tmp_path}/pipe")


def test_another_conversation_is_not_written_over(session: Any, home: Path) -> None:
    from tgr_local.chat import store

    path = home / "state/tgr-local/chats/z.jsonl"
    session.ask("one")
    session.ask("two")
    told(session, "/save z")
    told(session, "/save z")  # its own
    told(session, "/clear")
    session.ask("five")
    with pytest.raises(ValueError, match=r"z\.jsonl holds another conversation; name another"):
        told(session, "/save z")
    assert len(store.load(path).turns) == 2
    told(session, "/load z")
    session.ask("three")
    told(session, "/save z")
    assert len(store.load(path).turns) == 3


def test_a_conversation_is_saved_at_the_path_that_was_typed(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session.ask("one")
    assert told(session, "/save ./x.txt") == [f"saved as {tmp_path}/x.txt"]
    assert told(session, "/save my/../y") == [f"saved as {tmp_path}/y"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.txt", "y"]
    assert told(session, "/load ./x.txt")[0].startswith("x: 1 turn")


def test_a_save_that_fails_names_the_file(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tgr_local.chat import store

    session.ask("one")
    with pytest.raises(OSError) as error:
        told(session, "/save /proc/x")
    assert error.value.filename == "/proc/x"

    def full(chat: Any) -> Iterator[Any]:
        raise OSError(errno.ENOSPC, "No space left on device")
        yield

    monkeypatch.setattr(store, "_lines", full)
    with pytest.raises(OSError, match="No space left") as error:
        told(session, f"/save {tmp_path}/x")
    assert error.value.filename == f"{tmp_path}/x" and list(tmp_path.iterdir()) == []


HEADER = '{"format": "tgr-chat 1", "model": "m", "method": "base", "system": "", "options": {}}'
USER = '{"role": "user", "content": "q"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 is no conversation: the file is empty"),
        ("nonsense", "line 1 is no conversation: Expecting value"),
        ("[]", "line 1 is no conversation: .* is not of type dict"),
        ('{"format": "x"}', "line 1 is no conversation: its format is 'x'"),
        (HEADER.replace("base", "magic"), "line 1 .*its method is 'magic', which does not exist"),
        (HEADER.replace("{}", '{"sigma": -1}'), "line 1 .*sigma is -1, but must be at least 0"),
        (HEADER.replace("{}", '{"sigmo": 1}'), "line 1 .*unknown option 'sigmo'"),
        (f"{HEADER}\n{USER}", "line 3 is no conversation: the file ends before the answer"),
        (f"{HEADER}\n{USER}\n{USER}", "line 3 .*role is 'user', but must be 'assistant'"),
        (f'{HEADER}\n{{"role": "user", "content": 5}}', "line 2 .*5 is not of type str"),
    ],
)
def test_a_file_that_is_no_conversation_says_where(
    session: Any, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    session.ask("one")
    with pytest.raises(TgrError, match=message):
        told(session, f"/load {path}")
    assert session.chat.last.question == "one"


# ---- what is seen ----


def test_bars_are_a_column_for_each_candidate() -> None:
    from tgr_local.trace.render import score_bars, winner

    assert score_bars([-2.0, -1.0, -1.5]) == "▁█▅"
    assert score_bars([0.5]) == "▁"
    assert score_bars([-np.inf, -2.0, np.nan, -1.0]) == "▁▁▁█"
    assert winner([-2.0, -1.0, -1.5], 1) == "best 1: -1.0000, 0.5000 ahead"
    assert winner([0.5], 0) == "best 0: 0.5000"


def obeyed(output: str) -> list[str]:
    """The rows above the cursor of a terminal, which knows the few escapes that the view uses."""
    rows, at = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", output):
        if part == "\n":
            at += 1
            rows += [""] * (at - len(rows) + 1)
        elif part.endswith("A") and part[0] == "\x1b":
            at -= int(part[2:-1])
        elif part == "\x1b[2K":
            rows[at] = ""
        elif part[0] not in "\r\x1b":
            rows[at] += part
    assert not any(rows[at:]), "the cursor is not below the text"
    return rows[:at]


def test_the_live_view_leaves_the_text_alone(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from tgr_local.trace.live import show_live

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=20, highlight=False)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    show_live(chat.turn("a question\nwith an escape: \x1b[2J" + " long" * 20))
    question = ["a question", "with an escape: \ufffd[2J" + " long" * 20]
    thinking, answer = [f"hm, {question[0]}", question[1]], [f"#1 {question[0]}", question[1]]
    assert "best 1" in out.getvalue()
    assert obeyed(out.getvalue()) == [*thinking, "", *answer]


def terminal(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """tgr-local on the double with a pseudo-terminal for stdin, stdout and stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", f"{PROGRAM} sys.exit(main({list(arguments)!r}))"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(XDG_STATE_HOME="/dev/null", TERM="xterm", NO_COLOR="1"),
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_until(ours: int, text: str, seconds: float = HANG) -> str:
    """What the terminal got up to `text`; fails when it does not come."""
    got, end = b"", time.monotonic() + seconds
    while text.encode() not in got:
        left = end - time.monotonic()
        assert left > 0 and select.select([ours], [], [], left)[0], got.decode("utf-8", "replace")
        got += os.read(ours, 65536)
    return got.decode("utf-8", "replace")


def test_control_c_stops_the_reply_and_keeps_the_session() -> None:
    process, ours = terminal("chat", "--model", "fake.gguf")
    try:
        read_until(ours, ">>>")
        os.write(ours, b"wait\r")
        read_until(ours, "#1")
        process.send_signal(signal.SIGINT)
        read_until(ours, "stopped; what is written is kept")
        os.write(ours, b"again\r")
        read_until(ours, "#3 again")  # the half answer is in the history
        read_until(ours, ">>>")
        os.write(ours, b"mute\r")
        read_until(ours, "starting")
        process.send_signal(signal.SIGINT)
        read_until(ours, "stopped before the answer")
        read_until(ours, ">>>")
        os.write(ours, b"\x04")
        assert process.wait(timeout=HANG) == 0
    finally:
        process.kill()
        os.close(ours)
