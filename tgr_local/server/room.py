"""Whether there is memory for another model beside those that are loaded.

It is an estimate from the file, before anything is unloaded for its sake. The engine itself decides
when it loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tgr_local.engine import available_memory, backend_devices
from tgr_local.errors import ModelError
from tgr_local.models import library
from tgr_local.options.config import EngineConfig
from tgr_local.server.catalog import parts_of

_SHARE = 1.1  # of the weights: with the cache and the buffers of a typical model


@dataclass(frozen=True)
class Need:
    """Bytes that the weights of a model take."""

    ram: int
    gpu: int


@dataclass(frozen=True)
class Free:
    """Bytes that are free; None = the system does not say."""

    ram: int | None
    gpu: int


def free_memory(config: EngineConfig) -> Free:
    """The memory that is free now, for models that are loaded in this way."""
    gpus = [device for device in backend_devices() if device.kind in ("gpu", "igpu")]
    if config.main_gpu >= 0:
        gpus = gpus[config.main_gpu : config.main_gpu + 1]
    if config.n_gpu_layers == 0:
        gpus = []
    return Free(available_memory(), sum(device.memory_free for device in gpus))


class Room:
    """The memory for all models of a server. Any thread."""

    def __init__(
        self, config: EngineConfig, free: Callable[[EngineConfig], Free] = free_memory
    ) -> None:
        self._config, self._free = config, free

    def needed(self, path: Path) -> Need:
        """What the model of a file takes. Raises ModelError for a file that is no model."""
        card = library.card(path)
        n_bytes = sum(part.stat().st_size for part in parts_of(path))
        layers = card.metadata.get(f"{card.architecture}.block_count", "")
        n_layers = int(layers) + 1 if layers.isdecimal() and len(layers) < 8 else 1
        wanted = n_layers if self._config.n_gpu_layers < 0 else self._config.n_gpu_layers
        on_gpu = min(wanted, n_layers) / n_layers if self._free(self._config).gpu else 0.0
        return Need(ram=int(n_bytes * (1 - on_gpu)), gpu=int(n_bytes * on_gpu))

    def fits(self, need: Need, loaded: Iterable[Need]) -> bool:
        """Whether a model fits beside the loaded ones, as far as the system says."""
        free = self._free(self._config)
        if need.gpu * _SHARE > free.gpu:
            return False
        if free.ram is None:
            return True
        # the pages of a mapped file count as free although its model needs them
        mapped = self._config.use_mmap and not self._config.use_mlock
        held = sum(other.ram for other in loaded) if mapped else 0
        return need.ram * _SHARE <= free.ram - held


def is_out_of_memory(error: Exception) -> bool:
    """Whether a model could not be loaded because other things hold the memory."""
    return isinstance(error, ModelError) and "not enough memory" in str(error)
