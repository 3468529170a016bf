"""The slash commands of a conversation, on doubles of the engine and of the user."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from fake_engine import FakeEngine
from fake_user import make_session, output

from tgr_local import engine, generation
from tgr_local.chat.commands import COMMANDS, handle_line
from tgr_local.methods import METHODS
from tgr_local.options import model_files
from tgr_local.options.config import ChatConfig, EngineConfig, SearchConfig
from tgr_local.system.errors import TgrError


@pytest.fixture
def session(monkeypatch) -> Any:
    return make_session(monkeypatch)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/hlep", "unknown command /hlep; did you mean /help?"),
        ("/qiut", "unknown command /qiut; did you mean /quit?"),
        ("/markdown x", "markdown is 'x', but must be on or off"),
        ("/set sigma -1", "sigma is -1.0, but must be at least 0"),
        ("/set sigma x", "sigma is 'x', but must be a number"),
        ("/set sigmo 1", "unknown option 'sigmo'; did you mean sigma?"),
        ("/set sigmo", "unknown option 'sigmo'; did you mean sigma?"),
        ("/set n_ctx 5", "n_ctx is fixed when the model is loaded: start again with --n-ctx"),
        ("/set keys no", "keys is 'no', but must be one of emacs, vi"),
        ("/", "unknown command /; /help lists all commands"),
        ("/trace", "there is nothing to show yet: ask something first"),
        ("/regen", "there is no question yet: ask something first"),
        ("/retry", "there is no question yet: ask something first"),
        ("/retry 1", "the number of replies is '1', but must be between 2 and 64"),
        ("/retry -3", "the number of replies is '-3', but must be between 2 and 64"),
        ("/undo", "there is no question yet: ask something first"),
        ("/copy", "there is no question yet: ask something first"),
        ("/save", "there is nothing to save yet: ask something first"),
        ("/load", "name the conversation: /load NAME; /resume lists the latest ones"),
        ("/resume", "there is no saved conversation yet"),
        ("/read", "name the file: /read FILE"),
        ("/read /dev/zero", "/dev/zero is not a file"),
        ("/think hard", "/think is 'hard', but must be on, off, show or hide"),
        ("/budget much", "max_forward_tokens is 'much', but must be a whole number"),
        ("/budget thinking", "thinking_budget is '', but must be a whole number"),
        ("/budget xs", "max_seconds is 'x', but must be a number"),
        ("/show prompt", "there is no prompt yet: ask something first"),
        ("/show all", "/show is 'all', but must be options, prompt or conversation"),
        ("/stats", "there is no finished reply yet: ask something first"),
    ],
)
def test_a_bad_command_is_refused_with_the_reason(session: Any, line: str, message: str):
    with pytest.raises(ValueError) as error:
        output(session, line)
    assert str(error.value) == message


def test_an_unknown_method_changes_nothing(session: Any):
    with pytest.raises(ValueError, match="unknown method 'magic'"):
        output(session, "/method magic")
    assert session.conversation.method.name == "tgr-latent"


def test_set_changes_one_option_and_lists_all(session: Any):
    conversation = session.conversation
    assert output(session, "/set seed 42")[0].split()[:2] == ["seed", "42"]
    of_all = {"chunk_len": 100, "loop_guard": 32}  # the model's advice; a conversation's default
    assert conversation.config == SearchConfig(temperature=0.25, **of_all)
    assert output(session, "/set temperature 0.9")[0].split()[:2] == ["temperature", "0.9"]
    assert output(session, "/set thinking=off")[0].split()[:2] == ["thinking", "off"]
    assert output(session, "/set keys vi")[0].split()[:2] == ["keys", "vi"]
    assert conversation.config == SearchConfig(temperature=0.9, thinking=False, **of_all)
    fields = [f.name for kind in (SearchConfig, ChatConfig) for f in dataclasses.fields(kind)]
    assert [line.split()[0] for line in output(session, "/set all")] == fields
    changed = [line.split()[:2] for line in output(session, "/set changed")]
    assert changed == [["chunk_len", "100"], ["temperature", "0.9"], ["seed", "42"],
                       ["thinking", "off"], ["keys", "vi"]]  # fmt: skip


def test_set_lists_what_the_method_uses(session: Any):
    output(session, "/method base")
    *lines, last = output(session, "/set")
    names = [line.split()[0] for line in lines]
    assert {"temperature", "max_tokens", "markdown"} <= set(names)
    assert not {"sigma", "n_candidates", "vote_bar"} & set(names) and len(names) < 45
    assert re.fullmatch(r"/set all shows \d+ more, which base does not use; .*", last)
    output(session, "/set sigma 0.3")  # which another method uses
    assert any(line.startswith("sigma") for line in output(session, "/set changed"))


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/show conversation", "the conversation is empty: ask something first"),
        ("/new", "a new conversation begins"),
        ("/system", "no system prompt"),
        ("/markdown", "Markdown is formatted"),
        ("/budget off", "limits of one reply: none"),
    ],
)
def test_what_a_command_says_at_first(session: Any, line: str, answer: str):
    assert output(session, line) == [answer]


def test_every_method_is_explained_in_a_line(session: Any):
    lines = output(session, "/method")
    assert [line[2:].split()[0] for line in lines] == list(METHODS)
    assert [line for line in lines if line[0] == "*"] == [
        f"* {'tgr-latent':16}  {METHODS['tgr-latent'].about}"
    ]


@pytest.mark.parametrize(("name", "text", "empty"), [("stop", "x", ()), ("grammar", "root", "")])
def test_none_empties_an_option_that_may_be_empty(session: Any, name: str, text: str, empty: Any):
    assert output(session, f"/set {name} {text}")[0].split()[1] == text
    assert output(session, f"/set {name} none")[0].split()[1] == "none"
    assert getattr(session.conversation.config, name) == empty


def test_think_and_budget_set_options(session: Any):
    (line,) = output(session, "/think off")
    assert line == "the model answers without thinking first; thinking, if there is any, is shown"
    assert output(session, "/think hide")[0].endswith("is not shown")
    assert output(session, "/think on")[0].startswith("a model that can think does so before")
    assert output(session, "/budget 500") == ["limits of one reply: max_forward_tokens 500"]
    output(session, "/budget thinking 20")
    (line,) = output(session, "/budget 2.5s")
    assert line.endswith("max_forward_tokens 500, max_seconds 2.5, thinking_budget 20")
    assert output(session, "/budget off") == ["limits of one reply: none"]


def test_help_names_every_command(session: Any):
    assert output(session, "/?") == output(session, "/help")
    text = "\n".join(output(session, "/help"))
    assert all(name in text for name in COMMANDS)
    promised = (
        "/help /exit /clear /regen /retry /undo /model /load /save /resume /system /set /show "
        "/method /think /budget /trace /stats /read /copy /editor /markdown /drop /summarise"
    )
    assert set(promised.split()) == set(COMMANDS)
    assert "\n" not in output(session, "/help")[-1] and output(session, "/help")[-1][:4] == "keys"


def test_an_option_with_line_breaks_is_one_line(session: Any):
    (line,) = output(session, "/set dry_sequence_breakers")
    assert "⏎,:" in line and "\n" not in line
    assert line in output(session, "/set all")


def test_trace_and_stats_after_a_reply(session: Any):
    list(session.conversation.ask("question"))
    lines = output(session, "/trace")
    assert sum("candidate 1 won" in line for line in lines) == 2
    assert lines == output(session, "/trace all")
    assert sum("candidate 1 won" in line for line in output(session, "/trace 2")) == 1
    with pytest.raises(ValueError, match="the chunk is '3', but must be between 1 and 2"):
        output(session, "/trace 3")
    last, every, cache = output(session, "/stats")
    assert every.startswith("1 reply: 52 forward tokens ")
    assert "2 chunks, 23 tokens, 52 forward tokens" in last and "40 at the peak" in cache


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "exit", "quit", "  exit "])
def test_a_line_that_leaves_ends_the_input(session: Any, line: str):
    with pytest.raises(EOFError):
        handle_line(session, line, lambda: "")
    assert session.conversation.turns == []


def test_a_question_may_begin_with_a_word_that_leaves(session: Any):
    handle_line(session, "exit code of grep?", lambda: "")
    handle_line(session, '"""quit"""', lambda: "")
    assert [turn.question for turn in session.conversation.turns] == ["exit code of grep?", "quit"]


def test_markdown_is_switched(session: Any):
    assert output(session, "/markdown off") == ["Markdown is shown as it is"]
    assert not session.conversation.chat_config.markdown


def test_trace_after_an_interrupted_reply_shows_what_there_is(session: Any):
    events = session.conversation.ask("question")
    next(events)  # the rollouts begin
    events.close()
    lines = output(session, "/trace")
    assert lines == ["", "chunk 1, stopped while the candidates were tried", "  0 tokens"]
    events = session.conversation.ask("question")
    next(events), next(events)  # the candidates are scored
    events.close()
    lines = output(session, "/trace 1")
    assert lines[1] == "chunk 1, stopped while it was written"
    assert any("candidate 1 won" in line for line in lines)
    events = session.conversation.ask("question")
    for event in events:
        if getattr(event, "kind", "") == "answer":
            break
    events.close()
    assert [line for line in output(session, "/trace") if line.startswith("chunk")] == ["chunk 1"]
    session.conversation.ask("question")  # stopped before its first event
    session.conversation.steps = []
    with pytest.raises(ValueError, match=r"stopped before its first chunk; /regen asks again"):
        output(session, "/trace")


def test_regen_replaces_the_reply_and_uses_another_seed(session: Any):
    output(session, "/set seed 42")
    session.ask("one")
    session.ask("two")
    output(session, "/regen")
    output(session, "/regen")
    assert [turn.question for turn in session.conversation.turns] == ["one", "two"]
    assert session.front_end.shown == ["#1 one", "#3 two", "#3 two", "#3 two"]
    assert [reply.seed for reply in session.conversation.replies] == [42, 42, 43, 44]
    session.ask("three")
    assert session.conversation.replies[-1].seed == 42


def test_a_failed_regen_leaves_the_answer(session: Any, monkeypatch):
    session.ask("one")
    monkeypatch.setattr(generation, "stream", Mock(side_effect=TgrError("the cache is full")))
    with pytest.raises(TgrError):
        output(session, "/regen")
    assert session.conversation.messages[-1]["content"] == "#1 one"


def test_a_question_that_failed_can_be_asked_again(session: Any):
    with pytest.raises(TgrError):
        session.ask("fail")
    with pytest.raises(TgrError):
        output(session, "/regen")
    assert session.conversation.messages == []
    assert output(session, "/undo") == ["removed: fail"]


def test_retry_replaces_the_reply_by_the_chosen_one(session: Any):
    output(session, "/set seed 42")
    session.ask("one")
    assert output(session, "/retry 3") == ["no reply is chosen; the earlier one stays"]
    session.front_end.choice = 2
    chosen, cost = output(session, "/retry 3")
    assert chosen == "reply 3 of 3 is chosen"
    assert cost.startswith("all: 3 replies, ")
    assert [reply.seed for reply in session.conversation.replies] == [42, 43, 44, 45, 46, 47, 48]
    assert len(session.conversation.turns) == 1 and len(session.conversation.steps) == 2


def test_undo_removes_one_turn(session: Any):
    session.ask("one")
    session.ask("two")
    assert output(session, "/undo") == ["removed: two"]
    assert [m["content"] for m in session.conversation.messages] == ["one", "#1 one"]


def test_the_system_prompt_comes_first_until_it_is_removed(session: Any):
    output(session, "/system be brief,\nand kind")
    session.ask("one")
    assert session.front_end.shown == ["#2 one"]
    assert session.conversation.messages[0] == {"role": "system", "content": "be brief,\nand kind"}
    assert output(session, "/system none") == ["no system prompt"]
    assert session.conversation.messages[0]["role"] == "user"


def test_a_file_precedes_the_next_question_only(session: Any, tmp_path):
    (tmp_path / "notes").write_text("a\nb\n")
    (line,) = output(session, f"/read {tmp_path}/notes")
    assert line.endswith("2 lines, 4 tokens before your next question")
    session.ask("and?")
    session.ask("and now?")
    assert [turn.question for turn in session.conversation.turns] == ["a\nb\n\nand?", "and now?"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\xff", "is not UTF-8 text: invalid byte at offset 1"),
        (None, "may have 16777216; shorten it"),
    ],
)
def test_a_file_that_is_not_text_or_too_long_is_refused(
    session: Any, tmp_path, content: bytes | None, message: str
):
    path = tmp_path / "file"
    path.write_bytes(content or b"")
    if content is None:
        os.truncate(path, (16 << 20) + 1)
    with pytest.raises((ValueError, TgrError), match=message):
        output(session, f"/read {path}")
    assert session.attached == []


def test_copy_and_editor(session: Any):
    output(session, "/editor begin")
    assert session.conversation.last.question == "begin and more"
    assert output(session, "/copy") == ["copied 17 characters"]
    assert session.front_end.copied == "#1 begin and more"


def test_show_lists_options_that_are_not_the_default(session: Any):
    output(session, "/set sigma 0.3")
    output(session, "/think off")
    output(session, "/set stop END")
    lines = output(session, "/show")
    assert "thinking off (set here)" in lines and "stop END (set here)" in lines
    assert "sigma 0.3 (set here)" in lines
    assert "chunk_len 100 (the model file)" in lines
    session.ask("one")
    assert output(session, "/show conversation") == [">>> one", "#1 one"]
    assert output(session, "/show prompt") == ["<user>one|#1 one"]


def card_of(metadata: dict[str, str]) -> Callable[[Path], Any]:
    """A double of model_files.card for files with this metadata."""
    return lambda path: SimpleNamespace(metadata=metadata)


def test_a_model_without_a_chat_template_says_what_it_gets(session: Any, monkeypatch):
    monkeypatch.setattr(model_files, "card", card_of({}))
    monkeypatch.setattr(FakeEngine, "template_warning", "it gets a plain template")
    assert output(session, "/model plain.gguf")[1] == "it gets a plain template"


def test_another_model_keeps_the_conversation_and_the_options(session: Any, monkeypatch):
    monkeypatch.setattr(model_files, "card", card_of({"tokenizer.chat_template": "x"}))
    output(session, "/set temperature 0.9")
    session.ask("one")
    assert output(session, "/model other.gguf") == ["fake 1B (other.gguf) on CPU"]
    assert session.conversation.config.temperature == 0.9 and len(session.conversation.turns) == 1


def test_the_old_model_stays_if_the_new_one_cannot_be_loaded(session: Any, monkeypatch):
    class Picky(FakeEngine):
        def __init__(self, path: Any, config: EngineConfig | None = None) -> None:
            if Path(path).name == "bad.gguf":
                raise TgrError("damaged")
            super().__init__(path, config)

    monkeypatch.setattr(engine, "Engine", Picky)
    with pytest.raises(OSError, match="No such file"):
        output(session, "/model bad.gguf")  # its header is read first
    monkeypatch.setattr(model_files, "card", card_of({"tokenizer.chat_template": "x"}))
    with pytest.raises(TgrError, match="damaged"):
        output(session, "/model bad.gguf")
    assert session.conversation.engine.path.name == "fake.gguf"
    session.ask("still here")

    def interrupted() -> None:
        raise KeyboardInterrupt

    closing = session.conversation.engine
    monkeypatch.setattr(closing, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output(session, "/model other.gguf")
    assert session.conversation.engine.path.name == "fake.gguf"
    assert session.conversation.engine is not closing
