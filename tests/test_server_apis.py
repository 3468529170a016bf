"""The APIs of the server over HTTP: official packages, literal bodies of clients, error formats,
examples, lm-eval."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from serving import Served, served
from surroundings import HANG, ROOT

from tgr_local.engine import Engine, Task

USER = [{"role": "user", "content": "he said"}]
TOOLS = [{"name": "find", "input_schema": {"type": "object", "properties": {}}}]


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("apis")
    (folder / "keys").write_text("other")
    keys = {"api_key": "secret", "api_key_file": folder / "keys"}
    limits = {"method": "base", "stored_responses": 2, **keys}
    with served(model(), folder, **limits) as running:
        running.client.headers["X-Api-Key"] = "secret"
        yield running
        running.until(running.is_free)


# --- Anthropic's ---


@pytest.fixture
def claude(server: Served) -> Any:
    anthropic = pytest.importorskip("anthropic", reason="anthropic is absent")
    return anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0)


def test_messages_of_anthropics_package(claude: Any):
    ask: dict[str, Any] = {"model": "any", "messages": USER, "max_tokens": 20, "system": "brief"}
    ask["extra_body"] = {"seed": 3, "top_k": 5}
    ask |= {"tools": TOOLS, "tool_choice": {"type": "none"}}
    whole = claude.messages.create(**ask)
    assert whole.content[0].type == "text" and whole.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == 20
    with claude.messages.stream(**ask) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == 20 and final.stop_reason == "max_tokens"
    told = {name: ask[name] for name in ("messages", "system", "tools", "tool_choice")}
    counted = claude.messages.count_tokens(model="any", **told)
    assert counted.input_tokens == whole.usage.input_tokens
    beta = claude.beta.messages.create(**ask, betas=["context-1m-2025-08-07"])
    assert beta.content[0].text == whole.content[0].text


def test_a_text_that_is_too_long_is_counted(server: Served):
    """By clients that ask before they shorten it; a word too long for the tokenizer, too."""
    for text in ("a b " * 20_000, "x" * 600_000):
        messages = [{"role": "user", "content": text}]
        counted = server.client.post("/v1/messages/count_tokens", json={"messages": messages})
        assert counted.status_code == 200, counted.text
        n_tokens = counted.json()["input_tokens"]
        assert n_tokens > 70_000
        items = server.client.post("/v1/responses/input_tokens", json={"input": messages})
        assert items.json()["input_tokens"] == n_tokens
        asked = server.client.post("/v1/messages", json={"messages": messages, "max_tokens": 4})
        assert asked.status_code == 400


def test_errors_have_anthropics_format(claude: Any, server: Served):
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="temperature is -1") as refused:
        claude.messages.create(
            model="any", messages=USER, max_tokens=3, extra_body={"temperature": -1}
        )
    error = refused.value.body["error"]
    assert refused.value.body["type"] == "error" and error["type"] == "invalid_request_error"
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError, match="API key"):
        stranger.messages.create(model="any", messages=USER, max_tokens=3)
    both = {"Authorization": "Bearer dummy", "X-Api-Key": "secret"}
    body = {"model": "any", "messages": USER, "max_tokens": 3}
    headers = both | {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    answer = server.client.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.status_code == 200 and answer.json()["type"] == "message"


# --- OpenAI's ---


@pytest.fixture
def client(server: Served) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


def test_chat(client: Any):
    reply = client.chat.completions.create(
        model="qwen3:tgr-latent", messages=USER, n=2, seed=3, max_tokens=20, logprobs=True,
        top_logprobs=3,
    )  # fmt: skip
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    for choice in reply.choices:
        tokens = choice.logprobs.content
        assert b"".join(bytes(one.bytes) for one in tokens).decode("utf-8", "replace")
        assert all(len(one.top_logprobs) == 3 for one in tokens)
        assert all(one.logprob <= 0 for one in tokens)
    assert reply.model_extra["tgr"]["forward_tokens"]["rollouts"] > 0


def test_chat_stream(client: Any):
    ask = {"model": "qwen3:tgr-latent", "messages": USER, "seed": 3, "max_tokens": 40, "n": 2}
    whole = client.chat.completions.create(**ask)
    texts = ["", ""]
    stream = client.chat.completions.create(
        **ask, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert chunk.usage == whole.usage


def test_errors_are_of_their_classes(client: Any, server: Served):
    ask = {"model": "qwen3", "messages": USER}
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        client.chat.completions.create(**ask, temperature=-1)
    with pytest.raises(openai.NotFoundError, match="did you mean"):
        client.chat.completions.create(model="qwen3:bas", messages=USER)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="API key"):
        stranger.models.list()


def test_completions_embeddings_and_models(client: Any):
    reply = client.completions.create(
        model="qwen3", prompt=["a", "b"], max_tokens=5, echo=True, logprobs=2
    )
    assert [choice.text[0] for choice in reply.choices] == ["a", "b"]
    assert reply.choices[0].logprobs.token_logprobs[0] is None
    data = client.embeddings.create(model="qwen3", input=["a", "b"]).data  # sent as base64
    assert all(math.isclose(np.linalg.norm(one.embedding), 1, rel_tol=1e-4) for one in data)
    assert [one.id for one in client.models.list()] == ["qwen3"]
    with_methods = client.models.list(extra_query={"methods": 1})
    assert "qwen3:markov" in [one.id for one in with_methods]


def test_responses_of_openais_package(client: Any, server: Served):
    ask: dict[str, Any] = {"model": "any", "input": "he said", "max_output_tokens": 20}
    ask["extra_body"] = {"seed": 3, "top_k": 5}
    whole = client.responses.create(**ask, metadata={"a": "b"})
    assert whole.output_text and whole.status == "incomplete" and whole.metadata == {"a": "b"}
    events = list(client.responses.create(**ask, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last: Any = events[-1]
    assert last.type == "response.incomplete" and last.response.output_text == whole.output_text
    with client.responses.stream(**ask) as stream:
        deltas = [one.delta for one in stream if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text

    assert client.responses.retrieve(last.response.id).output_text == whole.output_text
    next_one = client.responses.create(
        model="any", input="and", previous_response_id=last.response.id, max_output_tokens=4
    )
    assert next_one.previous_response_id == last.response.id
    assert next_one.usage and whole.usage
    assert next_one.usage.input_tokens > whole.usage.input_tokens + 20
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        stranger.responses.retrieve(next_one.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        stranger.responses.delete(next_one.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        stranger.responses.create(model="any", input="x", previous_response_id=next_one.id)
    client.responses.delete(next_one.id)
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve(next_one.id)
    with pytest.raises(openai.NotFoundError, match="at most 2 are kept"):
        client.responses.create(**ask, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="input is empty"):
        client.responses.create(model="any", input=[])


def test_a_response_of_a_schema(server: Served):
    form = {"type": "json_schema", "name": "a", "schema": {"const": {"x": 1}}}
    body = {"input": "he", "text": {"format": form}, "max_output_tokens": 40}
    made = server.client.post("/v1/responses", json=body).json()
    (text,) = [item["content"][0]["text"] for item in made["output"] if item["type"] == "message"]
    assert json.loads(text) == {"x": 1} and made["status"] == "completed"
    counted = server.client.post("/v1/responses/input_tokens", json={"input": "he"}).json()
    assert counted["input_tokens"] == made["usage"]["input_tokens"]


# --- llama.cpp's ---


def test_llama_cpps_own_endpoints(server: Served):
    post = server.client.post
    body = {"prompt": "he", "n_predict": 5, "seed": 3, "cache_prompt": True}
    whole = post("/completion", json=body).json()
    assert whole["content"] and whole["stop_type"] == "limit" and whole["tokens_predicted"] == 5
    streamed = post("/completions", json=body | {"stream": True}).text.split("\n\n")
    parts = [json.loads(line[6:]) for line in streamed if line.startswith("data: {")]
    assert "".join(part["content"] for part in parts) == whole["content"]
    prompt = post("/apply-template", json={"messages": USER}).json()["prompt"]
    assert "he said" in prompt and prompt.endswith("assistant\n")
    chat = post("/chat/completions", json={"messages": USER, "max_tokens": 3})
    assert chat.json()["object"] == "chat.completion"
    embedding = {"input": "a", "encoding_format": None, "input_type": "query"}
    made = post("/v1/embeddings", json=embedding).json()
    assert len(made["data"]) == 1 and made["tgr"]["ignored"] == ["input_type"]
    assert server.client.get("/models").json() == server.client.get("/v1/models").json()
    assert server.client.head("/").status_code == 200
    assert server.client.get("/v1/health").status_code == 200


def test_a_suffix_needs_a_model_for_it(server: Served):
    body = {"prompt": "a", "max_tokens": 2}
    assert server.client.post("/v1/completions", json=body | {"suffix": ""}).status_code == 200
    refused = server.client.post("/v1/completions", json=body | {"suffix": "z"}).json()["error"]
    assert "no fill-in-the-middle tokens" in refused["message"] and refused["param"] == "suffix"


def test_ignored_parameters_are_logged_once(server: Served):
    body = {"messages": USER, "max_tokens": 1, "ttl": 3, "draft_model": "x"}
    for _ in range(2):
        made = server.client.post("/v1/chat/completions", json=body).json()
        assert made["tgr"]["ignored"] == ["ttl", "draft_model"]

    def logged() -> list[Any]:
        lines = [line for line in server.log() if "draft_model" in line.get("ignored", ())]
        return [line["ignored"] for line in lines]

    server.until(logged)
    assert logged() == [["draft_model", "ttl"]]


# --- examples ---


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is absent")
def test_the_example_for_curl(server: Served):
    script = ROOT / "examples" / "server_curl.sh"
    run = subprocess.run(
        ["bash", str(script), server.url, "secret"], capture_output=True, text=True, timeout=HANG
    )
    assert run.returncode == 0, run.stderr
    assert '"chat.completion"' in run.stdout and run.stdout.rstrip().endswith("data: [DONE]")


def test_the_example_in_python(server: Served):
    script = ROOT / "examples" / "server_openai.py"
    run = subprocess.run(
        [sys.executable, str(script), f"{server.url}/v1", "secret"],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "forward tokens" in run.stdout


# --- lm-eval ---


def test_lm_evals_log_likelihoods_are_the_engines(server: Served, engine: Engine, monkeypatch):
    pytest.importorskip("lm_eval", reason="lm-eval is absent")
    pytest.importorskip("tenacity", reason="lm-eval's extra api is absent")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    harness = LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions", model="qwen3:base", tokenizer_backend="remote",
        auth_token="secret", batch_size=2, max_retries=1,
    )  # fmt: skip
    pairs = [("he said", " that"), ("1 + 1 =", " 2"), ("a b c", " d e f")]
    asked = [
        Instance("loglikelihood", {}, pair, i)  # type: ignore[arg-type]
        for i, pair in enumerate(pairs)
    ]
    for (context, continuation), (total, greedy) in zip(
        pairs, harness.loglikelihood(asked), strict=True
    ):
        start = len(engine.tokenize(context))
        tokens = engine.tokenize(context + continuation)
        with engine.session(len(tokens) + 1, 1) as session:
            (output,) = session.run([Task(session.sequence(), tokens, feed_logprobs=True)])
        assert math.isclose(total, output.feed_logprobs[start - 1 :].sum(), abs_tol=1e-3)
        assert greedy == _is_greedy(engine, tokens, start)
    written = harness.generate_until(
        [Instance("generate_until", {}, ("he said", {"until": ["\n"], "max_gen_toks": 8}), 0)]
    )
    assert len(written) == 1 and isinstance(written[0], str)


def _is_greedy(engine: Engine, tokens: list[int], start: int) -> bool:
    """Whether each token from `start` on is the likeliest one where it stands."""
    for i in range(start, len(tokens)):
        with engine.session(len(tokens) + 1, 1) as session:
            task = Task(session.sequence(), tokens[:i], n_generate=1, n_top=1)
            (output,) = session.run([task])
        if output.top_ids[0, 0] != tokens[i]:
            return False
    return True
