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
        self._places: dict[str, PooledModel] = {}
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
        return [place.model for place in tuple(self._places.values()) if place.model is not None]

    def status(self, name: str) -> str:
        if self.model(name) is not None:
            return LOADED
        return LOADING if self._coming and self._coming.name == name else UNLOADED

    def failure(self, name: str) -> str | None:
        """Returns the reason why the latest load of a model failed; None if it did not."""
        place = self._places.get(name)
        return place.failure if place else None

    def model(self, name: str) -> LoadedModel | None:
        """A model if it is in memory."""
        place = self._places.get(name)
        return place.model if place else None

    def latest(self) -> LoadedModel | None:
        """The model in memory that is in use, or was last."""
        loaded = self._loaded()
        return max(loaded, key=lambda place: (place.n_leases, place.used)).model if loaded else None

    # ---- leases ----

    def lease(self, name: str) -> Lease:
        """A lease on a model, which is loaded if it is not there. ApiError when the pool closes."""
        if self._closing:
            raise ApiError(503, "the server is shutting down")
        place = self._places.setdefault(name, PooledModel(name))
        lease = Lease(place, self._ended)
        is_there = place.model is not None and not place.leaves and not self._is_next(place)
        self._waiting.append(lease)
        if is_there:
            self._grant(lease, place)
        else:
            self._kick()
        return lease

    def want(self, name: str) -> None:
        """Loads a model that no request waits for."""
        place = self._places.setdefault(name, PooledModel(name))
        place.is_idle, place.is_wanted = False, place.model is None
        self._grant_waiting()
        self._kick()

    def unload(self, name: str) -> bool:
        """Unloads a model as soon as nobody uses it or waits for it; later requests load it again.
        Whether it is in memory, or on the way there."""
        place = self._places.get(name)
        is_there = self.status(name) != UNLOADED
        if place is None or not (is_there or place.is_wanted):
            return False
        place.is_wanted, place.is_idle = False, is_there
        if place is self._coming and not self._is_awaited(place):
            self._cancel.cancel()
        self._kick()
        return True

    def look(self) -> None:
        """Unloads what has been idle for too long."""
        self._timer = None
        for place in self._loaded():
            if not place.n_leases and self._idle_left(place) <= 0:
                place.is_idle = True
        self._kick()
        self._set_timer()

    async def close(self) -> None:
        """Ends a load, and frees the models. The leases must have ended, or end now."""
        self._closing = True
        self._cancel.cancel()
        for timer in (self._timer, *(place.rest for place in self._places.values())):
            if timer:
                timer.cancel()
        if self._runner:
            self._changed.set()
            await asyncio.wait({self._runner}, timeout=_STOP_SECONDS)
        for place in self._loaded():
            model, place.model = place.model, None
            if model is not None:
                await in_thread(model.close)

    def _grant(self, lease: Lease, place: PooledModel) -> None:
        self._waiting.remove(lease)
        place.n_leases += 1
        place.used = self._clock()
        lease.decide(place.model)

    def _ended(self, lease: Lease, was_granted: bool) -> None:
        place = lease.place
        if was_granted:
            place.n_leases -= 1
            place.used = self._clock()
            self._set_timer()
            self._rest_later(place)
        elif lease in self._waiting:
            self._waiting.remove(lease)
            if place is self._coming and self._waiting and not self._is_awaited(place):
                self._cancel.cancel()  # others wait for another model
        self._kick()

    def _is_next(self, place: PooledModel) -> bool:
        """Whether a request that came before needs the place of this model."""
        loaded = self._loaded()
        is_needed = any(lease.place.model is None for lease in self._waiting)
        return is_needed and len(loaded) >= self._most and _victim(loaded) is place

    def _is_awaited(self, place: PooledModel) -> bool:
        return place.is_wanted or any(lease.place is place for lease in self._waiting)

    def _fail(self, place: PooledModel, failure: Exception) -> None:
        """Every request that waits for the model gets the error."""
        for lease in [lease for lease in self._waiting if lease.place is place]:
            self._waiting.remove(lease)
            lease.decide(None, failure)

    # ---- models come and go, one after another ----

    def _loaded(self) -> list[PooledModel]:
        return [place for place in self._places.values() if place.model is not None]

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
            wanted = [place for place in self._places.values() if place.is_wanted]
            asked = [*(lease.place for lease in self._waiting), *wanted]
            unloaded = (place for place in asked if place.model is None)
            if (place := next(unloaded, None)) is None:
                if not any(loaded.leaves and not loaded.n_leases for loaded in self._loaded()):
                    return
            else:
                await self._bring(place)

    async def _bring(self, place: PooledModel) -> None:
        """Makes room for a model and loads it; the requests that wait for it begin, or fail."""
        self._coming, self._cancel = place, Cancel()
        self.events.status(place.name, LOADING)
        start = self._clock()
        try:
            place.path = await in_thread(functools.partial(self._loader.path, place.name))
            await self._measure(place)
            load = functools.partial(self._loader.load, place.name, place.path, self._cancel)
            while True:
                await self._make_room(place)
                try:
                    place.model = await in_thread(load, "load")
                    break
                except TgrError as error:
                    if not (is_out_of_memory(error) and self._loaded()):
                        raise
                    await self._free_one(place)
        except CancelledError:
            place.is_idle = False
            self.events.status(place.name, UNLOADED)
        except Exception as error:
            place.is_idle = False
            self.events.status(place.name, UNLOADED, failed=True)
            place.failure = without_folder(describe(error), place.path)
            self._fail(place, error)
        else:
            place.failure = None
            self.events.status(place.name, LOADED)
            place.used = self._clock()
            self.loads[place.name] += 1
            self._tell(f"loaded {place.name} in {place.used - start:.1f} s")
            for lease in [lease for lease in self._waiting if lease.place is place]:
                self._grant(lease, place)  # before it is unloaded again, if that was asked for
            self._set_timer()
        finally:
            self._coming, place.is_wanted = None, False
            self._grant_waiting()

    async def _measure(self, place: PooledModel) -> None:
        """Raises the error for a file that is not a model before another one is unloaded for it."""
        place.need = MemoryNeed(0, 0)
        try:
            place.need = await in_thread(functools.partial(self._loader.needed, place.path))
        except Exception:
            if self._loaded():
                raise
            # the engine says better what is wrong

    async def _make_room(self, place: PooledModel) -> None:
        """Unloads models until another one may be loaded. Raises CancelledError if it need not be
        any more."""
        while loaded := self._loaded():
            if len(loaded) < self._most and await in_thread(lambda: self._fits(place, loaded)):
                return
            await self._free_one(place)

    def _fits(self, place: PooledModel, loaded: list[PooledModel]) -> bool:
        return self._loader.fits(place.need, [other.mapped_need() for other in loaded])

    async def _free_one(self, place: PooledModel) -> None:
        """Unloads the model that was used least recently, an idle one if there is one, else one
        that becomes idle. Raises CancelledError if the place need not be filled any more."""
        victim: PooledModel | None = None
        try:
            while loaded := self._loaded():
                if self._cancel.is_set() or not self._is_awaited(place):
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
            place = lease.place
            if place.model is not None and not place.leaves:
                self._grant(lease, place)

    async def _unload(self, place: PooledModel) -> None:
        """Frees a model that nobody uses."""
        model, place.model = place.model, None
        place.is_idle, place.is_needed = False, False
        if model is not None:
            with contextlib.suppress(TgrError):
                await in_thread(model.close)
            self._tell(f"unloaded {place.name}")
        self.events.status(place.name, UNLOADED)

    # ---- idle time ----

    def _rest_later(self, place: PooledModel) -> None:
        """Lets a model rest once it has been idle for a while."""
        if place.rest:
            place.rest.cancel()
            place.rest = None
        if not place.n_leases and not self._closing:
            loop = asyncio.get_running_loop()
            place.rest = loop.call_later(self._rest_seconds, self._rest, place)

    def _rest(self, place: PooledModel) -> None:
        place.rest = None
        if (model := place.model) is not None and not place.n_leases:

            def rest() -> None:
                with contextlib.suppress(TgrError):  # it is unloaded meanwhile
                    model.rest()

            threading.Thread(target=rest, name="rest", daemon=True).start()

    def _idle_left(self, place: PooledModel) -> float:
        return place.used + self._idle_seconds - self._clock()

    def _set_timer(self) -> None:
        if not self._idle_seconds or self._closing or self._timer is not None:
            return
        if idle := [place for place in self._loaded() if not place.n_leases and not place.leaves]:
            wait = max(0.0, min(map(self._idle_left, idle)))
            self._timer = asyncio.get_running_loop().call_later(wait, self.look)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a model could not be loaded because other things hold the memory."""
    return isinstance(error, ModelError) and "not enough memory" in str(error)


def _victim(loaded: list[PooledModel]) -> PooledModel:
    """The model that goes first: idle, already to be unloaded, used least recently."""
    return min(loaded, key=lambda place: (place.n_leases > 0, not place.leaves, place.used))


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
