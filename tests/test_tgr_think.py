"""``tgr-think``: the thinking is a run of tgr-latent, the answer one of plain sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engines import EXACT, is_free
from openai_calls import joined

from tgr_local import SearchConfig, generate
from tgr_local.apis.completions import chunks, respond
from tgr_local.apis.requests import chat_request
from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.generation import Reply, generate_many
from tgr_local.options.config import TERMINAL_METHOD, EngineConfig
from tgr_local.options.model_files import embedded_model
from tgr_local.search.steps import Counts, Progress

ASK = "What is 12 + 23 - 4 + 7?"
CONFIG = SearchConfig(seed=7, search_from=0)  # chunks of 32 tokens, as the model file says


@pytest.fixture(scope="module")
def thinker() -> Iterator[Engine]:
    """The embedded model, which opens its thinking itself."""
    with Engine(embedded_model(), EngineConfig(**EXACT)) as engine:
        yield engine
        assert is_free(engine)


def parts(reply: Reply) -> list[list[bool]]:
    """For each run, whether each of its steps was searched."""
    firsts = [run.first for run in reply.runs]
    return [
        [step.candidates is not None for step in reply.steps[first:end]]
        for first, end in zip(firsts, [*firsts[1:], len(reply.steps)], strict=True)
    ]


def test_the_thinking_is_searched_and_the_answer_is_plain(thinker: Engine):
    reply = generate(thinker, ASK, CONFIG, method="tgr-think")
    opening, thinking, answer = parts(reply)
    assert opening == [False] and all(thinking) and thinking and not any(answer)
    assert reply.text == "The answer is \\boxed{38}." and "12+23-4+7" in reply.thinking
    assert reply.finish == "stop" and reply.method == "tgr-think"
    assert reply.closed is None and reply.closed_by is None
    assert [step.finish for step in reply.steps] == [None] * (len(reply.steps) - 1) + ["stop"]
    assert [step.index for step in reply.steps] == list(range(len(reply.steps)))
    assert reply.counts == sum((step.counts for step in reply.steps), Counts())
    assert generate(thinker, ASK, CONFIG, method="tgr-think").tokens == reply.tokens


def test_the_answer_reads_all_of_the_thinking(thinker: Engine):
    reply = generate(thinker, ASK, CONFIG, method="tgr-think")
    query = thinker.detokenize(reply.runs[-1].query, special=True).decode()
    assert query.count(reply.thinking) == 1 and "</think>" in query
    assert thinker.detokenize(reply.runs[1].query, special=True).endswith(b"<think>")


def test_an_opened_thinking_is_searched_from_the_start(thinker: Engine):
    opened = [*generate(thinker, ASK, CONFIG).runs[0].query, *thinker.tokenize("<think>\n")]
    reply = generate(thinker, opened, CONFIG, method="tgr-think")
    thinking, answer = parts(reply)
    assert all(thinking) and not any(answer) and reply.text and reply.thinking


def test_without_thinking_it_is_plain_sampling(thinker: Engine, engine: Engine):
    for one, prompt, options in (
        (thinker, ASK, {"thinking": False}),
        (engine, "hello", {"chunk_len": 8, "max_chunks": 3}),
    ):
        config = SearchConfig(seed=7, search_from=0, **options)
        plain, reply = (generate(one, prompt, config, method=m) for m in ("base", "tgr-think"))
        assert reply.tokens == plain.tokens and len(reply.runs) == 1
        assert all(step.candidates is None for step in reply.steps)


def test_several_replies_think_together(thinker: Engine):
    def tokens() -> list[list[int]]:
        replies = generate_many(thinker, ASK, CONFIG, 4, method="tgr-think")
        assert all(len(reply.runs) == 3 and reply.text for reply in replies)
        return [reply.tokens for reply in replies]

    assert tokens() == tokens()


@pytest.mark.parametrize("n_ctx", [0, 200])
def test_thinking_longer_than_the_context_ends_with_an_answer(thinker: Engine, n_ctx: int):
    """The thinking never ends by itself; its cache stays bounded."""
    with Engine(embedded_model(), EngineConfig(**EXACT | {"n_ctx": n_ctx})) as small:
        tags = [token for token in range(small.n_vocab) if b"</think>" in piece(small, token)]
        bias = [(token, -100.0) for token in [*tags, *small.end_tokens]]
        endless = SteeredEngine(small, logit_bias=bias)
        config = SearchConfig(
            seed=7, search_from=0, chunk_len=32, max_chunks=16, rollout_len=4, n_candidates=2
        )
        reply = generate(endless, ASK, config, method="tgr-think")
        assert reply.closed is not None and reply.closed_by == "max_chunks"
        assert reply.closed > 400 and reply.text and reply.n_tokens == 512
        assert max(step.cells for step in reply.steps[:-2]) < 200
        assert is_free(small)


def piece(engine: Engine, token: int) -> bytes:
    return engine.detokenize([token], special=True)


def test_the_user_ends_the_thinking(thinker: Engine):
    cancel = Cancel()

    def on_event(event: Any) -> None:
        if isinstance(event, Progress) and event.stage == "tokens" and event.chunk:
            cancel.answer_now()

    reply = generate(thinker, ASK, CONFIG, method="tgr-think", on_event=on_event, cancel=cancel)
    assert reply.closed_by == "answer_now" and reply.text and reply.closed


@pytest.mark.parametrize("asks", [{"thinking_budget": 9}, {"max_tokens": 24}, {"grammar": "a"}])
def test_rules_and_limits_hold(thinker: Engine, asks: dict[str, Any]):
    if "grammar" in asks:
        asks = {"grammar": 'root ::= "It is " [0-9]+'}
    config = SearchConfig(seed=7, search_from=0, **asks)
    reply = generate(thinker, ASK, config, method="tgr-think")
    assert reply.thinking and reply.text
    if "grammar" in asks:
        assert reply.text.startswith("It is ")
    if limit := asks.get("max_tokens"):
        assert reply.n_tokens <= limit
    if budget := asks.get("thinking_budget"):
        assert reply.closed == budget and reply.closed_by == "thinking_budget"


def test_a_stream_of_the_server_has_the_thinking_apart(thinker: Engine):
    body = {
        "messages": [{"role": "user", "content": ASK}], "seed": 7, "method": "tgr-think",
        "tgr": {"search_from": 0},
    }  # fmt: skip
    made = respond(thinker, chat_request(thinker, body))
    message = made["choices"][0]["message"]
    together = joined(list(chunks(thinker, chat_request(thinker, body | {"stream": True}))))
    assert together["content"] == message["content"] == "The answer is \\boxed{38}."
    assert together["reasoning"] == message["reasoning_content"]
    assert made["tgr"]["method"] == "tgr-think"


def test_it_is_the_default_of_the_terminal():
    assert TERMINAL_METHOD == "tgr-think"
