"""A reply always has an answer: whatever ends its thinking or its text, the limits hold, and the
option that was hit is named."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from engines import is_free
from fixture_types import Load, Model
from gguf_models import token_id
from method_runs import RESIDUAL

from tgr_local import SearchConfig, generate, generate_many, stream
from tgr_local.apis import aio
from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.generation import Event, Reply, TextDelta, generate_each, query_tokens
from tgr_local.generation.request import ReplyRequest, Reserve
from tgr_local.generation.runs import visible_grammar
from tgr_local.methods import METHODS
from tgr_local.search.run import Run
from tgr_local.search.steps import Counts, Progress, Step
from tgr_local.system.errors import BudgetError, CancelledError, CapacityError

SMALL = SearchConfig(
    chunk_len=8, max_chunks=3, n_candidates=2, rollout_len=4, n_samples=2,
    power_steps=1, tree_proposals=2, temperature=0.8, **RESIDUAL,
)  # fmt: skip
every_method = pytest.mark.parametrize("method", sorted(METHODS))


def small(**options: Any) -> SearchConfig:
    return dataclasses.replace(SMALL, **options)


def opened(engine: Engine) -> list[int]:
    return engine.tokenize("hello<think>\n")


def biased(engine: Engine, *tokens: int) -> SteeredEngine:
    """An engine that writes one of these tokens wherever it may."""
    return SteeredEngine(engine, logit_bias=[(token, 100.0) for token in tokens])


def unending(engine: Engine) -> SteeredEngine:
    """An engine that never writes an end token."""
    return SteeredEngine(engine, logit_bias=[(token, -100.0) for token in engine.end_tokens])


def followed(engine: Engine, prompt: Any, config: SearchConfig, method: str) -> Reply:
    """The reply, which must be the same as a stream, whose events must say the same."""
    reply = generate(engine, prompt, config, method=method)
    events = list(stream(engine, prompt, config, method=method))
    last = events[-1]
    assert isinstance(last, Reply)
    assert (last.tokens, last.text, last.thinking) == (reply.tokens, reply.text, reply.thinking)
    for kind, text in (("answer", reply.text), ("thinking", reply.thinking)):
        parts = [e.text for e in events if isinstance(e, TextDelta) and e.kind == kind]
        assert "".join(parts).strip() == text
    assert [t for s in events if isinstance(s, Step) for t in s.tokens.tolist()] == reply.tokens
    assert reply.counts == sum((step.counts for step in reply.steps), Counts())
    return reply


# --- limits that end the thinking ---


@every_method
def test_a_limit_of_tokens_keeps_some_for_the_answer(engine: Engine, method: str):
    for limit, kept in ((1, 1), (17, 2)):
        reply = followed(unending(engine), opened(engine), small(max_tokens=limit), method)
        assert reply.text and reply.n_tokens == limit
        assert reply.closed == limit - kept
        assert (reply.closed_by, reply.limit, reply.finish) == ("max_tokens",) * 2 + ("length",)
    assert is_free(engine)


def test_the_limit_may_be_the_chunks(engine: Engine):
    engine = unending(engine)
    reply = followed(engine, opened(engine), small(), "tgr-latent")
    assert (reply.closed, reply.n_tokens, reply.closed_by) == (21, 24, "max_chunks")
    assert reply.runs[1].query[-len(engine.tokenize("\n</think>\n\n")) :] == engine.tokenize(
        "\n</think>\n\n"
    )


def test_a_request_may_keep_more_for_the_answer(engine: Engine):
    engine = unending(engine)
    for kept, n_thought in ((7, 17), (100, 0)):
        (reply,) = generate_each(engine, [opened(engine)], small(), answer_tokens=kept)
        assert (reply.closed, reply.n_tokens, reply.closed_by) == (n_thought, 24, "max_chunks")
        assert bool(reply.thinking) == (n_thought > 0) and reply.text


def test_the_reserve_is_an_eighth_and_no_more_than_256(engine: Engine):
    def kept(max_tokens: int) -> int:
        request = ReplyRequest([1] * 20, SearchConfig(max_tokens=max_tokens), METHODS["markov"])
        return Reserve.of(engine, request).tokens

    assert [kept(n) for n in (1, 8, 800, 10_000)] == [1, 1, 100, 256]


def test_the_trained_length_is_a_limit_too(model: Any, load: Any):
    engine = load(model(n_ctx_train=128))
    prompt = [*engine.tokenize("a" * 60), *opened(engine)]
    config = small(chunk_len=512)
    reply = followed(unending(engine), prompt, config, "base")
    assert reply.text and (reply.closed_by, reply.limit) == ("n_ctx_train", "n_ctx_train")
    assert len(prompt) + reply.n_tokens < engine.n_ctx_train


def test_a_full_cache_leaves_room_for_an_answer(model: Any, load: Any):
    engine = unending(load(model(), n_ctx=64))
    reply = generate(engine, opened(engine), small(chunk_len=20), method="markov")
    assert reply.text and reply.closed_by == "max_chunks"


@every_method
def test_forward_tokens_keep_some_for_the_answer(engine: Engine, method: str):
    query = opened(engine)
    with pytest.raises(ValueError, match="takes at least"):
        generate(engine, query, small(max_forward_tokens=len(query)), method=method)
    for budget in (20, 70, 400):
        config = small(max_forward_tokens=budget, chunk_len=16, max_chunks=6)
        reply = followed(unending(engine), query, config, method)
        assert reply.text and reply.counts.total <= budget
        assert reply.closed_by in ("max_forward_tokens", "max_chunks")
    assert is_free(engine)


@every_method
def test_seconds_keep_some_for_the_answer(engine: Engine, method: str):
    seconds = 0.02
    while True:  # a busy machine may need longer than this for the query alone
        config = small(max_seconds=seconds, chunk_len=1500, max_chunks=1)
        try:
            reply = generate(engine, opened(engine), config, method=method)
        except BudgetError:
            seconds *= 2
            continue
        assert reply.text
        assert reply.closed_by in ("max_seconds", "max_chunks", "n_ctx_train", "end_token")
        break


@every_method
def test_the_time_ends_before_a_second_answer(engine: Engine, method: str, monkeypatch):
    """The first one is a stop text alone; when the second one begins, a nanosecond is left."""
    clock = iter([0.0])
    late = SimpleNamespace(monotonic=lambda: next(clock, 1000 - 1e-9))
    monkeypatch.setattr("tgr_local.generation.draft.time", late)
    letter = engine.tokenize("x")[0]
    config = small(max_seconds=1000.0, stop=("x",))
    reply = generate(biased(engine, letter), "hello", config, method=method)
    assert reply.text and reply.finish in ("budget", "stop")
    assert [step.finish for step in reply.steps][:-1] == [None] * (len(reply.steps) - 1)
    assert [step.index for step in reply.steps] == list(range(len(reply.steps)))


def test_a_loop_and_the_user_end_the_thinking(engine: Engine):
    letter = engine.tokenize("x")[0]
    config = small(chunk_len=32, max_chunks=8, loop_guard=4)
    reply = followed(biased(engine, letter), opened(engine), config, "markov")
    assert (reply.closed_by, reply.closed, reply.limit) == ("loop_guard", 64, "loop_guard")
    cancel = Cancel()
    cancel.answer_now()
    reply = generate(engine, opened(engine), small(), method="markov", cancel=cancel)
    assert reply.text and reply.closed_by == "answer_now"


def test_the_user_ends_the_thinking_where_its_tokens_were_written_before_that_was_seen(
    engine: Engine,
):
    cancel, n_tokens = Cancel(), 0

    def on_event(event: Event) -> None:
        nonlocal n_tokens
        n_tokens += len(event.tokens) if isinstance(event, Progress) else 0
        if n_tokens == 21:  # of 24, of which three are kept for the answer
            cancel.answer_now()

    config = small(max_tokens=24)
    reply = generate(
        unending(engine), opened(engine), config, method="base", on_event=on_event, cancel=cancel
    )
    assert (reply.closed_by, reply.closed) == ("answer_now", 21) and reply.text


# --- texts that end without an answer ---


@every_method
def test_a_model_that_ends_at_once_answers(engine: Engine, method: str):
    ending = biased(engine, token_id("<|im_end|>"))
    for prompt in ("hello", opened(engine)):
        reply = followed(ending, prompt, small(), method)
        assert len(reply.text) == 1 and reply.finish == "stop" and reply.limit is None
        assert reply.closed_by == (None if prompt == "hello" else "end_token")


def test_white_space_is_no_answer(engine: Engine):
    newline = engine.tokenize("\n")[0]
    blank = biased(engine, newline)
    for prompt in ("hello", opened(engine)):
        for limit in (1, 5, 40):
            reply = followed(blank, prompt, small(max_tokens=limit, max_chunks=9), "markov")
            assert len(reply.text) == 1 and reply.n_tokens == min(limit, 40)
            assert reply.limit == "max_tokens"


def test_a_stop_text_at_the_start_ends_nothing(engine: Engine):
    config = small(temperature=0.0)
    first = generate(engine, "hello", config, method="base").text[0]
    reply = followed(engine, "hello", small(temperature=0.0, stop=(first, "zz")), "base")
    assert reply.text and not reply.text.startswith(first)
    thought = generate(engine, opened(engine), config, method="base").thinking[0]
    reply = followed(engine, opened(engine), small(temperature=0.0, stop=(thought,)), "base")
    assert reply.text and thought not in reply.text and reply.closed_by == "stop"


def test_what_asks_for_nothing_else_may_be_empty(engine: Engine):
    ending = biased(engine, token_id("<|im_end|>"))
    assert generate(ending, "hello", small(), method="base", verbatim=True).text == ""
    empty = small(grammar='root ::= "a"?')
    assert generate(ending, "hello", empty, method="base").text == ""


def test_the_first_character_is_visible(engine: Engine):
    engine.check_grammar(visible_grammar(("]", "\\", "^", "-", "é", "🦙", "\n")))
    config = small(grammar=visible_grammar(("a", "b")), temperature=3.0, max_tokens=1)
    for seed in range(40):
        text = generate(
            engine, "hello", dataclasses.replace(config, seed=seed), method="base", verbatim=True
        ).text
        assert text.strip() and text[0] not in "<ab"


def test_a_template_that_knows_thinking_gets_an_empty_one(engine: Engine, monkeypatch):
    monkeypatch.setattr(engine, "chat_template", engine.chat_template + "{# <think> #}")
    reply = generate(engine, "hello", small(max_tokens=1), method="base")
    assert (reply.closed, reply.closed_by) == (0, "max_tokens") and reply.text
    end = engine.detokenize(reply.runs[0].query, special=True)
    assert end.endswith(b"<think>\n\n</think>\n\n")
    for off in ({"raw": True}, {"config": small(max_tokens=1, thinking=False)}):
        options: dict[str, Any] = {"config": small(max_tokens=1), "method": "base"} | off
        plain = generate(engine, "hello", **options)
        assert plain.closed is None and len(plain.runs[0].query) < len(reply.runs[0].query)


def test_thinking_that_reopens_in_the_answer_is_answer(engine: Engine):
    again = biased(engine, token_id("<think>"))
    reply = followed(again, opened(engine), small(max_tokens=16), "base")
    assert reply.text and reply.n_tokens == 16


# --- several, and what does not change ---


def test_together_they_repeat(engine: Engine):
    newline = engine.tokenize("\n")[0]
    for one in (engine, SteeredEngine(engine, logit_bias=[(newline, 6.0)])):
        config = small(max_tokens=12)

        def run(one: Engine = one, config: SearchConfig = config) -> list[list[int]]:
            replies = generate_many(one, opened(one), config, 4)
            assert all(reply.text for reply in replies)
            return [reply.tokens for reply in replies]

        assert run() == run()
    assert is_free(engine)


def test_together_some_think_and_some_have_room_for_an_answer_alone(engine: Engine):
    engine = unending(engine)
    prompts = [opened(engine), [*engine.tokenize("a" * 30), *opened(engine)]]
    config = small(max_forward_tokens=60)
    replies = generate_each(engine, prompts, config, 2, method="markov")
    assert [reply.closed == 0 for reply in replies] == [False, False, True, True]
    assert all(reply.text and reply.counts.total <= 60 for reply in replies)


@every_method
def test_a_reply_that_answers_is_one_run(engine: Engine, method: str):
    closed = [*opened(engine), *engine.tokenize("</think>")]
    plain = generate(engine, closed, small(), method=method)
    (kept,) = generate_each(engine, [closed], small(), method=method, answer_tokens=20)
    assert plain.tokens == kept.tokens and len(plain.runs) == len(kept.runs) == 1
    assert plain.closed_by is None and plain.limit == "max_chunks"


# --- cancelled replies ---


@pytest.mark.parametrize("method", ["base", "markov", "tgr-latent", "tot"])
def test_a_cancelled_reply_is_handed_back_with_its_counts(engine: Engine, method: str):
    cancel, events = Cancel(), list[Event]()
    config = small(chunk_len=40, max_chunks=50, max_tokens=1500, seed=3)

    def on_event(event: Event) -> None:
        events.append(event)
        n_tokens = sum(len(e.tokens) for e in events if isinstance(e, Progress))
        n_steps = sum(isinstance(e, Step) for e in events)
        if n_tokens > 100 or n_steps > 1 or (method == "tot" and len(events) > 100):
            time.sleep(0.02)  # the engine goes on meanwhile
            cancel.cancel()

    before = engine.stats().n_positions
    with pytest.raises(CancelledError) as caught:
        generate(engine, "hello", config, method=method, on_event=on_event, cancel=cancel)
    reply = caught.value.reply
    assert isinstance(reply, Reply) and reply.finish == "cancelled" and reply.limit is None
    assert reply.tokens == [t for e in events if isinstance(e, Progress) for t in e.tokens]
    assert bool(reply.text) is (method != "tot")
    assert reply.steps == [e for e in events if isinstance(e, Step)]
    assert engine.stats().n_positions - before == reply.counts.total > 0
    assert "cancelled" in repr(reply)


def test_cancelled_streams_and_groups_hand_back_what_there_is(engine: Engine):
    cancel = Cancel()
    config = small(chunk_len=40, max_chunks=50, max_tokens=1500)
    with pytest.raises(CancelledError) as caught:
        for event in stream(engine, "hello", config, method="base", cancel=cancel):
            if isinstance(event, Step):
                cancel.cancel()
    assert caught.value.reply.steps and caught.value.reply.text
    cancel = Cancel()

    def stop(i: int, event: Event) -> None:
        if i == 2 and isinstance(event, Step) and event.index == 3:
            cancel.cancel()

    with pytest.raises(CancelledError) as many:
        generate_many(engine, "hello", config, 4, method="markov", on_event=stop, cancel=cancel)
    replies = many.value.replies
    assert [reply.seed for reply in replies] == [42, 43, 44, 45]
    assert all(reply.finish == "cancelled" and reply.text for reply in replies)
    assert is_free(engine)


def test_a_cancelled_stream_of_asyncio_hands_back_what_there_is(engine: Engine):
    cancel = Cancel()
    config = small(chunk_len=40, max_chunks=50, max_tokens=1500, seed=3)

    async def read() -> None:
        async for event in aio.stream(engine, "hello", config, method="markov", cancel=cancel):
            if isinstance(event, Step):
                cancel.cancel()

    with pytest.raises(CancelledError) as caught:
        asyncio.run(read())
    assert caught.value.reply.steps and caught.value.reply.counts.total > 0


def test_a_prompt_that_is_not_read_has_no_reply(engine: Engine):
    cancel = Cancel()
    cancel.cancel()
    with pytest.raises(CancelledError) as caught:
        generate(engine, query_tokens(engine, "hello", SMALL), SMALL, cancel=cancel)
    assert caught.value.reply.tokens == [] and caught.value.reply.counts.total == 0


# --- what an answer needs and does not get ---


def test_an_answer_without_room_is_an_error(model: Model, load: Load):
    """The thinking takes 114 cells, and the answer 118 of the 256."""
    engine = load(model(), n_ctx=256)
    config = small(chunk_len=16, max_chunks=12, max_tokens=100)
    with engine.session(138, 1):
        assert generate(unending(engine), opened(engine), config, method="base").text
    with (
        engine.session(140, 1),
        pytest.raises(CapacityError, match=r"needs 118 cells .* itself holds 140"),
    ):
        generate(unending(engine), opened(engine), config, method="base")


def test_time_that_is_up_in_the_query_is_no_budget_of_tokens(engine: Engine):
    calls = []

    def read(run: Run) -> Iterator[Step]:
        calls.append(run)
        time.sleep(0.02)
        raise BudgetError("max_seconds is 0.01, which was over before the context was read")
        yield

    method = dataclasses.replace(METHODS["base"], run=read)
    late = small(max_seconds=0.01, max_forward_tokens=10**6)
    with pytest.raises(BudgetError, match="max_seconds"):
        generate(engine, opened(engine), late, method=method)
    assert len(calls) == 1  # the query is not read again for an answer
