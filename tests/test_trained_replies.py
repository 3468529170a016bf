"""Trained models in whole replies: methods, formats, remembered prefixes, stop texts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import is_free
from tool_models import CLOCK, WEATHER, tool
from trained_models import TrainedModel
from trained_peer import difference
from trained_texts import question

from tgr_local import Reply, SearchConfig, generate, generate_many, generation
from tgr_local.apis.completions import respond
from tgr_local.apis.requests import chat_request, completion_request
from tgr_local.apis.validation import RequestError
from tgr_local.code.edits import FileText
from tgr_local.code.reading import prompt
from tgr_local.code.writing import departures
from tgr_local.engine import Engine
from tgr_local.engine.prefix_files import load_prefix, save_prefix

pytestmark = pytest.mark.trained

FRANCE = "Name the capital of France."
STORY = "Write a long story about an old fisherman and the sea."
SMALL: dict[str, Any] = {"chunk_len": 16, "max_chunks": 3, "n_candidates": 4, "rollout_len": 8}
SURE: dict[str, Any] = {"temperature": 0.1, "max_tokens": 24}

Ask = Callable[..., Reply]


@pytest.fixture
def query(trained: TrainedModel, trained_engine: Engine) -> Callable[[str], list[int]]:
    """The tokens of a question, as the model was trained to see one."""
    return functools.partial(question, trained, trained_engine)


@pytest.fixture
def ask(trained_engine: Engine, query: Callable[[str], list[int]]) -> Ask:
    """`ask("…", method="base", temperature=0)`: a reply, whose cost is what the engine counted."""

    def reply(text: str, method: str = "base", **options: Any) -> Reply:
        before = trained_engine.stats().n_positions
        config = SearchConfig(**{"temperature": 0} | options)
        made = generate(trained_engine, query(text), config, method=method)
        assert made.counts.total == trained_engine.stats().n_positions - before
        assert made.text.strip() and made.method == method
        assert np.isfinite(np.concatenate([step.logprobs for step in made.steps])).all()
        return made

    return reply


def test_base_answers(ask: Ask):
    assert "Paris" in ask(FRANCE, max_tokens=16).text


@pytest.mark.parametrize("method", ["auto", "vote"])
def test_votes_answer(ask: Ask, method: str):
    assert "Paris" in ask(FRANCE, method, n_samples=4, **SURE).text


def test_markov_goes_on_after_resets(
    ask: Ask, trained_engine: Engine, query: Callable[[str], list[int]]
):
    ask(STORY, max_tokens=1)  # from here on the prompt is remembered, and both read the same
    plain = ask(STORY, chunk_len=64, max_tokens=64)
    reply = ask(STORY, "markov", chunk_len=64, max_tokens=150)
    assert [len(step.tokens) for step in reply.steps] == [64, 64, 22]
    assert [step.finish for step in reply.steps] == [None, None, "length"]
    assert not difference(trained_engine, query(STORY), reply.tokens[:64], plain.tokens)
    # a chunk is as likely after the reset as a text of the model is
    assert [step.logprobs.mean() > -2 for step in reply.steps] == [True] * 3


def test_the_search_tries_candidates_and_takes_the_best(ask: Ask):
    reply = ask(STORY, "tgr-latent", temperature=0.6, max_tokens=40, **SMALL)
    assert [len(step.tokens) for step in reply.steps] == [16, 16, 8]
    searched = [step.candidates for step in reply.steps if step.candidates]
    assert searched
    for candidates in searched:
        scores = candidates.scores
        assert np.isfinite(scores.total).all() and scores.chosen == scores.total.argmax()
        assert len(candidates.tokens) == len(candidates.anchors) == 4
        assert len({some.tobytes() for some in candidates.anchors}) == 4


def test_eight_replies_in_the_same_batches(
    trained_engine: Engine, query: Callable[[str], list[int]], ask: Ask
):
    replies = generate_many(trained_engine, query(FRANCE), SearchConfig(**SURE), 8, method="base")
    assert [reply.seed for reply in replies] == list(range(42, 50))
    assert all("Paris" in reply.text for reply in replies)
    stories = generate_many(
        trained_engine, query(STORY), SearchConfig(temperature=1.0, max_tokens=16), 8, method="base"
    )
    assert len({reply.text for reply in stories}) > 1, "the seeds differ"
    plain = ask(FRANCE, max_tokens=16)
    greedy = generate_many(
        trained_engine, query(FRANCE), SearchConfig(temperature=0, max_tokens=16), 8, method="base"
    )
    for reply in greedy:
        assert not difference(trained_engine, query(FRANCE), reply.tokens, plain.tokens)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "coastal": {"type": "boolean"},
    },
    "required": ["city", "population", "coastal"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("method", ["base", "tgr-latent"])
def test_json_follows_its_schema(trained_engine: Engine, method: str):
    asked = "Describe Paris as JSON with city, population and coastal."
    body = {
        "messages": [{"role": "user", "content": asked}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "max_tokens": 120,
    }
    config = SearchConfig(temperature=0, **SMALL | {"max_chunks": 8})
    (choice,) = respond(
        trained_engine, chat_request(trained_engine, body, config=config, method=method)
    )["choices"]
    made = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert list(made) == ["city", "population", "coastal"]
    assert isinstance(made["city"], str) and len(made["city"]) <= 20
    assert isinstance(made["population"], int) and 0 <= made["population"] <= 99_999_999
    assert isinstance(made["coastal"], bool)


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_tool_is_called(trained: TrainedModel, trained_engine: Engine, choice: str):
    if not trained.calls:
        pytest.skip("its template knows no tools")
    body = {
        "messages": [{"role": "user", "content": "What is the weather in Rome, for 3 days?"}],
        "tools": [tool(CLOCK), tool(WEATHER)],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 100,
    }
    config = SearchConfig(temperature=0)
    (made,) = respond(
        trained_engine, chat_request(trained_engine, body, config=config, method="base")
    )["choices"]
    calls = made["message"].get("tool_calls")
    if choice == "auto" and not calls:  # the model may answer in words
        assert made["message"]["content"] and made["finish_reason"] in ("stop", "length")
        return
    (call,) = calls
    assert made["finish_reason"] == "tool_calls" and call["function"]["name"] == "weather"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] == "Rome" and 1 <= arguments["days"] <= 99


def test_a_gap_is_filled(trained: TrainedModel, trained_engine: Engine):
    before = "def add(a, b):\n    return "
    after = "\n\nprint(add(2, 3))\n"
    body = {"prompt": before, "suffix": after, "max_tokens": 16, "temperature": 0}
    if not trained.fills:
        with pytest.raises(RequestError, match="no fill-in-the-middle tokens"):
            completion_request(trained_engine, body)
        return
    request = completion_request(trained_engine, body, method="base")
    (choice,) = respond(trained_engine, request)["choices"]
    assert choice["text"].strip().startswith("a + b")


def test_a_remembered_prompt_gives_the_same_text_and_a_saved_one_too(
    trained: TrainedModel, trained_engine: Engine, query: Callable[[str], list[int]], ask: Ask,
    tmp_path: Path,
) -> None:  # fmt: skip
    about = "Say in one sentence what this is about: " + STORY + " It is a story of patience. " * 8
    prompt = query(about)
    first, second = (ask(about, max_tokens=24) for _ in range(2))
    assert first.counts.query > 64 and second.counts.query <= 1
    assert not difference(trained_engine, prompt, first.tokens, second.tokens)
    path = tmp_path / "saved"
    kept = save_prefix(trained_engine, prompt, path)
    assert kept and kept.tokens == prompt[: len(kept.tokens)]
    with Engine(trained.in_folder()) as engine:
        assert load_prefix(engine, path) == kept
        loaded = generate(engine, prompt, SearchConfig(temperature=0, max_tokens=24), method="base")
        assert loaded.counts.query <= 1
        assert is_free(engine)
    # in other cells attention adds up in another order
    assert not difference(trained_engine, prompt, loaded.tokens, second.tokens)
    if loaded.tokens[0] == second.tokens[0]:
        assert abs(loaded.steps[0].logprobs[0] - second.steps[0].logprobs[0]) < 0.3


def test_a_stop_text_ends_the_reply_before_it(ask: Ask):
    ask(STORY, max_tokens=1)
    whole = ask(STORY, max_tokens=40).text
    middle = len(whole) // 2
    stop = whole[middle : middle + 4]
    cut = ask(STORY, max_tokens=40, stop=(stop,))
    assert cut.finish == "stop" and cut.text.strip() == whole[: whole.find(stop)].strip()


def test_the_repair_is_among_the_likeliest_departures(
    trained: TrainedModel, trained_engine: Engine
):
    """A code model that may not write the code as it was changes what is wrong."""
    if not trained.fills:
        pytest.skip("it is no code model")
    code = (
        "def find(values, wanted):\n    low, high = 0, len(values)\n    while low < high:\n"
        "        middle = (low + high) // 2\n        if values[middle] < wanted:\n"
        "            low = middle\n        else:\n            high = middle\n    return low\n"
    )
    user = prompt.user_message(
        prompt.file_block("search.py", code, "```"), "A test never ends. Fix it.",
        "test_search.py: timeout in find([1, 3, 5], 5)\n",
    )  # fmt: skip
    (begun,) = prompt.copies([FileText("search.py", code)], [], "```")
    messages = [*prompt.conversation(user), {"role": "assistant", "content": begun.opening + code}]
    tokens = generation.query_tokens(trained_engine, messages, SearchConfig(thinking=False))
    found = departures.find(trained_engine, [replace(begun, tokens=tokens)], 8)
    assert any(one.text.endswith("low = middle +") for one in found.departures), found.departures
