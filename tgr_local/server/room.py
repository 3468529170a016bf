"""Whether there is memory for another model in addition to the loaded ones, by an estimate that is
made before anything is unloaded for its sake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tgr_local.engine import FreeMemory, MemoryNeed, free_memory, memory_need
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import ModelError


class Room:
    """The memory for all models of a server. Any thread."""

    def __init__(
        self,
        config: EngineConfig,
        free: Callable[[EngineConfig], FreeMemory] = free_memory,
    ) -> None:
        self._config, self._free = config, free

    def needed(self, path: Path) -> MemoryNeed:
        """What the model of a file takes. Raises ModelError for a file that is not a model."""
        return memory_need(path, self._config, self._free(self._config))

    def fits(self, need: MemoryNeed, loaded: Iterable[MemoryNeed]) -> bool:
        """Whether a model fits in addition to the loaded ones, as far as the system says."""
        return self._free(self._config).fits(need, self._config, loaded)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a model could not be loaded because other things hold the memory."""
    return isinstance(error, ModelError) and "not enough memory" in str(error)
