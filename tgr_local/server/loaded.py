"""One loaded model: its engine, its options, and the memory that its requests share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from tgr_local.engine import Cancel, Engine, EngineStats, SteeredEngine
from tgr_local.generation import Method
from tgr_local.options.config import EngineConfig, ServerConfig
from tgr_local.options.resolve import resolve
from tgr_local.server.limits import RequestMemory, cache_line, limit_cache, longest_conversation
from tgr_local.server.prompt_cache import PromptCache, PromptFolder
from tgr_local.system.errors import TgrError

_STATS_SECONDS = 0.25  # for the engine to answer


@dataclass(frozen=True)
class Setup:
    """Settings of the server's owner, for every model."""

    limits: ServerConfig
    method: Method
    engine_config: EngineConfig
    options: Mapping[str, Any]
    """The fields of SearchConfig that the owner has set; the model's file advises on the others."""


class LoadedModel:
    """A model in memory. Any thread, except for `stats`, which is the event loop's.

    Raises what `Engine` does, and ValueError for advice of the file that contradicts the options.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        setup: Setup,
        prompts: PromptFolder,
        cancel: Cancel,
    ) -> None:
        self.name = name
        self.created = int(time.time())
        self.engine = engine = Engine(path, setup.engine_config, cancel=cancel)
        try:
            resolved = resolve(engine.metadata, setup.options, for_people=True)
            self.config = resolved.config
            self.seed = None if resolved.seed_is_drawn else resolved.config.seed
            """Seed of a request that names none; None = a random one."""
            self._n_cells = limit_cache(engine, self.config, setup.method)
            self.cache = cache_line(engine)
            """Size of its KV cache, as a line for the owner."""
            self.memory = RequestMemory(engine, setup.limits)
            self.last_stats = engine.stats()
            self.prompts = PromptCache(engine, prompts) if prompts.path else None
        except BaseException:
            engine.close()
            raise
        self._stats_future: asyncio.Future[EngineStats] | None = None
        self._looked = self.last_stats
        self.devices = sorted(set(engine.devices()))
        self.silent = 0.0
        """Seconds for which its device has computed without a result, if it is not the CPU."""
        self._views: dict[bytes, Engine] = {b"": engine}  # by owner

    def engine_of(self, owner: bytes) -> Engine:
        """The engine as the requests of an owner use it: what they read, others cannot notice."""
        if owner not in self._views:  # two threads may make it, and one of the two stays
            self._views.setdefault(owner, SteeredEngine(self.engine, owner=owner))
        return self._views[owner]

    @property
    def context(self) -> int:
        """Tokens of the longest conversation."""
        return longest_conversation(self.engine.n_ctx_train, self.engine.config)

    def rest(self) -> None:
        """Makes the cache as small again as it was at the start."""
        try:
            if self.prompts:
                self.prompts.save()
        finally:
            self.engine.shrink_cache(self._n_cells)

    def close(self) -> None:
        """Ends its work and frees its memory."""
        try:
            if self.prompts:
                self.prompts.close()
        finally:
            self.engine.close()

    def interleaved_bytes(self) -> int:
        """Weights that are interleaved; 0 once the model is closed. Waits for a step, a second."""
        with contextlib.suppress(TgrError):
            return self.engine.stats().interleaved_bytes
        return 0

    async def stats(self) -> EngineStats:
        """The engine's present counts, or the last known ones while a long decode runs."""
        future = self._stats_future
        if future is None or future.done():
            future = asyncio.ensure_future(run_in_threadpool(self.engine.stats))
            self._stats_future = future
            future.add_done_callback(self._note_stats)
        await asyncio.wait({future}, timeout=_STATS_SECONDS)
        return self.last_stats

    def _note_stats(self, future: asyncio.Future[EngineStats]) -> None:
        if not (future.cancelled() or future.exception()):  # as where it is unloaded meanwhile
            self.last_stats = future.result()

    async def look(self, seconds: float) -> None:
        """Notes whether its device has had a result since the last look, so long ago. A process
        that was stopped has looked less often, so the clock is not asked."""
        if all(name.upper().startswith("CPU") for name in self.devices):
            return  # a step for a long prompt takes minutes there
        before, now = self._looked, await self.stats()
        self._looked = now
        is_still = now is before or (now.n_jobs > 0 and now.n_decodes == before.n_decodes)
        self.silent = self.silent + seconds if is_still else 0.0


def spare_collector() -> None:
    """Lets the garbage collector pass over what lives as long as a model does: to search that again
    and again would take 20 ms each time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
