"""The server from outside: states, limits, keys, cancelling, the log; and its parts alone."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import gguf_models
import httpx
import numpy as np
import pytest
import serving
from engines import EXACT
from serving import Served, served
from starlette.responses import Response
from starlette.testclient import TestClient
from surroundings import HANG

from tgr_local import cli
from tgr_local.engine import Cancel, Engine, Task
from tgr_local.errors import CancelledError, CapacityError
from tgr_local.methods import METHODS
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server import infill
from tgr_local.server.app import create_app
from tgr_local.server.auth import Auth, is_loopback
from tgr_local.server.errors import ApiError, api_error
from tgr_local.server.jobs import Jobs
from tgr_local.server.limits import model_and_method
from tgr_local.server.service import Service


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("server")
    with served(model(), folder, max_body=20000, max_choices=6) as running:
        yield running
        running.until(running.is_free)


def never_ends(**more: Any) -> dict[str, Any]:
    """The body of a chat that runs until it is cancelled."""
    options = {"method": "base", "chunk_len": 64, "max_chunks": 60}
    return {"max_tokens": 3800, "temperature": 0, "tgr": options} | more


# ---- what it says of itself ----


def test_models_and_methods_are_listed(server: Served) -> None:
    assert server.client.get("/health").json()["status"] == "ok"
    listed = server.client.get("/v1/models").json()["data"]
    assert server.client.get(f"/v1/models/{listed[1]['id']}").json() == listed[1]
    refused = server.client.get("/v1/models/gpt/5")
    assert refused.status_code == 404 and refused.json()["error"]["param"] == "model"
    names = [one["id"] for one in listed]
    assert names[0] == "qwen3" and "qwen3:base" in names and "qwen3:tgr-latent" in names
    props = server.client.get("/props").json()
    assert props["method"] == "tgr-latent" and props["options"]["chunk_len"] == 16
    assert props["n_ctx"] > 0 and "api_key" not in props["limits"]


def test_text_to_tokens_and_back(server: Served) -> None:
    post = server.client.post
    text = "he said: ½ <|im_end|>"
    tokens = post("/tokenize", json={"content": text}).json()["tokens"]
    assert post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    plain = post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert len(plain) > len(tokens)
    pieces = post("/tokenize", json={"content": "he½", "with_pieces": True}).json()["tokens"]
    assert [one["piece"] for one in pieces] == ["he", [0xC2], [0xBD]]


def test_metrics_count_tokens(server: Served) -> None:
    def value(name: str) -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    forward, completions = "tgr_forward_tokens_total", 'tgr_tokens_total{kind="completion"}'
    before, positions = value(forward), value("tgr_engine_n_positions_total")
    written = value(completions)
    usage = server.chat("count me", max_tokens=20).json()["usage"]
    assert value(completions) - written == usage["completion_tokens"]
    assert value(forward) - before == value("tgr_engine_n_positions_total") - positions > 0


def test_the_page_loads_nothing_from_elsewhere(server: Served) -> None:
    page = server.client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text.replace("http://www.w3.org", "")
    assert server.client.get("/docs").status_code == 404


# ---- methods ----


def test_the_method_comes_from_the_name_the_body_or_the_flag(server: Served) -> None:
    def how(**body: Any) -> str:
        response = server.chat("hi", max_tokens=4, **body).json()
        assert ":" not in response["model"]
        return str(response["tgr"]["method"])

    assert how() == "tgr-latent"
    assert how(model="qwen3:markov") == "markov"
    assert how(model="gpt-4:base") == "base"
    assert how(tgr={"method": "base"}) == "base"
    assert server.chat("hi", model="qwen3:bass").json()["error"]["code"] == "model_not_found"


def test_names_of_other_models_are_not_changed() -> None:
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
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "temprature": 1}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": -1}',
        b'{"messages": [{"role": "user", "content": "a"}], "n": 7}',
        b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "tgr": {"method": "best"}}',
        b'{"messages": [{"role": "user", "content": "a"}], "tgr": {"chunk_len": 9e9}}',
    ],
)  # fmt: skip
def test_invalid_chats_are_refused_with_a_message(server: Served, data: bytes) -> None:
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
) -> None:
    response = server.client.post(path, json=body)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_too_long_prompts_are_refused_with_the_numbers(server: Served) -> None:
    response = server.client.post("/v1/completions", json={"prompt": [5] * 4200, "stream": True})
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert "4200" in error["message"] and "4096" in error["message"]
    response = server.client.post("/v1/embeddings", json={"input": [5] * 4200})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_that_is_too_large_is_not_read(server: Served) -> None:
    assert server.client.post("/tokenize", content=b" " * 20001).status_code == 413

    def parts() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 1000

    assert server.client.post("/tokenize", content=parts()).status_code == 413
    error = server.client.get("/nothing").json()["error"]
    assert error["type"] == "not_found_error"
    assert server.client.get("/tokenize").status_code == 405


def test_requests_of_foreign_pages_are_refused(server: Served) -> None:
    def status(origin: str) -> int:
        headers = {"Origin": origin}
        return server.client.post("/tokenize", json={"content": "a"}, headers=headers).status_code

    assert [status("http://localhost:3000"), status("http://127.0.0.1")] == [200, 200]
    assert [status("http://evil.example"), status("null")] == [403, 403]
    assert status("http://localhost.evil.example") == 403
    assert status("http://evil.example/?localhost") == 403
    response = server.client.get("/health", headers={"Origin": "http://localhost:3000"})
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_foreign_names_of_this_machine_are_refused() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("fine")(scope, receive, send)

    def status(name: str, host: str = "127.0.0.1", keys: tuple[str, ...] = ()) -> int:
        headers = {"Host": name, "Authorization": "Bearer key"}
        return TestClient(Auth(app, keys, host)).get("/props", headers=headers).status_code

    assert [status(name) for name in ("localhost:8080", "127.0.0.1", "[::1]:8080")] == [200] * 3
    assert [status(name) for name in ("evil.example:8080", "localhost.evil.example", "[")] == (
        [403] * 3
    )
    assert status("my.example", keys=("key",)) == status("my.example", host="0.0.0.0") == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("example.com")


# ---- streams and cancelling ----


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream: comments as texts, the rest parsed."""
    found = []
    for block in response.text.split("\n\n")[:-1]:
        kind, _, text = block.partition(": ")
        found.append(json.loads(text) if kind == "data" and text != "[DONE]" else text)
    return found


def test_a_stream_has_progress_as_comments(server: Served) -> None:
    *parts, last = events(server.chat("hi", stream=True, max_tokens=40))
    assert last == "[DONE]"
    steps = [json.loads(part.removeprefix("tgr.step ")) for part in parts if type(part) is str]
    assert {step["stage"] for step in steps} >= {"rebuild", "rollouts", "scored"}
    chunks = [part for part in parts if type(part) is dict]
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] and chunks[-1]["tgr"]["forward_tokens"]


def test_a_stream_has_progress_and_usage_on_request(server: Served) -> None:
    options = {"stream_options": {"include_usage": True}, "tgr": {"progress": True}}
    *parts, _ = events(server.chat("hi", stream=True, max_tokens=40, **options))
    assert all(type(part) is dict for part in parts)
    assert any("progress" in part.get("tgr", {}) for part in parts)
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] > 0


def test_one_seed_gives_one_text_streamed_or_not(server: Served) -> None:
    ask = {"max_tokens": 40, "seed": 7}
    whole = server.chat("hi", **ask).json()["choices"][0]["message"]["content"]
    parts = events(server.chat("hi", stream=True, **ask))
    chunks = [part["choices"][0]["delta"] for part in parts if type(part) is dict]
    assert "".join(delta.get("content", "") for delta in chunks) == whole != ""


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_everything(server: Served, stream: bool) -> None:
    with httpx.Client(base_url=server.url) as client, pytest.raises(httpx.ReadTimeout):
        messages = [{"role": "user", "content": "a" * 500}]
        body = never_ends(messages=messages, stream=stream)
        with client.stream("POST", "/v1/chat/completions", json=body, timeout=0.4) as response:
            for _ in response.iter_raw():
                time.sleep(0.5)
                raise httpx.ReadTimeout("has seen enough")
    server.until(server.is_free, 5)
    server.until(lambda: server.log()[-1]["path"] == "/metrics")
    last = [line for line in server.log() if line["path"] == "/v1/chat/completions"][-1]
    assert last["status"] == 499


def test_a_client_that_disconnects_in_prefill_frees_everything(
    model: Callable[..., Path], tmp_path: Path
) -> None:
    big = model(n_embd=256, n_layer=6, n_ff=1024)
    with served(big, tmp_path, n_batch=64, n_ubatch=64, max_body=10**6) as server:
        body = json.dumps({"prompt": [5] * 3900, "max_tokens": 1, "model": "any:base"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            server.until(lambda: server.gauge("tgr_engine_n_positions_total"))
        server.until(server.is_free, 5)
        assert 0 < server.gauge("tgr_engine_n_positions_total") < 3900


# ---- keys, queue, end ----


def test_keys_queue_and_shutdown(model: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\n\nsecond\n")
    limits = {"max_running": 1, "max_queue": 1, "shutdown_seconds": 1.5, "ping_seconds": 0.1}
    with served(model(), tmp_path, api_key_file="keys", log_prompts=True, **limits) as server:
        assert server.client.get("/health").status_code == 200
        assert server.chat("a").json()["error"]["code"] == "invalid_api_key"
        for name, key in (("Authorization", "Bearer firs"), ("X-Api-Key", "é")):
            headers = {name: key.encode()}
            assert server.client.get("/props", headers=headers).status_code == 401
        server.client.headers["Authorization"] = "Bearer second"
        assert server.client.get("/props").status_code == 200

        found: list[httpx.Response] = []

        def ask() -> None:
            found.append(server.chat("wait", **never_ends(stream=True, n=16)))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        server.until(lambda: server.gauge("tgr_waiting") == 1)
        refused = server.chat("too many")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert server.stop() == 0
        for thread in threads:
            thread.join()
        for response in found:
            assert "server is shutting down" in response.text
        assert any(": ping" in response.text for response in found)  # the one that waited
    logged = [line for line in server.log() if line["path"] == "/v1/chat/completions"]
    assert logged[-1]["request"]["messages"][0]["content"] == "wait"
    assert {line["status"] for line in logged} == {401, 429, 503}


def test_running_requests_may_finish(model: Callable[..., Path], tmp_path: Path) -> None:
    with served(model(), tmp_path, log_file="log.jsonl", chunk_len=64, max_chunks=8) as server:
        found: list[httpx.Response] = []
        body = {"max_tokens": 400, "temperature": 0, "model": "any:base"}
        thread = threading.Thread(target=lambda: found.append(server.chat("private", **body)))
        thread.start()
        server.until(lambda: server.gauge("tgr_running") == 1)
        assert server.stop() == 0
        thread.join()
        assert found[0].json()["usage"]["completion_tokens"] > 0
    log = (tmp_path / "log.jsonl").read_text()
    assert json.loads(log.splitlines()[-1])["status"] == 200 and "private" not in log


def test_a_log_with_prompts_is_readable_by_its_owner_only(
    model: Callable[..., Path], tmp_path: Path
) -> None:
    log, options = tmp_path / "log.jsonl", {"log_file": "log.jsonl", "log_prompts": True}
    for mode in (0o600, 0o644):
        with served(model(), tmp_path, **options) as server:
            assert log.stat().st_mode & 0o777 == mode  # as it was made, or as it was found
            warned = any("WARNING: PROMPTS GO TO log.jsonl" in line for line in server.lines)
            assert warned is (mode == 0o644)
        log.chmod(0o644)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_while_the_model_is_being_loaded(
    model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int,
    code: int,
) -> None:  # fmt: skip
    slow = "import time; from tgr_local.server import service; service.Engine = lambda *_: "
    monkeypatch.setattr(serving, "START", f"{slow}time.sleep({10 * HANG}); {serving.START}")
    server = Served(model(), tmp_path)
    assert server.client.get("/health").status_code == 503
    assert server.chat("too early").json()["error"]["message"] == "the model is still being loaded"
    server.process.send_signal(number)
    assert server.process.wait(timeout=HANG) == code
    server.client.close()


def test_a_request_ends_when_its_time_is_over(model: Callable[..., Path], tmp_path: Path) -> None:
    with served(model(), tmp_path, request_seconds=0.2, max_reply_tokens=3900) as server:
        response = server.chat("wait", **never_ends()).json()
        assert response["usage"]["completion_tokens"] < 3800
        assert response["choices"][0]["finish_reason"] == "length"
        assert response["tgr"]["replies"][0]["finish"] == "budget"


def test_a_reply_ends_where_the_server_says(model: Callable[..., Path], tmp_path: Path) -> None:
    with served(model(), tmp_path, max_reply_tokens=5, api_key="secret") as server:
        server.client.headers["Authorization"] = "Bearer secret"
        for body in ({}, {"max_tokens": 100}, {"max_tokens": 5}):
            assert server.chat("a", temperature=0, **body).json()["usage"]["completion_tokens"] == 5
        # a browser asks without the key whether a local page may ask with it
        headers = {
            "Origin": "http://localhost:3000",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        asked = server.client.options(
            "/v1/chat/completions", headers=headers | {"Authorization": ""}
        )
        assert asked.status_code == 200
        foreign = server.client.options(
            "/v1/chat/completions", headers=headers | {"Origin": "http://evil.example"}
        )
        assert foreign.status_code == 400
        assert "access-control-allow-origin" not in foreign.headers


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path: Path) -> None:
    gguf_models.write_garbage(tmp_path / "bad.gguf")
    server = Served(tmp_path / "bad.gguf", tmp_path)
    assert server.process.wait(timeout=30) == 1
    server.client.close()
    assert sum("tgr-local: " in line for line in server.lines) == 2  # where it listens, and why not


def test_an_open_server_warns(model: Callable[..., Path], tmp_path: Path) -> None:
    with served(model(), tmp_path, host="0.0.0.0") as server:
        assert any("WARNING: EVERYONE" in line for line in server.lines)
    with served(model(), tmp_path, host="0.0.0.0", api_key="secret") as server:
        assert not any("WARNING" in line or "secret" in line for line in server.lines)


def test_a_shown_config_hides_the_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TGR_API_KEY", "secret")
    assert cli.main(["serve", "--show-config"]) == 0
    out = capsys.readouterr().out
    assert "secret" not in out and "(hidden)" in out


def test_an_address_in_use_is_refused(server: Served, tmp_path: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    other = Served(server_model(server), tmp_path, port=port)
    assert other.process.wait(timeout=30) == 2
    other.client.close()
    assert other.lines == [
        f"tgr-local: cannot listen on 127.0.0.1, port {port}: Address already in use; "
        "choose others with --host and --port"
    ]


def server_model(server: Served) -> Path:
    arguments: Any = server.process.args
    return Path(arguments[arguments.index("--model") + 1])


# ---- while the model is loaded ----


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A server whose model never comes."""
    monkeypatch.setattr(Service, "load", lambda self, then: None)
    service = Service(
        tmp_path / "no.gguf",
        ServerConfig(),
        method=METHODS["base"],
        engine_config=EngineConfig(),
        options={},
    )
    app = create_app(service)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


def test_requests_before_the_model_is_loaded(waiting: TestClient) -> None:
    for path in ("/health", "/v1/models", "/props"):
        response = waiting.get(path)
        assert response.status_code == 503 and response.headers["retry-after"] == "2"
    response = waiting.post("/v1/chat/completions", json={"messages": []})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"
    assert "tgr_ready 0.0" in waiting.get("/metrics").text


def test_a_bug_is_a_500_in_the_same_format(
    waiting: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "ready", property(lambda self: 1 // 0))
    response = waiting.get("/metrics")
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"


# ---- its parts ----


def test_errors_become_api_errors() -> None:
    assert api_error(ValueError("x")).status == 400
    assert api_error(CapacityError("x")).code == "context_length_exceeded"
    assert api_error(CancelledError("x")).status == 503
    assert api_error(KeyError("x")).status == 500
    assert api_error(ApiError(429, "x")).body["error"]["type"] == "rate_limit_error"


def test_jobs_run_and_wait_and_are_cancelled() -> None:
    go = threading.Event()

    def work(cancel: Cancel) -> Iterator[Any]:
        yield "begun"
        while not go.wait(0.01):
            if cancel.is_set():
                raise CancelledError("cancelled")
        yield "done"

    def work_on(prompt: object, cancel: Cancel) -> Generator[Any, None, None]:
        yield prompt

    async def scene() -> None:
        jobs = Jobs(1, 2, 0)
        first, second, third = (jobs.submit(work) for _ in range(3))  # type: ignore[arg-type]
        assert await first.first(5) == "begun"
        assert (jobs.running, jobs.waiting) == (1, 2)
        with pytest.raises(ApiError, match="try again in"):
            jobs.submit(work)  # type: ignore[arg-type]
        assert await second.first(0.01) is None
        second.end(ApiError(499, "gone"))
        with pytest.raises(ApiError, match="gone"):
            await second.first(5)
        prompt = np.zeros(1000)
        last = jobs.submit(functools.partial(work_on, prompt))
        held = weakref.ref(prompt)
        del prompt
        last.end(ApiError(499, "gone"))
        assert held() is None, "a cancelled job that waits in line keeps what it was to do"
        go.set()
        assert [item async for item in first.items(5)] == ["done"]
        assert [item async for item in third.items(5)] == ["begun", "done"]
        await asyncio.sleep(0.05)
        assert (jobs.running, jobs.waiting) == (0, 0)
        jobs.close()
        with pytest.raises(ApiError, match="shutting down"):
            jobs.submit(work)  # type: ignore[arg-type]

    asyncio.run(scene())


def test_embeddings_are_means_of_states(server: Served, engine: Engine) -> None:
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


@pytest.fixture
def coder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with tokens for fill-in-the-middle."""
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    monkeypatch.setattr(gguf_models, "CONTROL", (*gguf_models.CONTROL, *marks))
    monkeypatch.setattr(gguf_models, "N_VOCAB", gguf_models.N_VOCAB + len(marks))
    return gguf_models.write_model(tmp_path / "coder.gguf")


def test_infill_puts_its_tokens_around_the_gap(coder: Path) -> None:
    with Engine(coder, EngineConfig(**EXACT)) as engine:
        body = {"input_prefix": "a<|im_end|>", "input_suffix": "z", "prompt": "b", "n_predict": 9}
        made = infill.infill_request(engine, body | {"temperature": 0})
        text = engine.detokenize(made.prompts[0], special=True).decode()
        assert text == "<|fim_prefix|>a<|im_end|><|fim_suffix|>z<|fim_middle|>b"
        assert (made.config.max_tokens, made.config.temperature) == (9, 0)
        plain = engine.tokenize("<|im_end|>", parse_special=False)
        assert len(plain) > 1  # a mark inside the text is only text
        extra = infill.infill_request(engine, {"input_extra": [{"text": "other"}]})
        assert engine.detokenize(extra.prompts[0]).decode() == "other\n"


def test_infill_takes_what_editors_send(coder: Path, tmp_path: Path) -> None:
    body = {
        "input_prefix": "a", "input_suffix": "z", "prompt": "", "n_predict": 4, "n_indent": 2,
        "input_extra": [{"text": "other", "time": [1, 2], "filename": "b.py"}], "top_k": 40,
        "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1,
        "dry_multiplier": 0.0, "response_fields": ["content", "timings/prompt_n"],
    }  # fmt: skip
    with served(coder, tmp_path) as server:
        answer = server.client.post("/infill", json=body).json()
        assert answer["content"] and answer["tokens_predicted"] <= 4
        assert set(answer["tgr"]["ignored"]) == {
            "n_indent", "samplers", "cache_prompt", "t_max_prompt_ms", "t_max_predict_ms",
            "dry_multiplier", "response_fields",
        }  # fmt: skip
        warm = body | {"n_predict": 0, "samplers": []}
        answer = server.client.post("/infill", json=warm).json()
        assert answer["content"] == "" and answer["tokens_predicted"] == 0
        refused = server.client.post("/infill", json=body | {"n_indnt": 2}).json()["error"]
        assert "did you mean n_indent" in refused["message"] and refused["param"] == "n_indnt"


def test_infill_names_other_files_where_the_model_has_tokens_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
    monkeypatch.setattr(gguf_models, "CONTROL", (*gguf_models.CONTROL, *marks))
    monkeypatch.setattr(gguf_models, "N_VOCAB", gguf_models.N_VOCAB + len(marks))
    with Engine(gguf_models.write_model(tmp_path / "coder.gguf"), EngineConfig(**EXACT)) as engine:
        body: dict[str, Any] = {"input_prefix": "a", "input_suffix": "z"}
        files = [{"text": "one\n", "filename": "1.py"}, {"text": "two\n"}]
        made = infill.infill_request(engine, body | {"input_extra": files})
        assert engine.detokenize(made.prompts[0], special=True).decode() == (
            "<|repo_name|>myproject\n<|file_sep|>1.py\none\n<|file_sep|>tmp\ntwo\n"
            "<|file_sep|>filename\n<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>"
        )
        made = infill.infill_request(engine, body)
        assert engine.detokenize(made.prompts[0], special=True).decode() == (
            "<|fim_prefix|>a<|fim_suffix|>z<|fim_middle|>"
        )


def test_infill_over_http(coder: Path, tmp_path: Path) -> None:
    body = {"input_prefix": "a", "input_suffix": "z", "n_predict": 9, "seed": 1}
    with served(coder, tmp_path) as server:
        whole = server.client.post("/infill", json=body).json()
        assert whole["stop"] and whole["tokens_predicted"] <= 9 and whole["content"]
        *parts, _ = events(server.client.post("/infill", json=body | {"stream": True}))
        texts = [part["content"] for part in parts if type(part) is dict]
        assert "".join(texts) == whole["content"]
