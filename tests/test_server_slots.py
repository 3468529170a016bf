"""llama-server's slots: what a slot read is saved, restored by a new server, and not read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from serving import Served, served

from tgr_local.options.config import ServerConfig
from tgr_local.server.slots import SlotFiles

LONG = "tell me of the fox and the dog, " * 4
Start = Callable[..., Any]


@pytest.fixture
def start(model: Callable[..., Path], tmp_path) -> Start:
    """A server whose slots are files in `tmp_path`/slots."""
    folder = tmp_path / "slots"
    folder.mkdir(exist_ok=True)
    options = {"slot_save_path": folder, "prefix_cells": 4096}
    return lambda **more: served(model(), tmp_path, **options | more)


@pytest.fixture(scope="module")
def plain(model: Callable[..., Path], tmp_path_factory) -> Iterator[Served]:
    with served(model(), tmp_path_factory.mktemp("plain"), max_running=3) as server:
        yield server


def act(server: Served, action: str, slot: Any = 0, **body: Any) -> Any:
    return server.client.post(f"/slots/{slot}?action={action}", content=json.dumps(body))


def test_a_restarted_server_continues_without_reading_again(start: Start, tmp_path):
    with start() as server:
        first, cached = server.cached_chat(LONG)
        assert cached == 0
        again = server.cached_chat(LONG)
        saved = act(server, "save", filename="fox.bin").json()
    assert again[0] == first
    file = tmp_path / "slots" / "fox.bin"
    assert saved["id_slot"] == 0 and saved["filename"] == "fox.bin"
    assert saved["n_saved"] >= again[1] > 50
    assert saved["n_written"] == file.stat().st_size and file.stat().st_mode & 0o777 == 0o600
    assert saved["timings"]["save_ms"] > 0
    with start() as server:
        restored = act(server, "restore", 2, filename="fox.bin").json()
        assert restored["n_restored"] == saved["n_saved"]
        assert restored["n_read"] == saved["n_written"]
        assert (restored["id_slot"], restored["filename"]) == (2, "fox.bin")
        assert restored["timings"]["restore_ms"] > 0
        assert server.cached_chat(LONG) == again
        shown = server.client.get("/slots").json()
        assert [one["id"] for one in shown] == list(range(8))
        assert shown[2]["n_prompt_tokens"] == saved["n_saved"]
        erased = act(server, "erase", 2).json()
        assert erased == {"id_slot": 2, "n_erased": saved["n_saved"]}
        assert act(server, "erase", 2).json()["n_erased"] == 0


def test_id_slot_chooses_the_text(start: Start):
    with start() as server:
        texts = {i: f"{i} " + LONG[: 60 + 30 * i] for i in (1, 3)}
        for i, text in texts.items():
            server.cached_chat(text, id_slot=i)
        server.cached_chat("last " + LONG, id_slot=-1)
        saved = {i: act(server, "save", i, filename=str(i)).json()["n_saved"] for i in (0, 1, 3)}
        assert saved[1] < saved[3] < saved[0], "a slot without a text is the latest request"
        for wrong in (8, -2, 10**30, "1", 1.5):
            assert server.chat("x", id_slot=wrong).status_code == 400


def test_what_cannot_be_saved_or_restored_is_refused(start: Start, tmp_path):
    folder = tmp_path / "slots"
    with start(slot_save_mib=1) as server:
        nothing = act(server, "save", filename="x")
        assert nothing.status_code == 400 and "remembered" in nothing.text
        server.cached_chat(LONG)
        names = ("", ".", "..", ".x", "a/b", "../x", "/etc/passwd", "a\\b", "a\0b", "a\nb", "c:x",
                 "x..y", "é" * 101, "x" * 201, "\ud800")  # fmt: skip
        for action in ("save", "restore"):
            for name in names:
                refused = act(server, action, filename=name)
                assert refused.status_code == 400, name
            for body in ({}, {"filename": 5}, {"filename": None}, {"filename": "x", "more": 1}):
                assert act(server, action, **body).status_code == 400
        assert list(folder.iterdir()) == []
        (folder / "other.txt").write_text("precious")
        (folder / "folder").mkdir()
        for action in ("save", "restore"):
            for name in ("other.txt", "folder"):
                refused = act(server, action, filename=name)
                assert refused.status_code == 400 and "not a" in refused.text
                assert str(tmp_path) not in refused.text, "clients do not learn the folder"
        absent = act(server, "restore", filename="absent")
        assert absent.status_code == 400 and str(tmp_path) not in absent.text
        assert (folder / "other.txt").read_text() == "precious"
        assert act(server, "save", filename="good").status_code == 200
        content = (folder / "good").read_bytes()
        (folder / "good").write_bytes(content[:-1])
        damaged = act(server, "restore", filename="good")
        assert damaged.status_code == 400 and "damaged" in damaged.text
        (folder / "large").write_bytes(bytes(1 << 20))
        full = act(server, "save", filename="more")
        assert full.status_code == 400 and "MiB" in full.text
        assert not (folder / "more").exists()
        assert server.client.get("/health").status_code == 200


def test_slots_are_refused_in_llama_servers_words(plain: Served):
    refused = act(plain, "save", filename="x")
    assert refused.status_code == 501
    error = refused.json()["error"]
    assert error["type"] == "not_supported_error"
    assert error["message"].startswith("This server does not support slots action")
    assert plain.client.get("/slots").status_code == 200
    assert plain.client.get("/slots?fail_on_no_slot=1").status_code == 200
    assert "slot_save_path" not in plain.client.get("/props").json()["limits"]


def test_keys_numbers_and_actions_are_checked(start: Start):
    with start(max_running=3, api_key="secret") as server:
        assert server.client.get("/slots").status_code == 401
        assert act(server, "erase").status_code == 401
        server.client.headers["Authorization"] = "Bearer secret"
        for slot in (3, -1, "x", "1.0", "9" * 400, "²"):
            assert act(server, "erase", slot).status_code == 400, slot
        for action in ("", "SAVE", "drop"):
            assert act(server, action).status_code == 400
        assert server.client.post("/slots/0?action=erase").status_code == 200
        assert len(server.client.get("/slots").json()) == 3


def test_the_folder_must_exist(model: Callable[..., Path], tmp_path, capsys):
    flags = ["--model", str(model()), "--slot-save-path", str(tmp_path / "absent")]
    assert run("serve", *flags) == 2
    assert "existing folder" in capsys.readouterr().err


def test_the_folder_may_be_in_the_home_folder(tmp_path, monkeypatch):
    """A settings file has no shell that replaces ~, and the other folders of `serve` take it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "slots").mkdir()
    assert SlotFiles(ServerConfig(slot_save_path="~/slots")).folder == tmp_path / "slots"
