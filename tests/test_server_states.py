"""The server from start to end: keys, queue, limits, log, signals, loading; and its parts alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import gguf_models
import httpx
import numpy as np
import pytest
from serving import HELD, START, Served, long_text, served, served_here
from starlette.testclient import TestClient
from surroundings import HANG
from threads import in_threads, wait_until
from tool_models import WEATHER, tool, write_tool_model

from tgr_local.commands import cli
from tgr_local.engine import Cancel
from tgr_local.methods import METHODS
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server.app import create_app
from tgr_local.server.bodies import SHORT
from tgr_local.server.errors import ApiError, api_error
from tgr_local.server.jobs import Job, Jobs, Put
from tgr_local.server.loaded import Setup
from tgr_local.server.models import Models
from tgr_local.server.pool import Pool
from tgr_local.server.service import WAITS, Service
from tgr_local.system.errors import CancelledError, CapacityError, ModelError, TgrError

# ---- keys, queue, end ----


def test_keys_queue_and_shutdown(model: Callable[..., Path], tmp_path):
    (tmp_path / "keys").write_text("first\n\nsecond\n")
    limits = {"max_running": 1, "max_queue": 1, "shutdown_seconds": 1.5, "ping_seconds": 0.1}
    options = limits | {"api_key_file": "keys", "log_prompts": True, "start": HELD}
    with served(model(), tmp_path, **options) as server:
        assert server.client.get("/health").status_code == 200
        assert server.chat("a").json()["error"]["code"] == "invalid_api_key"
        for name, key in (("Authorization", "Bearer firs"), ("X-Api-Key", "é")):
            headers = {name: key.encode()}
            assert server.client.get("/props", headers=headers).status_code == 401
        server.client.headers["Authorization"] = "Bearer second"
        assert server.client.get("/props").status_code == 200

        pinged = threading.Event()

        def ask(**more: Any) -> str:
            """The text of a stream."""
            body = long_text(stream=True, messages=[{"role": "user", "content": "wait"}], **more)
            text = ""
            with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
                for part in response.iter_text():
                    text += part
                    if ": ping" in text and more:
                        pinged.set()
            return text

        def wait() -> str:
            """The same of a body that is not parsed before its turn."""
            server.until(server.is_held)
            return ask(metadata={"note": "x" * (SHORT + 1)})

        def stop() -> int:
            server.until(lambda: server.gauge("tgr_waiting") == 1)
            assert pinged.wait(HANG)  # the one that waits
            refused = server.chat("too many")
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            return server.stop()

        with server.hold():
            *ended, code = in_threads(ask, wait, stop)
        assert code == 0 and all("server is shutting down" in text for text in ended), ended
    logged = [line for line in server.log() if line["path"] == "/v1/chat/completions"]
    read = [line["request"] for line in logged if "request" in line]  # not the one that waited
    assert read[-1]["messages"][0]["content"] == "wait"
    assert {line["status"] for line in logged} == {401, 429, 503}


def is_closed(server: Served) -> bool:
    """Whether the server accepts no more connections."""
    try:
        httpx.get(f"{server.url}/health", timeout=HANG)
    except httpx.TransportError:
        return True
    return False


def test_running_requests_may_finish(model: Callable[..., Path], tmp_path):
    options = {"log_file": "log.jsonl", "shutdown_seconds": HANG, "start": HELD}
    with served(model(), tmp_path, **options) as server:
        held = server.hold()

        def stop() -> int:
            with held:
                server.until(lambda: server.gauge("tgr_running") == 1)
                server.process.send_signal(signal.SIGTERM)
                server.until(lambda: is_closed(server))
            return server.wait()

        body = {"max_tokens": 40, "temperature": 0, "model": "any:base"}
        reply, code = in_threads(lambda: server.chat("private", **body), stop)
        assert reply.json()["usage"]["completion_tokens"] == 40 and code == 0
    log = (tmp_path / "log.jsonl").read_text()
    assert json.loads(log.splitlines()[-1])["status"] == 200 and "private" not in log


def test_a_second_ctrl_c_ends_it_at_once(model: Callable[..., Path], tmp_path):
    with served(model(), tmp_path, shutdown_seconds=HANG, start=HELD) as server:

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):  # the connection may end first
                server.chat("wait", **long_text())

        def stop() -> int:
            server.until(server.is_held)
            server.process.send_signal(signal.SIGINT)
            server.until(lambda: is_closed(server))
            server.process.send_signal(signal.SIGINT)
            return server.wait()

        with server.hold():
            _, code = in_threads(ask, stop)
        assert code == 130
        assert not any(line.startswith(("ERROR", "Traceback")) for line in server.lines)


def test_what_others_can_read_is_warned_of(model: Callable[..., Path], tmp_path):
    log = tmp_path / "log.jsonl"
    log.touch()
    log.chmod(0o644)
    options = {"log_file": "log.jsonl", "log_prompts": True, "host": "0.0.0.0"}
    with served(model(), tmp_path, **options) as server:
        assert log.stat().st_mode & 0o777 == 0o644  # the mode that it had
        for warning in ("PROMPTS GO TO log.jsonl", "EVERYONE"):
            assert any(f"WARNING: {warning}" in line for line in server.lines), server.lines


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_while_the_model_is_being_loaded(
    model: Callable[..., Path], tmp_path, number: int, code: int
):
    slow = "import time; from tgr_local.server import loaded; loaded.Engine = lambda *_, **__: "
    server = Served(model(), tmp_path, start=f"{slow}time.sleep({10 * HANG}); {START}")
    assert server.client.get("/health").status_code == 503
    assert server.chat("too early").json()["error"]["message"] == "the model is still being loaded"
    server.process.send_signal(number)
    assert server.wait() == code
    server.client.close()


def test_a_request_ends_when_its_time_is_over(model: Callable[..., Path], tmp_path):
    patient = f"from tgr_local.server import jobs; jobs._GRACE = {HANG}; {START}"  # if it is slow
    limits = {"request_seconds": 2, "max_reply_tokens": 3900}  # longer than the prompt is read
    with served(model(), tmp_path, start=patient, **limits) as server:
        response = server.chat("wait", **long_text(n=8)).json()
        assert response["usage"]["completion_tokens"] < 8 * 3800
        assert response["choices"][0]["finish_reason"] == "length"
        assert response["tgr"]["replies"][0]["finish"] == "budget"


def test_a_reply_ends_where_the_server_says(model: Callable[..., Path], tmp_path):
    options = {"log_file": "log.jsonl", "log_prompts": True, "host": "0.0.0.0"}
    with served(model(), tmp_path, max_reply_tokens=5, api_key="secret", **options) as server:
        # nothing to warn of: a new log is for its owner only, and clients need the key
        assert (tmp_path / "log.jsonl").stat().st_mode & 0o777 == 0o600
        assert not any("WARNING" in line or "secret" in line for line in server.lines)
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


def test_the_log_has_calls_of_tools_streamed_or_not(tmp_path):
    options = {"log_file": tmp_path / "log.jsonl", "log_prompts": True}
    body = {"tools": [tool(WEATHER)], "tool_choice": "required", "max_tokens": 99, "seed": 1}
    with served_here(write_tool_model(tmp_path / "caller.gguf"), **options) as server:
        for stream in (False, True):
            assert server.chat("a", stream=stream, **body).status_code == 200
        server.until(lambda: (tmp_path / "log.jsonl").read_text().count('"reply"') == 2)
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    replies = [line["reply"] for line in lines if "reply" in line]
    assert [[call["name"] for call in one["calls"]] for (one,) in replies] == [["weather"]] * 2


@pytest.mark.parametrize("asked", [True, False])
def test_a_log_has_no_prompts_unless_it_is_asked_for(
    model: Callable[..., Path], tmp_path, capsys, asked: bool
):
    options = {"log_prompts": True} if asked else {}
    with served_here(model(), log_file=tmp_path / "log.jsonl", **options) as server:
        assert server.chat("a secret", max_tokens=2).status_code == 200
        refused = {"messages": "a secret"}
        assert server.client.post("/v1/chat/completions", json=refused).status_code == 400
        server.until(lambda: '"status": 400' in (tmp_path / "log.jsonl").read_text())
    assert ("secret" in (tmp_path / "log.jsonl").read_text()) == asked
    assert "secret" not in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_it(tmp_path):
    gguf_models.write_garbage(tmp_path / "bad.gguf")
    server = Served(tmp_path / "bad.gguf", tmp_path)
    assert server.wait() == 1
    server.client.close()
    assert sum("tgr-local: " in line for line in server.lines) == 2  # its address, and the error


def test_a_shown_config_hides_the_keys(monkeypatch, capsys):
    monkeypatch.setenv("TGR_API_KEY", "secret")
    assert cli.main(["serve", "--show-config"]) == 0
    out = capsys.readouterr().out
    assert "secret" not in out and "(hidden)" in out


# ---- while the model is loaded ----


@pytest.fixture
def waiting(tmp_path, monkeypatch) -> Iterator[TestClient]:
    """A server that never loads its model."""
    monkeypatch.setattr(Models, "load_first", lambda self, then: None)
    setup = Setup(ServerConfig(), METHODS["base"], EngineConfig(), {})
    service = Service(tmp_path / "no.gguf", setup)
    app = create_app(service)
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        yield client


def test_requests_before_the_model_is_loaded(waiting: TestClient):
    for path in ("/health", "/v1/models", "/props"):
        response = waiting.get(path)
        assert response.status_code == 503 and response.headers["retry-after"] == "2"
    response = waiting.post("/v1/chat/completions", json={"messages": []})
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "service_unavailable_error"
    assert "tgr_ready 0.0" in waiting.get("/metrics").text


def test_a_bug_is_a_500_in_the_same_format(waiting: TestClient, monkeypatch):
    monkeypatch.setattr(Pool, "loaded", property(lambda self: 1 // 0))
    response = waiting.get("/metrics")
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"


# ---- what a request waits for ----


def test_a_request_waits_in_the_order_of_its_stages(model: Any, tmp_path):
    names = {inspect.unwrap(where).__code__: name for name, _, where in WAITS}
    passed: dict[str, None] = {}  # in the order in which they were first entered

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := names.get(frame.f_code)):
            passed.setdefault(name)

    limits = ServerConfig(prompt_cache=str(tmp_path))
    service = Service(model(), Setup(limits, METHODS["base"], EngineConfig(), {}))
    threads_before = threading.getprofile()
    threading.setprofile(note)
    try:
        with TestClient(create_app(service), "http://localhost") as client:
            wait_until(lambda: client.get("/health").status_code == 200)
            passed.clear()
            message = {"role": "user", "content": "x" * SHORT}
            body = {"messages": [message], "max_tokens": 2}
            assert client.post("/v1/chat/completions", json=body).status_code == 400  # too long
            assert list(passed) == [name for name, _, _ in WAITS[:5]]
            passed.clear()
            body["messages"] = [{"role": "user", "content": "he said"}]
            assert client.post("/v1/chat/completions", json=body).status_code == 200
    finally:
        threading.setprofile(threads_before)
    assert list(passed) == [name for name, _, _ in WAITS]


def test_the_page_has_the_stages_in_their_order():
    page = (Path(__file__).parents[1] / "docs" / "server.md").read_text(encoding="utf-8")
    rows = [f"| {i} | {name} | {reason} |" for i, (name, reason, _) in enumerate(WAITS, 1)]
    assert "\n".join(rows) in page


# ---- its parts ----


def test_errors_become_api_errors():
    assert api_error(ValueError("x")).status == 400
    assert api_error(CapacityError("x")).code == "context_length_exceeded"
    assert api_error(CancelledError("x")).status == 503
    assert api_error(ModelError("x")).status == 400
    assert api_error(TgrError("the RPC server at a:1 is lost")).status == 500
    assert api_error(KeyError("x")).status == 500
    assert api_error(ApiError(429, "x")).body["error"]["type"] == "rate_limit_error"


def test_jobs_run_and_wait_and_are_cancelled():
    go = threading.Event()

    def work(cancel: Cancel, put: Put) -> None:
        put("begun")
        while not go.wait(0.01):
            if cancel.is_set():
                raise CancelledError("cancelled")
        put("done")

    def work_on(prompt: object, cancel: Cancel, put: Put) -> None:
        put(prompt)

    async def rest(job: Job) -> list[Any]:
        return [item async for batch in job.batches(HANG) for item in batch]

    async def scene() -> None:
        jobs = Jobs(1, 2, 0)
        first, second, third = (jobs.submit(work) for _ in range(3))
        assert await first.first(HANG) == "begun"
        assert (jobs.running, jobs.waiting) == (1, 2)
        with pytest.raises(ApiError, match="try again in"):
            jobs.submit(work)
        assert await second.first(0.01) is None
        second.end(ApiError(499, "gone"))
        with pytest.raises(ApiError, match="gone"):
            await second.first(HANG)
        prompt = np.zeros(1000)
        last = jobs.submit(functools.partial(work_on, prompt))
        held = weakref.ref(prompt)
        del prompt
        last.end(ApiError(499, "gone"))
        assert held() is None, "a cancelled job in the queue still holds its prompt"
        go.set()
        assert await rest(first) == ["done"]
        assert await rest(third) == ["begun", "done"]
        while jobs.running or jobs.waiting:
            await asyncio.sleep(0.002)
        jobs.close()
        with pytest.raises(ApiError, match="shutting down"):
            jobs.submit(work)

    asyncio.run(scene())
