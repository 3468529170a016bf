"""The calls of Zed's llama.cpp provider, as its source makes and reads them: the models and what
each can do are found, their loads are watched, and a turn of its agent has tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from serving import Served, served, served_here
from tool_models import tool

JSON, STREAM = {"Accept": "application/json"}, {"Accept": "text/event-stream"}
ASSUMED_CONTEXT = 131_072  # of a model that is not loaded, and says nothing
NAMES = ("one", "org/one")
PATH = {
    "type": "object",
    "properties": {"path": {"enum": ["a.txt", "b.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL = tool({"name": "read_file", "description": "Reads a file.", "parameters": PATH})


@pytest.fixture(scope="module")
def server(model: Callable[..., Path], tmp_path_factory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("zed")
    models = folder / "models"
    (models / "org").mkdir(parents=True)
    for name in NAMES:
        shutil.copy(model(), models / f"{name}.gguf")
    options = {"models_dir": models, "api_key": "secret", "method": "base", "ping_seconds": 0.05}
    options |= {"chunk_len": 256}  # which a whole call needs
    with served(None, folder, **options) as running:
        running.client.headers["Authorization"] = "Bearer secret"
        yield running
        running.until(running.is_free)


class Zed:
    """What the provider knows of a server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.models: dict[str, tuple[int, bool]] = {}
        """Of each model the length of its context, and whether it gets tools."""
        self.is_router = False

    def fetch(self) -> None:
        """Discovery: the list, and of a loaded model its properties."""
        entries = self._client.get("/v1/models", headers=JSON).raise_for_status().json()["data"]
        self.is_router = any(entry.get("status") for entry in entries)
        self.models = {entry["id"]: self._model(entry) for entry in entries}

    def _model(self, entry: Any) -> tuple[int, bool]:
        status, meta = entry.get("status") or {}, entry.get("meta") or {}
        if self.is_router and status["value"] != "loaded":
            n_ctx = meta.get("n_ctx") or meta.get("n_ctx_train") or ASSUMED_CONTEXT
            return n_ctx, True  # which the next discovery corrects
        query = f"?model={quote(entry['id'], safe='')}" if self.is_router else ""
        props = self._client.get(f"/props{query}", headers=JSON).raise_for_status().json()
        caps = props["chat_template_caps"]
        assert type(props["modalities"]["vision"]) is bool
        return props["default_generation_settings"]["n_ctx"], (
            caps.get("supports_tool_calls", False) or caps.get("supports_tools", False)
        )

    def watch(self, lines: Iterator[str]) -> None:
        """Reads /models/sse until a model has changed its state, and discovers again."""
        for line in lines:
            if line.startswith("data:"):
                event = json.loads(line.removeprefix("data:").lstrip())
                assert type(event["model"]) is str
                changed = event["event"] in ("models_reload", "model_remove")
                if changed or event["data"]["status"] in ("loaded", "unloaded"):
                    break
        self.fetch()

    def turn(self, model: str, messages: list[Any], tool_choice: str) -> Any:
        """The parts of a streamed reply: texts, calls by number, the reason of the end, usage."""
        body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
        if self.models[model][1]:
            body |= {"tools": [TOOL], "tool_choice": tool_choice}
        body["stream_options"] = {"include_usage": True}
        text, calls, reason, usage = "", dict[int, Any](), None, None
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                assert type(event["model"]) is str and type(event["object"]) is str, event
                for choice in event["choices"][:1]:
                    assert type(choice["index"]) is int
                    delta = choice["delta"]
                    text += delta.get("content") or ""
                    for call in delta.get("tool_calls") or ():
                        own = calls.setdefault(call["index"], {"id": "", "name": "", "said": ""})
                        own["id"] = call.get("id") or own["id"]
                        function = call.get("function") or {}
                        own["name"] = function.get("name") or own["name"]
                        own["said"] += function.get("arguments") or ""
                    reason = choice.get("finish_reason") or reason
                usage = event.get("usage") or usage
        assert {type(usage[f"{one}_tokens"]) for one in ("prompt", "completion", "total")} == {int}
        return text, calls, reason


def test_zed_finds_the_models_and_gives_them_tools(server: Served):
    def is_unloaded() -> bool:
        entries = server.client.get("/v1/models").json()["data"]
        return all(entry["status"]["value"] == "unloaded" for entry in entries)

    for name in NAMES:  # another test may have used it
        server.client.post("/models/unload", json={"model": name})
    server.until(is_unloaded)
    zed = Zed(server.client)
    zed.fetch()
    assert zed.is_router
    assert zed.models == {name: (ASSUMED_CONTEXT, True) for name in NAMES}
    with server.client.stream("GET", "/models/sse", headers=STREAM) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(":")
        hello = [{"role": "user", "content": "Hello."}]
        zed.turn("org/one", hello, "none")
        zed.watch(lines)
    assert zed.models == {"org/one": (4096, True), "one": (ASSUMED_CONTEXT, True)}


def test_an_agents_turns_in_zed_have_tools(server: Served):
    zed = Zed(server.client)
    zed.fetch()
    system = {"role": "system", "content": "You edit files."}
    parts = [{"type": "text", "text": text} for text in ("Read a file.", "@notes")]
    messages: list[Any] = [system, {"role": "user", "content": parts}]
    _, calls, reason = zed.turn("org/one", messages, "required")
    assert reason == "tool_calls" and calls
    for call in calls.values():
        assert call["id"] and call["name"] == "read_file"
        assert json.loads(call["said"])["path"] in ("a.txt", "b.txt")
    made = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["said"]},
        }
        for call in calls.values()
    ]
    messages.append({"role": "assistant", "content": None, "tool_calls": made})
    for call in calls.values():  # the result is a picture that the model cannot have
        messages.append({"role": "tool", "content": [], "tool_call_id": call["id"]})
    messages.append({"role": "user", "content": "And now?"})
    for choice in ("auto", "none"):
        _, calls, reason = zed.turn("org/one", messages, choice)
        assert reason in ("stop", "length", "tool_calls") and (choice == "auto" or not calls)


def test_one_model_is_found_too(model: Callable[..., Path]):
    with served_here(model(), n_ctx=1024) as server:
        zed = Zed(server.client)
        zed.fetch()
        assert list(zed.models.values()) == [(1024, True)]
