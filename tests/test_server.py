"""The server from outside: what it reports, methods, refusals, streams, cancelling."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import HELD, Served, events, long_text, served
from starlette.responses import Response
from starlette.testclient import TestClient
from surroundings import HANG

from tgr_local.engine import Engine, Task
from tgr_local.methods import METHODS
from tgr_local.server.auth import Auth, is_loopback
from tgr_local.server.catalog import model_and_method


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("server")
    with served(model(), folder, max_body=20000, max_choices=6, start=HELD) as running:
        yield running
        running.until(running.is_free)


# ---- what it reports about itself ----


def test_models_and_methods_are_listed(server: Served):
    assert server.client.get("/health").json()["status"] == "ok"
    (only,) = server.client.get("/v1/models").json()["data"]
    assert only["id"] == "qwen3" and only["status"] == {"value": "loaded"}
    listed = server.client.get("/v1/models?methods=1").json()["data"]
    assert server.client.get(f"/v1/models/{listed[1]['id']}").json() == listed[1]
    refused = server.client.get("/v1/models/gpt/5")
    assert refused.status_code == 404 and refused.json()["error"]["param"] == "model"
    names = [one["id"] for one in listed]
    assert names[0] == "qwen3" and "qwen3:base" in names and "qwen3:tgr-latent" in names
    props = server.client.get("/props").json()
    assert props["method"] == "base" and props["options"]["chunk_len"] == 16
    assert props["n_ctx"] > 0 and "api_key" not in props["limits"]


def test_text_to_tokens_and_back(server: Served):
    post = server.client.post
    text = "he said: ½ <|im_end|>"
    tokens = post("/tokenize", json={"content": text}).json()["tokens"]
    assert post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    plain = post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert len(plain) > len(tokens)
    pieces = post("/tokenize", json={"content": "he½", "with_pieces": True}).json()["tokens"]
    assert [one["piece"] for one in pieces] == ["he", [0xC2], [0xBD]]


def test_metrics_count_tokens(server: Served):
    def value(name: str) -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    forward, completions = "tgr_forward_tokens_total", 'tgr_tokens_total{kind="completion"}'
    before, positions = value(forward), value("tgr_engine_n_positions_total")
    written = value(completions)
    usage = server.chat("count me", max_tokens=20).json()["usage"]
    assert value(completions) - written == usage["completion_tokens"]
    assert value(forward) - before == value("tgr_engine_n_positions_total") - positions > 0


def test_metrics_count_requests_by_path_and_status(server: Served):
    def value(path: str, status: int) -> float:
        name = f'tgr_requests_total{{path="{path}",status="{status}"}} '
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    cases = [
        ("/health", "/health", 200), ("/health/", "/health", 200), ("/nothing", "other", 404),
        ("/v1/models/unknown", "/v1/models/{name:path}", 404),
    ]  # fmt: skip
    for address, path, status in cases:
        before = value(path, status)
        assert server.client.get(address).status_code == status
        assert value(path, status) == before + 1, address
    before = value("/health", 200)
    assert server.client.head("/health").status_code == 200
    assert value("/health", 200) == before + 1


def test_what_is_not_read_again_is_reported(model: Callable[..., Path], tmp_path):
    with served(model(), tmp_path, prefix_cells=4096, method="base") as server:
        text, cached, reused = "a question that is long enough to be remembered", [], 0
        for _ in range(2):
            made = server.chat(text, max_tokens=8).json()
            cached.append(made["usage"]["prompt_tokens_details"]["cached_tokens"])
            reused += made["tgr"]["reused_tokens"]
        n_prompt = made["usage"]["prompt_tokens"]
        assert cached == [0, n_prompt - 1] and reused == n_prompt - 1
        assert server.gauge("tgr_reused_tokens_total") == reused
        assert server.gauge("tgr_engine_cells_remembered") >= n_prompt - 1
        body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 8}
        *_, last, _ = events(server.chat(text, **body))
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1

        def logged() -> list[int]:
            return [line["cached_tokens"] for line in server.log() if line.get("prompt_tokens")]

        server.until(lambda: len(logged()) == 3)
        assert logged() == [0, n_prompt - 1, n_prompt - 1]


def test_embeddings_are_means_of_states(server: Served, engine: Engine):
    body = {"input": ["he said", [5, 6, 7]]}
    response = server.client.post("/v1/embeddings", json=body).json()
    for given, tokens in zip(
        response["data"], (engine.tokenize("he said"), [5, 6, 7]), strict=True
    ):
        with engine.session(64, 1) as session:
            (output,) = session.run([Task(session.sequence(), tokens, feed_states="all")])
        mean = output.feed_states.mean(axis=0)
        np.testing.assert_allclose(given["embedding"], mean / np.linalg.norm(mean), atol=1e-5)
    assert response["usage"]["prompt_tokens"] == len(engine.tokenize("he said")) + 3


def test_a_library_embeds_a_thousand_texts_at_once(server: Served):
    made = server.client.post("/v1/embeddings", json={"input": [[5 + i % 2] for i in range(1000)]})
    vectors = [one["embedding"] for one in made.json()["data"]]
    assert len(vectors) == 1000 and vectors[998:] == vectors[:2] and vectors[0] != vectors[1]
    refused = server.client.post("/v1/embeddings", json={"input": [[5]] * 2049})
    message = "input holds 2049 texts, but must hold between 1 and 2048"
    assert refused.json()["error"]["message"] == message


# ---- methods ----


def test_the_method_comes_from_the_name_the_body_or_the_flag(server: Served):
    def how(**body: Any) -> str:
        response = server.chat("hi", max_tokens=4, **body).json()
        assert ":" not in response["model"]
        return str(response["tgr"]["method"])

    assert how() == "base"
    assert how(method="tgr-latent") == "tgr-latent"
    assert how(model="qwen3:markov") == "markov"
    assert how(model="gpt-4:base") == "base"
    assert how(tgr={"method": "base"}) == "base"
    assert server.chat("hi", model="qwen3:bass").json()["error"]["code"] == "model_not_found"


def test_names_of_other_models_are_not_changed():
    for name in ("qwen3", "owner/other:Q4_K_M", "llama3:8b"):
        assert model_and_method(name, "qwen3") == (name, None)
    assert model_and_method("a:b:base", "qwen3") == ("a:b", METHODS["base"])
    assert model_and_method(None, "qwen3") == (None, None)


# ---- refusals ----


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"3", b"\xff", b'{"messages": NaN}', b"[" * 9000,
        b'{"messages": 1}', b'{"messages": []}', b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": "a"}], "temprature": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}',
        b'{"messages": [{"role": "user", "content": "a"}], "n": 7}',
        b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "tgr": {"method": "best"}}',
        b'{"messages": [{"role": "user", "content": "a"}], "tgr": {"chunk_len": 9e9}}',
    ],
)  # fmt: skip
def test_invalid_chats_are_refused_with_a_message(server: Served, data: bytes):
    response = server.client.post("/v1/chat/completions", content=data)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["message"] and "bug" not in error["message"]


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"content": 3}),
        ("/tokenize", {"content": "a", "add_special": "yes"}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**40]}),
        ("/detokenize", {"tokens": [True]}),
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": [""]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 3}),
        ("/v1/embeddings", {"input": [[1.5]]}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/v1/completions", {"prompt": [10**12]}),
    ],
)
def test_invalid_bodies_of_other_endpoints_are_refused(
    server: Served, path: str, body: dict[str, Any]
):
    response = server.client.post(path, json=body)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_too_long_prompts_are_refused_with_the_numbers(server: Served):
    response = server.client.post("/v1/completions", json={"prompt": [5] * 4200, "stream": True})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    phrase = "request (4200 tokens) exceeds the available context size (4096 tokens)"
    assert error["message"].startswith(phrase)
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (4200, 4096)
    response = server.client.post("/v1/embeddings", json={"input": [5] * 4200})
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("length", [3900, 4200])  # with a reply, alone
@pytest.mark.parametrize("stream", [False, True])
def test_clients_know_an_overflow_by_its_words(server: Served, length: int, stream: bool):
    """Each API has the words that its clients look for, before they shorten a conversation."""
    user = [{"role": "user", "content": "a" * length}]
    # with the request to merge its thoughts a prompt of 3900 tokens grows to more than 4096
    options = {"method": "got", "tree_breadth": 8, "tree_proposals": 2}
    more = {"stream": stream, "tgr": options}
    words = "exceeds the available context size (4096 tokens)"
    for path, body in (
        ("/v1/chat/completions", {"messages": user}),
        ("/v1/responses", {"input": user}),
        ("/v1/completions", {"prompt": user[0]["content"], "max_tokens": 512}),
    ):
        error = server.client.post(path, json=body | more).json()["error"]
        assert words in error["message"] and error["code"] == "context_length_exceeded", error
    answer = server.client.post("/v1/messages", json={"messages": user} | more).json()
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    found = re.match(
        r"prompt is too long: (\d+) tokens(?: with the room for its reply)? > (\d+) maximum: ",
        answer["error"]["message"],
    )
    assert found and int(found[1]) >= length and int(found[2]) == 4096


def test_a_body_that_is_too_large_is_not_read(server: Served):
    assert server.client.post("/tokenize", content=b" " * 20001).status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 1000

    assert server.client.post("/tokenize", content=parts()).status_code == 413
    error = server.client.get("/nothing").json()["error"]
    assert error["type"] == "not_found_error"
    assert server.client.get("/tokenize").status_code == 405


@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
def test_a_body_that_is_too_large_is_refused_before_it_comes(server: Served, more: str):
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = f"POST /tokenize HTTP/1.1\r\nHost: {host}\r\n{more}Content-Length: 20001\r\n\r\n"
    with socket.create_connection((host, int(port)), HANG) as link:
        link.sendall(head.encode())
        assert link.makefile("rb").readline().split()[1] == b"413"


def test_requests_of_foreign_pages_are_refused(server: Served):
    def status(origin: str) -> int:
        headers = {"Origin": origin}
        return server.client.post("/tokenize", json={"content": "a"}, headers=headers).status_code

    assert [status("http://localhost:3000"), status("http://127.0.0.1")] == [200, 200]
    assert [status("http://evil.example"), status("null")] == [403, 403]
    assert status("http://localhost.evil.example") == 403
    assert status("http://evil.example/?localhost") == 403
    refused = server.client.get("/props", headers={"Origin": "app://obsidian.md"})
    assert "--allow-origin app://obsidian.md allows" in refused.json()["error"]["message"]
    response = server.client.get("/health", headers={"Origin": "http://localhost:3000"})
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


def guarded(headers: dict[str, str], *options: Any) -> int:
    """The status of a request to an application behind `Auth`."""
    return TestClient(Auth(Response("fine"), *options)).get("/props", headers=headers).status_code


def test_origins_are_matched_as_a_whole():
    def status(origin: str, *allowed: str) -> int:
        return guarded({"Host": "localhost", "Origin": origin}, (), "127.0.0.1", allowed)

    assert status("app://obsidian.md", "app://") == status("app://a", "app://*") == 200
    assert status("https://a.example", "https://a.example", "b") == 200
    assert status("https://a.example.evil", "https://a.example") == 403
    assert status("https://aXexample", "https://a.example") == 403
    assert status("myapp://x", "app://") == 403 and status("app://x") == 403


def test_foreign_names_of_this_machine_are_refused():
    def status(name: str, host: str = "127.0.0.1", keys: tuple[str, ...] = ()) -> int:
        return guarded({"Host": name, "Authorization": "Bearer key"}, keys, host)

    assert [status(name) for name in ("localhost:8080", "127.0.0.1", "[::1]:8080")] == [200] * 3
    assert [status(name) for name in ("evil.example:8080", "localhost.evil.example", "[")] == (
        [403] * 3
    )
    assert status("my.example", keys=("key",)) == status("my.example", host="0.0.0.0") == 200


def test_what_foreign_pages_fetch_without_an_origin_is_refused():
    """Images, scripts, frames and links have no `Origin`; browsers say `Sec-Fetch-Site`."""
    opens = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    def status(site: str, path: str = "/props", name: str = "localhost:8080", **more: str) -> int:
        headers = {"Host": name, "Authorization": "Bearer key", "Sec-Fetch-Site": site, **more}
        host = "127.0.0.1" if is_loopback(name.partition(":")[0]) else "0.0.0.0"
        guard = TestClient(Auth(Response("fine"), ("key",), host))
        methods = [guard.get, guard.head, guard.post, guard.options]
        (same,) = {method(path, headers=headers).status_code for method in methods}
        return same

    for path in ("/props", "/health", "/page/main.js", "/v1/models"):
        assert status("cross-site", path) == status("Cross-Site", path) == 403
        assert status("cross-site", path, **opens) == 403, "a link to it"
        assert status("none", path) == status("same-origin", path) == 200
    assert status("cross-site", "/", **opens) == 200, "a link to the page opens it"
    assert status("cross-site", "/", **opens | {"Sec-Fetch-Dest": "iframe"}) == 403
    assert status("cross-site", "/") == status("made-up") == 403
    assert status("same-site") == status("same-site", name="127.0.0.1:8080") == 200
    assert status("same-site", name="ai.example") == 403, "another name of the same domain"
    trusted = {"Origin": "http://localhost:3000"}
    assert status("cross-site", **trusted) == status("same-site", **trusted) == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_loopback(host: str):
    assert is_loopback(host)
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("example.com")


def test_an_address_in_use_is_refused(server: Served, model: Callable[..., Path], tmp_path):
    port = int(server.url.rpartition(":")[2])
    other = Served(model(), tmp_path, port=port)
    assert other.wait() == 1
    other.client.close()
    assert other.lines == [
        f"tgr-local: cannot listen on 127.0.0.1, port {port}: Address already in use; "
        "choose others with --host and --port"
    ]


# ---- streams and cancelling ----


def test_a_stream_has_progress_as_comments(server: Served):
    *parts, last = events(server.chat("hi", stream=True, max_tokens=40, method="tgr-latent"))
    assert last == "[DONE]"
    steps = [json.loads(part.removeprefix("tgr.step ")) for part in parts if type(part) is str]
    assert {step["stage"] for step in steps} >= {"rebuild", "rollouts", "scored"}
    chunks = [part for part in parts if type(part) is dict]
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] and chunks[-1]["tgr"]["forward_tokens"]


def test_a_stream_has_progress_and_usage_on_request(server: Served):
    options = {"stream_options": {"include_usage": True}, "tgr": {"progress": True}}
    *parts, _ = events(server.chat("hi", stream=True, max_tokens=40, **options))
    assert all(type(part) is dict for part in parts)
    assert any("progress" in part.get("tgr", {}) for part in parts)
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_everything(server: Served, stream: bool):
    headers = {"X-Request-Id": f"left-{stream}"}
    body = long_text(messages=[{"role": "user", "content": "a" * 500}], stream=stream)
    soon = httpx.Timeout(HANG, read=HANG if stream else 0.2)

    def logged() -> list[int]:
        return [line["status"] for line in server.log() if line["id"] in headers.values()]

    with server.hold():  # a reply that is not cancelled does not end
        with (
            httpx.Client(base_url=server.url, timeout=soon, headers=headers) as client,
            contextlib.suppress(httpx.ReadTimeout),
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            assert stream and next(response.iter_raw())
        server.until(logged)
    assert logged() == [499]
    server.until(server.is_free)


def test_a_client_that_disconnects_in_prefill_frees_everything(
    model: Callable[..., Path], tmp_path
):
    big = model(n_embd=256, n_layer=6, n_ff=1024, n_ctx_train=20_000)
    with served(big, tmp_path, n_batch=64, n_ubatch=64, max_body=10**6) as server:
        body = json.dumps({"prompt": [5] * 19_000, "max_tokens": 1, "model": "any:base"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            server.until(lambda: server.gauge("tgr_engine_n_positions_total"))
        server.until(server.is_free)
        assert 0 < server.gauge("tgr_engine_n_positions_total") < 19_000
