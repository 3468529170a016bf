"""What clients learn of reading and writing: progress of a long prompt, timings as llama-server has
them, and the tokens so far."""

from __future__ import annotations

from typing import Any

import pytest

from tgr_local import SearchConfig, generate, stream
from tgr_local.apis.completions import ChatTranslation, chunks, respond
from tgr_local.apis.events import ApiEvent
from tgr_local.apis.native import NativeTranslation, native_request
from tgr_local.apis.requests import chat_request
from tgr_local.apis.timings import timings
from tgr_local.apis.writing import write
from tgr_local.engine import Engine, session
from tgr_local.search.steps import Progress

LONG = "a" * 3000
KEYS = {"cache_n"} | {
    f"{part}_{unit}"
    for part in ("prompt", "predicted")
    for unit in ("n", "ms", "per_token_ms", "per_second")
}


@pytest.fixture(autouse=True)
def _often(monkeypatch) -> None:
    monkeypatch.setattr(session, "READ_SECONDS", 0.001)


@pytest.mark.parametrize("method", ["base", "markov", "best-of-n"])
def test_reading_is_reported_from_none_to_all(engine: Engine, method: str):
    """Both where the task of the text reads the query, and where a task of its own does."""
    config = SearchConfig(max_tokens=4, n_samples=2)
    events = list(stream(engine, LONG, config, method=method))
    read = [event for event in events if isinstance(event, Progress) and event.n_query]
    query = read[0].n_query
    assert query > 3000 and all(one.stage == "rebuild" and one.n_query == query for one in read)
    counts = [one.n_read for one in read]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == query
    assert len(set(counts)) > 2, "something between the beginning and the end"
    tokens = [i for i, event in enumerate(events) if isinstance(event, Progress) and event.tokens]
    assert events.index(read[-1]) < tokens[0] if tokens else True


def test_reading_and_writing_have_seconds_of_their_own(engine: Engine):
    reply = generate(engine, LONG, SearchConfig(max_tokens=4), method="base")
    assert reply.reading_seconds > 0 and reply.seconds - reply.reading_seconds > 0
    expected = reply.n_tokens / (reply.seconds - reply.reading_seconds)
    assert reply.tokens_per_second == pytest.approx(expected)
    told = timings(engine, reply, 3000)
    assert told.keys() == KEYS
    assert told["prompt_ms"] == pytest.approx(1000 * reply.reading_seconds, abs=1e-3)
    assert told["prompt_ms"] + told["predicted_ms"] == pytest.approx(1000 * reply.seconds, abs=0.01)


def test_nothing_written_has_timings_too(engine: Engine):
    assert timings(engine, None, 5)["predicted_per_second"] == 0.0


def body(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": LONG}]
    return {"messages": messages, "max_tokens": 6, "tgr": {"method": "base"}} | more


def test_a_stream_reports_the_prompt_as_llama_server_does(engine: Engine):
    made = list(chunks(engine, chat_request(engine, body(stream=True, return_progress=True))))
    told = [one["prompt_progress"] for one in made if "prompt_progress" in one]
    assert told[0]["processed"] == 0 and told[-1]["processed"] == told[-1]["total"] > 3000
    assert all(one.keys() == {"total", "cache", "processed", "time_ms"} for one in told)
    # a client that does not know it finds a chunk without text
    silent = next(one for one in made if "prompt_progress" in one)
    assert silent["choices"] == [{"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}]
    assert made[-1]["timings"].keys() == KEYS
    assert made[-1]["timings"]["predicted_n"] in (5, 6)
    without = list(chunks(engine, chat_request(engine, body(stream=True))))
    assert not any("prompt_progress" in one for one in without)


def test_the_cached_part_of_a_prompt_is_told(load: Any, model: Any):
    engine = load(model(), prefix_cells=8192)
    request = chat_request(
        engine, body(tgr={"method": "markov"}, stream=True, return_progress=True)
    )
    list(chunks(engine, request))
    *_, last = (
        one["prompt_progress"] for one in chunks(engine, request) if "prompt_progress" in one
    )
    assert last["cache"] > 2900 and last["processed"] == last["total"]


def test_whole_responses_have_timings(engine: Engine):
    made = respond(engine, chat_request(engine, body()))
    assert made["timings"]["prompt_n"] > 3000 and made["timings"].keys() == KEYS
    request = native_request(engine, {"prompt": LONG, "n_predict": 3, "return_progress": True})
    events: list[ApiEvent] = []
    write(engine, request, events.append)
    translation = NativeTranslation(engine, request)
    parts = [part for event in events for part in translation.parts(event)]
    assert parts[0]["prompt_progress"]["processed"] == 0
    assert parts[-1]["timings"].keys() == KEYS


def test_the_page_learns_how_many_tokens_there_are(engine: Engine):
    request = chat_request(
        engine, body(stream=True, tgr={"method": "base", "progress": True}, max_tokens=64)
    )
    events: list[ApiEvent] = []
    write(engine, request, events.append)
    translation = ChatTranslation(engine, request)
    told = [part["tgr"]["progress"] for event in events for part in translation.parts(event)
            if "progress" in part.get("tgr", {})]  # fmt: skip
    reading = [one for one in told if one["stage"] == "rebuild"]
    assert reading[0]["read"] == 0 and reading[-1]["read"] == reading[-1]["of"] > 3000
    written = [one for one in told if one["stage"] == "tokens"]
    assert written and written[0]["tokens"] >= 1, "the stage changes with the first token"
