"""A resumed conversation reads only what is new; files with prefixes come and go with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from engines import EXACT
from fake_user import FakeUser, output

from tgr_local.chat import prefixes, store
from tgr_local.chat.conversation import Conversation
from tgr_local.chat.session import ChatSession
from tgr_local.commands.cli import main
from tgr_local.engine import Engine
from tgr_local.options.config import ChatConfig, EngineConfig
from tgr_local.options.model_files import embedded_model

LONG = "the quick brown fox jumps over the lazy dog. " * 16
OPTIONS = {"max_tokens": 12, "temperature": 0.0, "thinking": False}
Open = Callable[..., ChatSession]


@pytest.fixture
def start(home: Path) -> Any:
    """`start()`: a session with a new engine and a new file, as a new process has them."""
    engines = []

    def session(method: str = "base", save: bool = True, **options: Any) -> ChatSession:
        engines.append(
            Engine(embedded_model(), EngineConfig(**EXACT | {"prefix_cells": 4096} | options))
        )
        config = ChatConfig(save=save)
        made = ChatSession(Conversation(engines[-1], OPTIONS, method, config), FakeUser())
        made.path = store.new_path() if save else None
        return made

    yield session
    for engine in engines:
        engine.close()


def decoded(session: ChatSession, line: str) -> int:
    """Positions that the engine decodes for a question."""
    before = session.conversation.engine.stats().n_positions
    session.ask(line)
    return session.conversation.engine.stats().n_positions - before


def left(session: ChatSession) -> ChatSession:
    """The same after one question with a long system prompt, left by its user."""
    output(session, f"/system {LONG}")
    session.ask("one")
    session.leave()
    session.saved.close()
    return session


def files(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "state/tgr-local/chats").glob("*.prefix"))


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_a_resumed_conversation_is_not_read_again(start: Open, home: Path, method: str):
    first = start(method)
    output(first, f"/system {LONG}")
    assert decoded(first, "one") > prefixes.LEAST_TOKENS
    first.leave()
    assert len(files(home)) == 1

    second, plain = start(method), start(method)
    output(second, "/resume 1")
    (home / "state/tgr-local/chats" / files(home)[0]).unlink()
    output(plain, "/resume 1")
    known = len(second.conversation.tokens())
    again, afresh = decoded(second, "two"), decoded(plain, "two")
    assert again < known - prefixes.LEAST_TOKENS
    assert again + prefixes.LEAST_TOKENS < afresh, "only what is new is decoded"
    assert second.conversation.turns == plain.conversation.turns, "and the reply is the same"


def test_a_reply_is_saved_with_its_question(start: Open):
    left(start())
    second = start()
    output(second, "/resume 1")
    n_new = len(second.conversation.engine.tokenize("two")) + OPTIONS["max_tokens"]
    assert decoded(second, "two") <= n_new + 64


def test_names_of_a_conversation_share_its_prefix(start: Open, home: Path):
    first = start()
    output(first, f"/system {LONG}")
    first.ask("one")
    output(first, "/save mine")
    output(first, f"/save {home}/elsewhere.jsonl")
    output(first, "/clear")
    assert len(files(home)) == 2 and "mine.prefix" in files(home)
    assert not (home / "elsewhere.prefix").exists(), "only the state folder has such files"
    second = start(save=False)
    output(second, "/load mine")
    assert decoded(second, "two") < prefixes.LEAST_TOKENS


def test_a_damaged_file_gives_one_warning_and_the_text_is_read(start: Open, home: Path, capsys):
    left(start())
    (name,) = files(home)
    path = home / "state/tgr-local/chats" / name
    content = path.read_bytes()
    for damaged in (
        b"",
        content[:-1],
        content[:2000] + bytes([content[2000] ^ 1]) + content[2001:],
    ):
        path.write_bytes(damaged)
        second = start()
        output(second, "/resume 1")
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1 and "the conversation is read again" in errors
        assert decoded(second, "two") > prefixes.LEAST_TOKENS
        second.saved.close()
    path.write_bytes(content)
    other = start(type_k="f16")
    output(other, "/resume 1")
    assert "cache type" in capsys.readouterr().err


def test_a_change_of_the_model_is_no_news(start: Open, capsys):
    session = start()
    output(session, f"/system {LONG}")
    session.ask("one")
    output(session, "/model embedded-code")
    session.conversation.engine.close()
    assert capsys.readouterr().err == ""


def test_nothing_is_saved_that_need_not_be(start: Open, home: Path):
    short = start()
    short.ask("one")
    short.leave()
    assert files(home) == [], "a short conversation is read again"
    off = start()
    output(off, "/set prefix_mib 0")
    left(off)
    assert files(home) == []
    left(start(save=False))
    assert files(home) == []


def test_a_conversation_that_was_only_looked_at_is_not_written(start: Open, home: Path):
    left(start())
    path = home / "state/tgr-local/chats" / files(home)[0]
    before = path.stat()
    second = start()
    output(second, "/resume 1")
    second.leave()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_interrupt_leaves_the_old_file(start: Open, home: Path, monkeypatch):
    session = left(start())
    path = home / "state/tgr-local/chats" / files(home)[0]
    content = path.read_bytes()

    session.ask("two")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
        session.leave()
    assert path.read_bytes() == content
    assert not list(path.parent.glob(".*.prefix*")), "no part of a file is left"


def test_old_files_do_not_pile_up(start: Open, home: Path):
    session = start()
    output(session, f"/system {LONG}")
    folder = home / "state/tgr-local/chats"
    (folder).mkdir(parents=True, exist_ok=True)
    given_up, young = folder / ".a.prefix.x.part", folder / ".b.prefix.x.part"
    for path in (given_up, young):
        path.write_bytes(b"")
    os.utime(given_up, (time.time() - 10**5,) * 2)
    for number in range(6):
        session.ask("one")
        session.path = folder / f"{number}.jsonl"
        session.save()
        output(session, "/clear")
    assert len(files(home)) == 6
    assert not given_up.exists() and young.exists()
    (folder / "5.jsonl").unlink()
    size = (folder / "4.prefix").stat().st_size
    assert size < 3 << 20 < 6 * size
    output(session, "/set prefix_mib 3")
    session.ask("one")
    session.path = folder / "last.jsonl"
    session.save()
    session.leave()
    assert sum((folder / name).stat().st_size for name in files(home)) <= 3 << 20
    assert "last.prefix" in files(home) and "5.prefix" not in files(home)
    assert "0.prefix" not in files(home), "the oldest are removed first"


def test_too_large_a_prefix_is_not_saved(start: Open, home: Path, capsys):
    session = start()
    output(session, f"/system {LONG * 2}")
    output(session, "/set prefix_mib 1")
    session.ask("one")
    session.leave()
    assert files(home) == []
    assert capsys.readouterr().err.count("is not saved") == 1


def test_the_command_line_resumes_the_latest(start: Open, capsys, monkeypatch):
    assert main(["chat", "--resume"]) == 2
    assert "no saved conversation" in capsys.readouterr().err
    first = start()
    output(first, "/system short")
    first.ask("one")
    (read, write) = os.pipe()
    os.write(write, b"/show conversation\n")
    os.close(write)
    with open(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["chat", "--resume"]) == 0
    captured = capsys.readouterr()
    assert "1 turn, method base" in captured.err
    assert "one" in captured.out
