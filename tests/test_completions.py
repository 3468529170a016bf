"""Responses in OpenAI's format: whole and streamed, several prompts, log-probabilities, sampling,
threads, asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import is_free
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_calls import ASK, SMALL, chat, complete, joined, streamed
from reference import Reference, log_softmax
from surroundings import HANG
from threads import in_threads

from tgr_local import SearchConfig, generate
from tgr_local.apis import aio, writing
from tgr_local.apis.completions import chunks, respond
from tgr_local.apis.requests import chat_request, completion_request
from tgr_local.engine import Cancel, Engine
from tgr_local.generation import Reply, write_each
from tgr_local.system.errors import CancelledError, CapacityError

every_method = pytest.mark.parametrize("method", ["base", "markov", "tgr-latent"])


# --- shapes ---


@every_method
def test_a_chat_completion_is_one_of_openais(engine: Engine, method: str):
    made = chat(engine, method, n=2, logprobs=True, top_logprobs=3)
    typed = ChatCompletion.model_validate(made, strict=True)
    assert typed.object == "chat.completion" and typed.model == engine.path.stem
    assert [choice.index for choice in typed.choices] == [0, 1]
    for choice in typed.choices:
        assert choice.logprobs and choice.logprobs.content
        spelled = b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content)
        assert spelled.decode("utf-8", "replace") == choice.message.content
        for one in choice.logprobs.content:
            assert len(one.top_logprobs) == 3
            ranks = [top.logprob for top in one.top_logprobs]
            assert ranks == sorted(ranks, reverse=True) and one.logprob <= ranks[0] + 1e-5
    usage = made["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 2 * 24
    about = made["tgr"]
    assert about["method"] == method and about["seed"] == 5 and about["seconds"] > 0
    assert [reply["seed"] for reply in about["replies"]] == [5, 6]


@every_method
def test_a_stream_equals_the_whole_response(engine: Engine, method: str):
    options: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2}
    parts = streamed(engine, method, stream_options={"include_usage": True}, **options)
    for part in parts:
        ChatCompletionChunk.model_validate(part, strict=True)
    assert len({part["id"] for part in parts}) == 1
    *others, last = parts
    assert last["choices"] == [] and all(part["usage"] is None for part in others)
    whole = chat(engine, method, **options)
    assert last["usage"] == whole["usage"]
    assert last["tgr"]["forward_tokens"] == whole["tgr"]["forward_tokens"]
    for i, choice in enumerate(whole["choices"]):
        streamed_choice = joined(parts, i)
        assert streamed_choice["content"] == choice["message"]["content"]
        assert streamed_choice["logprobs"] == choice["logprobs"]["content"]
        assert streamed_choice["finish_reason"] == choice["finish_reason"]
    assert is_free(engine)


def test_without_log_probabilities_text_streams_as_it_comes(engine: Engine):
    parts = streamed(engine, tgr={"chunk_len": 24, "progress": True}, method="tgr-latent")
    assert parts[0]["tgr"]["progress"]["stage"] == "rebuild"
    scored = [p["tgr"]["progress"] for p in parts if not p["choices"]]
    tried = next(p for p in scored if p["stage"] == "scored")
    assert tried["scores"]["chosen"] in range(3)
    assert [one["candidate"] for one in tried["rollouts"]] == [0, 1, 2]
    assert all(one["text"] for one in tried["rollouts"])
    written = [p for p in scored if p["stage"] == "written"]
    assert [p["chunk"] for p in written] == list(range(len(written)))
    assert "".join(p["text"] for p in written) == joined(parts)["content"]
    texts = [p for p in parts if p["choices"] and p["choices"][0]["delta"].get("content")]
    assert len(texts) > 1 and "tgr" in parts[-1]
    first = next(p for p in parts if p["choices"])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = chat(engine, tgr={"chunk_len": 24}, method="tgr-latent")["choices"][0]
    assert joined(parts)["content"] == whole["message"]["content"]


def test_what_a_program_adds_to_a_chunk_is_in_no_other(engine: Engine):
    def ends(body: dict[str, Any], make: Any) -> list[Any]:
        request = make(engine, body | {"stream": True, "n": 2}, config=SMALL, method="base")
        choices = [one for part in chunks(engine, request) for one in part["choices"]]
        return [one for one in choices if one["finish_reason"]]

    first, second = ends({"messages": ASK}, chat_request)
    first["delta"]["content"] = "mine"
    assert second["delta"] == {}
    assert [one["delta"] for one in ends({"messages": ASK}, chat_request)] == [{}, {}]
    assert [one["text"] for one in ends({"prompt": "a"}, completion_request)] == ["", ""]


def test_a_legacy_completion_is_one_of_openais(engine: Engine):
    made = complete(engine, ["he", [1, 2, 3]], n=2, max_tokens=5, logprobs=2)
    typed = Completion.model_validate(made, strict=True)
    assert [choice.index for choice in typed.choices] == [0, 1, 2, 3]
    assert typed.usage and typed.usage.prompt_tokens == 1 + 3  # "he" is one token
    for choice in typed.choices:
        assert choice.finish_reason == "length" and choice.logprobs
        assert len(choice.logprobs.tokens or ()) == 5
        assert all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs or ())
    body = {"prompt": "he", "stream": True, "echo": True, "seed": 5, "max_tokens": 5, "logprobs": 2}
    request = completion_request(engine, body, config=SMALL, method="base")
    parts = list(chunks(engine, request))
    whole = complete(engine, "he", echo=True, max_tokens=5, logprobs=2)["choices"][0]
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"]
    for key, values in whole["logprobs"].items():
        lists = [p["choices"][0]["logprobs"][key] for p in parts if p["choices"][0]["logprobs"]]
        assert [one for some in lists for one in some] == values


def test_the_end_of_a_choice_is_sent_at_once(engine: Engine, monkeypatch):
    """The second reply ends only after the end of the first was sent."""
    options: dict[str, Any] = {"n": 2, "max_tokens": 400, "tgr": {"chunk_len": 400}}
    first, second = (c["message"]["content"] for c in chat(engine, **options)["choices"])
    pairs = (first[i : i + 2] for i in range(1, len(first)))
    stop = next(pair for pair in pairs if pair.isascii() and pair not in second)
    is_sent = threading.Event()

    def write(*arguments: Any, on_event: Callable[[int, Any], None], **more: Any) -> list[Reply]:
        def delayed(i: int, event: Any) -> None:
            if i == 1 and isinstance(event, Reply):
                assert is_sent.wait(HANG), "the end of the first reply was not sent"
            on_event(i, event)

        return write_each(*arguments, on_event=delayed, **more)

    monkeypatch.setattr(writing, "write_each", write)
    body = {"messages": ASK, "seed": 5, "stream": True, "stop": [stop]} | options
    parts = []
    for part in chunks(engine, chat_request(engine, body, config=SMALL, method="base")):
        parts.append(part)
        if any(choice["finish_reason"] for choice in part["choices"]):
            is_sent.set()
    sent = [choice for part in parts for choice in part["choices"]]
    end = next(i for i, choice in enumerate(sent) if choice["finish_reason"])
    assert (sent[end]["index"], sent[end]["finish_reason"]) == (0, "stop")
    later = sent[end + 1 :]
    assert later and all(choice["index"] == 1 for choice in later)
    assert joined(parts, 1)["content"] == second
    assert "tgr" in parts[-1] and not any("tgr" in part for part in parts[:-1])


# --- several prompts ---


@every_method
def test_prompts_are_answered_together_and_each_as_alone(engine: Engine, method: str):
    prompts = ["hello", "he", [5, 6, 7], "the"]
    options: dict[str, Any] = {"temperature": 0, "n": 2, "method": method, "max_tokens": 20}
    most = 0

    def on_event(_: int, event: Any) -> None:
        nonlocal most
        most = max(most, engine.stats().n_sessions)

    body = {"prompt": prompts, "seed": 5, "echo": True, "logprobs": 0} | options
    before = engine.stats().n_positions
    made = respond(engine, completion_request(engine, body, config=SMALL), on_event=on_event)
    assert engine.stats().n_positions - before == made["tgr"]["forward_tokens"]["total"]
    assert most == len(prompts) * 2
    assert [reply["seed"] for reply in made["tgr"]["replies"]] == [5, 6] * len(prompts)
    alone = [complete(engine, p, echo=True, logprobs=0, **options) for p in prompts]
    expected = [choice for one in alone for choice in one["choices"]]
    for i, (choice, wanted) in enumerate(zip(made["choices"], expected, strict=True)):
        assert choice["index"] == i and choice["text"] == wanted["text"]
    best = complete(engine, prompts, n=1, best_of=2, max_tokens=4, method=method)
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]


def test_more_prompts_than_are_written_at_a_time(engine: Engine, monkeypatch):
    prompts = ["hello", "he", "the", "a", "b"]
    whole = complete(engine, prompts, temperature=0, max_tokens=3, echo=True, logprobs=1)
    monkeypatch.setattr(writing, "CHOICES_MAX", 2)
    parts = complete(engine, prompts, temperature=0, max_tokens=3, echo=True, logprobs=1)
    texts = [[choice["text"] for choice in made["choices"]] for made in (whole, parts)]
    assert texts[0] == texts[1] and [text[0] for text in texts[0]] == ["h", "h", "t", "a", "b"]
    for a, b in zip(whole["choices"], parts["choices"], strict=True):
        assert a["logprobs"]["tokens"] == b["logprobs"]["tokens"]


def test_a_prompt_that_fails_leaves_nothing_behind(engine: Engine):
    with pytest.raises(CapacityError, match="the query has 5000 tokens"):
        complete(engine, ["he", "a" * 5000])
    with pytest.raises(CapacityError, match="the prompt has 5000 tokens"):
        complete(engine, ["he", "a" * 5000], echo=True, logprobs=1)
    assert is_free(engine)
    cancel = Cancel()
    body = {"prompt": ["he", "a"], "method": "markov", "temperature": 0}
    request = completion_request(engine, body | {"tgr": {"chunk_len": 100, "max_chunks": 100_000}})
    with pytest.raises(CancelledError):
        respond(engine, request, cancel=cancel, on_event=lambda i, event: cancel.cancel())
    assert is_free(engine)


# --- log-probabilities ---


def test_an_echoed_prompt_is_scored_as_the_reference_does(
    engine: Engine, model: Callable[..., Path]
):
    text = "hé 🦙 the"
    made = complete(engine, text, echo=True, logprobs=4, max_tokens=0)
    (choice,) = made["choices"]
    logprobs, tokens = choice["logprobs"], engine.tokenize(text)
    assert choice["text"] == text and choice["finish_reason"] == "length"
    expected = log_softmax(Reference(model()).forward(tokens).logits)
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for i, token in enumerate(tokens[1:], start=1):
        assert logprobs["token_logprobs"][i] == pytest.approx(expected[i - 1, token], abs=1e-4)
        best = max(logprobs["top_logprobs"][i].values())
        assert best == pytest.approx(expected[i - 1].max(), abs=1e-4)
        assert logprobs["tokens"][i] in logprobs["top_logprobs"][i]
    assert made["usage"]["completion_tokens"] == 0
    # every byte of a character names the place where the character begins
    assert "".join(logprobs["tokens"]) == (
        "hbytes:\\xc3bytes:\\xa9 bytes:\\xf0bytes:\\x9fbytes:\\xa6bytes:\\x99 the"
    )
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 3, 3, 3, 4, 6]
    assert made["tgr"]["forward_tokens"]["query"] > len(tokens)


def test_offsets_go_on_where_the_prompt_ends(engine: Engine):
    plain = complete(engine, logprobs=0, max_tokens=4)["choices"][0]
    echoed = complete(engine, logprobs=0, max_tokens=4, echo=True)["choices"][0]
    assert plain["logprobs"]["text_offset"][0] == len("hé 🦙")
    assert plain["logprobs"]["top_logprobs"] is None
    n = len(plain["logprobs"]["tokens"])
    assert echoed["text"] == "hé 🦙" + plain["text"]
    for key in ("tokens", "text_offset", "token_logprobs"):
        assert echoed["logprobs"][key][-n:] == plain["logprobs"][key]


def test_log_probabilities_end_with_the_text(engine: Engine):
    whole = complete(engine, max_tokens=20, temperature=0)["choices"][0]["text"]
    stop = whole[5:7]
    cut = complete(engine, max_tokens=20, temperature=0, stop=[stop], logprobs=1)["choices"][0]
    assert cut["text"] == whole[: whole.index(stop)] and cut["finish_reason"] == "stop"
    offsets = cut["logprobs"]["text_offset"]
    assert offsets[-1] < len("hé 🦙") + len(cut["text"]) and offsets == sorted(offsets)


def test_leading_line_breaks_are_text_where_nothing_was_thought(engine: Engine):
    grammar = 'root ::= "\\n\\n\\na"'
    choice = chat(engine, grammar=grammar, max_tokens=4, logprobs=True)["choices"][0]
    assert choice["message"]["content"] == "\n\n\na"
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["\n", "\n", "\n", "a"]
    assert all(one["top_logprobs"] == [] for one in choice["logprobs"]["content"])


def test_the_best_of_several_are_the_likeliest(engine: Engine):
    body: dict[str, Any] = {"max_tokens": 8, "logprobs": 0}
    every = complete(engine, n=5, **body)["choices"]
    made = complete(engine, n=2, best_of=5, **body)

    def mean(choice: dict[str, Any]) -> float:
        return float(np.mean(choice["logprobs"]["token_logprobs"]))

    best = sorted(every, key=mean, reverse=True)[:2]
    assert [choice["text"] for choice in made["choices"]] == [choice["text"] for choice in best]
    assert [choice["index"] for choice in made["choices"]] == [0, 1]
    assert made["usage"]["completion_tokens"] == 5 * 8


# --- sampling ---


def test_seeds_repeat_and_a_random_one_is_reported(engine: Engine):
    assert chat(engine)["choices"] == chat(engine)["choices"]
    first, second = (chat(engine, seed=None) for _ in range(2))
    assert first["tgr"]["seed"] != second["tgr"]["seed"]
    assert chat(engine, seed=first["tgr"]["seed"])["choices"] == first["choices"]


def test_a_bias_forbids_and_forces(engine: Engine):
    token = engine.tokenize("x")[0]
    forced = complete(engine, logit_bias={str(token): 100}, max_tokens=3, method="tgr-latent")
    assert forced["choices"][0]["text"] == "xxx"
    free = complete(engine, temperature=0, max_tokens=1)["choices"][0]["text"]
    others = complete(
        engine, temperature=0, max_tokens=1, logit_bias={engine.tokenize(free)[0]: -100}
    )
    assert others["choices"][0]["text"] != free
    assert complete(engine, temperature=0, max_tokens=1)["choices"][0]["text"] == free


def test_parameters_without_an_effect_are_listed(engine: Engine):
    body = {"cache_prompt": True, "samplers": ["top_k"], "user": None, "dynatemp_range": 0.5}
    neutral = {"min_keep": 0, "mirostat": 0, "adaptive_target": -1.0, "top_n_sigma": -1.0}
    made = chat(engine, max_tokens=3, mirostat_tau=5.0, **body, **neutral)
    assert made["tgr"]["ignored"] == ["cache_prompt", "samplers", "mirostat_tau"]
    assert "ignored" not in chat(engine, max_tokens=3, tools=[])["tgr"]
    assert chat(engine, n_predict=3)["usage"]["completion_tokens"] == 3


def test_asked_for_more_tokens_a_method_writes_more_chunks(engine: Engine):
    assert chat(engine, max_tokens=40)["usage"]["completion_tokens"] == 40
    assert chat(engine)["usage"]["completion_tokens"] == SMALL.token_limit
    for older in (None, 900):
        made = chat(engine, max_tokens=older, max_completion_tokens=3)
        assert made["usage"]["completion_tokens"] == 3
        assert made["choices"][0]["finish_reason"] == "length"


# --- threads, cancelling, asyncio ---


def endless(engine: Engine, **more: Any) -> Any:
    body = {
        "messages": ASK,
        "tgr": {"chunk_len": 100, "max_chunks": 100_000},
        "method": "markov",
        "logit_bias": {str(token): -100 for token in engine.end_tokens},
    }
    return chat_request(engine, body | more)


def test_requests_at_once_are_what_each_is_alone(engine: Engine):
    def ask() -> Any:
        return chat(engine, temperature=0)["choices"]

    assert in_threads(*[ask] * 6) == [ask()] * 6


def test_a_stream_ends_when_it_is_closed_or_cancelled(engine: Engine):
    parts: Iterator[Any] = chunks(engine, endless(engine, stream=True))
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert is_free(engine)
    cancel = Cancel()
    with pytest.raises(CancelledError):
        for _ in chunks(engine, endless(engine, stream=True, n=3), cancel=cancel):
            cancel.cancel()
    assert is_free(engine)


def test_a_child_of_a_cancel_is_cancelled_with_it():
    parent = Cancel()
    child = Cancel(parent)
    assert not child.is_set() and not child.answers_now()
    parent.answer_now()
    assert child.answers_now() and not child.is_set()
    parent.cancel()
    assert child.is_set()
    assert not Cancel(Cancel()).is_set()


def test_asyncio_replies_and_responses(engine: Engine):
    async def run() -> None:
        config = SearchConfig(**vars(SMALL) | {"temperature": 0.0})
        expected = generate(engine, "hello", config, raw=True)
        replies = await asyncio.gather(
            *(aio.generate(engine, "hello", config, raw=True) for _ in range(4))
        )
        assert [reply.tokens for reply in replies] == [expected.tokens] * 4
        events = [event async for event in aio.stream(engine, "hello", config, raw=True)]
        assert events[-1].tokens == expected.tokens  # type: ignore[union-attr]
        request = chat_request(engine, {"messages": ASK, "seed": 5}, config=SMALL, method="base")
        assert (await aio.respond(engine, request))["choices"] == chat(engine)["choices"]
        parts = [part async for part in aio.chunks(engine, request)]
        assert joined(parts)["content"] == chat(engine)["choices"][0]["message"]["content"]

    asyncio.run(run())
    assert is_free(engine)


def test_asyncio_cancels_and_raises(engine: Engine):
    async def run() -> None:
        task = asyncio.create_task(aio.respond(engine, endless(engine)))
        while not engine.stats().n_jobs:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_free(engine)
        async for _ in (parts := aio.chunks(engine, endless(engine, stream=True))):
            break
        await parts.aclose()
        assert is_free(engine)
        with pytest.raises(CapacityError):
            await aio.generate(engine, "a" * 5000, SMALL, raw=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.respond(engine, endless(engine)), 0.2)
        assert is_free(engine)

    asyncio.run(run())
