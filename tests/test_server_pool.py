"""Several models in one server, the parts alone: the names, which model is in memory, the room."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from surroundings import HANG

from tgr_local.engine import Cancel, FreeMemory, MemoryNeed, memory_need
from tgr_local.methods import METHODS
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.server.catalog import Catalog
from tgr_local.server.errors import ApiError
from tgr_local.server.jobs import Jobs, Put
from tgr_local.server.lease import Lease
from tgr_local.server.pool import Pool
from tgr_local.system.errors import CancelledError, ModelError

# ---- names ----


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")


def catalog(folder: Path, *alias: str, first: Path | None = None, **options: Any) -> Catalog:
    return Catalog(ServerConfig(models_dir=str(folder), alias=alias), first, **options)


def test_names_are_those_of_the_files(tmp_path):
    folder = tmp_path / "models"
    touch(
        folder, "b.gguf", "a.gguf", "notes.txt", ".hidden.gguf", ".gguf", "mmproj-a.gguf",
        "org/repo/c-Q4.gguf", "org/repo/a.gguf", "x/y/z/deep.gguf", "x/y/z/w/too-deep.gguf",
        *(f"big/big-0000{i}-of-00003.gguf" for i in (1, 2, 3)),
        *(f"part-0000{i}-of-00003.gguf" for i in (1, 3)),
    )  # fmt: skip
    (folder / "dir.gguf").mkdir()
    found = catalog(folder)
    assert list(found.files) == ["a", "b", "big", "org/repo/a", "c-Q4", "deep"]
    assert found.files["big"].name == "big-00001-of-00003.gguf"
    for name, model in {
        "a": "a", "a.gguf": "a", "org/repo/a": "org/repo/a", "org/repo/a.gguf": "org/repo/a",
        "org/repo/c-Q4": "c-Q4", "big/big": "big", "big": "big",
    }.items():  # fmt: skip
        assert found.choose(name) == (model, None)
    assert found.choose("org/repo/a:markov") == ("org/repo/a", METHODS["markov"])


def test_no_name_leads_out_of_the_folder(tmp_path):
    folder = tmp_path / "models"
    touch(folder, "a.gguf")
    touch(tmp_path, "secret.gguf", "elsewhere/b.gguf", "elsewhere/s-00002-of-00002.gguf")
    touch(folder, "s-00001-of-00002.gguf", "sub/inside.gguf")
    for link, target in {
        "out.gguf": "../secret.gguf", "far.gguf": str(tmp_path / "secret.gguf"),
        "away": "../elsewhere", "circle.gguf": "circle.gguf", "gone.gguf": "nothing.gguf",
        "s-00002-of-00002.gguf": "../elsewhere/s-00002-of-00002.gguf",
        "in.gguf": "sub/inside.gguf",
    }.items():  # fmt: skip
        (folder / link).symlink_to(target)
    found = catalog(folder)
    assert list(found.files) == ["a", "in", "inside"]
    assert found.n_outside == 4  # out, far, away, and the second part of s
    for name in (
        "../secret", "../secret.gguf", str(tmp_path / "secret.gguf"), "out", "away/b", "/etc",
        "a\0", "\0", "a/../../secret", "sub/../../secret", "~", "a" * 1_000_000, "/" * 1000, "s",
        "*", "\ud800", "sub//inside", "./a", "far", "circle", "gone",
    ):  # fmt: skip
        with pytest.raises(ApiError) as caught:
            found.choose(name)
        assert caught.value.status == 404 and len(caught.value.message) < 300
    (folder / "a.gguf").unlink()
    (folder / "a.gguf").symlink_to("../secret.gguf")  # since the scan
    with pytest.raises(ModelError, match="is gone"):
        found.path("a")


def test_files_come_and_go(tmp_path):
    now = [0.0]
    touch(tmp_path, "a.gguf")
    found = catalog(tmp_path, clock=lambda: now[0])
    touch(tmp_path, "b.gguf")
    (tmp_path / "a.gguf").unlink()
    found.scan()
    assert list(found.files) == ["a"]  # a moment later
    now[0] = 2.0
    found.scan()
    assert list(found.files) == ["b"]
    (tmp_path / "b.gguf").unlink()
    now[0] = 4.0
    found.scan()
    assert not found.files
    with pytest.raises(ApiError, match="has none now"):
        found.choose("b")


def test_aliases_and_the_default(tmp_path):
    folder = tmp_path / "models"
    touch(folder, "a.gguf", "b.gguf")
    found = catalog(folder, "gpt-*=b", "mine=a", "b=a", "lost=c")
    for name, model in {"gpt-4o": "b", "mine": "a", "b": "b", "gpt-4o:base": "b"}.items():
        assert found.choose(name)[0] == model
    assert found.choose("gpt-4o:base")[1] is METHODS["base"]
    for unknown in ("gpt", "lost", "claude", "claude:base"):
        with pytest.raises(ApiError, match="name one of a, b"):
            found.choose(unknown)
    with pytest.raises(ApiError, match="unknown method"):
        found.choose("a:bass")
    for missing in (None, ""):
        with pytest.raises(ApiError, match="model is missing"):
            found.choose(missing)
    with pytest.raises(ApiError, match="must be a text"):
        found.choose(["a"])
    assert catalog(folder, "*=b").choose("claude-opus") == ("b", None)
    assert catalog(folder, "*=b").choose(None) == ("b", None)
    assert catalog(folder, first=folder / "b.gguf").choose(None) == ("b", None)
    (folder / "a.gguf").unlink()
    assert catalog(folder).choose(None) == ("b", None)


def test_the_model_of_the_start_may_lie_elsewhere(tmp_path):
    folder = tmp_path / "models"
    touch(folder, "a.gguf", "b.gguf")
    touch(tmp_path, "a.gguf")
    found = catalog(folder, "mine", first=tmp_path / "a.gguf")
    assert list(found.files) == ["mine", "a", "b"] and found.path("mine") == tmp_path / "a.gguf"
    assert list(catalog(folder, "mine", first=folder / "a.gguf").files) == ["mine", "b"]
    assert list(catalog(folder, first=tmp_path / "a.gguf").files) == ["a", "a.gguf", "b"]


def test_wrong_options_of_models_are_refused(tmp_path):
    touch(tmp_path, "a.gguf")
    first = tmp_path / "a.gguf"
    for limits, path, why in (
        (ServerConfig(models_dir=str(tmp_path / "no")), None, "must be an existing folder"),
        (ServerConfig(models_dir=str(tmp_path), alias=("a",)), None, "must be NAME=MODEL"),
        (ServerConfig(models_dir=str(tmp_path), alias=("a=",)), None, "must be NAME=MODEL"),
        (ServerConfig(alias=("b=a",)), first, "needs --models-dir"),
        (ServerConfig(alias=("b", "c")), first, "leave one out"),
        (ServerConfig(), None, "no model is named"),
    ):
        with pytest.raises(ValueError, match=why):
            Catalog(limits, path)


# ---- the pool ----


class Made:
    """A loaded model that is none."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self._closed = name, closed
        self.rested = 0.0

    def close(self) -> None:
        self._closed.append(self.name)

    def rest(self) -> None:
        self.rested = time.monotonic()

    def interleaved_bytes(self) -> int:
        return 0


class Loads:
    """Loads them; `hold` keeps the next load from ending."""

    def __init__(self, size: int) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self.closed: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.go = threading.Event()
        self.go.set()
        self._size = size

    def path(self, name: str) -> Path:
        return Path("/models") / f"{name}.gguf"

    def needed(self, path: Path) -> MemoryNeed:
        if path.stem.startswith("damaged"):
            raise ModelError(f"{path} is damaged")
        return MemoryNeed(self._size, 0)

    def fits(self, need: MemoryNeed, loaded: list[MemoryNeed]) -> bool:
        return need.ram + sum(other.ram for other in loaded) <= 100

    def load(self, name: str, path: Path, cancel: Cancel) -> Made:
        self.begun.append(name)
        while not self.go.wait(0.005):
            if cancel.is_set():
                raise CancelledError("cancelled")
        if errors := self.errors.get(name):
            raise errors.pop(0)
        return Made(name, self.closed)


Scene = Callable[[Loads, Pool], Coroutine[Any, Any, None]]


def played(most: int = 1, size: int = 1, **options: Any) -> Callable[[Scene], Callable[[], None]]:
    """A test that is a scene with a pool, whose clock shows `Loads.now`."""

    def test_of(scene: Scene) -> Callable[[], None]:
        async def whole() -> None:
            loads = Loads(size)
            pool: Pool = Pool(loads, most, clock=lambda: loads.now, **options)
            await asyncio.wait_for(scene(loads, pool), HANG)
            await pool.close()

        def test() -> None:
            asyncio.run(whole())

        return test

    return test_of


async def granted(*leases: Lease) -> None:
    """Waits until all are decided."""
    for lease in leases:
        future = asyncio.get_running_loop().create_future()
        lease.then(lambda future=future: future.done() or future.set_result(None))
        await future


async def until(holds: Callable[[], object]) -> None:
    """Waits until something holds."""
    while not holds():
        await asyncio.sleep(0.002)


@played()
async def test_a_model_in_use_is_not_unloaded(loads: Loads, pool: Pool):
    first = pool.lease("a")
    await granted(first)
    others = [pool.lease("b"), pool.lease("b")]
    late = pool.lease("a")  # came after b, so b goes first
    await asyncio.sleep(0.05)
    assert not loads.closed and loads.begun == ["a"]
    assert not any(lease.is_decided for lease in (*others, late))
    assert pool.unload("a") and not pool.unload("c")
    await asyncio.sleep(0.02)
    assert not loads.closed and first.model.name == "a"
    first.end()
    await granted(*others)
    assert loads.closed == ["a"] and others[0].model is others[1].model
    assert not late.is_decided
    others[0].end()
    await asyncio.sleep(0.02)
    assert loads.closed == ["a"]
    others[1].end()
    await granted(late)
    assert loads.closed == ["a", "b"] and late.model.name == "a"
    late.end()
    assert loads.begun == ["a", "b", "a"]


@played()
async def test_nobody_starves_and_those_who_wait_for_one_model_begin_together(
    loads: Loads, pool: Pool
):
    first = pool.lease("a")
    await granted(first)
    order: list[str] = []
    leases = [pool.lease("ba"[i % 2]) for i in range(10)]
    for lease in leases:
        lease.then(lambda lease=lease: order.append(lease.pooled.name))
    first.end()
    for name in "ba":
        together = [lease for lease in leases if lease.pooled.name == name]
        await granted(*together)
        assert order[-1] == name
        for lease in together:
            lease.end()
    assert order == ["b"] * 5 + ["a"] * 5
    assert loads.begun == ["a", "b", "a"]


@played()
async def test_a_steady_stream_for_one_model_does_not_keep_another_out(loads: Loads, pool: Pool):
    running = pool.lease("a")
    await granted(running)
    other = pool.lease("b")
    for _ in range(20):  # each comes before the last one ends
        following = pool.lease("a")
        running.end()
        running = following
        await asyncio.sleep(0.002)
    await granted(other)
    other.end()
    await granted(running)
    running.end()
    assert loads.begun == ["a", "b", "a"]


@played(most=2)
async def test_the_least_recently_used_idle_model_goes_first(loads: Loads, pool: Pool):
    async def use(name: str) -> None:
        loads.now += 1
        lease = pool.lease(name)
        await granted(lease)
        lease.end()

    for name in "abac":
        await use(name)
    assert loads.closed == ["b"]
    busy = pool.lease("a")
    await granted(busy)
    await use("d")  # c was used later than a, but nobody uses it now
    assert loads.closed == ["b", "c"] and {one.name for one in pool.loaded} == {"a", "d"}
    assert pool.latest() is pool.model("a")
    busy.end()


@played(most=5, size=40)
async def test_memory_bounds_the_models_too(loads: Loads, pool: Pool):
    for name in "abc":
        lease = pool.lease(name)
        await granted(lease)
        lease.end()
    assert loads.closed == ["a"] and len(pool.loaded) == 2
    loads.errors["d"] = [ModelError("there is not enough memory for d")]
    lease = pool.lease("d")
    await granted(lease)
    assert lease.model.name == "d" and loads.closed == ["a", "b", "c"]
    lease.end()
    assert loads.begun == ["a", "b", "c", "d", "d"]


@played()
async def test_a_failed_load_answers_all_and_the_next_request_tries_again(loads: Loads, pool: Pool):
    loads.errors["a"] = [ModelError("/models/a.gguf is not what it should be")]
    leases = [pool.lease("a") for _ in range(3)]
    await granted(*leases)
    for lease in leases:
        assert lease.error and lease.error.status == 400
        assert lease.error.message.endswith("cannot be loaded: a.gguf is not what it should be")
        lease.end()
    assert pool.failure("a") == "a.gguf is not what it should be"
    lease = pool.lease("a")
    await granted(lease)
    assert lease.error is None and pool.failure("a") is None and pool.status("a") == "loaded"
    lease.end()
    damaged = pool.lease("damaged")  # nothing is unloaded for its sake
    await granted(damaged)
    assert damaged.error and "is damaged" in damaged.error.message
    assert not loads.closed and [one.name for one in pool.loaded] == ["a"]


@played(idle_seconds=1000)
async def test_idle_models_are_unloaded_by_the_clock(loads: Loads, pool: Pool):
    lease = pool.lease("a")
    await granted(lease)
    for now, ends in ((5000.0, True), (5999.0, False)):  # in use, and idle for too short a time
        loads.now = now
        pool.look()
        await asyncio.sleep(0.01)
        assert not loads.closed
        if ends:
            lease.end()
    loads.now += 1
    pool.look()
    await until(lambda: loads.closed == ["a"])
    assert not pool.loaded and pool.status("a") == "unloaded"
    again = pool.lease("a")
    await granted(again)
    again.end()
    assert loads.begun == ["a", "a"]


@played(rest_seconds=0.05)
async def test_a_model_rests_when_nobody_has_used_it_for_a_while(loads: Loads, pool: Pool):
    first, second = pool.lease("a"), pool.lease("a")
    await granted(first, second)
    first.end()
    await asyncio.sleep(0.1)
    assert not pool.loaded[0].rested  # in use
    second.end()
    third = pool.lease("a")
    await asyncio.sleep(0.1)
    assert not pool.loaded[0].rested  # in use again
    third.end()
    await until(lambda: pool.loaded[0].rested)


@played()
async def test_a_load_that_nobody_waits_for_gives_way(loads: Loads, pool: Pool):
    loads.go.clear()
    left, other = pool.lease("a"), pool.lease("b")
    await until(lambda: loads.begun == ["a"])
    assert pool.status("a") == "loading"
    left.end()
    await until(lambda: loads.begun == ["a", "b"])
    other.end()  # nobody else waits: the load goes on
    loads.go.set()
    await until(lambda: pool.loaded)
    assert pool.status("b") == "loaded" and pool.status("a") == "unloaded"
    running, waiting, late = pool.lease("b"), pool.lease("c"), pool.lease("b")
    await asyncio.sleep(0.02)
    assert not late.is_decided
    waiting.end()  # so b takes requests again
    await granted(late)
    running.end()
    late.end()
    assert loads.begun == ["a", "b"]


@played()
async def test_an_unload_ends_a_load_that_no_request_waits_for(loads: Loads, pool: Pool):
    loads.go.clear()
    pool.want("a")
    await until(lambda: loads.begun == ["a"])
    assert pool.unload("a")
    await until(lambda: pool.status("a") == "unloaded")
    pool.want("b")
    lease = pool.lease("b")
    await until(lambda: loads.begun == ["a", "b"])
    assert pool.unload("b")
    loads.go.set()
    await granted(lease)  # a request is served before the unload
    assert lease.model.name == "b" and not loads.closed
    lease.end()
    await until(lambda: loads.closed == ["b"])
    pool.want("c")
    assert pool.unload("c")  # had not begun
    await asyncio.sleep(0.02)
    pool.want("d")
    await until(lambda: pool.status("d") == "loaded")
    assert loads.begun == ["a", "b", "d"]


@played()
async def test_a_pool_closes_in_the_middle_of_a_load(loads: Loads, pool: Pool):
    loads.go.clear()
    lease = pool.lease("a")
    await until(lambda: loads.begun == ["a"])
    await pool.close()
    assert not lease.is_decided
    with pytest.raises(ApiError, match="shutting down"):
        pool.lease("b")


@played()
async def test_a_job_waits_for_its_lease_and_ends_it(loads: Loads, pool: Pool):
    jobs = Jobs(1, 2, 0)
    loads.go.clear()
    leases = [pool.lease("a") for _ in range(3)]

    def work(cancel: Cancel, put: Put) -> None:
        put(leases[0].model.name)

    first, second, third = (jobs.submit(work, lease) for lease in leases)
    assert (jobs.running, jobs.waiting) == (0, 3)
    assert await first.first(0.02) is None
    second.end(ApiError(499, "gone"))
    assert jobs.waiting == 2
    with pytest.raises(ApiError, match="gone"):
        await second.first(HANG)
    jobs.submit(lambda cancel, put: put("other")).end(ApiError(499, "gone"))
    loads.go.set()
    assert await first.first(HANG) == "a"
    third.end(ApiError(499, "gone"))
    await until(lambda: not jobs.waiting and not jobs.running)
    assert pool.unload("a")
    await until(lambda: loads.closed == ["a"])  # no lease is left
    loads.errors["a"] = [ModelError("damaged")]
    failed = jobs.submit(work, pool.lease("a"))
    with pytest.raises(ApiError, match="cannot be loaded: damaged"):
        await failed.first(HANG)
    assert not jobs.waiting
    jobs.close()


# ---- memory ----


def test_room_counts_mapped_files_and_the_layers_on_a_gpu(model: Callable[..., Path]):
    path = model()
    size = path.stat().st_size

    def needed(gpu: int = 0, **config: Any) -> MemoryNeed:
        return memory_need(path, EngineConfig(**config), FreeMemory(None, gpu))

    def fits(ram: int | None, *loaded: MemoryNeed, **config: Any) -> bool:
        return FreeMemory(ram, 0).fits(need, EngineConfig(**config), loaded)

    assert needed() == MemoryNeed(size, 0) and needed(1) == MemoryNeed(0, size)
    partly = needed(1, n_gpu_layers=1)  # of two layers and the output
    assert partly.ram + partly.gpu == pytest.approx(size, abs=1) and partly.gpu == size // 3
    need, config = MemoryNeed(1000, 0), EngineConfig()
    assert fits(1100) and not fits(1099)
    assert fits(2100, need) and not fits(2099, need)
    assert fits(1100, need, use_mmap=False)  # the other one's is taken already
    assert fits(None, *[need] * 9)
    on_gpu = MemoryNeed(0, 1000)
    assert FreeMemory(None, 1100).fits(on_gpu, config)
    assert not FreeMemory(0, 1099).fits(on_gpu, config)
    with pytest.raises(ModelError):
        memory_need(Path(__file__), config, FreeMemory(None, 0))
