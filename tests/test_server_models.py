"""Several models in one server over HTTP: the model that a request names answers, uncut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf_models
import httpx
import pytest
from engines import EXACT
from gguf_edit import STRING, Gguf
from serving import HELD, SMALL, Asked, Served, events, long_text, served, served_here
from surroundings import HANG
from threads import in_threads

from tgr_local import EngineConfig, SearchConfig, generate
from tgr_local.engine import Engine
from tgr_local.options import model_files
from tgr_local.options.config import ServerConfig
from tgr_local.server.catalog import Catalog

BASE = {"tgr": {"method": "base"}, "temperature": 0, "max_tokens": 12}
NAMES = ("one", "two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two models, a damaged one and one that links elsewhere."""
    root = tmp_path_factory.mktemp("several")
    folder = root / "models"
    folder.mkdir()
    for seed, name in enumerate(NAMES):
        gguf_models.write_model(folder / f"{name}.gguf", seed=seed)
    gguf_models.write_garbage(folder / "garbage.gguf")
    gguf_models.write_truncated(folder / "one.gguf", folder / "short.gguf", 20_000)
    gguf_models.write_vocab_only(folder / "words.gguf")
    shutil.copy(folder / "one.gguf", root / "outside.gguf")
    (folder / "linked.gguf").symlink_to("../outside.gguf")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    options = {
        "models_dir": folder, "alias": "gpt-*=two",
        "prefix_cells": 4096, "ping_seconds": 0.05, "max_running": 4,
    }  # fmt: skip
    with served(None, folder.parent, start=HELD, **options) as running:
        yield running
        running.until(running.is_free)
        assert not any("Traceback" in line for line in running.lines)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def streamed(response: httpx.Response) -> str:
    """The text of a stream."""
    parts = [part for part in events(response) if type(part) is dict]
    return "".join(part["choices"][0]["delta"].get("content", "") for part in parts)


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, str]:
    """The reply of each model when it is the only one."""
    replies = {}
    config = SearchConfig(**SMALL, temperature=0, max_tokens=12)
    for name in NAMES:
        with Engine(folder / f"{name}.gguf", EngineConfig(**EXACT)) as engine:
            replies[name] = generate(engine, "hello", config, method="base").text
    assert replies["one"] != replies["two"]
    return replies


def states(server: Asked) -> dict[str, str]:
    data = server.client.get("/models").json()["data"]
    return {entry["id"]: entry["status"]["value"] for entry in data}


def test_the_requests_model_answers(server: Served, alone: dict[str, str]):
    for _ in range(3):
        for name in NAMES:
            response = server.chat("hello", model=name, **BASE)
            assert text_of(response) == alone[name] and response.json()["model"] == name
            assert (
                states(server)[name] == "loaded"
                and list(states(server).values()).count("loaded") == 1
            )
    assert text_of(server.chat("hello", model="gpt-4o", **BASE)) == alone["two"]
    response = server.chat("hello", model="one.gguf:markov", max_tokens=4).json()
    assert (response["model"], response["tgr"]["method"]) == ("one", "markov")
    long = {"metadata": {"note": "x " * 40_000}}  # a body whose model is read in a thread
    assert text_of(server.chat("hello", model="two", **BASE, **long)) == alone["two"]


def test_many_at_a_time(server: Served, alone: dict[str, str]):
    def ask(i: int) -> str:
        stream = i % 3 == 0
        response = server.chat("hello", model=NAMES[i % 2], stream=stream, **BASE)
        return streamed(response) if stream else text_of(response)

    found = in_threads(*(lambda i=i: ask(i) for i in range(12)))
    assert found == [alone[NAMES[i % 2]] for i in range(12)]


def test_an_unload_waits_for_a_running_stream(server: Served, alone: dict[str, str]):
    """While one model writes, the other one's request waits with pings, and may be given up."""
    body = long_text(model="one", stream=True, max_tokens=600)
    whole = text_of(server.chat("write", **body | {"stream": False}))
    held = server.hold()

    def wait() -> httpx.Response:
        server.until(lambda: server.gauge("tgr_running") == 1)
        return server.chat("hello", model="two", stream=True, **BASE)

    def unload() -> None:
        with held:
            server.until(lambda: server.gauge("tgr_waiting") == 1)
            answer = server.client.post("/models/unload", json={"model": "one"})
            assert answer.json() == {"success": True}
            asked = {"model": "two", "messages": [{"role": "user", "content": "hello"}]}
            with pytest.raises(httpx.ReadTimeout):
                soon = httpx.Timeout(HANG, read=0.05)
                server.client.post("/v1/chat/completions", json=asked, timeout=soon)
            assert states(server) | {"one": "loaded"} == states(server)
            assert states(server)["two"] != "loaded"

    first, second, done = in_threads(lambda: server.chat("write", **body), wait, unload)
    assert done is None, done
    parts = [part for part in events(first) if type(part) is dict]
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert (streamed(first), streamed(second)) == (whole, alone["two"])
    assert states(server) | {"one": "unloaded", "two": "loaded"} == states(server)


def test_a_parameter_in_the_address_is_refused_as_one_in_a_body(server: Served):
    refused = server.client.get("/v1/models?memory=perhaps")
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["message"] == "memory is 'perhaps', but must be true or false"
    assert error["param"] == "memory"
    refused = server.client.get("/v1/chat/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    why = "/v1/chat/completions is not for GET; use POST"
    assert refused.json()["error"]["message"] == why


@pytest.mark.parametrize(
    ("name", "status", "why"),
    [
        ("garbage", 400, "garbage.gguf has a damaged header"),
        ("short", 400, "short.gguf"),
        ("words", 400, "words.gguf"),
        ("linked", 404, "there is no model"),
        ("../outside", 404, "there is no model"),
        ("three", 404, "name one of garbage, one"),
        ("one:bass", 404, "unknown method"),
        ("a\0b", 404, "there is no model"),
        ("n" * 200, 404, "there is no model"),
        (None, 400, "model is missing"),
        (7, 400, "must be a text"),
    ],
)
def test_wrong_names_and_files_are_refused(
    server: Served, folder: Path, name: Any, status: int, why: str
):
    for stream in (False, True):
        response = server.chat("hello", model=name, stream=stream, **BASE)
        message = response.json()["error"]["message"]
        assert response.status_code == status and why in message, response.text
        assert str(folder.parent) not in message and len(message) < 500
    assert text_of(server.chat("hello", model="one", max_tokens=2))


def test_links_that_lead_out_are_said_to_be_left_out(server: Served, folder: Path):
    ready = next(line for line in server.lines if "the server is ready" in line)
    assert ready.endswith("loaded on demand; links that lead out of it were left out (1)")


def test_the_command_line_takes_every_name_that_a_server_lists(folder: Path, tmp_path):
    for name in ("one.gguf", "sub/one.gguf", "sub/TWO.GGUF", "a/b/one.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "one.gguf", tmp_path / name)
    for number in (1, 2):
        shutil.copy(folder / "one.gguf", tmp_path / f"big-0000{number}-of-00002.gguf")
    listed = dict(Catalog(ServerConfig(models_dir=str(tmp_path)), None).files)
    assert set(listed) == {"one", "sub/one", "TWO", "a/b/one", "big"}
    model_files.choose_folder(tmp_path)
    try:
        del listed["one"]  # of which the command line asks which one
        assert {name: model_files.find(name) for name in listed} == listed
    finally:
        model_files.choose_folder(None)


def test_files_may_come_and_go(server: Served, folder: Path, alone: dict[str, str]):
    path = folder / "sub" / "new.gguf"
    path.parent.mkdir()
    shutil.copy(folder / "one.gguf", path)

    def status() -> int:
        return server.chat("hello", model="new", **BASE).status_code

    server.until(lambda: status() == 200)
    assert text_of(server.chat("hello", model="sub/new", **BASE)) == alone["one"]
    path.unlink()
    server.until(lambda: "new" not in states(server))
    assert status() == 404
    server.until(lambda: server.client.get("/health").json()["model"] is None)


def test_models_are_described(server: Served):
    get, post = server.client.get, server.client.post
    assert server.chat("hello", model="one", **BASE).status_code == 200
    entries = {entry["id"]: entry for entry in get("/v1/models").json()["data"]}
    assert set(entries) == {"garbage", "one", "short", "two", "words"}
    assert entries["one"]["meta"]["n_ctx_train"] == 4096 and "meta" not in entries["two"]
    assert entries["garbage"]["status"]["failed"] and entries["one"]["created"] > 0
    assert get("/v1/models/two").json()["id"] == "two"
    assert get("/v1/models/two:base").json()["id"] == "two:base"
    assert get("/v1/models/three").status_code == 404
    with_methods = get("/v1/models", params={"methods": "1"}).json()["data"]
    assert "one:base" in {entry["id"] for entry in with_methods}
    assert get("/health").json()["model"] == "one"
    assert get("/props").json()["model"] == "one" and get("/props").json()["n_ctx"] == 4096
    other = get("/props", params={"model": "two"}).json()
    assert (other["status"], other["n_ctx_train"]) == ("unloaded", 4096)
    assert set(other["options"]) == set(get("/props").json()["options"])
    for props in (get("/props", params={"model": "one"}).json(), other):  # as Zed reads them
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert props["chat_template_caps"]["supports_tools"] is True
        assert props["modalities"] == {"vision": False, "audio": False}
    assert entries["one"]["meta"]["n_ctx"] == get("/health").json()["n_ctx"] == 4096
    assert entries["two"]["architecture"]["input_modalities"] == ["text"]
    assert get("/props", params={"model": "garbage"}).status_code == 400
    assert get("/slots", params={"model": "two"}).json()["error"]["code"] == "model_not_loaded"
    assert [slot["id"] for slot in get("/slots").json()] == [0, 1, 2, 3]
    assert get("/slots", params={"fail_on_no_slot": 1}).status_code == 200
    refused = post("/slots/0?action=save", json={"filename": "x"})
    assert refused.status_code == 501 and "--prompt-cache" in refused.json()["error"]["message"]
    assert get("/tokenizer_info").json()["eos_token"]
    assert post("/models/load", json={"model": "two"}).json() == {"success": True}
    server.until(lambda: states(server)["two"] == "loaded")
    assert post("/models/unload", json={"model": "one"}).status_code == 400
    assert post("/models/unload", json={"model": "two"}).json() == {"success": True}
    server.until(lambda: "loaded" not in states(server).values())
    assert get("/props").json()["model"] is None and get("/slots").status_code == 400
    for body in ({}, {"model": 3}, {"model": "x" * 300}, {"model": "one", "more": 1}):
        assert post("/models/load", json=body).status_code == 400
    assert post("/models/load", json={"model": "x", "y": "z" * 70_000}).status_code == 413
    assert server.gauge("tgr_model_loads_total") >= 4


def test_wrong_advice_of_a_file_is_the_fault_of_the_model_that_was_asked_for(
    folder: Path, tmp_path
):
    file = Gguf.parse((folder / "one.gguf").read_bytes())
    file.set("tgr.sigma", b"-5", STRING)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/advises.gguf").write_bytes(file.to_bytes())
    with served_here(None, models_dir=tmp_path / "models") as server:
        response = server.client.get("/props", params={"model": "advises"})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "model")
        assert "sigma" in error["message"]


def test_clients_are_told_what_happens_to_the_models(server: Served):
    """/models/sse, with the events that llama-server has."""
    with server.client.stream("GET", "/models/sse") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        server.client.post("/models/load", json={"model": "short"})  # a damaged file
        server.client.post("/models/load", json={"model": "two"})
        server.until(lambda: states(server)["two"] == "loaded")
        server.client.post("/models/unload", json={"model": "two"})
        told: list[Any] = []
        while not told or (told[-1]["model"], told[-1]["data"]["status"]) != ("two", "unloaded"):
            line = next(lines)
            told += [json.loads(line[6:])] if line.startswith("data: ") else []
    assert all(event["event"] == "status_change" for event in told)
    for name, expected in (
        ("short", [("loading", None), ("unloaded", 1)]),
        ("two", [("loading", None), ("loaded", None), ("unloaded", 0)]),
    ):
        about = [event["data"] for event in told if event["model"] == name]
        assert [(one["status"], one.get("exit_code")) for one in about] == expected


def test_other_endpoints_use_the_model_too(server: Served):
    post, vectors = server.client.post, {}
    for name in NAMES:
        body = {"input": "hello", "model": name}
        response = post("/v1/embeddings", json=body).json()
        assert response["model"] == name
        vectors[name] = response["data"][0]["embedding"]
        tokens = post("/tokenize", json={"content": "he", "model": name}).json()["tokens"]
        assert post("/detokenize", json={"tokens": tokens, "model": name}).json()["content"] == "he"
    assert vectors["one"] != vectors["two"]
    assert post("/tokenize", json={"content": "he", "model": "three"}).status_code == 404


def test_a_model_of_the_start_answers_requests_without_a_name(
    folder: Path, tmp_path, alone: dict[str, str]
):
    options = {"models_dir": folder, "alias": "mine", "shutdown_seconds": 0.1}
    with served(folder / "two.gguf", tmp_path, start=HELD, **options) as server:
        assert states(server)["mine"] == "loaded" and "two" not in states(server)
        assert text_of(server.chat("hello", **BASE)) == alone["two"]
        assert text_of(server.chat("hello", model="one", **BASE)) == alone["one"]
        assert text_of(server.chat("hello", **BASE)) == alone["two"]
        assert server.chat("hello", model="gpt-4", **BASE).status_code == 404

        def stop() -> int:
            server.until(lambda: server.gauge("tgr_running") == 1)
            return server.stop()

        body = long_text(model="one", stream=True)
        with server.hold():
            ended, code = in_threads(lambda: server.chat("write", **body), stop)
        assert "shutting down" in ended.text and code == 0


def test_one_model_may_be_unloaded_too(folder: Path, alone: dict[str, str]):
    with served_here(folder / "one.gguf", idle_seconds=0.3) as server:
        assert text_of(server.chat("hello", model="anything", **BASE)) == alone["one"]
        server.until(lambda: states(server) == {"one": "unloaded"})
        assert server.client.get("/props").json()["status"] == "unloaded"
        assert text_of(server.chat("hello", **BASE)) == alone["one"]


def test_what_a_model_needs_is_said_when_asked(server: Served, folder: Path):
    plain = server.client.get("/v1/models").json()["data"]
    assert not any("memory" in one for one in plain)
    for _ in range(2):
        found = {one["id"]: one for one in server.client.get("/v1/models?memory=1").json()["data"]}
        memory = found["one"]["memory"]
        assert memory == {"needed": (folder / "one.gguf").stat().st_size, "fits": True}
        assert "memory" not in found["garbage"]


def test_ollamas_clients_see_every_model(server: Served):
    listed = {one["name"]: one for one in server.client.get("/api/tags").json()["models"]}
    assert {"one:latest", "two:latest", "garbage:latest"} <= set(listed)
    assert listed["garbage:latest"]["details"]["family"] == ""
    body = {"model": "two:latest", "messages": [{"role": "user", "content": "hello"}]}
    said = server.client.post("/api/chat", json=body | {"options": {"num_predict": 3}})
    assert json.loads(said.text.splitlines()[-1])["eval_count"] <= 3
    names = [one["name"] for one in server.client.get("/api/ps").json()["models"]]
    assert "two:latest" in names
    for name, status in (("one:latest", 200), ("garbage", 400), ("none:latest", 404)):
        shown = server.client.post("/api/show", json={"model": name})
        assert shown.status_code == status, shown.text
    assert server.client.post("/api/chat", json=body | {"model": "none:7b"}).status_code == 404
