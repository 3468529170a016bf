"""Conversations in files: saved, loaded, resumed, and refused if damaged."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from fake_user import make_session, output

from tgr_local.chat import store
from tgr_local.commands.cli import main
from tgr_local.system.errors import TgrError


@pytest.fixture
def session(monkeypatch) -> Any:
    return make_session(monkeypatch)


def test_a_loaded_conversation_equals_the_saved_one(session: Any, home: Path):
    output(session, "/system brief")
    output(session, "/set stop END")
    output(session, "/method markov")
    session.ask("héllo\n\x00\u2028")
    (line,) = output(session, "/save mine")
    assert line == f"saved as {home}/state/tgr-local/chats/mine.jsonl"
    conversation = session.conversation
    config = dataclasses.replace(conversation.config, seed=0)  # which is drawn for each reply
    before = (conversation.turns, dict(conversation.user_options), config)
    output(session, "/clear")
    output(session, "/system none")
    output(session, "/set stop OTHER")
    output(session, "/method base")
    assert output(session, "/load mine")[0] == "mine: 1 turn, method markov"
    config = dataclasses.replace(conversation.config, seed=0)
    assert (conversation.turns, conversation.user_options, config) == before
    assert conversation.system == "brief" and conversation.method.name == "markov"


def test_every_turn_is_saved_and_the_latest_conversations_are_resumed(session: Any, home: Path):
    session.path = store.new_path().with_name("first.jsonl")
    session.ask("one")
    with pytest.raises(TgrError):
        session.ask("break")
    first = store.load(session.path)
    assert [turn.answer for turn in first.turns] == ["#1 one", "#3"]
    assert oct(session.path.stat().st_mode)[-3:] == "600"
    output(session, "/clear")
    assert session.path.name != "first.jsonl"
    session.ask("another")
    heading, _ = output(session, "/resume")
    assert heading.endswith("2 turns: one")
    assert output(session, "/resume 1")[0] == "first: 2 turns, method tgr-latent"
    session.ask("more")
    assert len(store.load(home / "state/tgr-local/chats/first.jsonl").turns) == 3


def test_the_numbers_of_a_list_stay_until_the_next_one(session: Any):
    for i, name in enumerate(("one", "two", "three"), 1):
        session.path = store.new_path().with_name(f"{name}.jsonl")
        session.ask(name)
        os.utime(session.path, (i, i))
        session.conversation.clear()
        session.path = store.new_path()
    *rows, _ = output(session, "/resume")
    assert [row.split()[-1] for row in rows] == ["three", "two", "one"]
    assert output(session, "/resume 3")[0].startswith("one: 1 turn")
    session.ask("more")  # which makes it the latest
    assert output(session, "/resume 2")[0].startswith("two: 1 turn")
    assert output(session, "/resume")[0].endswith("2 turns: one")


def test_undo_removes_the_turn_from_the_file(session: Any):
    session.path = store.new_path()
    session.ask("secret")
    output(session, "/undo")
    assert store.load(session.path).turns == [] and "secret" not in session.path.read_text()


def test_a_folder_that_cannot_be_written_gives_one_warning(session: Any, capsys):
    session.path = Path("/dev/null/x/chat.jsonl")
    session.ask("one")
    session.ask("two")
    assert capsys.readouterr().err.count("the conversation is not saved") == 1
    assert len(session.conversation.turns) == 2


def test_a_file_of_another_kind_is_not_overwritten(session: Any, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("precious")
    session.ask("one")
    with pytest.raises(ValueError, match="exists and is not a conversation"):
        output(session, f"/save {path}")
    assert path.read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="exists and is not a conversation"):
        output(session, f"/save {tmp_path}/pipe")


def test_another_conversation_is_not_overwritten(session: Any, home: Path):
    path = home / "state/tgr-local/chats/z.jsonl"
    session.ask("one")
    session.ask("two")
    output(session, "/save z")
    output(session, "/save z")  # its own
    output(session, "/clear")
    session.ask("five")
    with pytest.raises(ValueError, match=r"z\.jsonl holds another conversation; name another"):
        output(session, "/save z")
    assert len(store.load(path).turns) == 2
    output(session, "/load z")
    session.ask("three")
    output(session, "/save z")
    assert len(store.load(path).turns) == 3


def test_a_conversation_is_saved_at_the_given_path(session: Any, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session.ask("one")
    for name in (".", "..", ".hidden", ".jsonl", ".x.jsonl", '""', "''"):
        why = "begins with a dot" if name[0] == "." else "is empty"
        for command in ("/save", "/load"):
            with pytest.raises(ValueError, match=f"^the name .* {why}; write another, such as"):
                output(session, f"{command} {name}")
    assert output(session, "/save ./x.txt") == [f"saved as {tmp_path}/x.txt"]
    assert output(session, "/save my/../y") == [f"saved as {tmp_path}/y"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.txt", "y"]
    assert output(session, "/load ./x.txt")[0].startswith("x: 1 turn")


def test_a_save_that_fails_names_the_file(session: Any, tmp_path, monkeypatch):
    session.ask("one")
    with pytest.raises(OSError) as error:
        output(session, "/save /proc/x")
    assert error.value.filename == "/proc/x"
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        output(session, f"/save {tmp_path}/file/x")
    assert error.value.filename == f"{tmp_path}/file"
    (tmp_path / "file").unlink()

    monkeypatch.setattr(
        os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left") as error:
        output(session, f"/save {tmp_path}/x")
    assert error.value.filename == f"{tmp_path}/x" and list(tmp_path.iterdir()) == []


def test_former_options_of_a_saved_conversation_are_dropped(session: Any, tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(HEADER.replace("{}", '{"min_gap": 0.5, "vote_weight": "probe", "sigma": 0.3}'))
    assert output(session, f"/load {path}")[0] == "old: 0 turns, method base"
    assert session.conversation.user_options == {"sigma": 0.3}
    assert session.conversation.config.sigma == 0.3


def test_a_method_that_has_left_becomes_another_one(session: Any, tmp_path):
    path = tmp_path / "old.jsonl"
    path.write_text(HEADER.replace("base", "early-exit"))
    assert output(session, f"/load {path}")[0] == "old: 0 turns, method base"


HEADER = '{"format": "tgr-chat 1", "model": "m", "method": "base", "system": "", "options": {}}'
USER = '{"role": "user", "content": "q"}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a conversation: line 1: the file is empty"),
        ("nonsense", "is not a conversation: line 1: Expecting value"),
        ("[]", "is not a conversation: line 1: .* is not of type dict"),
        ('{"format": "x"}', "is not a conversation: line 1: its format is 'x'"),
        (HEADER.replace("base", "magic"), "line 1: .*its method is 'magic', but there"),
        (HEADER.replace("{}", '{"sigma": -1}'), "line 1: .*sigma is -1, but must be at least 0"),
        (HEADER.replace("{}", '{"sigmo": 1}'), "line 1: .*unknown option 'sigmo'"),
        (f"{HEADER}\n{USER}", "is not a conversation: line 3: the file ends before the answer"),
        (f"{HEADER}\n{USER}\n{USER}", "line 3: .*role is 'user', but must be 'assistant'"),
        (f'{HEADER}\n{{"role": "user", "content": 5}}', "line 2: .*5 is not of type str"),
    ],
)
def test_an_invalid_file_is_refused_with_the_line(session: Any, tmp_path, text: str, message: str):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    session.ask("one")
    with pytest.raises(TgrError, match=message):
        output(session, f"/load {path}")
    assert session.conversation.last.question == "one"


def test_the_list_names_saved_ones_and_leaves_out_earlier_states(session: Any):
    session.path = store.new_path()
    session.ask("one")
    output(session, "/save sums")
    for _ in range(4):  # as many copies
        output(session, "/load sums")
        session.ask("two")
    output(session, "/clear")
    session.ask("other")
    output(session, "/clear")
    *rows, last = output(session, "/resume")
    assert sorted(row.split("  ")[-1] for row in rows) == [
        "1 turn: other", "2 turns: one", "sums, 1 turn: one",
    ]  # fmt: skip
    assert last.endswith("; 4 more, older or earlier states of these: /resume all")
    assert len(output(session, "/resume all")) == 7 + 1
    assert output(session, "/resume 7")[0].endswith("method tgr-latent")


def test_a_conversation_is_resumed_with_its_own_model(
    session: Any, tmp_path, monkeypatch, capsys: Any
):
    own = tmp_path / "own.gguf"
    own.touch()
    session.conversation.engine.path = own
    session.path = store.new_path()
    output(session, "/set temperature 0.5")
    session.ask("one")
    session.saved.close()
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        shown = []
        monkeypatch.setattr(
            "tgr_local.chat._piped",
            lambda conversation, start: shown.append((conversation.engine.path, start)) or 0,
        )
        assert main(["chat", "--resume"]) == 0
        assert main(["chat", "--resume", "-m", "b.gguf", "--temperature", "0.1"]) == 0
        assert [path for path, _ in shown] == [own, Path("b.gguf")]
        assert [start.options for _, start in shown] == [{}, {"temperature": 0.1}]
        own.unlink()
        assert main(["chat", "--resume"]) == 1
    error = capsys.readouterr().err
    assert f"was written with {own}, which is not there; name a model with -m" in error
    assert len(shown) == 2
