"""Requests in OpenAI's format that are refused: the message, and the parameter that it names."""

from __future__ import annotations

from typing import Any

import pytest
from engines import is_free
from openai_calls import ASK, chat

from tgr_local.apis.completions import chunks
from tgr_local.apis.requests import chat_request, completion_request
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine
from tgr_local.system.errors import CapacityError, ContextError

FORMAT = "response_format"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is empty, but must hold at least one"),
        ({"messages": "hi"}, "messages", "messages is 'hi', but must be a list"),
        ({"messages": ["hi"]}, "messages", "messages holds 'hi', but must hold objects"),
        ({"messages": [{"content": "a"}]}, "messages", r"messages\[0\].role is missing; add it"),
        (
            {"messages": [{"role": "bot", "content": "a"}]},
            "messages",
            r"messages\[0\].role is 'bot', but must be one of system, user, assistant, tool, f",
        ),
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
        ({"stop": ["", "a"]}, "stop", "stop holds an empty text; remove it"),
        ({"stop": ""}, "stop", "stop holds an empty text; remove it"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "logit_bias names token '99999'"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias", "logit_bias names token '1_0'"),
        ({"logit_bias": {" 1": 1}}, "logit_bias", "logit_bias names token ' 1'"),
        ({"logit_bias": [[1.7, 1]]}, "logit_bias", "logit_bias names token 1.7"),
        ({"logit_bias": [[True, 1]]}, "logit_bias", "logit_bias names token True"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "must be between -100 and 100"),
        ({"top_logprobs": 3}, "top_logprobs", "top_logprobs needs logprobs=true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be between 0 and 20"),
        ({"stream_options": {}}, None, None),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream=true"),
        ({"tools": [3]}, "tools", "tools holds 3, but must hold objects"),
        ({"tools": "all"}, "tools", "tools is 'all', but must be a list"),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice asks for a call, but there are"),
        ({"tool_choice": "all"}, "tool_choice", "tool_choice is 'all', but must be one of none"),
        ({"temprature": 1}, "temprature", "'temprature'; did you mean temperature?"),
        ({"modell": 1}, "modell", "unknown parameter 'modell'; did you mean model?"),
        ({"method": "tgr-latin"}, "method", "unknown method 'tgr-latin'; did you mean tgr-latent"),
        ({"tgr": {"method": 3}}, "method", "method is 3, but must be a text"),
        ({"tgr": {"loop_guard": 1}}, "loop_guard", "loop_guard is 1, but must be 0, for off, or"),
        ({"tgr": {"probe": "/etc/passwd"}}, "probe", "probe has left the search; remove it"),
        ({"tgr": {"sigmar": 1}}, "sigmar", "unknown option 'sigmar'; did you mean sigma"),
        ({"tgr": {"min_gap": 0}}, "min_gap", "min_gap has left the search; remove it"),
        ({"tgr": {"draft_tokens": 4}}, "draft_tokens", "draft_tokens has left the engine; remove"),
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
            {"chat_template_kwargs": {"enable_thinking": 1}},
            "chat_template_kwargs",
            "chat_template_kwargs.enable_thinking is 1, but must be true or false",
        ),
        ({"temperature": 10**400}, "temperature", "but must be a finite number"),
        ({"model": "\ud800"}, "model", "not valid Unicode"),
        ({"tgr": {"chunk_len": 1.5}}, "chunk_len", "chunk_len is 1.5, but must be a whole number"),
        ({"tgr": {"stop": [3]}}, "stop", "stop holds 3, but must hold texts"),
        ({"mirostat": 2}, "mirostat", "mirostat is not supported; leave it out"),
        ({"mirostat_mode": 1}, "mirostat_mode", "mirostat_mode is not supported; leave it out"),
        ({"adaptive_target": 0.5}, "adaptive_target", "adaptive_target is not supported"),
        ({"min_keep": 2}, "min_keep", "min_keep is not supported; leave it out"),
        ({"tfs_z": 0.9}, "tfs_z", "tfs_z is not supported; leave it out"),
        ({"top_a": 0.1}, "top_a", "top_a is not supported; leave it out"),
        ({"smoothing_factor": 0.2}, "smoothing_factor", "smoothing_factor is not supported"),
        ({"ignore_eos": True}, "ignore_eos", "ignore_eos is not supported; leave it out"),
        ({"typical_p": 2}, "typical_p", "typical_p"),
        ({"dynatemp_range": -1}, "dynatemp_range", "dynatemp_range"),
        ({"repeat_last_n": -2}, "repeat_last_n", "repeat_last_n"),
    ],
)
def test_a_bad_parameter_is_named(
    engine: Engine, body: dict[str, Any], param: str | None, message: str | None
):
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
def test_a_bad_prompt_is_refused(engine: Engine, prompt: Any, message: str):
    with pytest.raises(ValueError, match=message):
        completion_request(engine, {"prompt": prompt})


def test_what_an_error_does_not_show_is_not_written_out(engine: Engine):
    class Long(dict[str, Any]):
        def __repr__(self) -> str:
            raise AssertionError("the whole body takes time and memory")

    with pytest.raises(RequestError, match=r"messages\[0\].role is missing; add it"):
        chat_request(engine, {"messages": [Long(content="a")]})


def test_a_prompt_that_is_far_too_long_is_counted_by_its_beginning(engine: Engine):
    messages = [{"role": "user", "content": "a" * 10**6}]
    for ask in (
        lambda: chat_request(engine, {"messages": messages}),
        lambda: completion_request(engine, {"prompt": "a" * 10**6}),
    ):
        with pytest.raises(
            ContextError, match=r"about \d+ tokens, but the model was tr"
        ) as refusal:
            ask()
        assert refusal.value.n_tokens == pytest.approx(10**6, rel=0.01)
        assert refusal.value.n_ctx == engine.n_ctx_train


def test_requests_that_cannot_run_fail_before_the_first_chunk(engine: Engine):
    with pytest.raises(ValueError, match="grammar does not parse"):
        chat(engine, grammar="root ::= nothing here")
    long = {"prompt": "a" * 5000, "stream": True, "method": "base"}
    with pytest.raises(CapacityError, match="the query has 5000 tokens"):
        next(iter(chunks(engine, completion_request(engine, long))))
    with pytest.raises(RequestError, match="but must be an object of parameters"):
        chat_request(engine, [])  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="the JSON schema cannot be followed: ") as refused:
        chat(engine, response_format={"type": "json_object", "schema": {"$ref": "#/nowhere"}})
    assert refused.value.param == "response_format"
    assert is_free(engine)
