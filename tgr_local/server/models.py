"""The models of a server as requests see them: found by name, leased, listed and described."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tgr_local.apis.bodies import SAMPLERS, SAMPLING
from tgr_local.apis.validation import RequestBody
from tgr_local.engine import Cancel, MemoryNeed, free_memory, memory_need, named_adapters
from tgr_local.generation import METHODS
from tgr_local.options import model_files
from tgr_local.options.config import RANDOM_SEED
from tgr_local.options.resolve import resolve
from tgr_local.server.catalog import NAME_LENGTH, Catalog
from tgr_local.server.errors import ApiError
from tgr_local.server.lease import Lease, without_folder
from tgr_local.server.limits import longest_conversation
from tgr_local.server.loaded import LoadedModel, Setup, spare_collector
from tgr_local.server.pool import Pool, is_out_of_memory
from tgr_local.server.prompt_cache import PromptFolder
from tgr_local.system import confined
from tgr_local.system.errors import ModelError, describe
from tgr_local.system.versions import __version__

_BAD_SECONDS = 60.0
_Key = tuple[int, int] | None
_SECRET = ("api_key", "api_key_file", "log_file", "prompt_cache", "models_dir")


class ModelRequest(RequestBody):
    """The body of /models/load and /models/unload."""

    model: str = Field(max_length=NAME_LENGTH, description="a name that /v1/models lists")


class Models:
    """The models of one server. One event loop's, apart from the functions of a `Loader`.

    ValueError for options that contradict each other or the disk.
    """

    def __init__(
        self, first: Path | None, setup: Setup, tell: Callable[[str], object] = lambda _: None
    ) -> None:
        """`first` is loaded at the start; None = each model when a request names it."""
        limits = setup.limits
        self._setup = setup
        self.lora = [
            {"id": number, "path": adapter.path.name, "scale": adapter.scale}
            for number, adapter in enumerate(named_adapters(setup.engine_config.lora))
        ]
        """The LoRA adapters as llama-server lists them, without their folders."""
        self._prompts = PromptFolder(limits, setup.engine_config.prefix_cells, tell)
        self.catalog = Catalog(limits, first)
        self.pool = Pool(self, limits.models_max, limits.idle_seconds, tell=tell)
        # files that the engine refused: no other model is unloaded for them again and again
        self._bad: dict[Path, tuple[_Key, str, float]] = {}
        self._needs: dict[Path, tuple[_Key, MemoryNeed]] = {}
        self._starting = first is not None
        self.failure: Exception | None = None
        """Error that kept the model of the start from loading."""

    def load_first(self, then: Callable[[], object]) -> None:
        """Loads the model of the start, if there is one, and calls `then` when it is there, or
        could not be loaded."""
        if self.catalog.first is None:
            then()
            return
        lease = self.pool.lease(self.catalog.first)

        def decided() -> None:
            self.failure = lease.failure
            self._starting = self.failure is not None
            then()
            lease.end()

        lease.then(decided)

    # ---- what the pool calls in threads ----

    def path(self, name: str) -> Path:
        return self.catalog.path(name)

    def needed(self, path: Path) -> MemoryNeed:
        key, why, until = self._bad.get(path, (None, "", 0.0))
        if key == _key(path) and time.monotonic() < until:
            raise ModelError(why)
        config = self._setup.engine_config
        return memory_need(path, config, free_memory(config))

    def fits(self, need: MemoryNeed, loaded: list[MemoryNeed]) -> bool:
        config = self._setup.engine_config
        return free_memory(config).fits(need, config, loaded)

    def load(self, name: str, path: Path, cancel: Cancel) -> LoadedModel:
        try:
            model = LoadedModel(name, path, self._setup, self._prompts, cancel)
        except ModelError as error:
            if not is_out_of_memory(error):
                self._bad[path] = (_key(path), str(error), time.monotonic() + _BAD_SECONDS)
            raise
        spare_collector()
        return model

    # ---- for requests ----

    def check_started(self) -> None:
        """Raises ApiError while the model of the start is being loaded."""
        if self._starting:
            raise ApiError(503, "the model is still being loaded", headers={"Retry-After": "2"})

    async def lease(self, name: object) -> Lease:
        """A lease on the model of that name; the model is loaded for it. Raises ApiError."""
        self.check_started()
        return self.pool.lease(await self._chosen(name))

    async def find(self, name: str | None) -> LoadedModel:
        """A model in memory: of that name, else the one in use, or used last. Raises ApiError."""
        self.check_started()
        if name:
            chosen = await self._chosen(name)
            model = self.pool.model(chosen)
        else:
            chosen, model = "", self.pool.latest()
        if model is None:
            subject = f"the model {chosen!r}" if chosen else "no model"
            raise ApiError(
                400,
                f"{subject} is {'not ' if chosen else ''}loaded; POST /models/load loads one, and "
                "so does a request for a reply",
                param="model",
                code="model_not_loaded",
            )
        return model

    async def load_now(self, name: object) -> None:
        """Begins to load a model. Raises ApiError for an unknown name."""
        self.check_started()
        self.pool.want(await self._chosen(name))

    async def unload(self, name: object) -> None:
        """Unloads a model as soon as nobody uses it. Raises ApiError for one that is not loaded."""
        self.check_started()
        chosen = await self._chosen(name)
        if not self.pool.unload(chosen):
            raise ApiError(400, f"the model {chosen!r} is not loaded", param="model")

    async def listed(
        self, with_methods: bool = False, with_memory: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Every model as OpenAI's clients see it, by name; with methods each of them too, with
        memory the bytes that it takes, and whether they are there for it alone."""
        self.check_started()
        await self._scan()
        listed: dict[str, dict[str, Any]] = {}
        for name, path in self.catalog.files.items():
            entry = await self._entry(name, path)
            if with_memory and (memory := await run_in_threadpool(self._memory, name, path)):
                entry["memory"] = memory
            ids = [name, *(f"{name}:{method}" for method in METHODS if with_methods)]
            listed |= {model_id: {"id": model_id, **entry} for model_id in ids}
        return listed

    async def props(self, name: str | None) -> dict[str, Any]:
        """Returns the /props of a model, loaded or not."""
        self.check_started()
        limits = dataclasses.asdict(self._setup.limits)
        for secret in _SECRET:
            limits.pop(secret)
        latest = self.pool.latest()
        if not name and latest is None and not self.catalog.default:
            about: dict[str, Any] = {"model": None, "options": self._options({})}
        else:
            chosen = latest.name if latest and not name else await self._chosen(name)
            loaded = self.pool.model(chosen)
            about = await (self._loaded_props(loaded) if loaded else self._file_props(chosen))
        return about | {
            "version": __version__,
            "method": self._setup.method.name,
            "methods": list(METHODS),
            "method_about": {name: method.about for name, method in METHODS.items()},
            "models": list(self.catalog.files),
            "limits": limits,
            "total_slots": limits["max_running"],
        }

    async def _chosen(self, name: object) -> str:
        try:
            return self.catalog.choose(name)[0]
        except ApiError:  # it may have come just now
            await self._scan()
            return self.catalog.choose(name)[0]

    async def _scan(self) -> None:
        files_before = set(self.catalog.files)
        await run_in_threadpool(self.catalog.scan)
        if files_before != set(self.catalog.files):
            self.pool.events.listed()
        for model in self.pool.loaded:
            if model.name not in self.catalog.files:  # its file is gone
                self.pool.unload(model.name)

    async def _entry(self, name: str, path: Path) -> dict[str, Any]:
        entry: dict[str, Any] = {"object": "model", "owned_by": "tgr-local"}
        entry["architecture"] = {"input_modalities": ["text"], "output_modalities": ["text"]}
        status: dict[str, Any] = {"value": self.pool.status(name)}
        if (why := self.pool.failure(name)) is not None:
            status |= {"failed": True, "error": why}
        if (model := self.pool.model(name)) is not None:
            engine, entry["created"] = model.engine, model.created
            entry["meta"] = {
                "n_ctx": model.context,
                "n_params": engine.n_params,
                "n_ctx_train": engine.n_ctx_train,
                "n_vocab": engine.n_vocab,
                "size": engine.size_bytes,
            }
        else:
            entry["created"] = await run_in_threadpool(_modified, path)
        return entry | {"status": status}

    def _memory(self, name: str, path: Path) -> dict[str, Any] | None:
        """Returns the memory of a model, and whether it fits; None for a file that is no model."""
        key = _key(path)
        if (known := self._needs.get(path)) is None or known[0] != key:
            config = self._setup.engine_config
            try:
                known = key, memory_need(path, config, free_memory(config))
            except (ModelError, OSError):
                return None
            self._needs[path] = known
        need = known[1]
        # the others would be unloaded, whose interleaved weights do not count as free
        freed = [MemoryNeed(-model.interleaved_bytes(), 0) for model in self.pool.loaded]
        fits = self.pool.model(name) is not None or self.fits(need, freed)
        return {"needed": need.ram + need.gpu, "fits": fits}

    async def _loaded_props(self, model: LoadedModel) -> dict[str, Any]:
        engine = model.engine
        about = await self._about(
            model.name, engine.path, engine.metadata, engine.n_ctx_train, engine.chat_template
        )
        return about | {
            "description": engine.description,
            "n_ctx": model.context,
            "devices": sorted(set(engine.devices())),
            "lora": self.lora,
        }

    async def _file_props(self, name: str) -> dict[str, Any]:
        """Returns the /props of a model that is not loaded, as far as its file has them."""
        path = self.catalog.files[name]
        try:
            card = await run_in_threadpool(lambda: model_files.card(self.catalog.path(name)))
            template = card.metadata.get("tokenizer.chat_template", "")
            trained = card.facts()["trained context"]
            return await self._about(name, path, card.metadata, trained, template)
        except (ModelError, OSError) as error:
            raise ApiError(400, without_folder(describe(error), path), param="model") from None

    async def _about(
        self, name: str, path: Path, metadata: dict[str, str], n_ctx_train: Any, template: str
    ) -> dict[str, Any]:
        """Returns the /props that loaded and other models share, and those that clients of
        llama-server read: the tokens that a conversation may have, and whether the model takes
        tools, which it does in any template."""
        options = self._options(metadata)
        params = {key: options[key] for key in (*SAMPLING, *SAMPLERS, "seed", "stop")}
        return {
            "model": name,
            "status": self.pool.status(name),
            "model_path": path.name,
            "options": options,
            "n_ctx_train": n_ctx_train,
            "chat_template": template,
            "model_alias": name,
            "default_generation_settings": {
                "n_ctx": longest_conversation(n_ctx_train or 0, self._setup.engine_config),
                "params": params | {"n_predict": options["max_tokens"] or -1},
            },
            "chat_template_caps": await run_in_threadpool(_abilities, template),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"tgr-local {__version__}",
        }

    def _options(self, metadata: dict[str, str]) -> dict[str, Any]:
        """The options of replies, by the owner and by the file's advice."""
        resolved = resolve(metadata, self._setup.options, for_people=True)
        values = dataclasses.asdict(resolved.config)
        return values | {"seed": RANDOM_SEED} if resolved.seed_is_drawn else values


def _key(path: Path) -> _Key:
    """Returns a file's size and modification time, which change with it; None without a file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def _abilities(template: str) -> dict[str, bool]:
    """Returns the capabilities of a chat template; a generic description of tools stands before one
    without them."""
    if not template:
        return {}
    try:
        return confined.abilities(template) | {"supports_tools": True, "supports_tool_calls": True}
    except confined.ConfinedError:  # no conversation is possible
        return {}


def _modified(path: Path) -> int:
    """Returns the time at which a file was written, in seconds; 0 for one that is gone."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0
