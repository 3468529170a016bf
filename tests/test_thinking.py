"""What ends or constrains a reply: the thinking budget, "answer now", loops, grammars."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from engines import is_free
from method_runs import PAPER
from openai.types.chat import ChatCompletion
from openai_calls import ASK, SMALL, chat, joined, streamed

from tgr_local import SearchConfig, generate
from tgr_local.apis.completions import respond
from tgr_local.apis.requests import chat_request, completion_request
from tgr_local.engine import Cancel, Engine, SteeredEngine
from tgr_local.generation import generate_many
from tgr_local.options.resolve import DEFAULT, resolve
from tgr_local.search.steps import Counts, Progress

THINKING = SearchConfig(
    chunk_len=8, max_chunks=4, n_candidates=3, rollout_len=4, temperature=0.0, **PAPER
)
every_method = pytest.mark.parametrize("method", ["base", "markov", "tgr-latent"])


# --- thinking ---


def opened(engine: Engine) -> list[int]:
    return engine.tokenize("hello<think>\n")


@every_method
def test_a_thinking_budget_closes_the_thinking(engine: Engine, method: str):
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
def test_an_answer_is_written_within_the_budget(engine: Engine, method: str):
    asks: dict[str, Any] = {"thinking_budget": 8, "tree_proposals": 2}
    config = SearchConfig(**vars(THINKING) | asks)
    whole = generate(engine, opened(engine), config, method=method)
    with pytest.raises(ValueError, match="takes at least") as too_low:
        limited = dataclasses.replace(config, max_forward_tokens=1)
        generate(engine, opened(engine), limited, method=method)
    least = int(re.findall(r"at least (\d+)", str(too_low.value))[0])
    finishes = []
    total = whole.counts.total
    for budget in (least, least + 20, total // 2, total, 2 * total + 200):
        limited = dataclasses.replace(config, max_forward_tokens=budget)
        reply = generate(engine, opened(engine), limited, method=method)
        assert reply.counts.total <= budget and reply.text
        finishes.append(reply.finish)
    assert finishes[0] == "budget" and finishes[-1] == whole.finish


def test_thinking_within_its_budget_is_not_changed(engine: Engine):
    free = generate(engine, opened(engine), THINKING, method="markov")
    config = SearchConfig(**vars(THINKING) | {"thinking_budget": 1000})
    assert generate(engine, opened(engine), config, method="markov").tokens == free.tokens


def test_together_they_keep_the_budget_and_repeat(engine: Engine):
    config = SearchConfig(**vars(THINKING) | {"thinking_budget": 11, "temperature": 0.8})

    def run() -> list[list[int]]:
        replies = generate_many(engine, opened(engine), config, 4)
        assert [reply.closed for reply in replies] == [11] * 4
        return [reply.tokens for reply in replies]

    first = run()
    assert run() == first and len({tuple(tokens) for tokens in first}) == 4
    assert is_free(engine)


def test_reasoning_has_its_own_text_and_count(engine: Engine, use_template: Any):
    use_template(engine.chat_template + "<think>\n")
    budget = {"thinking_budget": 5}
    options: dict[str, Any] = {"tgr": budget, "logprobs": True, "max_tokens": 16}
    made = chat(engine, **options)
    parts = streamed(engine, **options)
    choice = made["choices"][0]
    assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    assert made["usage"]["completion_tokens"] == 16
    ChatCompletion.model_validate(made, strict=True)
    spelled = b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"])
    assert spelled.decode("utf-8", "replace").lstrip("\n") == choice["message"]["content"]
    streamed_choice = joined(parts)
    assert streamed_choice["content"] == choice["message"]["content"]
    assert streamed_choice["reasoning"] == choice["message"]["reasoning_content"]
    assert streamed_choice["logprobs"] == choice["logprobs"]["content"]


def test_thinking_is_opened_for_models_that_open_it_themselves(engine: Engine, use_template: Any):
    use_template(engine.chat_template + "{# <think> #}")
    request = chat_request(engine, {"messages": ASK, "tgr": {"thinking_budget": 5}})
    assert engine.detokenize(request.prompts[0]).endswith(b"<think>\n")
    off = {"messages": ASK, "tgr": {"thinking_budget": 5}, "reasoning_effort": "none"}
    assert not engine.detokenize(chat_request(engine, off).prompts[0]).endswith(b"<think>\n")


@pytest.mark.parametrize(
    ("body", "budget", "thinking"),
    [
        ({"thinking_budget": 7}, 7, True),
        ({"thinking_budget_tokens": 8}, 8, True),
        ({"reasoning_budget": 9}, 9, True),
        ({"reasoning_budget": -1}, 0, True),
        ({"reasoning_budget": 0}, 0, False),
        ({"chat_template_kwargs": {"thinking_budget": 10}}, 10, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024, True),
        ({"reasoning_effort": "minimal"}, 512, True),
        ({"reasoning_effort": "low"}, 1024, True),
        ({"reasoning_effort": "medium"}, 4096, True),
        ({"reasoning_effort": "high"}, 0, True),
        ({"reasoning_effort": "none"}, 0, False),
        ({"reasoning_effort": "low", "thinking_budget": 30}, 30, True),
        ({"reasoning_effort": "low", "tgr": {"thinking_budget": 40}}, 40, True),
        ({"think": "medium"}, 4096, True),
    ],
)
def test_a_budget_has_many_names(engine: Engine, body: dict[str, Any], budget: int, thinking: bool):
    config = chat_request(engine, {"messages": ASK} | body).config
    assert (config.thinking_budget, config.thinking) == (budget, thinking)


@every_method
def test_answer_now_ends_the_thinking_and_not_the_answer(engine: Engine, method: str):
    cancel = Cancel()
    config = SearchConfig(  # a chunk is more than is written before a late event arrives
        chunk_len=3000, max_chunks=2, n_candidates=2, rollout_len=4, max_tokens=3200,
        temperature=0.0,
    )  # fmt: skip

    def on_event(event: Any) -> None:
        if isinstance(event, Progress) and event.stage == "tokens":
            cancel.answer_now()

    reply = generate(
        engine, opened(engine), config, method=method, on_event=on_event, cancel=cancel
    )
    assert reply.closed is not None and 0 < reply.closed < 3000
    assert reply.n_tokens == 3200 and reply.finish == "length"
    before = engine.stats().n_positions
    reply = generate(engine, "hello", config, method=method, raw=True, cancel=cancel)
    assert reply.closed is None and reply.n_tokens == 3200
    assert engine.stats().n_positions - before == reply.counts.total


def test_run_chat_and_serve_have_a_loop_guard_and_eval_has_none():
    assert resolve({}, for_people=True).config.loop_guard == 32
    assert resolve({}, for_people=True).sources["loop_guard"] == DEFAULT
    assert resolve({}, {"loop_guard": 0}, for_people=True).config.loop_guard == 0
    assert resolve({"tgr.loop_guard": "5"}, for_people=True).config.loop_guard == 5
    assert resolve({}).config.loop_guard == SearchConfig().loop_guard == 0


def test_an_endless_reply_of_a_front_end_ends(engine: Engine):
    token = engine.tokenize("x")[0]
    body = {"prompt": "he", "max_tokens": 3000, "logit_bias": {token: 100}}
    config = dataclasses.replace(resolve({}, for_people=True).config, chunk_len=128, max_chunks=30)
    made = respond(engine, completion_request(engine, body, config=config, method="base"))
    assert made["usage"]["completion_tokens"] == 1024
    assert made["tgr"]["replies"][0]["finish"] == "loop"


def test_the_loop_guard_ends_what_repeats_itself(engine: Engine):
    token = engine.tokenize("x")[0]
    body = {"prompt": "he", "max_tokens": 300, "logit_bias": {token: 100}, "method": "base"}
    body["tgr"] = {"chunk_len": 16, "loop_guard": 4}
    made = respond(engine, completion_request(engine, body))
    assert made["usage"]["completion_tokens"] == 64
    assert made["choices"][0]["finish_reason"] == "length"
    assert made["tgr"]["replies"][0]["finish"] == "loop"


# --- grammars ---


def test_a_grammar_holds_over_chunks_and_in_rollouts(engine: Engine):
    grammar = 'root ::= "abcdefghijklmnopqrstuvwxyz" [0-9]+'
    for method in ("base", "markov", "tgr-latent"):
        made = chat(engine, method, grammar=grammar, max_tokens=30, tgr={"chunk_len": 4})
        text = made["choices"][0]["message"]["content"]
        assert text.startswith("abcdefghijklmnopqrstuvwxyz") and text[26:].isdecimal()
    events: list[Any] = []
    body = {"messages": ASK, "grammar": grammar, "max_tokens": 12, "tgr": {"chunk_len": 4}}
    request = chat_request(engine, body, config=SMALL, method="tgr-latent")
    respond(engine, request, on_event=lambda i, event: events.append(event))
    rollouts = [
        (event.chunk, engine.detokenize(tokens.tolist()).decode())
        for event in events
        if isinstance(event, Progress) and event.candidates
        for tokens in event.candidates.tokens
    ]
    for chunk, text in rollouts:
        assert "abcdefghijklmnopqrstuvwxyz".startswith(text, 0) is (chunk == 0)
        assert text in "abcdefghijklmnopqrstuvwxyz"


def test_json_is_json(engine: Engine):
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


def test_a_grammar_lets_thinking_come_first(engine: Engine):
    config = SearchConfig(**vars(THINKING) | {"grammar": 'root ::= "yes" | "no"'})
    config = SearchConfig(**vars(config) | {"thinking_budget": 9})
    reply = generate(engine, opened(engine), config, method="tgr-latent")
    assert reply.closed == 9 and reply.thinking and reply.text in ("yes", "no")
    assert reply.finish == "stop"


@every_method
def test_thinking_that_just_ends_is_closed_where_a_grammar_wants_an_answer(
    engine: Engine, method: str
):
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
    shortest = generate(ending, opened(engine), short, method=method)
    assert (shortest.closed, shortest.n_tokens) == (0, 1) and shortest.text[0] in "yn"
