"""Requests and responses in OpenAI's words, and what a reply must keep to: thinking budget, loops,
grammars, log-probabilities, the bill."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import is_free
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from reference import Reference, log_softmax
from surroundings import HANG

from tgr_local import SearchConfig, generate
from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.errors import CancelledError, CapacityError
from tgr_local.generation import Reply, generate_each, generate_many
from tgr_local.generation.text import is_loop
from tgr_local.openai import aio, completions
from tgr_local.openai.completions import chunks, respond
from tgr_local.openai.grammars import json_grammar
from tgr_local.openai.requests import chat_request, completion_request
from tgr_local.openai.validation import RequestError
from tgr_local.search.steps import Counts, Progress

gc.freeze()  # what openai brings need not be looked through after every test

ASK = [{"role": "user", "content": "hé 🦙"}]
SMALL = SearchConfig(chunk_len=8, max_chunks=3, n_candidates=3, rollout_len=4, temperature=0.8)
THINKING = SearchConfig(chunk_len=8, max_chunks=4, n_candidates=3, rollout_len=4, temperature=0.0)
every_method = pytest.mark.parametrize("method", ["base", "markov", "tgr-latent"])


def chat(engine: Engine, method: str = "base", **body: Any) -> dict[str, Any]:
    request = chat_request(engine, {"messages": ASK, "seed": 5} | body, config=SMALL, method=method)
    return respond(engine, request)


def complete(engine: Engine, prompt: Any = "hé 🦙", **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "seed": 5, "method": "base"} | body
    return respond(engine, completion_request(engine, body, config=SMALL))


def streamed(engine: Engine, method: str = "base", **body: Any) -> list[dict[str, Any]]:
    body = {"messages": ASK, "seed": 5, "stream": True} | body
    return list(chunks(engine, chat_request(engine, body, config=SMALL, method=method)))


def joined(parts: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """A choice put together from its chunks."""
    choices = [c for part in parts for c in part["choices"] if c["index"] == index]
    logprobs = [c["logprobs"]["content"] for c in choices if c["logprobs"]]
    return {
        "content": "".join(c["delta"].get("content", "") for c in choices),
        "reasoning": "".join(c["delta"].get("reasoning_content", "") for c in choices),
        "logprobs": [entry for entries in logprobs for entry in entries],
        "finish_reason": choices[-1]["finish_reason"],
    }


# --- shapes ---


@every_method
def test_a_chat_completion_is_one_of_openais(engine: Engine, method: str) -> None:
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
def test_a_stream_equals_the_whole_response(engine: Engine, method: str) -> None:
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
        told = joined(parts, i)
        assert told["content"] == choice["message"]["content"]
        assert told["logprobs"] == choice["logprobs"]["content"]
        assert told["finish_reason"] == choice["finish_reason"]
    assert is_free(engine)


def test_without_log_probabilities_text_streams_as_it_comes(engine: Engine) -> None:
    parts = streamed(engine, tgr={"chunk_len": 24, "progress": True}, method="tgr-latent")
    assert parts[0]["tgr"]["progress"]["stage"] == "rebuild"
    scored = [p["tgr"]["progress"] for p in parts if not p["choices"]]
    assert next(p for p in scored if p["stage"] == "scored")["scores"]["chosen"] in range(3)
    texts = [p for p in parts if p["choices"] and p["choices"][0]["delta"].get("content")]
    assert len(texts) > 1 and "tgr" in parts[-1]
    first = next(p for p in parts if p["choices"])
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = chat(engine, tgr={"chunk_len": 24}, method="tgr-latent")["choices"][0]
    assert joined(parts)["content"] == whole["message"]["content"]


def test_a_legacy_completion_is_one_of_openais(engine: Engine) -> None:
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
        told = [p["choices"][0]["logprobs"][key] for p in parts if p["choices"][0]["logprobs"]]
        assert [one for some in told for one in some] == values


def test_the_end_of_a_choice_is_sent_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reply ends only after the end of the first has been told."""
    options: dict[str, Any] = {"n": 2, "max_tokens": 400, "tgr": {"chunk_len": 400}}
    first, second = (c["message"]["content"] for c in chat(engine, **options)["choices"])
    pairs = (first[i : i + 2] for i in range(1, len(first)))
    stop = next(pair for pair in pairs if pair.isascii() and pair not in second)
    is_told = threading.Event()

    def write(*arguments: Any, on_event: Callable[[int, Any], None], **more: Any) -> list[Reply]:
        def hear(i: int, event: Any) -> None:
            if i == 1 and isinstance(event, Reply):
                assert is_told.wait(HANG), "the end of the first reply was held back"
            on_event(i, event)

        return generate_each(*arguments, on_event=hear, **more)

    monkeypatch.setattr(completions, "generate_each", write)
    body = {"messages": ASK, "seed": 5, "stream": True, "stop": [stop]} | options
    parts = []
    for part in chunks(engine, chat_request(engine, body, config=SMALL, method="base")):
        parts.append(part)
        if any(choice["finish_reason"] for choice in part["choices"]):
            is_told.set()
    told = [choice for part in parts for choice in part["choices"]]
    end = next(i for i, choice in enumerate(told) if choice["finish_reason"])
    assert (told[end]["index"], told[end]["finish_reason"]) == (0, "stop")
    later = told[end + 1 :]
    assert later and all(choice["index"] == 1 for choice in later)
    assert joined(parts, 1)["content"] == second
    assert "tgr" in parts[-1] and not any("tgr" in part for part in parts[:-1])


# --- several prompts ---


@every_method
def test_prompts_are_answered_together_and_each_as_alone(engine: Engine, method: str) -> None:
    prompts = ["hello", "he", [5, 6, 7], "the"]
    options: dict[str, Any] = {"temperature": 0, "n": 2, "method": method, "max_tokens": 20}
    most = 0

    def hear(_: int, event: Any) -> None:
        nonlocal most
        most = max(most, engine.stats().n_sessions)

    body = {"prompt": prompts, "seed": 5, "echo": True, "logprobs": 0} | options
    before = engine.stats().n_positions
    made = respond(engine, completion_request(engine, body, config=SMALL), on_event=hear)
    assert engine.stats().n_positions - before == made["tgr"]["forward_tokens"]["total"]
    assert most == len(prompts) * 2
    assert [reply["seed"] for reply in made["tgr"]["replies"]] == [5, 6] * len(prompts)
    alone = [complete(engine, p, echo=True, logprobs=0, **options) for p in prompts]
    expected = [choice for one in alone for choice in one["choices"]]
    for i, (choice, wanted) in enumerate(zip(made["choices"], expected, strict=True)):
        assert choice["index"] == i and choice["text"] == wanted["text"]
    best = complete(engine, prompts, n=1, best_of=2, max_tokens=4, method=method)
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]


def test_more_prompts_than_are_written_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["hello", "he", "the", "a", "b"]
    whole = complete(engine, prompts, temperature=0, max_tokens=3, echo=True, logprobs=1)
    monkeypatch.setattr(completions, "CHOICES_MAX", 2)
    parts = complete(engine, prompts, temperature=0, max_tokens=3, echo=True, logprobs=1)
    texts = [[choice["text"] for choice in made["choices"]] for made in (whole, parts)]
    assert texts[0] == texts[1] and [text[0] for text in texts[0]] == ["h", "h", "t", "a", "b"]
    for a, b in zip(whole["choices"], parts["choices"], strict=True):
        assert a["logprobs"]["tokens"] == b["logprobs"]["tokens"]


def test_a_prompt_that_fails_leaves_nothing_behind(engine: Engine) -> None:
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
) -> None:
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


def test_offsets_go_on_where_the_prompt_ends(engine: Engine) -> None:
    plain = complete(engine, logprobs=0, max_tokens=4)["choices"][0]
    echoed = complete(engine, logprobs=0, max_tokens=4, echo=True)["choices"][0]
    assert plain["logprobs"]["text_offset"][0] == len("hé 🦙")
    assert plain["logprobs"]["top_logprobs"] is None
    n = len(plain["logprobs"]["tokens"])
    assert echoed["text"] == "hé 🦙" + plain["text"]
    for key in ("tokens", "text_offset", "token_logprobs"):
        assert echoed["logprobs"][key][-n:] == plain["logprobs"][key]


def test_log_probabilities_end_with_the_text(engine: Engine) -> None:
    whole = complete(engine, max_tokens=20, temperature=0)["choices"][0]["text"]
    stop = whole[5:7]
    cut = complete(engine, max_tokens=20, temperature=0, stop=[stop], logprobs=1)["choices"][0]
    assert cut["text"] == whole[: whole.index(stop)] and cut["finish_reason"] == "stop"
    offsets = cut["logprobs"]["text_offset"]
    assert offsets[-1] < len("hé 🦙") + len(cut["text"]) and offsets == sorted(offsets)


def test_leading_line_breaks_are_text_where_nothing_was_thought(engine: Engine) -> None:
    (newline,) = engine.tokenize("\n")
    choice = chat(engine, logit_bias={newline: 100}, max_tokens=3, logprobs=True)["choices"][0]
    assert choice["message"]["content"] == "\n\n\n"
    assert [one["token"] for one in choice["logprobs"]["content"]] == ["\n"] * 3


def test_the_best_of_several_are_the_likeliest(engine: Engine) -> None:
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


def test_seeds_repeat_and_a_random_one_is_reported(engine: Engine) -> None:
    assert chat(engine)["choices"] == chat(engine)["choices"]
    first, second = (chat(engine, seed=None) for _ in range(2))
    assert first["tgr"]["seed"] != second["tgr"]["seed"]
    assert chat(engine, seed=first["tgr"]["seed"])["choices"] == first["choices"]


def test_a_bias_forbids_and_forces(engine: Engine) -> None:
    token = engine.tokenize("x")[0]
    forced = complete(engine, logit_bias={str(token): 100}, max_tokens=3, method="tgr-latent")
    assert forced["choices"][0]["text"] == "xxx"
    free = complete(engine, temperature=0, max_tokens=1)["choices"][0]["text"]
    others = complete(
        engine, temperature=0, max_tokens=1, logit_bias={engine.tokenize(free)[0]: -100}
    )
    assert others["choices"][0]["text"] != free
    assert complete(engine, temperature=0, max_tokens=1)["choices"][0]["text"] == free


def test_parameters_without_an_effect_are_listed(engine: Engine) -> None:
    body = {"cache_prompt": True, "samplers": ["top_k"], "dry_base": 1.75, "user": None}
    made = chat(engine, max_tokens=3, mirostat_tau=5.0, **body)
    assert made["tgr"]["ignored"] == ["cache_prompt", "samplers", "dry_base", "mirostat_tau"]
    assert "ignored" not in chat(engine, max_tokens=3, tools=[])["tgr"]
    assert chat(engine, n_predict=3)["usage"]["completion_tokens"] == 3


def test_asked_for_more_tokens_a_method_writes_more_chunks(engine: Engine) -> None:
    assert chat(engine, max_tokens=40)["usage"]["completion_tokens"] == 40
    assert chat(engine)["usage"]["completion_tokens"] == SMALL.token_limit
    assert chat(engine, max_completion_tokens=3)["usage"]["completion_tokens"] == 3


@every_method
def test_every_position_is_counted(engine: Engine, method: str) -> None:
    before = engine.stats().n_positions
    made = complete(engine, echo=True, logprobs=1, n=2, method=method)
    assert engine.stats().n_positions - before == made["tgr"]["forward_tokens"]["total"]


# --- thinking ---


def opened(engine: Engine) -> list[int]:
    return engine.tokenize("hello<think>\n")


@every_method
def test_a_thinking_budget_closes_the_thinking(engine: Engine, method: str) -> None:
    config = SearchConfig(**vars(THINKING) | {"thinking_budget": 11})
    reply = generate(engine, opened(engine), config, method=method)
    assert reply.closed == 11 and reply.thinking and reply.text
    assert [step.index for step in reply.steps] == list(range(len(reply.steps)))
    assert [step.finish for step in reply.steps[:-1]] == [None] * (len(reply.steps) - 1)
    assert reply.n_tokens == config.token_limit and reply.finish == "length"
    assert reply.counts == sum((step.counts for step in reply.steps), Counts())
    thought = engine.detokenize(reply.tokens[:11]).decode("utf-8", "replace")
    assert reply.thinking == thought.strip()
    again = generate(engine, opened(engine), config, method=method)
    assert again.tokens == reply.tokens


@pytest.mark.parametrize("method", ["tgr-latent", "tot"])
def test_an_answer_beyond_the_budget_is_left_out(engine: Engine, method: str) -> None:
    asks: dict[str, Any] = {"thinking_budget": 8, "tree_value": "prompt", "tree_proposals": 2}
    config = SearchConfig(**vars(THINKING) | asks)
    whole = generate(engine, opened(engine), config, method=method)
    with pytest.raises(ValueError, match="takes at least") as too_low:
        limited = dataclasses.replace(config, max_forward_tokens=1)
        generate(engine, opened(engine), limited, method=method)
    least = int(re.findall(r"at least (\d+)", str(too_low.value))[0])
    finishes = []
    for budget in range(least, whole.counts.total + 2 * least, 20):
        limited = dataclasses.replace(config, max_forward_tokens=budget)
        reply = generate(engine, opened(engine), limited, method=method)
        assert reply.counts.total <= budget
        finishes.append(reply.finish)
    assert finishes[0] == "budget" and finishes[-1] == whole.finish


def test_thinking_within_its_budget_is_not_changed(engine: Engine) -> None:
    free = generate(engine, opened(engine), THINKING, method="markov")
    config = SearchConfig(**vars(THINKING) | {"thinking_budget": 1000})
    assert generate(engine, opened(engine), config, method="markov").tokens == free.tokens


def test_together_they_keep_the_budget_and_repeat(engine: Engine) -> None:
    config = SearchConfig(**vars(THINKING) | {"thinking_budget": 11, "temperature": 0.8})

    def run() -> list[list[int]]:
        replies = generate_many(engine, opened(engine), config, 4)
        assert [reply.closed for reply in replies] == [11] * 4
        return [reply.tokens for reply in replies]

    first = run()
    assert run() == first and len({tuple(tokens) for tokens in first}) == 4
    assert is_free(engine)


def test_reasoning_has_its_own_text_and_count(engine: Engine) -> None:
    engine.chat_template, plain = engine.chat_template + "<think>\n", engine.chat_template
    try:
        options: dict[str, Any] = {
            "tgr": {"thinking_budget": 5}, "logprobs": True, "max_tokens": 16,
        }  # fmt: skip
        made = chat(engine, **options)
        parts = streamed(engine, **options)
    finally:
        engine.chat_template = plain
    choice = made["choices"][0]
    assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    assert made["usage"]["completion_tokens"] == 16
    ChatCompletion.model_validate(made, strict=True)
    spelled = b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"])
    assert spelled.decode("utf-8", "replace").lstrip("\n") == choice["message"]["content"]
    told = joined(parts)
    assert told["content"] == choice["message"]["content"]
    assert told["reasoning"] == choice["message"]["reasoning_content"]
    assert told["logprobs"] == choice["logprobs"]["content"]


def test_thinking_is_opened_for_models_that_open_it_themselves(engine: Engine) -> None:
    engine.chat_template, plain = engine.chat_template + "{# <think> #}", engine.chat_template
    try:
        request = chat_request(engine, {"messages": ASK, "tgr": {"thinking_budget": 5}})
        assert engine.detokenize(request.prompts[0]).endswith(b"<think>\n")
        off = {"messages": ASK, "tgr": {"thinking_budget": 5}, "reasoning_effort": "none"}
        assert not engine.detokenize(chat_request(engine, off).prompts[0]).endswith(b"<think>\n")
    finally:
        engine.chat_template = plain


@every_method
def test_answer_now_ends_the_thinking_and_not_the_answer(engine: Engine, method: str) -> None:
    cancel = Cancel()
    config = SearchConfig(
        chunk_len=1500,  # more than is written before a late on_event is heard
        max_chunks=2,
        n_candidates=2,
        rollout_len=4,
        max_tokens=1600,
        temperature=0.0,
    )

    def hear(event: Any) -> None:
        if isinstance(event, Progress) and event.stage == "tokens":
            cancel.answer_now()

    reply = generate(engine, opened(engine), config, method=method, on_event=hear, cancel=cancel)
    assert reply.closed is not None and 0 < reply.closed < 1500
    assert reply.n_tokens == 1600 and reply.finish == "length"
    before = engine.stats().n_positions
    reply = generate(engine, "hello", config, method=method, raw=True, cancel=cancel)
    assert reply.closed is None and reply.n_tokens == 1600
    assert engine.stats().n_positions - before == reply.counts.total


def test_answer_now_without_a_listener_waits_for_the_chunk(engine: Engine) -> None:
    cancel = Cancel()
    cancel.answer_now()
    config = SearchConfig(chunk_len=8, max_chunks=4, temperature=0.0)
    reply = generate(engine, opened(engine), config, method="markov", cancel=cancel)
    assert reply.closed == 8 and reply.n_tokens == 32 and reply.finish == "length"


@pytest.mark.parametrize(
    ("tokens", "parts", "loops"),
    [
        ([1, 2, 3, 4] * 16, 4, True),
        ([9, 9, *[1, 2, 3, 4] * 16], 4, True),
        ([1, 2, 3, 4] * 15, 4, False),  # too short
        ([*[1, 2, 3, 4] * 16, 5], 4, False),
        ([7] * 64, 2, True),
        (list(range(40)) * 2, 2, True),
        (list(range(40)) * 2, 3, False),
        (list(range(200)), 2, False),
        ([], 2, False),
    ],
)
def test_a_loop_is_an_end_of_equal_parts(tokens: list[int], parts: int, loops: bool) -> None:
    assert is_loop(tokens, parts) is loops


def test_the_loop_guard_ends_what_repeats_itself(engine: Engine) -> None:
    token = engine.tokenize("x")[0]
    body = {"prompt": "he", "max_tokens": 300, "logit_bias": {token: 100}, "method": "base"}
    body["tgr"] = {"chunk_len": 16, "loop_guard": 4}
    made = respond(engine, completion_request(engine, body))
    assert made["usage"]["completion_tokens"] == 64
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["tgr"]["replies"][0]["finish"] == "loop"
    thinking = generate(
        engine,
        [*opened(engine), token],
        SearchConfig(chunk_len=16, max_chunks=20, loop_guard=2, temperature=0.0),
        method="markov",
    )
    assert thinking.closed is None or thinking.closed >= 64


# --- grammars ---


def test_a_grammar_holds_over_chunks_and_in_rollouts(engine: Engine) -> None:
    grammar = 'root ::= "abcdefghijklmnopqrstuvwxyz" [0-9]+'
    for method in ("base", "markov", "tgr-latent"):
        made = chat(engine, method, grammar=grammar, max_tokens=30, tgr={"chunk_len": 4})
        text = made["choices"][0]["message"]["content"]
        assert text.startswith("abcdefghijklmnopqrstuvwxyz") and text[26:].isdecimal()
    heard: list[Any] = []
    body = {"messages": ASK, "grammar": grammar, "max_tokens": 12, "tgr": {"chunk_len": 4}}
    request = chat_request(engine, body, config=SMALL, method="tgr-latent")
    respond(engine, request, on_event=lambda i, event: heard.append(event))
    rollouts = [
        (event.chunk, engine.detokenize(tokens.tolist()).decode())
        for event in heard
        if isinstance(event, Progress) and event.candidates
        for tokens in event.candidates.tokens
    ]
    for chunk, text in rollouts:
        assert "abcdefghijklmnopqrstuvwxyz".startswith(text, 0) is (chunk == 0)
        assert text in "abcdefghijklmnopqrstuvwxyz"


def test_json_is_json(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    for shape in (form, {"type": "json_object", "schema": schema}):
        made = chat(engine, response_format=shape, max_tokens=200, tgr={"chunk_len": 5})
        choice = made["choices"][0]
        value = json.loads(choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        assert type(value["a"]) is bool and value["b"] in ("x", "y") and len(value) == 2
    anything = chat(engine, response_format={"type": "json_object"}, max_tokens=60)
    assert anything["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_a_grammar_lets_thinking_come_first(engine: Engine) -> None:
    config = SearchConfig(**vars(THINKING) | {"grammar": 'root ::= "yes" | "no"'})
    config = SearchConfig(**vars(config) | {"thinking_budget": 9})
    reply = generate(engine, opened(engine), config, method="tgr-latent")
    assert reply.closed == 9 and reply.thinking and reply.text in ("yes", "no")
    assert reply.finish == "stop"


@every_method
def test_thinking_that_just_ends_is_closed_where_a_grammar_wants_an_answer(
    engine: Engine, method: str
) -> None:
    (end,) = engine.tokenize("<|im_end|>")
    grammar = SearchConfig(**vars(THINKING) | {"grammar": 'root ::= "yes" | "no"'})
    ending = SteeredEngine(engine, logit_bias=[(end, 100.0)])  # it ends as soon as it may
    before = engine.stats().n_positions
    reply = generate(ending, opened(engine), grammar, method=method)
    assert reply.text in ("yes", "no") and reply.thinking == "" and reply.finish == "stop"
    assert reply.closed == 1 and reply.tokens[0] == reply.tokens[-1] == end
    assert engine.stats().n_positions - before == reply.counts.total
    bridge = engine.tokenize("\n</think>\n\n")
    assert [run.query for run in reply.runs] == [opened(engine), [*opened(engine), *bridge]]
    short = dataclasses.replace(grammar, max_tokens=1)
    assert generate(ending, opened(engine), short, method=method).finish == "stop"
    free = dataclasses.replace(grammar, grammar="")
    assert generate(ending, opened(engine), free, method=method).tokens == [end]


# --- bad requests ---

FORMAT = "response_format"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is empty, but must hold at least one"),
        ({"messages": "hi"}, "messages", "messages is 'hi', but must be a list"),
        ({"messages": ["hi"]}, "messages", "messages holds 'hi', but must hold objects"),
        ({"messages": [{"content": "a"}]}, "messages", r"messages\[0\].role is missing; add it"),
        ({"messages": [{"role": "user"}]}, "messages", r"messages\[0\].content is None, but"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
            r"messages\[0\].content\[0\] is of type 'image_url', but only text",
        ),
        ({"temperature": -1}, "temperature", "temperature is -1, but must be at least 0"),
        ({"temperature": "hot"}, "temperature", "temperature is 'hot', but must be a number"),
        ({"temperature": float("nan")}, "temperature", "temperature is nan, but must be a finite"),
        ({"top_p": 2}, "top_p", "top_p is 2, but must be between 0 and 1"),
        ({"n": 0}, "n", "n is 0, but must be between 1 and 128"),
        ({"n": True}, "n", "n is True, but must be a whole number"),
        ({"n": 3, "best_of": 2}, "best_of", "best_of is 2, but must be at least n, which is 3"),
        ({"best_of": 2, "stream": True}, "best_of", "best_of cannot be streamed"),
        ({"max_tokens": -7}, "max_tokens", "max_tokens is -7, but must be between -1 and"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0, but must be at least 1, or -1"),
        ({"max_tokens": 10**12}, "max_tokens", "max_tokens is 1000000000000, but must be between"),
        ({"seed": 2**64}, "seed", "seed is 18446744073709551616, but must be between"),
        ({"stop": ["a", 1]}, "stop", "stop holds 1, but must hold texts"),
        ({"stop": [""]}, "stop", "stop holds an empty text"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "logit_bias names token '99999'"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "must be between -100 and 100"),
        ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be between 0 and 20"),
        ({"stream_options": {}}, None, None),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream=true"),
        ({"tools": [{}]}, "tools", "tools is not supported"),
        ({"temprature": 1}, "temprature", "unknown parameter 'temprature'; did you mean temper"),
        ({"method": "tgr-latin"}, "method", "unknown method 'tgr-latin'; did you mean tgr-latent"),
        ({"tgr": {"method": 3}}, "method", "method is 3, but must be a text"),
        ({"tgr": {"loop_guard": 1}}, "loop_guard", "loop_guard is 1, but must be 0, for off, or"),
        ({"tgr": {"sigmar": 1}}, "sigmar", "unknown option 'sigmar'; did you mean sigma"),
        ({"tgr": {"sigma": -1}}, "sigma", "sigma is -1, but must be at least 0"),
        ({"tgr": 3}, "tgr", "tgr is 3, but must be an object"),
        ({FORMAT: {"type": "xml"}}, FORMAT, "type is 'xml', but must be one of text, json_object"),
        ({FORMAT: {"type": "json_schema"}}, FORMAT, "has no json_schema.schema"),
        (
            {FORMAT: {"type": "json_object", "schema": {"type": "no such"}}},
            FORMAT,
            "the JSON schema cannot be followed",
        ),
        ({FORMAT: {"type": "json_object"}, "grammar": "x"}, "grammar", "exclude each other"),
        ({"grammar": 3}, "grammar", "grammar is 3, but must be a text"),
        ({"reasoning_effort": "great"}, "reasoning_effort", "must be one of none"),
        (
            {"chat_template_kwargs": {"x": 1}},
            "chat_template_kwargs",
            "unknown template variable 'x'; there is enable",
        ),
        ({"temperature": 10**400}, "temperature", "but must be a finite number"),
        ({"model": "\ud800"}, "model", "not valid Unicode"),
        ({"tgr": {"chunk_len": 1.5}}, "chunk_len", "chunk_len is 1.5, but must be a whole number"),
        ({"tgr": {"stop": [3]}}, "stop", "stop holds 3, but must hold texts"),
        ({"mirostat": 2}, "mirostat", "mirostat is not supported; leave it out"),
    ],
)
def test_a_bad_parameter_is_named(
    engine: Engine, body: dict[str, Any], param: str | None, message: str | None
) -> None:
    body = {"messages": ASK} | body
    if message is None:
        chat_request(engine, body)
        return
    with pytest.raises(RequestError, match=message) as refusal:
        chat_request(engine, body)
    assert refusal.value.param == param and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "prompt is None"),
        ([], r"prompt is \[\]"),
        ([[]], r"prompt is \[\[\]\]"),
        (["a", 1], "prompt is"),
        ([10**6], "prompt holds token 1000000, but must hold numbers between 0 and"),
        ("", "prompt has no tokens"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_a_bad_prompt_is_refused(engine: Engine, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        completion_request(engine, {"prompt": prompt})


def test_requests_that_cannot_run_fail_before_the_first_chunk(engine: Engine) -> None:
    with pytest.raises(ValueError, match="grammar does not parse"):
        chat(engine, grammar="root ::= nothing here")
    long = {"prompt": "a" * 5000, "stream": True, "method": "base"}
    with pytest.raises(CapacityError, match="the query has 5000 tokens"):
        next(iter(chunks(engine, completion_request(engine, long))))
    with pytest.raises(RequestError, match="but must be an object of parameters"):
        chat_request(engine, [])  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        json_grammar({"$ref": "#/nowhere"})
    assert is_free(engine)


# --- threads, cancelling, asyncio ---


def endless(engine: Engine, **more: Any) -> Any:
    body = {
        "messages": ASK,
        "tgr": {"chunk_len": 100, "max_chunks": 100_000},
        "method": "markov",
        "logit_bias": {str(token): -100 for token in engine.end_tokens},
    }
    return chat_request(engine, body | more)


def test_requests_at_once_are_what_each_is_alone(engine: Engine) -> None:
    alone = chat(engine, temperature=0)["choices"]
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(chat(engine, temperature=0)["choices"]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [alone] * 6


def test_a_stream_ends_when_it_is_closed_or_cancelled(engine: Engine) -> None:
    parts: Iterator[Any] = chunks(engine, endless(engine, stream=True))
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert is_free(engine)
    cancel = Cancel()
    with pytest.raises(CancelledError):
        for _ in chunks(engine, endless(engine, stream=True, n=3), cancel=cancel):
            cancel.cancel()
    assert is_free(engine)


def test_a_child_of_a_cancel_is_cancelled_with_it() -> None:
    parent = Cancel()
    child = Cancel(parent)
    assert not child.is_set() and not child.answers_now()
    parent.answer_now()
    assert child.answers_now() and not child.is_set()
    parent.cancel()
    assert child.is_set()
    assert not Cancel(Cancel()).is_set()


def test_asyncio_replies_and_responses(engine: Engine) -> None:
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


def test_asyncio_cancels_and_raises(engine: Engine) -> None:
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
