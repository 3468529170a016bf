"""Programs that people use, against a real server: openai's package, curl, lm-eval."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Served, served
from surroundings import HANG

from tgr_local.engine import Engine, Task

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")

USER = [{"role": "user", "content": "he said"}]


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("clients")
    with served(model(), folder, api_key="secret", max_queue=1) as running:
        running.client.headers["Authorization"] = "Bearer secret"
        yield running
        running.until(running.is_free)


@pytest.fixture
def client(server: Served) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)


# ---- openai ----


def test_chat(client: Any) -> None:
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


def test_chat_stream(client: Any) -> None:
    ask = {"model": "qwen3", "messages": USER, "seed": 3, "max_tokens": 40, "n": 2}
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


def test_errors_are_of_their_classes(client: Any, server: Served) -> None:
    ask = {"model": "qwen3", "messages": USER}
    with pytest.raises(openai.BadRequestError, match="temperature is -1"):
        client.chat.completions.create(**ask, temperature=-1)
    with pytest.raises(openai.NotFoundError, match="did you mean"):
        client.chat.completions.create(model="qwen3:bas", messages=USER)
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="API key"):
        stranger.models.list()


def test_completions_embeddings_and_models(client: Any) -> None:
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


# ---- curl ----


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is absent")
def test_the_example_for_curl(server: Served) -> None:
    script = Path(__file__).parents[1] / "examples" / "server_curl.sh"
    run = subprocess.run(
        ["bash", str(script), server.url, "secret"], capture_output=True, text=True, timeout=HANG
    )
    assert run.returncode == 0, run.stderr
    assert '"chat.completion"' in run.stdout and run.stdout.rstrip().endswith("data: [DONE]")


def test_the_example_in_python(server: Served) -> None:
    script = Path(__file__).parents[1] / "examples" / "server_openai.py"
    run = subprocess.run(
        [sys.executable, str(script), f"{server.url}/v1", "secret"],
        capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "forward tokens" in run.stdout


# ---- lm-eval ----


def test_lm_evals_log_likelihoods_are_the_engines(
    server: Served, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
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
