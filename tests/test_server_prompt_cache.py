"""Prompts kept in a folder: not read again by a new server, within a bound, damaged ones passed
over."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command_line import run
from engines import KEEPING, greedy_task
from gguf_models import N_PLAIN, write_mamba
from serving import served, served_here
from surroundings import HANG

from tgr_local.engine import Cancel, Engine
from tgr_local.engine.prefix_files import load_prefix, remembered
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server import prompt_cache
from tgr_local.server.loaded import LoadedModel
from tgr_local.server.prompt_cache import ENDING, PromptCache, PromptFolder
from tgr_local.system.errors import CancelledError, ModelError

LONG = "tell me of the fox and the dog, " * 20


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "kept"
    path.mkdir()
    return path


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{ENDING}"))


# --- through the server ---


def test_a_restarted_server_does_not_read_again(small: Path, folder: Path):
    options = {"prefix_cells": 4096, "prompt_cache": folder}
    with served_here(small, **options) as server:
        first, cached = server.cached_chat(LONG)
        assert cached == 0
        server.until(lambda: len(files(folder)) == 1)
        again = server.cached_chat(LONG)
        assert again[0] == first
    (file,) = files(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    with served_here(small, **options) as server:
        assert server.cached_chat(LONG) == again
        assert "kept" not in str(server.client.get("/props").json())
    assert files(folder)


def test_a_server_that_stops_keeps_what_it_has_not_written(small: Path, tmp_path, folder: Path):
    """A text that has grown by less than its half is written when the server stops."""
    options = {"prefix_cells": 4096, "prompt_cache": folder}
    longer = LONG + "and the hen too, " * 25
    with served(small, tmp_path, **options) as server:
        server.cached_chat(LONG)
        server.until(lambda: len(files(folder)) == 1)
        size = files(folder)[0].stat().st_size
        server.cached_chat(longer)
        server.process.terminate()
        server.process.wait()
    assert max(one.stat().st_size for one in files(folder)) > 1.3 * size


def test_wrong_options_are_refused(small: Path, tmp_path, folder: Path, capsys):
    for flags, message in (
        (["--prompt-cache", str(tmp_path / "absent")], "must be an existing folder"),
        (["--prompt-cache", str(folder), "--prefix-cells", "0"], "prefix_cells is 0; raise"),
    ):
        assert run("serve", "--model", str(small), *flags) != 0
        assert message in capsys.readouterr().err


# --- one cache ---


class Kept:
    """A cache over an engine of its own, and the lines that its owner is told."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        mib: int = 64,
        hashed: bool = True,
        **options: Any,
    ) -> None:
        self.lines: list[str] = []
        limits = ServerConfig(prompt_cache=str(folder), prompt_cache_mib=mib)
        self.engine = Engine(model, EngineConfig(**KEEPING | options))
        self.folder = PromptFolder(limits, 1, self.lines.append)
        if hashed:
            assert self.engine.model_hash  # is known by now, so the cache looks at once
        self.cache = PromptCache(self.engine, self.folder)
        assert self.cache.has_looked() or not hashed

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


@pytest.fixture
def filled(kept: Callable[..., Kept]) -> Callable[..., Kept]:
    """The same with a folder that has the first text."""
    kept().keep(text(1))
    return kept


def text(seed: int, n: int = 400) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(0, N_PLAIN, n)]


def test_the_longest_beginning_is_loaded(kept: Callable[..., Kept], folder: Path):
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


def test_a_longer_text_takes_the_place_of_its_beginning(kept: Callable[..., Kept], folder: Path):
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
):
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
):
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


def test_a_file_that_another_server_removed_is_no_matter(filled: Callable[..., Kept], folder: Path):
    second = filled()
    files(folder)[0].unlink()
    assert second.restored(text(1)) == 0 and not second.lines


def test_a_full_cache_leaves_the_file_for_later(
    filled: Callable[..., Kept], folder: Path, monkeypatch
):
    """The file is read whole before that is known, so it is not tried again at once."""
    second = filled(n_ctx=512)
    tried: list[Path] = []

    def counted(engine: Engine, path: Path, **options: Any) -> Any:
        tried.append(path)
        return load_prefix(engine, path, **options)

    monkeypatch.setattr(prompt_cache, "load_prefix", counted)
    with second.engine.session(500, 1):
        for _ in range(3):
            assert second.restored(text(1)) == 0
        assert len(tried) == 1
    monkeypatch.setattr(prompt_cache, "PAUSE_SECONDS", 0.0)
    assert second.restored(text(1)) >= 399 and not second.lines


def test_a_request_that_waits_for_the_load_of_another_can_be_cancelled(
    filled: Callable[..., Kept], monkeypatch
):
    second, cancel = filled(), Cancel()
    begun, done = threading.Event(), threading.Event()

    def waits(*_: Any, **__: Any) -> None:
        begun.set()
        done.wait(HANG)

    monkeypatch.setattr(prompt_cache, "load_prefix", waits)
    other = threading.Thread(target=second.restored, args=(text(1),))
    other.start()
    assert begun.wait(HANG)
    threading.Timer(0.2, cancel.cancel).start()
    with pytest.raises(CancelledError, match="waiting for its turn"):
        second.cache.restore([text(1)], cancel)
    done.set()
    other.join()


def test_a_prompt_in_use_is_not_the_oldest(kept: Callable[..., Kept], folder: Path):
    one = kept()
    one.keep(text(1))
    (file,) = files(folder)
    os.utime(file, (1, 1))
    assert one.restored(text(1)) == 400  # from memory
    assert file.stat().st_mtime > 1


def test_a_removed_file_is_written_again_when_its_text_is_used_again(
    kept: Callable[..., Kept], folder: Path
):
    one = kept()
    one.keep(text(1))
    for file in files(folder):
        file.unlink()
    one.cache.save(share=1 << 30)
    assert not files(folder)  # or two texts would push each other out again and again
    assert one.restored(text(1)) == 400
    one.cache.save(share=1 << 30)
    assert len(files(folder)) == 1


def test_the_second_best_file_is_loaded_where_the_best_is_gone(
    kept: Callable[..., Kept], folder: Path
):
    first = kept()
    first.keep(text(1)[:300] + text(2, 300))
    (best,) = files(folder)
    first.keep(text(1)[:300] + text(3, 300))
    second = kept()
    best.unlink()
    assert second.restored(text(1)[:300] + text(2, 300)) == 300


def test_a_file_is_read_only_where_a_good_part_of_it_is_of_use(
    kept: Callable[..., Kept], folder: Path
):
    first = kept()
    first.keep(text(1, 2000))
    second = kept()
    assert second.restored(text(1, 2000)[:300] + text(4)) == 0
    assert second.restored(text(1, 2000)[:600] + text(4)) == 600
    first.keep(text(1, 2000)[:300] + text(5, 300))  # which the long file does not stand for
    first.keep(text(1, 2000)[:300] + text(6, 600))
    third = kept()
    assert third.restored(text(1, 2000)[:300] + text(4)) == 300
    assert [len(known) for known, _ in remembered(third.engine)] == [600]  # the shortest


def test_what_a_longer_text_replaces_is_not_counted(kept: Callable[..., Kept], folder: Path):
    one = kept(mib=1)
    cell = one.engine.cell_bytes + 4 * one.engine.n_layer + 4
    n = (1 << 20) // cell // 8 * 3  # 3/8 of the bound
    one.keep(text(1, 512))
    (other,) = files(folder)
    one.keep(text(2, n))
    one.keep(text(2, n + 300))
    assert other in files(folder) and len(files(folder)) == 2
    assert sum(file.stat().st_size for file in files(folder)) <= 1 << 20


# --- what fails ---


def writers() -> int:
    """Threads that write files."""
    return [thread.name for thread in threading.enumerate()].count("prompt-cache")


def test_a_shortage_of_memory_ends_nothing(filled: Callable[..., Kept], folder: Path, monkeypatch):
    second = filled()

    fails = Mock(side_effect=MemoryError)
    with monkeypatch.context() as patch:
        patch.setattr(prompt_cache, "load_prefix", fails)
        patch.setattr(prompt_cache, "save_prefix", fails)
        assert second.restored(text(1)) == 0 and not second.lines
        second.keep(text(2))
        assert ["no more memory" in line for line in second.lines] == [True]
        patch.setattr(prompt_cache, "saved_tokens", fails)
        third = filled()
    assert third.restored(text(1)) == 0
    assert writers() == 3 and len(files(folder)) == 1


def test_another_failure_of_the_engine_leaves_the_request_alone(
    filled: Callable[..., Kept], monkeypatch
):
    second = filled()

    monkeypatch.setattr(prompt_cache, "load_prefix", Mock(side_effect=ModelError("broken")))
    assert second.restored(text(1)) == 0
    assert second.lines == ["warning: a kept prompt is not used: broken"]


def test_a_model_leaves_and_shrinks_even_if_its_prompts_cannot_be_kept():
    done: list[str] = []

    def fails() -> None:
        raise RuntimeError("broken")

    model: Any = SimpleNamespace(
        prompts=SimpleNamespace(close=fails, save=fails),
        engine=SimpleNamespace(
            close=lambda: done.append("closed"), shrink_cache=lambda n: done.append(f"{n} cells")
        ),
        _n_cells=7,
    )
    for action in (LoadedModel.rest, LoadedModel.close):
        with pytest.raises(RuntimeError, match="broken"):
            action(model)
    assert done == ["7 cells", "closed"]


def test_nothing_is_kept_of_a_model_whose_file_was_replaced(
    small: Path, kept: Callable[..., Kept], tmp_path, folder: Path
):
    model = tmp_path / "model.gguf"
    shutil.copy(small, model)
    one = kept(model, hashed=False)
    model.touch()
    one.keep(text(1))
    assert not files(folder) and writers() == 1
    assert one.lines == [
        f"a prompt is not kept: {model} was replaced after it was loaded; load the model again"
    ]


def test_a_model_that_leaves_is_not_hashed_for_it(
    small: Path, kept: Callable[..., Kept], tmp_path, folder: Path
):
    model = tmp_path / "model.gguf"
    shutil.copy(small, model)
    one = kept(model, hashed=False)
    one.read(text(1))
    one.cache.close()
    assert not files(folder) and "model_hash" not in one.engine.__dict__


def test_a_request_that_looks_for_files_can_be_cancelled(kept: Callable[..., Kept], monkeypatch):
    one, cancel, looked = kept(), Cancel(), list[Path]()
    one.keep(text(1))
    one.keep(text(2))

    def looks(_: Engine, path: Path, digest: bytes) -> None:
        looked.append(path)
        cancel.cancel()

    monkeypatch.setattr(prompt_cache, "saved_tokens", looks)
    with pytest.raises(CancelledError, match="were looked for"):
        one.cache.restore([text(1)], cancel, b"another owner")
    assert len(looked) == 1 and not one.cache.has_looked(b"another owner")


# --- other models ---


def test_a_model_that_cannot_roll_back_takes_whole_texts(tmp_path, folder: Path):
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


def test_what_is_loaded_continues_as_what_was_read(kept: Callable[..., Kept]):
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
