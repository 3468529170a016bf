"""The models of a server: which are in memory, who uses them, which goes when another one comes.

A request has a lease on its model from before its work begins until that has ended; a model with
leases is never unloaded. Models are loaded one after another, in the order of the oldest request
that waits for each; those that wait for the same model begin together when it is there. If it does
not fit in addition to the others, the least recently used model that nobody uses is unloaded. If
all are in use, one of them takes no further requests until it can be unloaded, so nobody waits
forever.

Only one event loop uses a pool and its leases; it may not stop at a `Turnstile`. Files are read,
and models loaded and freed, in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar

from tgr_local.engine import Cancel, MemoryNeed
from tgr_local.server.errors import ApiError
from tgr_local.server.lease import Lease, PooledModel, without_folder
from tgr_local.server.loaded import LoadedModel
from tgr_local.server.model_events import ModelEvents
from tgr_local.system.errors import CancelledError, ModelError, TgrError, describe

_REST_SECONDS = 20.0  # without a request until a model gives back what only requests need
_STOP_SECONDS = 2.0  # for a load that is cancelled

Result = TypeVar("Result")


UNLOADED, LOADING, LOADED = "unloaded", "loading", "loaded"


class Loader(Protocol):
    """Finds, measures and loads models; its functions run in threads."""

    def path(self, name: str) -> Path: ...
    def needed(self, path: Path) -> MemoryNeed: ...
    def fits(self, need: MemoryNeed, loaded: list[MemoryNeed]) -> bool: ...
    def load(self, name: str, path: Path, cancel: Cancel) -> LoadedModel: ...


class Pool:
    """Holds at most `most` models in memory, each for `idle_seconds` after its last use; 0 = until
    its memory is needed. One that nobody has used for `rest_seconds` rests. `tell` receives a line
    for the owner about every load and unload."""

    def __init__(
        self,
        loader: Loader,
        most: int,
        idle_seconds: float = 0.0,
        *,
        rest_seconds: float = _REST_SECONDS,
        tell: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader, self._most, self._idle_seconds = loader, most, idle_seconds
        self._rest_seconds, self._told, self._clock = rest_seconds, tell, clock
        self._pooled: dict[str, PooledModel] = {}
        self._waiting: list[Lease] = []  # in order of arrival
        self._coming: PooledModel | None = None  # is being loaded, or waits for room
        self._cancel = Cancel()  # of the present load
        self._runner: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.events = ModelEvents()
        """Tells clients which model has been loaded or unloaded."""
        self.loads: Counter[str] = Counter()
        """Number of loads of each model."""

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            self._told(line)

    # ---- what there is ----

    @property
    def loaded(self) -> list[LoadedModel]:
        """The models in memory; any thread may ask."""
        return [pooled.model for pooled in tuple(self._pooled.values()) if pooled.model is not None]

    def status(self, name: str) -> str:
        if self.model(name) is not None:
            return LOADED
        return LOADING if self._coming and self._coming.name == name else UNLOADED

    def failure(self, name: str) -> str | None:
        """Returns the reason why the latest load of a model failed; None if it did not."""
        pooled = self._pooled.get(name)
        return pooled.failure if pooled else None

    def model(self, name: str) -> LoadedModel | None:
        """A model if it is in memory."""
        pooled = self._pooled.get(name)
        return pooled.model if pooled else None

    def latest(self) -> LoadedModel | None:
        """The model in memory that is in use, or was last."""
        loaded = self._loaded()
        return (
            max(loaded, key=lambda pooled: (pooled.n_leases, pooled.used)).model if loaded else None
        )

    # ---- leases ----

    def lease(self, name: str) -> Lease:
        """A lease on a model, which is loaded if it is not there. ApiError when the pool closes."""
        if self._closing:
            raise ApiError(503, "the server is shutting down")
        pooled = self._pooled.setdefault(name, PooledModel(name))
        lease = Lease(pooled, self._ended)
        is_there = pooled.model is not None and not pooled.leaves and not self._is_next(pooled)
        self._waiting.append(lease)
        if is_there:
            self._grant(lease, pooled)
        else:
            self._kick()
        return lease

    def want(self, name: str) -> None:
        """Loads a model that no request waits for."""
        pooled = self._pooled.setdefault(name, PooledModel(name))
        pooled.is_idle, pooled.is_wanted = False, pooled.model is None
        self._grant_waiting()
        self._kick()

    def unload(self, name: str) -> bool:
        """Unloads a model as soon as nobody uses it or waits for it; later requests load it again.
        Whether it is in memory, or on the way there."""
        pooled = self._pooled.get(name)
        is_there = self.status(name) != UNLOADED
        if pooled is None or not (is_there or pooled.is_wanted):
            return False
        pooled.is_wanted, pooled.is_idle = False, is_there
        if pooled is self._coming and not self._is_awaited(pooled):
            self._cancel.cancel()
        self._kick()
        return True

    def look(self) -> None:
        """Unloads what has been idle for too long."""
        self._timer = None
        for pooled in self._loaded():
            if not pooled.n_leases and self._idle_left(pooled) <= 0:
                pooled.is_idle = True
        self._kick()
        self._set_timer()

    async def close(self) -> None:
        """Ends a load, and frees the models. The leases must have ended, or end now."""
        self._closing = True
        self._cancel.cancel()
        for timer in (self._timer, *(pooled.rest for pooled in self._pooled.values())):
            if timer:
                timer.cancel()
        if self._runner:
            self._changed.set()
            await asyncio.wait({self._runner}, timeout=_STOP_SECONDS)
        for pooled in self._loaded():
            model, pooled.model = pooled.model, None
            if model is not None:
                await in_thread(model.close)

    def _grant(self, lease: Lease, pooled: PooledModel) -> None:
        self._waiting.remove(lease)
        pooled.n_leases += 1
        pooled.used = self._clock()
        lease.decide(pooled.model)

    def _ended(self, lease: Lease, was_granted: bool) -> None:
        pooled = lease.pooled
        if was_granted:
            pooled.n_leases -= 1
            pooled.used = self._clock()
            self._set_timer()
            self._rest_later(pooled)
        elif lease in self._waiting:
            self._waiting.remove(lease)
            if pooled is self._coming and self._waiting and not self._is_awaited(pooled):
                self._cancel.cancel()  # others wait for another model
        self._kick()

    def _is_next(self, pooled: PooledModel) -> bool:
        """Whether a request that came before needs this model to go."""
        loaded = self._loaded()
        is_needed = any(lease.pooled.model is None for lease in self._waiting)
        return is_needed and len(loaded) >= self._most and _victim(loaded) is pooled

    def _is_awaited(self, pooled: PooledModel) -> bool:
        return pooled.is_wanted or any(lease.pooled is pooled for lease in self._waiting)

    def _fail(self, pooled: PooledModel, failure: Exception) -> None:
        """Every request that waits for the model gets the error."""
        for lease in [lease for lease in self._waiting if lease.pooled is pooled]:
            self._waiting.remove(lease)
            lease.decide(None, failure)

    # ---- models come and go, one after another ----

    def _loaded(self) -> list[PooledModel]:
        return [pooled for pooled in self._pooled.values() if pooled.model is not None]

    def _kick(self) -> None:
        """Lets the runner look for work; there is one as long as there is work."""
        self._changed.set()
        if not self._closing and (self._runner is None or self._runner.done()):
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self._closing:
            for loaded in self._loaded():
                if loaded.leaves and not loaded.n_leases:
                    await self._unload(loaded)
            wanted = [pooled for pooled in self._pooled.values() if pooled.is_wanted]
            asked = [*(lease.pooled for lease in self._waiting), *wanted]
            unloaded = (pooled for pooled in asked if pooled.model is None)
            if (pooled := next(unloaded, None)) is None:
                if not any(loaded.leaves and not loaded.n_leases for loaded in self._loaded()):
                    return
            else:
                await self._bring(pooled)

    async def _bring(self, pooled: PooledModel) -> None:
        """Makes room for a model and loads it; the requests that wait for it begin, or fail."""
        self._coming, self._cancel = pooled, Cancel()
        self.events.status(pooled.name, LOADING)
        start = self._clock()
        try:
            pooled.path = await in_thread(functools.partial(self._loader.path, pooled.name))
            await self._measure(pooled)
            load = functools.partial(self._loader.load, pooled.name, pooled.path, self._cancel)
            while True:
                await self._make_room(pooled)
                try:
                    pooled.model = await in_thread(load, "load")
                    break
                except TgrError as error:
                    if not (is_out_of_memory(error) and self._loaded()):
                        raise
                    await self._free_one(pooled)
        except CancelledError:
            pooled.is_idle = False
            self.events.status(pooled.name, UNLOADED)
        except Exception as error:
            pooled.is_idle = False
            self.events.status(pooled.name, UNLOADED, failed=True)
            pooled.failure = without_folder(describe(error), pooled.path)
            self._fail(pooled, error)
        else:
            pooled.failure = None
            self.events.status(pooled.name, LOADED)
            pooled.used = self._clock()
            self.loads[pooled.name] += 1
            self._tell(f"loaded {pooled.name} in {pooled.used - start:.1f} s")
            for lease in [lease for lease in self._waiting if lease.pooled is pooled]:
                self._grant(lease, pooled)  # before it is unloaded again, if that was asked for
            self._set_timer()
        finally:
            self._coming, pooled.is_wanted = None, False
            self._grant_waiting()

    async def _measure(self, pooled: PooledModel) -> None:
        """Raises the error for a file that is not a model before another one is unloaded for it."""
        pooled.need = MemoryNeed(0, 0)
        try:
            pooled.need = await in_thread(functools.partial(self._loader.needed, pooled.path))
        except Exception:
            if self._loaded():
                raise
            # the engine says better what is wrong

    async def _make_room(self, pooled: PooledModel) -> None:
        """Unloads models until another one may be loaded. Raises CancelledError if it need not be
        any more."""
        while loaded := self._loaded():
            if len(loaded) < self._most and await in_thread(lambda: self._fits(pooled, loaded)):
                return
            await self._free_one(pooled)

    def _fits(self, pooled: PooledModel, loaded: list[PooledModel]) -> bool:
        return self._loader.fits(pooled.need, [other.mapped_need() for other in loaded])

    async def _free_one(self, pooled: PooledModel) -> None:
        """Unloads the model that was used least recently, an idle one if there is one, else one
        that becomes idle. Raises CancelledError if nobody waits for the model any more."""
        victim: PooledModel | None = None
        try:
            while loaded := self._loaded():
                if self._cancel.is_set() or not self._is_awaited(pooled):
                    raise CancelledError("nobody waits for the model any more")
                chosen = _victim(loaded)
                if not chosen.n_leases:
                    await self._unload(chosen)
                    return
                if not chosen.leaves:
                    victim = chosen
                    victim.is_needed = True
                self._changed.clear()
                await self._changed.wait()
        finally:
            if victim is not None and victim.model is not None:
                victim.is_needed = False
                self._grant_waiting()

    def _grant_waiting(self) -> None:
        for lease in tuple(self._waiting):
            pooled = lease.pooled
            if pooled.model is not None and not pooled.leaves:
                self._grant(lease, pooled)

    async def _unload(self, pooled: PooledModel) -> None:
        """Frees a model that nobody uses."""
        model, pooled.model = pooled.model, None
        pooled.is_idle, pooled.is_needed = False, False
        if model is not None:
            with contextlib.suppress(TgrError):
                await in_thread(model.close)
            self._tell(f"unloaded {pooled.name}")
        self.events.status(pooled.name, UNLOADED)

    # ---- idle time ----

    def _rest_later(self, pooled: PooledModel) -> None:
        """Lets a model rest once it has been idle for a while."""
        if pooled.rest:
            pooled.rest.cancel()
            pooled.rest = None
        if not pooled.n_leases and not self._closing:
            loop = asyncio.get_running_loop()
            pooled.rest = loop.call_later(self._rest_seconds, self._rest, pooled)

    def _rest(self, pooled: PooledModel) -> None:
        pooled.rest = None
        if (model := pooled.model) is not None and not pooled.n_leases:

            def rest() -> None:
                with contextlib.suppress(TgrError):  # it is unloaded meanwhile
                    model.rest()

            threading.Thread(target=rest, name="rest", daemon=True).start()

    def _idle_left(self, pooled: PooledModel) -> float:
        return pooled.used + self._idle_seconds - self._clock()

    def _set_timer(self) -> None:
        if not self._idle_seconds or self._closing or self._timer is not None:
            return
        if idle := [
            pooled for pooled in self._loaded() if not pooled.n_leases and not pooled.leaves
        ]:
            wait = max(0.0, min(map(self._idle_left, idle)))
            self._timer = asyncio.get_running_loop().call_later(wait, self.look)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a model could not be loaded because other things hold the memory."""
    return isinstance(error, ModelError) and "not enough memory" in str(error)


def _victim(loaded: list[PooledModel]) -> PooledModel:
    """The model that goes first: idle, already to be unloaded, used least recently."""
    return min(loaded, key=lambda pooled: (pooled.n_leases > 0, not pooled.leaves, pooled.used))


async def in_thread(call: Callable[[], Result], name: str = "models") -> Result:
    """The result of a call in a thread of its own, which does not delay the program's end."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
