"""How many layers go onto GPUs where the options leave it open; tests/native/fitting.cpp has the
arithmetic.

An RPC server on this machine stands in for a GPU where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import families
import pytest
from engines import assert_same
from fixture_types import Load, Model
from rpc_servers import outputs, server

from tgr_local.engine import Engine, FreeMemory, memory_need
from tgr_local.engine.installation import gpu_devices, layers_in_ram
from tgr_local.engine.native import native
from tgr_local.options.config import AUTO_LAYERS, EngineConfig
from tgr_local.options.fields import parse
from tgr_local.system.errors import ModelError

MIB = 1 << 20
WIDE = {"n_layer": 6, "n_ff": 8192}  # 6 MiB for each layer
SMALL = {"n_batch": 32, "n_ubatch": 32, "n_seq_max": 4}  # buffers that are small beside them


@pytest.fixture(autouse=True)
def truth() -> Iterator[None]:
    """The system's own answers again, whatever a test pretended."""
    yield
    native.pretend_available(None)


@pytest.fixture(scope="module")
def device() -> Iterator[dict[str, Any]]:
    """The options for a device that is not the CPU."""
    if gpu_devices():
        yield {"device": "0"}
        return
    with server() as (name, _):
        yield {"rpc": name}


# --- options ---


def test_words_for_numbers_of_layers():
    assert parse(EngineConfig, "n_gpu_layers", "auto") == EngineConfig().n_gpu_layers == AUTO_LAYERS
    assert parse(EngineConfig, "n_gpu_layers", "all") == -1
    with pytest.raises(ValueError, match="n_cpu_moe is 'auto', but must be a whole number"):
        parse(EngineConfig, "n_cpu_moe", "auto")


def test_a_model_that_is_larger_than_a_gpu_needs_ram_too(model: Model):
    path = model(**WIDE)
    size = path.stat().st_size
    fitted, all_there = EngineConfig(), EngineConfig(n_gpu_layers=-1)
    assert memory_need(path, fitted, FreeMemory(None, 0)).gpu == 0
    assert memory_need(path, fitted, FreeMemory(None, size, 2 * size)).gpu == size
    need = memory_need(path, fitted, FreeMemory(None, size // 2, size // 2))
    assert 0 < need.gpu < size // 2 and need.ram + need.gpu in (size - 1, size)
    assert memory_need(path, all_there, FreeMemory(None, size // 2, size // 2)).gpu == size


# --- a device ---


def on_device(engine: Engine) -> list[bool]:
    return [not name.upper().startswith("CPU") for name in engine.devices()]


def test_as_many_layers_as_the_device_has_memory_for(
    model: Model, load: Load, device: dict[str, Any]
):
    path = model(**WIDE)
    here = outputs(load(path, **SMALL))
    found, notes = [], []
    for n_mib in (24, 34, 1000):
        native.pretend_available(n_mib * MIB)
        engine = load(path, n_gpu_layers=AUTO_LAYERS, **SMALL, **device)
        fit = engine.layer_fit
        assert fit and not fit.lowered and not fit.n_cpu_moe
        assert on_device(engine) == [False] * (7 - fit.n_on_gpu) + [True] * fit.n_on_gpu
        for ours, theirs in zip(outputs(engine), here, strict=True):
            assert_same(ours, theirs)
        found.append(fit.n_on_gpu)
        notes.append(layers_in_ram(engine))
        engine.close()
    assert 0 < found[0] < found[1] < found[2] == 7
    where = f"{found[0]} of 7 layers are on the GPU"
    assert notes[0] == f"{where}: as many as fit beside a cache of 4096 cells" and not notes[2]


def test_it_leaves_room_for_the_cache_that_was_asked_for(
    model: Model, load: Load, device: dict[str, Any]
):
    found = []
    for n_ctx in (256, 16384):
        native.pretend_available(64 * MIB)
        options = SMALL | device | {"n_gpu_layers": AUTO_LAYERS, "n_ctx": n_ctx}
        engine = load(model(**WIDE), **options)
        found.append(sum(on_device(engine)))
        engine.close()
    assert found[0] == 7 > found[1] > 0


def test_a_number_of_layers_is_kept(model: Model, load: Load, device: dict[str, Any]):
    for n_gpu_layers in (-1, 2, 0):
        engine = load(model(), **device, n_gpu_layers=n_gpu_layers)
        n = 3 if n_gpu_layers < 0 else n_gpu_layers
        assert sum(on_device(engine)) == n and engine.layer_fit is None
        engine.close()


def test_without_a_device_nothing_is_chosen(model: Model, load: Load):
    engine = load(model(), n_gpu_layers=AUTO_LAYERS)
    assert (engine.layer_fit is not None) == any(on_device(engine))
    assert layers_in_ram(engine) is None


# --- experts ---


def test_experts_that_stay_in_ram_compute_the_same(tmp_path, load: Load, device: dict[str, Any]):
    path = families.qwen3moe(tmp_path / "experts.gguf")
    here = outputs(load(path))
    n_splits = []
    for n_cpu_moe in (0, 1, 2):
        engine = load(path, **device, n_gpu_layers=-1, n_cpu_moe=n_cpu_moe)
        for ours, theirs in zip(outputs(engine), here, strict=True):
            assert_same(ours, theirs)
        assert all(on_device(engine))
        n_splits.append(engine.stats().n_splits)
        engine.close()
    assert n_splits == sorted(set(n_splits))  # there and back again for each layer


# --- memory that runs out ---


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can be limited later")
@pytest.mark.parametrize(("n_mib", "n_on_gpu"), [(84, 2), (40, 0)])
def test_memory_that_runs_out_lowers_it(model: Model, load: Load, n_mib: int, n_on_gpu: int):
    """The server says that it has all of this machine's memory, but is not given so much."""
    if gpu_devices():
        pytest.skip("a GPU of this machine would take its part")
    path = model(n_ff=65536)  # 48 MiB for each of two layers
    here = outputs(load(path, **SMALL))
    options = SMALL | {"n_gpu_layers": AUTO_LAYERS}
    with server() as (name, process):
        limit(process.pid, n_mib * MIB)
        engine = load(path, **options, rpc=name)
        fit = engine.layer_fit
        assert fit and fit.lowered and fit.n_on_gpu == n_on_gpu
        note = f"{n_on_gpu} of 3 layers are on the GPU: its memory ran out when more was loaded"
        assert layers_in_ram(engine) == note
        for ours, theirs in zip(outputs(engine), here, strict=True):
            assert_same(ours, theirs)
        engine.close()
        with pytest.raises(ModelError, match="there is not enough memory"):
            load(path, **SMALL, n_gpu_layers=-1, rpc=name)  # as asked for, or not at all


def limit(pid: int, n_bytes: int) -> None:
    """Lets a process take so much address space more than it has."""
    import resource

    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + n_bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))
