"""The end of the context: turns that are dropped or summarised, and nothing cut unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import EXACT
from fake_engine import FakeEngine, fake_prompt, fake_stream
from fake_user import FakeUser, make_session, output
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tgr_local import generation
from tgr_local.chat import context, store
from tgr_local.chat.conversation import Conversation, Turn
from tgr_local.chat.session import ChatSession
from tgr_local.chat.terminal import Terminal
from tgr_local.engine import Engine
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.search.capacity import text_room
from tgr_local.system.errors import CapacityError, TgrError


@pytest.fixture
def session(monkeypatch) -> Any:
    """A session on the double, whose replies fail where a real one has no room: one byte is one
    token of 128."""
    monkeypatch.setattr(context, "TURN_TOKENS", 2)
    monkeypatch.setattr(context, "LEAST_SUMMARY", 8)
    monkeypatch.setattr(context, "SUMMARY_REQUEST", "sum up")
    made = make_session(monkeypatch)
    made.conversation.user_options |= {"chunk_len": 12, "max_chunks": 1, "rollout_len": 4}

    def stream(engine: Any, prompt: Any, config: SearchConfig, **how: Any) -> Iterator[Any]:
        query = fake_prompt(engine, prompt, config) if isinstance(prompt[0], dict) else prompt
        text_room(FakeEngine("f"), len(query))  # type: ignore[arg-type]
        yield from fake_stream(engine, prompt, config, **how)

    monkeypatch.setattr(generation, "stream", stream)
    return made


@pytest.fixture
def roomy(session: Any, monkeypatch) -> Any:
    """The same session with a context of 1024 tokens."""
    monkeypatch.setattr(FakeEngine, "n_ctx_train", 1024)
    return session


def turns(session: Any) -> list[str]:
    return [turn.question for turn in session.conversation.turns]


def fill(session: Any) -> None:
    """Three turns of 24 tokens each."""
    session.conversation.turns = [Turn(str(i) * 10, str(i) * 13) for i in range(3)]


def test_the_user_is_asked_at_the_end_of_the_context(session: Any):
    fill(session)
    session.ask("x" * 20)  # fits: 6 + 3 * 25 + 20
    assert session.front_end.asked == []
    fill(session)
    session.front_end.decision = 0
    session.ask("x" * 50)
    assert session.front_end.asked == [
        "The conversation is at the end of the context (128 tokens).",
        "drop the oldest 2 turns",
        "summarise the oldest 2 turns",
        "change nothing",
    ]
    assert turns(session) == ["2" * 10, "x" * 50]
    assert session.conversation.last.answer == "#3 " + "x" * 50


def test_without_a_decision_nothing_is_cut_and_the_error_says_how(session: Any):
    fill(session)
    with pytest.raises(CapacityError, match=r"/drop 2 removes the oldest 2 turns, /summarise 2"):
        session.ask("x" * 50)
    assert turns(session) == ["0" * 10, "1" * 10, "2" * 10, "x" * 50]
    output(session, "/drop 2")
    output(session, "/regen")
    assert turns(session) == ["2" * 10, "x" * 50] and session.conversation.last.answer


def test_a_question_that_is_too_long_by_itself_is_an_error(session: Any):
    fill(session)
    session.front_end.decision = 0
    with pytest.raises(CapacityError, match="shorten it"):
        session.ask("x" * 200)
    assert session.front_end.asked == [] and len(turns(session)) == 4


def test_dropped_turns_stay_in_their_file(session: Any, home: Path):
    session.path = store.new_path()
    session.ask("one")
    session.ask("two")
    old = session.path
    assert output(session, "/drop") == [
        f"dropped the oldest 1 turn, 1 turn left; {old.stem} has them (/load {old.stem})"
    ]
    assert session.path != old and turns(session) == ["two"]
    assert [turn.question for turn in store.load(old).turns] == ["one", "two"]
    assert [turn.question for turn in store.load(session.path).turns] == ["two"]
    output(session, f"/load {old.stem}")
    assert turns(session) == ["one", "two"]


def test_a_summary_takes_the_place_of_the_turns(roomy: Any):
    session = roomy
    for question in ("one", "two", "three"):
        session.ask(question)
    output(session, "/summarise 2")
    summary, last = session.conversation.turns
    assert summary.question == context.SUMMARY_QUESTION and last.question == "three"
    assert summary.answer.startswith("#1 one|#1 one|two|#3 two|sum up")
    assert session.front_end.shown[-1] == summary.answer
    session.ask("four")
    assert session.front_end.shown[-1] == "#5 four"
    output(session, "/summarize")
    assert turns(session) == [context.SUMMARY_QUESTION]


def test_a_summary_without_room_is_refused(session: Any):
    session.conversation.turns = [Turn("0" * 100, "1" * 13), Turn("2", "3")]
    with pytest.raises(CapacityError, match=r"the oldest turn .* no room for a summary in the"):
        output(session, "/summarise 2")
    assert len(turns(session)) == 2
    session.front_end.decision = 0
    session.ask("x" * 20)  # the user is offered only what can be done
    assert session.front_end.asked[1:] == ["drop the oldest turn", "change nothing"]


@pytest.mark.parametrize(
    ("typed", "choice"), [("1\r", 0), ("7\r2\r", 1), ("maybe\r3\r", 2), ("\x03", None)]
)
def test_the_dialog_takes_a_number_or_ctrl_c(monkeypatch, typed: str, choice: int | None):
    assert decided(monkeypatch, typed) == choice


@pytest.mark.parametrize("typed", ["/exit\r", "/bye\r", "exit\r", "no\r/quit\r", "\x04"])
def test_the_dialog_obeys_a_user_who_leaves(monkeypatch, typed: str):
    with pytest.raises(EOFError):
        decided(monkeypatch, typed)


def decided(monkeypatch, typed: str) -> int | None:
    """What the terminal's dialog makes of typed keys."""
    session = make_session(monkeypatch)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        keys.send_text(typed)
        return Terminal(session.conversation).decide("What now?", ["a", "b", "c"])


def test_an_empty_summary_changes_nothing(roomy: Any, monkeypatch):
    session = roomy

    def empty(*_: Any, **__: Any) -> Iterator[Any]:
        reply = list(fake_stream(FakeEngine("f"), "x", SearchConfig()))[-1]
        yield type(reply)(**{**vars(reply), "text": ""})

    session.conversation.turns = [Turn("a", "b")]
    monkeypatch.setattr(generation, "stream", empty)
    with pytest.raises(TgrError, match="the summary is empty"):
        output(session, "/summarise")
    assert turns(session) == ["a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/drop", "there is no question yet: ask something first"),
        ("/summarise", "there is no question yet: ask something first"),
        ("/drop 9", "the number of turns is '9', but must be between 1 and 3"),
        ("/drop 0", "the number of turns is '0', but must be between 1 and 3"),
        ("/summarise x", "the number of turns is 'x', but must be between 1 and 3"),
    ],
)
def test_a_bad_number_is_refused(session: Any, line: str, message: str):
    if "question" not in message:
        fill(session)
    with pytest.raises(ValueError, match=message):
        output(session, line)


# ---- the real engine ----

Open = Callable[..., ChatSession]


@pytest.fixture
def start() -> Iterator[Open]:
    engines = []

    def session(method: str, n_ctx: int = 0) -> ChatSession:
        config = EngineConfig(**EXACT | {"prefix_cells": 4096, "n_ctx": n_ctx})
        engines.append(Engine(embedded_model(), config))
        wishes = {
            "max_tokens": 12,
            "n_candidates": 2,
            "rollout_len": 4,
            "thinking": False,
            "seed": 5,
        }
        return ChatSession(Conversation(engines[-1], wishes, method), FakeUser())

    yield session
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_after_dropped_turns_the_rest_is_read_once(start: Open, method: str):
    session = start(method, n_ctx=600)
    engine = session.conversation.engine
    words = "the quick brown fox jumps. "
    n_words = 600 // len(engine.tokenize(words)) // 5
    session.front_end.decision = 0  # type: ignore[attr-defined]
    for number in range(6):
        session.ask(f"{number}: {words * n_words}")
        assert session.conversation.last.answer
    asked = session.front_end.asked  # type: ignore[attr-defined]
    assert asked[1].startswith("drop the oldest") and len(turns(session)) < 6
    before = engine.stats().n_positions
    session.ask("and?")
    assert engine.stats().n_positions - before < 100, "what stayed is remembered"


def test_a_full_context_is_summarised_and_the_question_answered(start: Open):
    """With the embedded model and 300 cells: the summary that is offered can be carried out."""
    session = start("base", n_ctx=300)
    session.front_end.decision = 1  # type: ignore[attr-defined]
    for number in range(8):
        session.ask(f"{number}: What is 2+3? {'Think about it. ' * 3}")
        assert session.conversation.last.answer
    asked = session.front_end.asked  # type: ignore[attr-defined]
    assert any(line.startswith("summarise the oldest") for line in asked)
    assert turns(session)[0] == context.SUMMARY_QUESTION


def test_turns_that_do_not_fit_together_are_summarised_in_parts(start: Open):
    session = start("base", n_ctx=300)
    session.conversation.turns = [Turn(f"What is {i}+3?", "It is so. " * 5) for i in range(12)]
    with pytest.raises(CapacityError):
        context.n_at_once(session.conversation, 11, least=11)
    session.summarise(11)
    assert turns(session) == [context.SUMMARY_QUESTION, "What is 11+3?"]
    replies = session.conversation.replies
    assert len(replies) > 1 and session.conversation.turns[0].answer == replies[-1].text
    session.ask("What is 2+3?")
    assert session.conversation.last.answer


def test_a_summary_by_a_model_is_short(start: Open):
    session = start("tgr-latent")
    for question in ("What is 2+3?", "What is 4+4?"):
        session.ask(question)
    output(session, "/summarise 1")
    first, last = session.conversation.turns
    assert first.question == context.SUMMARY_QUESTION and first.answer
    assert last.question == "What is 4+4?"
