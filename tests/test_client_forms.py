"""The forms of other servers' clients: tools of other kinds, earlier thinking, parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from method_runs import PAPER
from openai_calls import ASK, chat, joined, streamed
from tool_models import WEATHER, tool

from tgr_local import SearchConfig, TgrLlama
from tgr_local.apis.messages import messages_request
from tgr_local.apis.requests import PreparedRequest, chat_request
from tgr_local.apis.response_store import Responses
from tgr_local.apis.responses import responses_request
from tgr_local.apis.validation import RequestError
from tgr_local.engine import Engine

SMALL = SearchConfig(chunk_len=8, max_chunks=3, temperature=0.8, **PAPER)
FUNCTION = {"name": "look", "description": "looks", "parameters": {"type": "object"}}
FLAT = [
    {"type": "function", **FUNCTION},
    FUNCTION,
    {"function": FUNCTION},
    {"type": None, "function": FUNCTION},
    {"name": "look", "description": "looks", "input_schema": FUNCTION["parameters"]},
    {"type": "custom", "name": "look", "description": "looks", "input_schema": {"type": "object"}},
]
OTHERS = [
    ({"type": "custom", "custom": {"name": "apply_patch", "format": {}}}, "tools.apply_patch"),
    ({"type": "custom", "name": "apply_patch"}, "tools.apply_patch"),
    ({"type": "web_search"}, "tools.web_search"),
    ({"type": "web_search_20250305", "name": "web_search"}, "tools.web_search"),
    ({"type": "mcp", "server_label": "x", "server_url": "http://x"}, "tools.mcp"),
    ({"type": "code_interpreter", "container": {"type": "auto"}}, "tools.code_interpreter"),
    ({"functionDeclarations": [FUNCTION]}, "tools[1]"),
    ({"type": "computer_use", "function": 3}, "tools.computer_use"),
    ({"type": None}, "tools[1]"),
    ({}, "tools[1]"),
]


def asked(engine: Engine, api: str, **body: Any) -> PreparedRequest:
    """A request to an API, with a question."""
    if api == "messages":
        return messages_request(engine, {"messages": ASK, **body}, config=SMALL)
    if api == "responses":
        store = Responses(2, 1000).of(b"")
        given = {"input": ASK[0]["content"], **body}
        return responses_request(engine, given, config=SMALL, store=store)
    return chat_request(engine, {"messages": ASK, **body}, config=SMALL)


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_functions_are_read_in_every_form(caller: Engine, api: str):
    expected = asked(caller, "chat", tools=[tool(FUNCTION)])
    for given in FLAT:
        made = asked(caller, api, tools=[given])
        assert (made.prompts, made.ignored) == (expected.prompts, ()), given


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_other_tools_are_left_out_and_named(caller: Engine, api: str):
    expected = asked(caller, "chat", tools=[tool(FUNCTION)])
    for other, name in OTHERS:
        made = asked(caller, api, tools=[tool(FUNCTION), other, other])
        names = (name, "tools[2]") if name == "tools[1]" else (name,)
        assert (made.prompts, made.ignored) == (expected.prompts, names)
        alone = asked(caller, api, tools=[other])
        assert alone.prompts == asked(caller, api).prompts


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("look", r"tools holds 'look', but must hold objects"),
        ({"type": "function"}, r"tools\[1\] is a function without a name; add one"),
        ({"type": "function", "parameters": {}}, r"tools\[1\] is a function without a name"),
        ({"type": "custom", "input_schema": {}}, r"tools\[1\] is a function without a name"),
        ({"type": "function", "function": {}}, r"tools\[1\].function.name is missing; add it"),
        ({"type": "function", "function": 3}, r"tools\[1\].function is 3, but must be an object"),
        ({"type": "function", "name": 5}, r"tools\[1\].*name is 5, but must be a text"),
    ],
)
def test_a_function_without_a_name_is_refused(caller: Engine, api: str, given: Any, message: str):
    with pytest.raises(RequestError, match=message) as refusal:
        asked(caller, api, tools=[tool(FUNCTION), given])
    assert refusal.value.param == "tools" and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ("any", "required"), ({"type": "auto"}, "auto"), ({"type": "any"}, "required"),
        ({"type": "tool", "name": "weather"}, None),
        ({"type": "function", "name": "weather"}, None),
    ],
)  # fmt: skip
def test_a_choice_is_read_in_every_form(caller: Engine, choice: Any, same: Any):
    same = same or {"type": "function", "function": {"name": "weather"}}
    body = {"tools": [tool(WEATHER)], "seed": 1}
    made = asked(caller, "chat", **body, tool_choice=choice)
    expected = asked(caller, "chat", **body, tool_choice=same)
    assert (made.prompts, made.config) == (expected.prompts, expected.config)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"type": "custom", "custom": {"name": "patch"}}, "names 'patch', but that tool is no fun"),
        ({"type": "function", "name": "patch"}, "names 'patch', but that tool is no function, and"),
        ({"type": "function", "name": "see"}, "names 'see', but tools has no such function"),
        ({"type": "web_search"}, "tool_choice asks for 'web_search', but only functions are call"),
        ({"type": ["x"]}, "tool_choice asks for"),
        ("patch", "tool_choice is 'patch', but must be one of none, auto, required"),
        ("required", "tool_choice asks for a call, but there are no tools that can be called"),
    ],
)
def test_a_choice_of_an_ignored_tool_is_refused(caller: Engine, choice: Any, message: str):
    tools = [{"type": "custom", "custom": {"name": "patch"}}]
    tools += [] if choice == "required" else [tool(WEATHER)]
    with pytest.raises(RequestError, match=message):
        asked(caller, "chat", tools=tools, tool_choice=choice)


def test_tgr_llama_takes_such_tools(model: Any):
    tools = [{"type": "web_search"}, FLAT[0]]
    with TgrLlama(str(model()), method="base", verbose=False) as llama:
        made = llama.create_chat_completion(ASK, tools=tools, max_tokens=2)
    assert made["tgr"]["ignored"] == ["tools.web_search"]


# --- earlier thinking ---

SHOWS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
)
TEXT = {"type": "text", "text": "b"}
SPELLINGS: list[dict[str, Any]] = [
    {"reasoning": "hm"},
    {"reasoning_text": "hm"},
    {"thinking": "hm"},
    {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "format": "x"}]},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
    {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]},
    {"content": [{"type": "thinking", "thinking": "hm"}, TEXT]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, TEXT]},
    {"content": [{"type": "reasoning", "text": "hm"}, TEXT]},
    {"content": [{"type": "reasoning", "reasoning": "hm"}, TEXT]},
    {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, TEXT]},
    {"content": [{"type": "redacted_thinking", "data": "x"},
                 {"type": "thinking", "thinking": "hm", "signature": ""}, TEXT]},
    {"content": [{"type": "reasoning_content", "reasoning_content": {"text": "hm"}}, TEXT]},
]  # fmt: skip


def turns(**message: Any) -> list[dict[str, Any]]:
    """A conversation whose message of the assistant has these fields."""
    return [
        *ASK,
        {"role": "assistant", "content": "b", **message},
        {"role": "user", "content": "c"},
    ]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_earlier_thinking_is_thinking_in_every_spelling(
    engine: Engine, use_template: Any, spelling: dict[str, Any]
):
    use_template(SHOWS)
    expected = asked(engine, "chat", messages=turns(reasoning_content="hm")).prompts
    assert b"<think>hm</think>b" in engine.detokenize(expected[0])
    for api, name in (("chat", "messages"), ("messages", "messages"), ("responses", "input")):
        if api == "messages" and "'thinking': [" in str(spelling):
            continue  # Mistral's, which Anthropic's type of a block excludes
        made = asked(engine, api, **{name: turns(**spelling)})
        assert (made.prompts, made.ignored) == (expected, ())


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
def test_thinking_that_cannot_be_read_is_named(engine: Engine, api: str):
    name = "input" if api == "responses" else "messages"
    plain = asked(engine, "chat", messages=turns()).prompts
    redacted = [{"type": "redacted_thinking", "data": "x"}, TEXT]
    for fields, place in (
        (
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]},
            "reasoning_details",
        ),
        ({"content": redacted}, "content[0]"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
    ):
        made = asked(engine, api, **{name: turns(**fields)})
        assert (made.prompts, made.ignored) == (plain, (f"{name}[1].{place}",))


def test_a_reply_goes_on_with_thinking_under_another_name(engine: Engine):
    open_end = [*ASK, {"role": "assistant", "content": None, "reasoning": "hm"}]
    assert asked(engine, "chat", messages=open_end).continued == "thinking"


# --- parameters ---


def test_harmless_parameters_of_other_clients_are_named(engine: Engine):
    given: dict[str, Any] = {
        "plugins": [{"id": "web"}], "models": ["a", "b"], "session_id": "s", "provider": {},
        "route": "fallback", "transforms": [], "usage": {"include": True}, "verbosity": "low",
        "user": "u", "prompt_cache_key": "k", "safety_identifier": "i", "service_tier": "auto",
        "store": False, "metadata": {}, "debug": {"echo_upstream_body": True}, "trace": {},
        "preset": "p", "prediction": {"type": "content", "content": "x"}, "citation_options": "x",
        "prompt_mode": "reasoning", "user_id": "u", "safety_model": "m", "priority": 1,
        "context_length_exceeded_behavior": "error", "user_security_context": {},
        "speculative.n_max": 4, "reasoning_format": "auto", "ttl": 60,
    }  # fmt: skip
    for api in ("chat", "messages", "responses"):
        own = given if api == "chat" else {k: v for k, v in given.items() if k != "metadata"}
        own = own if api != "responses" else {k: v for k, v in own.items() if k != "store"}
        assert set(asked(engine, api, **own).ignored) == set(own)
    assert asked(engine, "chat", safe_prompt=False).ignored == ()
    with pytest.raises(RequestError, match="safe_prompt is not supported"):
        asked(engine, "chat", safe_prompt=True)


@pytest.mark.parametrize(
    ("body", "budget", "thinking"),
    [
        ({"reasoning": {"effort": "low"}}, 1024, True),
        ({"reasoning": {"effort": "none"}}, 0, False),
        ({"reasoning": {"enabled": False}}, 0, False),
        ({"reasoning": {"enabled": True}}, 0, True),
        ({"reasoning": {"max_tokens": 300, "exclude": False}}, 300, True),
        ({"reasoning": {"max_tokens": 0}}, 0, False),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "medium"}, 4096, True),
        ({"reasoning": {}}, 0, True),
        ({"thinking_token_budget": 20}, 20, True),
    ],
)
def test_reasoning_is_thinking(engine: Engine, body: dict[str, Any], budget: int, thinking: bool):
    made = asked(engine, "chat", **body)
    assert (made.config.thinking_budget, made.config.thinking) == (budget, thinking)
    assert made.ignored == ()


def test_a_reasoning_that_is_none_is_refused(engine: Engine):
    for given, message in (
        ("high", "reasoning is 'high', but must be an object"),
        ({"effort": "great"}, "reasoning.effort is 'great', but must be one of none"),
        ({"max_tokens": -1}, "reasoning.max_tokens is -1, but must be"),
        ({"exclude": "yes"}, "reasoning.exclude is 'yes', but must be true or false"),
    ):
        with pytest.raises(RequestError, match=message):
            asked(engine, "chat", reasoning=given)


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning": {"exclude": True}},
        {"include_reasoning": False},
        {"reasoning_format": "hidden"},
        {"thinking": {"type": "enabled", "display": "omitted"}},
    ],
)
def test_thinking_that_is_not_wanted_is_not_shown(
    engine: Engine, use_template: Any, body: dict[str, Any]
):
    use_template(engine.chat_template + "<think>\n")
    options: dict[str, Any] = {"tgr": {"thinking_budget": 5}, "logprobs": True, "max_tokens": 16}
    shown, hidden = chat(engine, **options), chat(engine, **options, **body)
    assert shown["choices"][0]["message"].pop("reasoning_content")
    assert hidden["choices"] == shown["choices"] and hidden["usage"] == shown["usage"]
    parts = streamed(engine, **options, **body)
    assert "reasoning_content" not in json.dumps(parts)
    assert joined(parts)["content"] == shown["choices"][0]["message"]["content"]


def test_mistrals_seed_is_a_seed(engine: Engine):
    assert asked(engine, "chat", random_seed=7).config.seed == 7
    assert asked(engine, "chat", random_seed=7, seed=8).config.seed == 8
