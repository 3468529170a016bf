"""Whether a model's weights fit into the memory that is free, before it is loaded.

The estimate is the weights in the file, plus a tenth for a cache of usual size; it ignores `n_ctx`.
The engine itself decides when it loads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tgr_local.engine import vulkan
from tgr_local.engine.adapters import named_adapters
from tgr_local.engine.devices import available_memory, backend_devices, gpu_number
from tgr_local.options import gguf_header, model_parts
from tgr_local.options.config import AUTO_LAYERS, EngineConfig

_MOST_LAYERS = 10_000_000  # a header that says more is damaged
_SHARE = 1.1  # of the weights: with the cache and the buffers of a typical model
_USABLE = 0.75  # of the memory of GPUs, which a screen uses too


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that the weights of a model take, and those of its adapters."""

    ram: int
    gpu: int


@dataclass(frozen=True)
class FreeMemory:
    """Bytes that are free; None = the system does not say."""

    ram: int | None
    gpu: int
    gpu_total: int = 0
    """Memory of the GPUs, free or not."""

    def fits(
        self, need: MemoryNeed, config: EngineConfig, loaded: Iterable[MemoryNeed] = ()
    ) -> bool:
        """Whether a model fits in addition to the loaded ones, as far as the system says."""
        if need.gpu * _SHARE > self.gpu:
            return False
        if self.ram is None:
            return True
        # the pages of a mapped file count as free although its model needs them
        mapped = config.use_mmap and not config.use_mlock
        held = sum(model.ram for model in loaded) if mapped else 0
        return need.ram * _SHARE <= self.ram - held


@dataclass(frozen=True)
class MemoryCheck:
    """Memory that a model needs, and memory that is free."""

    need: MemoryNeed
    free: FreeMemory
    fits: bool
    """Whether a tenth more than the need is free, on the GPU and in RAM."""


def check_memory(path: str | os.PathLike[str], config: EngineConfig | None = None) -> MemoryCheck:
    """Whether the model of a file fits into the memory that is free now, by an estimate of its
    weights and a tenth more (whatever `n_ctx` is); `config` says how it would be loaded. Raises
    ModelError for a file that is not a model, and OSError."""
    config = config or EngineConfig()
    free = free_memory(config)
    need = memory_need(Path(path), config, free)
    return MemoryCheck(need, free, free.fits(need, config))


def free_memory(config: EngineConfig) -> FreeMemory:
    """The memory that is free now, for models that are loaded in this way."""
    gpus = []
    if config.n_gpu_layers:
        vulkan.load(config.device)
        gpus = [device for device in backend_devices() if device.kind in ("gpu", "igpu")]
        if (number := gpu_number(config.device)) >= 0:
            gpus = [gpus[number]]
    return FreeMemory(
        available_memory(),
        sum(device.memory_free for device in gpus),
        sum(device.memory_total for device in gpus),
    )


def memory_need(path: Path, config: EngineConfig, free: FreeMemory) -> MemoryNeed:
    """Memory that the model of a file takes. Raises ModelError for a file that is no model, and
    OSError for one that cannot be read."""
    need = _need_of(path, config, free)
    n_added = sum(adapter.path.stat().st_size for adapter in named_adapters(config.lora))
    return MemoryNeed(ram=need.ram + n_added, gpu=need.gpu)


def _need_of(path: Path, config: EngineConfig, free: FreeMemory) -> MemoryNeed:
    if config.rpc and config.n_gpu_layers:  # what servers take is known when they are connected
        return MemoryNeed(0, 0)
    layers = gguf_header.read(path).whole("block_count")
    n_bytes = model_parts.bytes_of(path)
    n_layers = layers + 1 if layers is not None and layers < _MOST_LAYERS else 1
    wanted = n_layers if config.n_gpu_layers < 0 else config.n_gpu_layers
    on_gpu = min(wanted, n_layers) / n_layers if free.gpu else 0.0
    if config.n_gpu_layers == AUTO_LAYERS and free.gpu_total:  # the rest stays in RAM
        on_gpu = min(on_gpu, _USABLE * free.gpu_total / _SHARE / max(n_bytes, 1))
    return MemoryNeed(ram=int(n_bytes * (1 - on_gpu)), gpu=int(n_bytes * on_gpu))
