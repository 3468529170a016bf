"""What the requests of one API key have read, no other key notices: not by the counts of a
response, while it is being read or later, nor in files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import KEEPING
from serving import Asked, served_here

from tgr_local.engine import Engine, SteeredEngine, Task
from tgr_local.engine.prefix_files import remembered
from tgr_local.options.config import EngineConfig

SECRET = "73918264"
KNOWN = "The number of the account that nobody else may know is "
KEYS = ("first", "second", "third")
LONG = "tell me of the fox and the dog, " * 4


@pytest.fixture
def start(small: Path, tmp_path) -> Callable[..., Any]:
    """A server with several keys."""
    (tmp_path / "keys").write_text("\n".join(KEYS))
    options = {"api_key_file": tmp_path / "keys", "prefix_cells": 4096, "method": "base"}
    return lambda **more: served_here(small, **options | more)


def read(server: Asked, key: str, text: str) -> tuple[int, ...]:
    """What a response says of the cache, by all its names."""
    body = {"prompt": text, "max_tokens": 1, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}"}
    answer = server.client.post("/v1/completions", json=body, headers=headers).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    (reply,) = answer["tgr"]["replies"]
    reused = answer["tgr"]["reused_tokens"], reply["reused_tokens"]
    return cached, *reused, answer["timings"]["cache_n"], answer["timings"]["prompt_n"]


def guessed(server: Asked, key: str) -> tuple[str, list[tuple[int, ...]]]:
    """A number that is guessed digit by digit, by the tokens that were in the cache; and all that
    the responses said."""
    digits, said = "", []
    for _ in SECRET:
        found = {}
        for digit in "0123456789":
            counts = read(server, key, f"{KNOWN}{digits}{digit}.")
            said.append(counts)
            found[digit] = counts[0]
        digits += max(found, key=lambda digit: found[digit])
    return digits, said


def test_a_key_cannot_guess_what_another_key_has_sent(start: Callable[..., Any]):
    with start() as server:
        fresh = guessed(server, "first")
        assert fresh[0] != SECRET
        read(server, "second", f"{KNOWN}{SECRET}. Keep it.")
        assert guessed(server, "third") == fresh
        again = read(server, "second", f"{KNOWN}{SECRET}. Keep it.")
        assert again[0] > 20, "its own prompt is not read again"


@pytest.mark.parametrize(
    "options", [{"share_cache": True}, {"api_key": "first", "api_key_file": ""}]
)
def test_a_flag_shares_the_cache_and_so_does_a_single_key(
    start: Callable[..., Any], options: dict[str, Any]
):
    """The attack is one that works: there it finds the number."""
    with start(**options) as server:
        one, other = ("first", "second") if "share_cache" in options else ("first", "first")
        read(server, one, f"{KNOWN}{SECRET}. Keep it.")
        assert guessed(server, other)[0] == SECRET


def test_kept_prompts_serve_the_key_that_they_were_read_for(start: Callable[..., Any], tmp_path):
    folder, text = tmp_path / "kept", LONG * 5
    folder.mkdir()
    with start(prompt_cache=folder) as server:
        read(server, "first", text)
        server.until(lambda: len(list(folder.glob("*.prompt"))) == 1)
        assert read(server, "second", text)[0] == 0
        server.until(lambda: len(list(folder.glob("*.prompt"))) == 2)
    with start(prompt_cache=folder) as server:
        assert read(server, "third", text)[0] == 0
        assert read(server, "first", text)[0] > 400 and read(server, "second", text)[0] > 400


# ---- the engine ----


@pytest.fixture
def views(small: Path) -> Any:
    with Engine(small, EngineConfig(**KEEPING)) as engine:
        yield engine, SteeredEngine(engine, owner=b"one"), SteeredEngine(engine, owner=b"two")


def test_owners_share_nothing_while_they_read(views: tuple[Engine, ...]):
    """Neither with a sequence that is open, nor in one batch, nor by a reservation."""
    engine, one, two = views
    text = engine.tokenize(LONG)

    def reads(view: Engine) -> int:
        with view.session(len(text) + 8, 1, prompt=text) as session:
            task = Task(session.sequence(), text, n_generate=1, reuse=True)
            return int(session.run([task])[0].n_reused)

    with one.session(len(text) + 8, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, text)])
        assert reads(two) == reads(engine) == 0 < reads(one)
    found: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda i=i, view=view: found.update({i: reads(view)}))
        for i, view in enumerate(views)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(found.values()) == [0] * 3, "nothing is remembered, and each read alone"


def test_owners_share_nothing_that_is_remembered(views: tuple[Engine, ...]):
    engine, one, two = views
    vectors = np.zeros((engine.n_layer, engine.n_embd), np.float32)
    steered = SteeredEngine(one, vectors)
    every = [engine, one, two, steered, SteeredEngine(two, vectors)]
    assert len({view.prefix_digest for view in every}) == len(every)
    assert engine.prefix_digest == engine.digest == one.digest == b""
    text = engine.tokenize(LONG)

    def reads(view: Engine) -> int:
        with view.session(len(text) + 8, 1, prompt=text) as session:
            sequence = session.sequence()
            n_reused = session.run([Task(sequence, text, n_generate=1, reuse=True)])[0].n_reused
            session.remember(sequence)
            return int(n_reused)

    assert [reads(view) for view in every] == [0] * len(every)
    assert all(reads(view) > 0 for view in every)
    assert {digest for _, digest in remembered(engine)} == {view.prefix_digest for view in every}
