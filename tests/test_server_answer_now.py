"""Running requests are asked for the answer now, over HTTP, on the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from serving import HELD, Served, served
from threads import in_threads

from tgr_local.engine import Engine
from tgr_local.options.model_files import embedded_model


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("answer-now")
    (folder / "keys").write_text("mine\ntheirs\n")
    keys = folder / "keys"
    with served(embedded_model(), folder, api_key_file=keys, start=HELD) as running:
        running.client.headers["X-Api-Key"] = "mine"
        yield running
        running.until(running.is_free)


@pytest.fixture(scope="module")
def endless() -> dict[str, Any]:
    """The body of a chat whose thinking does not end by itself."""
    with Engine(embedded_model()) as engine:
        never = [*engine.end_tokens, *engine.tokenize("</think>")]
    return {
        "messages": [{"role": "user", "content": "What is 48 * 7 - 5?"}],
        "max_tokens": 60_000,
        "logit_bias": {token: -100 for token in never},
        "method": "markov",
    }


def answers(server: Served, path: str, **headers: str) -> int:
    return server.client.post(path, headers=headers).status_code


def check(tgr: dict[str, Any], n_tokens: int) -> None:
    (reply,) = tgr["replies"]
    assert reply["closed_by"] == "answer_now" and 0 < reply["closed"] < n_tokens


@pytest.mark.parametrize("path", ["/v1/chat/completions/{}/answer-now", "/answer-now/{}"])
def test_a_stream_is_asked_by_the_id_of_its_first_event(
    server: Served, endless: dict[str, Any], path: str
):
    body = endless | {"stream": True, "max_tokens": 1500}
    thinking = answer = ""
    asked = False
    with (
        server.hold() as held,
        server.client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            part = json.loads(line.removeprefix("data: "))
            for choice in part["choices"]:
                thinking += choice["delta"].get("reasoning_content") or ""
                answer += choice["delta"].get("content") or ""
            address = path.format(part["id"])
            if thinking and not answer and not asked:
                asked = True
                assert answers(server, address, **{"X-Api-Key": "theirs"}) == 404
                assert answers(server, address) == 200
                held.close()
    assert asked and answer.strip()
    check(part["tgr"], 1500)
    server.until(lambda: answers(server, address) == 404)


def test_a_whole_response_is_asked_by_its_clients_id(server: Served, endless: dict[str, Any]):
    def ask() -> httpx.Response:
        headers = {"X-Request-Id": "job:1"}
        body = endless | {"max_tokens": 1500}
        return server.client.post("/v1/chat/completions", json=body, headers=headers)

    held = server.hold()

    def poke() -> None:
        with held:
            server.until(server.is_held)  # its thinking has begun
            assert answers(server, "/answer-now/job:1") == 200

    response, asked = in_threads(ask, poke)
    made = response.json()
    assert response.headers["x-request-id"] == "job:1" and asked is None
    assert made["choices"][0]["message"]["content"].strip()
    check(made["tgr"], 1500)


def test_ids_that_nobody_has(server: Served):
    # a request of another test that is answered may not have left yet
    server.until(lambda: server.client.post("/answer-now/job:1").status_code == 404)
    for one in ("chatcmpl-0", "job:1", "x" * 500, "%00", "..%2Fhealth"):
        refused = server.client.post(f"/answer-now/{one}")
        assert refused.status_code == 404
        assert "error" in refused.json() or "detail" in refused.json()
    bad = server.chat("hi", max_tokens=1)
    assert len(bad.headers["x-request-id"]) == 32
    headers = {"X-Request-Id": 'a"b\\n'}
    odd = server.client.get("/health", headers=headers)
    assert len(odd.headers["x-request-id"]) == 32
