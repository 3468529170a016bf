"""Prompts kept in a folder: not read again by a new server, within a bound, damaged ones passed
over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from engines import KEEPING, greedy_task
from gguf_models import N_PLAIN, write_mamba
from serving import Served, served

from tgr_local.engine import Cancel, Engine, remembered
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server.prompt_cache import ENDING, PromptCache, PromptFolder

LONG = "tell me of the fox and the dog, " * 20
BODY = {"tgr": {"method": "base"}, "temperature": 0, "max_tokens": 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kept"
    path.mkdir()
    return path


def chat(server: Served, text: str, **body: Any) -> tuple[str, int]:
    """The reply, and how many tokens of its prompt were in the cache."""
    answer = server.chat(text, **BODY | body).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{ENDING}"))


# --- through the server ---


def test_a_restarted_server_does_not_read_again(small: Path, tmp_path: Path, folder: Path) -> None:
    options = {"prefix_cells": 4096, "prompt_cache": folder}
    with served(small, tmp_path, **options) as server:
        first, cached = chat(server, LONG)
        assert cached == 0
        server.until(lambda: len(files(folder)) == 1)
        again = chat(server, LONG)
        assert again[0] == first
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    with served(small, tmp_path, **options) as server:
        assert chat(server, LONG) == again
        assert "kept" not in str(server.client.get("/props").json())
    assert files(folder)


def test_a_server_that_stops_keeps_what_it_has_not_written(
    small: Path, tmp_path: Path, folder: Path
) -> None:
    """A text that has grown by less than its half is written when the server stops."""
    options = {"prefix_cells": 4096, "prompt_cache": folder}
    longer = LONG + "and the hen too, " * 25
    with served(small, tmp_path, **options) as server:
        chat(server, LONG)
        server.until(lambda: len(files(folder)) == 1)
        size = files(folder)[0].stat().st_size
        chat(server, longer)
        server.process.terminate()
        server.process.wait()
    assert max(one.stat().st_size for one in files(folder)) > 1.3 * size


def test_wrong_options_are_refused(
    small: Path, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags, message in (
        (["--prompt-cache", str(tmp_path / "absent")], "must be an existing folder"),
        (["--prompt-cache", str(folder), "--prefix-cells", "0"], "prefix_cells is 0; raise"),
    ):
        assert run("serve", "--model", str(small), *flags) != 0
        assert message in capsys.readouterr().err


# --- one cache ---


class Kept:
    """A cache over an engine of its own, and the lines that its owner is told."""

    def __init__(self, model: Path, folder: Path, mib: int = 64, **options: Any) -> None:
        self.lines: list[str] = []
        limits = ServerConfig(prompt_cache=str(folder), prompt_cache_mib=mib)
        self.engine = Engine(model, EngineConfig(**KEEPING | options))
        self.folder = PromptFolder(limits, 1, self.lines.append)
        assert self.engine.model_hash  # is known by now, so the cache looks at once
        self.cache = PromptCache(self.engine, self.folder)
        assert self.cache.has_looked

    def read(self, tokens: list[int]) -> None:
        with self.engine.session(len(tokens) + 1, 1, prompt=tokens) as session:
            sequence = session.sequence()
            session.run([greedy_task(self.engine, sequence, tokens, n_generate=0, reuse=True)])
            session.remember(sequence)

    def keep(self, tokens: list[int]) -> None:
        self.read(tokens)
        self.cache.save(share=1 << 30)

    def restored(self, tokens: list[int]) -> int:
        """Remembered tokens of a prompt after its restore."""
        self.cache.restore([tokens], Cancel())
        known = [one for one, _ in remembered(self.engine)]
        return max((common(one, tokens) for one in known), default=0)

    def close(self) -> None:
        self.cache.close()
        self.engine.close()


def common(a: list[int], b: list[int]) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


@pytest.fixture
def kept(small: Path, folder: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(model: Path = small, **options: Any) -> Kept:
        made.append(Kept(model, folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def text(seed: int, n: int = 400) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, N_PLAIN, n)]


def test_the_longest_beginning_is_loaded(kept: Callable[..., Kept], folder: Path) -> None:
    first = kept()
    first.keep(text(1))
    first.keep(text(2, 300))
    first.keep(text(3, 100))  # too short
    assert len(files(folder)) == 2
    second = kept()
    assert second.restored(text(1)[:350] + text(4)) == 350
    assert second.restored([*text(2, 300), 5]) == 300
    assert second.restored(text(1)[:200] + text(4)) == 200  # remembered by now
    assert second.restored(text(3, 100)) == 0 and not second.lines


def test_a_longer_text_takes_the_place_of_its_beginning(
    kept: Callable[..., Kept], folder: Path
) -> None:
    one = kept()
    one.keep(text(1)[:300])
    (short,) = files(folder)
    one.read(text(1, 400)[:350])
    one.cache.save(share=2)  # too little is new
    assert files(folder) == [short]
    one.keep(text(1)[:300] + text(9, 300))
    (long,) = files(folder)
    assert long != short
    one.cache.save(share=1 << 30)
    assert files(folder) == [long]


def test_files_keep_within_the_bound_and_the_least_recently_used_goes(
    kept: Callable[..., Kept], folder: Path
) -> None:
    one = kept(mib=1)
    one.keep(text(1))
    (first,) = files(folder)
    os.utime(first, (1, 1))
    assert kept(mib=1).restored(text(1)) >= 399
    assert first.stat().st_mtime > 1  # used now

    def keep_more(seeds: range) -> None:
        for i, seed in enumerate(seeds):
            for file in files(folder):
                if file != first:
                    os.utime(file, (100 + i, 100 + i))
            one.keep(text(seed))
            assert sum(file.stat().st_size for file in files(folder)) <= 1 << 20

    keep_more(range(2, 12))
    assert first.exists() and 2 < len(files(folder)) < 6
    os.utime(first, (1, 1))
    keep_more(range(12, 14))
    assert not first.exists() and len(files(folder)) > 2
    one.keep(text(7, 4000))
    assert any("more than the 1 MiB of prompt_cache_mib" in line for line in one.lines)
    foreign = folder / "notes.txt"
    foreign.write_text("mine")
    one.keep(text(200))
    assert foreign.read_text() == "mine"


def test_files_that_cannot_be_used_are_passed_over_with_one_line(
    kept: Callable[..., Kept], folder: Path, model: Callable[..., Path]
) -> None:
    first = kept()
    first.keep(text(1))
    first.close()
    (good,) = files(folder)
    data = good.read_bytes()
    (folder / f"cut{ENDING}").write_bytes(data[:-9])
    (folder / f"text{ENDING}").write_text("hello")
    (folder / f"empty{ENDING}").write_bytes(b"")
    flipped = bytearray(data)
    flipped[-40] ^= 1  # of the values: only the checksum tells
    (folder / f"flipped{ENDING}").write_bytes(flipped)
    (folder / f"folder{ENDING}").mkdir()
    os.mkfifo(folder / f"pipe{ENDING}")
    (folder / f"link{ENDING}").symlink_to("nowhere")
    good.unlink()
    second = kept()
    assert second.restored(text(1)) == 0
    assert second.restored(text(1)) == 0
    lines = sorted(second.lines)
    assert len(lines) == 4 and all(
        line.startswith("warning: a kept prompt is not used: ") and "\n" not in line
        for line in lines
    )
    assert any("checksum" in line for line in lines)
    other = kept(model("llama"))
    assert other.restored(text(1)) == 0  # of another model
    assert not any("flipped" in line for line in other.lines)


def test_a_file_that_another_server_removed_is_no_matter(
    kept: Callable[..., Kept], folder: Path
) -> None:
    first = kept()
    first.keep(text(1))
    second = kept()
    files(folder)[0].unlink()
    assert second.restored(text(1)) == 0 and not second.lines


def test_a_full_cache_leaves_the_file_for_later(kept: Callable[..., Kept], folder: Path) -> None:
    first = kept()
    first.keep(text(1))
    second = kept(n_ctx=512)
    with second.engine.session(500, 1):
        assert second.restored(text(1)) == 0
    assert second.restored(text(1)) >= 399 and not second.lines


def test_a_model_that_cannot_roll_back_takes_whole_texts(tmp_path: Path, folder: Path) -> None:
    model = write_mamba(tmp_path / "mamba.gguf")
    first, second = Kept(model, folder), Kept(model, folder)
    try:
        first.keep(text(1))
        second.close()
        second = Kept(model, folder)
        assert second.restored(text(1)[:390] + text(3)) == 0
        assert second.restored(text(1) + text(3)) == 400
    finally:
        first.close()
        second.close()


def test_what_is_loaded_continues_as_what_was_read(kept: Callable[..., Kept]) -> None:
    first = kept()
    first.keep(text(1))
    second = kept()
    assert second.restored(text(1)) >= 399
    outputs = []
    for one in (first, second):
        with one.engine.session(420, 1, prompt=text(1)) as session:
            task = greedy_task(one.engine, session.sequence(), text(1), reuse=True)
            outputs.append(session.run([task])[0].tokens.tolist())
    assert outputs[0] == outputs[1]
