"""A session whose front end is a double of the user, on the double of the engine."""

from __future__ import annotations

from typing import Any

from fake_engine import FakeEngine, install

from tgr_local.chat.commands import ALIASES, COMMANDS
from tgr_local.chat.conversation import Conversation
from tgr_local.chat.session import ChatSession
from tgr_local.console.command_table import run_command


class FakeUser:
    """A front end that collects the answers and chooses the reply with the index `choice`."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.copied = ""
        self.asked: list[str] = []
        self.decision: int | None = None
        self.choice: int | None = None

    def show(self, events: Any) -> None:
        self.shown.append(list(events)[-1].text)

    def show_many(self, k: int, work: Any) -> Any:
        return work(lambda index, event: None)

    def choose(self, replies: Any) -> int | None:
        return self.choice

    def decide(self, question: str, choices: Any) -> int | None:
        self.asked += [question, *choices]
        return self.decision

    def show_turn(self, turn: Any) -> None:
        self.shown.append(f"{turn.question} → {turn.answer}")

    def edit(self, text: str) -> str:
        return f"{text} and more\n"

    def copy(self, text: str) -> None:
        self.copied = text


def make_session(monkeypatch) -> ChatSession:
    """A session with a new conversation; the doubles stay installed for the test."""
    install(monkeypatch.setattr)
    return ChatSession(Conversation(FakeEngine("fake.gguf"), {}, "tgr-latent"), FakeUser())  # type: ignore[arg-type]


def output(session: ChatSession, line: str) -> list[str]:
    """The lines that a command prints."""
    return list(run_command(session, line, COMMANDS, ALIASES))
