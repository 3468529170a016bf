"""Programs side by side on the same files: whatever they do in whatever order, nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import INSTALLED
from fake_user import make_session, output
from surroundings import HANG, environment

from tgr_local.chat import store
from tgr_local.chat.session import ChatSession
from tgr_local.system import files, paths
from tgr_local.system.errors import TgrError
from tgr_local.system.files import OwnedFile

CHATS = 3


def open_chat(monkeypatch) -> ChatSession:
    session = make_session(monkeypatch)
    session.path = store.new_path()
    return session


def questions(home: Path) -> set[str]:
    """All that stand in conversations."""
    found = set()
    for path in (home / "state/tgr-local/chats").glob("*.jsonl"):
        if path.stat().st_size:
            found |= {turn.question for turn in store.load(path).turns}
    return found


def killed(session: ChatSession) -> None:
    """What kill -9 leaves: the locks are free, their files stay."""
    file = session.saved.file
    if file is not None and file.is_owned:
        held = file.path.with_name(f".{file.path.name}.lock")
        kept = held.with_suffix(".kept")
        if held.exists():
            os.link(held, kept)
        file.release()
        if kept.exists():
            kept.rename(held)


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
@pytest.mark.parametrize("first", range(0, 200, 25))
def test_no_turn_is_lost_in_200_interleavings(home: Path, monkeypatch, first: int, locks: bool):
    if not locks:
        refusal = OSError(errno.ENOLCK, "No locks available")
        monkeypatch.setattr(files, "lock", lambda _: (_ for _ in ()).throw(refusal))
    for seed in range(first, first + 25):
        choose = random.Random(seed)
        folder = home / "state/tgr-local/chats"
        for path in folder.glob("*"):
            path.unlink()
        asked: set[str] = set()
        chats = [open_chat(monkeypatch) for _ in range(CHATS)]
        for step in range(12):
            i = choose.randrange(CHATS)
            session = chats[i]
            act = choose.choice(("ask", "ask", "ask", "resume", "load", "save", "clear", "kill"))
            with contextlib.suppress(ValueError, OSError):  # such as a name that is taken
                if act == "ask":
                    asked.add(f"{seed}-{step}")
                    session.ask(f"{seed}-{step}")
                elif act == "resume":
                    output(session, f"/resume {choose.randint(1, 2)}")
                elif act in ("load", "save"):
                    output(session, f"/{act} mine")
                elif act == "clear":
                    output(session, "/clear")
                else:
                    killed(session)
                    chats[i] = open_chat(monkeypatch)
        for session in chats:
            session.saved.close()
        assert questions(home) == asked, f"seed {seed}"


CHAT = f"""{INSTALLED}
import random, sys
from fake_user import FakeUser, output
from fake_engine import FakeEngine
from tgr_local.chat import store
from tgr_local.chat.conversation import Conversation
from tgr_local.chat.session import ChatSession
session = ChatSession(Conversation(FakeEngine("fake.gguf"), {{}}, "base"), FakeUser())
session.path = store.new_path()
name, choose = sys.argv[1], random.Random(sys.argv[1])
for i in range(20):
    if choose.random() < 0.3:
        try:
            output(session, "/resume 1")
        except ValueError:
            pass
    session.ask(f"{{name}}-{{i}}")
print("asked", flush=True)
if name == "killed":
    sys.stdin.read()
session.saved.close()
"""


def test_no_turn_of_processes_is_lost_and_a_dead_one_blocks_none(home: Path):
    env = environment(PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    command = [sys.executable, "-c", CHAT]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": env}
    names = ("one", "two", "killed")
    started = [subprocess.Popen([*command, name], **pipes) for name in names]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
    started[-1].kill()
    for process in started:
        process.communicate(timeout=HANG)
    assert {f"{name}-{i}" for name in names for i in range(20)} == questions(home)
    for path in store.saved_paths():
        file = OwnedFile(path)
        assert file.take(), "its owner is gone"
        file.release()
    assert [one.returncode for one in started] == [0, 0, -signal.SIGKILL]


def test_the_second_chat_on_a_conversation_goes_on_in_a_copy(home: Path, monkeypatch, capsys):
    first = open_chat(monkeypatch)
    first.ask("origin")
    assert first.path is not None
    second = open_chat(monkeypatch)
    lines = output(second, "/resume 1")
    assert lines[-1] == f"another chat has {first.path.stem} open; this one goes on in a copy"
    second.ask("two")
    first.ask("one")
    assert [turn.question for turn in store.load(first.path).turns] == ["origin", "one"]
    assert second.path is not None and second.path != first.path
    assert [turn.question for turn in store.load(second.path).turns] == ["origin", "two"]
    first.path.write_bytes(second.path.read_bytes())  # by a program that knows no owners
    old = first.path
    first.ask("more")
    assert f"{old.stem} was changed by another program" in capsys.readouterr().err
    assert [turn.question for turn in store.load(old).turns] == ["origin", "two"]
    assert questions(home) == {"origin", "one", "two", "more"}


def test_a_named_conversation_that_another_chat_has_changed_is_not_overwritten(monkeypatch):
    first, second = open_chat(monkeypatch), open_chat(monkeypatch)
    first.ask("one")
    output(first, "/save mine")
    output(second, "/load mine")
    second.ask("two")
    output(second, "/save mine")
    first.ask("three")
    with pytest.raises(ValueError, match=r"mine\.jsonl was changed since this chat read or wrote"):
        output(first, "/save mine")
    output(first, "/load mine")
    assert [turn.question for turn in first.conversation.turns] == ["one", "two"]


def test_what_a_full_disk_refuses_is_written_when_there_is_room(home: Path, monkeypatch, capsys):
    session = open_chat(monkeypatch)
    session.ask("one")
    first = session.path
    assert first is not None
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(paths.tempfile, "mkstemp", lambda *_: (_ for _ in ()).throw(full))
        session.ask("two")
        session.ask("three")
        output(session, "/clear")
        session.ask("dropped")
        session.ask("four")
        output(session, "/drop 1")
    error = capsys.readouterr().err.replace("\n  ", " ")
    assert error.count("the conversation is not saved: ") == 1
    assert f"{first}: No space left on device; every turn tries again" in error
    assert questions(home) == {"one"}
    session.ask("five")
    assert "the conversation is saved again" in capsys.readouterr().err
    assert [turn.question for turn in store.load(first).turns] == ["one", "two", "three"]
    assert questions(home) == {"one", "two", "three", "dropped", "four", "five"}


def test_two_evaluations_in_one_folder(tmp_path, monkeypatch, capsys):
    from tgr_local.lab.eval.samples import Store

    path = tmp_path / "samples.jsonl"
    with Store(path), pytest.raises(TgrError, match="written by another process"):
        Store(path)
    refusal = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(refusal))
    with Store(path):
        assert "has no locks; run this command once at a time" in " ".join(
            capsys.readouterr().err.split()
        )


def test_lines_that_a_full_disk_refuses_are_kept(tmp_path, monkeypatch):
    from tgr_local.console.input_line import HistoryFile, Pastes

    path = tmp_path / "state/history"
    history = HistoryFile(path, Pastes())
    history.append_string("one")
    write = os.write
    with monkeypatch.context() as patch:
        full = OSError(errno.ENOSPC, "No space left on device")
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(full))
        history.append_string("two")
        assert history.news() == "No space left on device"
        history.append_string("three")
        assert history.news() == ""  # said once
        parts = [9]

        def some(file: int, data: bytes) -> int:
            if not parts:
                raise full
            return write(file, data[: parts.pop()])

        patch.setattr(os, "write", some)
        history.append_string("four")
    history.append_string("five\nlines")
    read = list(HistoryFile(path, Pastes()).load_history_strings())
    assert [line for line in read if line] == ["five\nlines", "four", "three", "two", "one"]
    assert oct(path.stat().st_mode)[-3:] == "600"


def test_the_file_of_a_conversation_names_its_model(home: Path, tmp_path, monkeypatch):
    session = open_chat(monkeypatch)
    model = tmp_path / "fake.gguf"
    model.write_bytes(b"x" * 5)
    session.conversation.engine.path = model
    session.ask("one")
    assert session.path is not None
    first = json.loads(session.path.read_text().splitlines()[0])
    assert (first["model"], first["model_bytes"]) == (str(model), 5)
    saved = store.load(session.path)
    assert saved.model_file() == model and saved.is_same(model)
    model.write_bytes(b"x" * 6)
    assert saved.model_file() == model and not saved.is_same(model)
    (home / "data/tgr-local/models").mkdir(parents=True, exist_ok=True)
    moved = model.rename(home / "data/tgr-local/models/fake.gguf")
    assert saved.model_file() is None  # another of the same name
    moved.write_bytes(b"y" * 5)
    assert saved.model_file() == moved
