"""The scales of LoRA adapters: those that hold for every request, which /lora-adapters shows and
sets as llama-server does, and those that a request names for itself.

One batch has one set of scales, so that requests with the same ones run together; one with others
waits until these have ended, in the order of arrival. What was remembered of prompts is forgotten
then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from tgr_local.apis.client_parameters import ADAPTERS_MAX, LoraScale
from tgr_local.apis.validation import RequestBody, RequestError, shown
from tgr_local.engine import Cancel, Engine, named_adapters, rescaled
from tgr_local.options import gguf_header
from tgr_local.server.errors import out_of_memory
from tgr_local.system.errors import CapacityError, ModelError, describe
from tgr_local.system.turnstile import Turnstile

Scales = tuple[float, ...]
_TASK, _PREFIX = "adapter.lora.task_name", "adapter.lora.prompt_prefix"
_ALL = 1 << 30  # more users than a model has at a time


class ScalesRequest(RequestBody):
    """The body of /lora-adapters, a list, as an object."""

    adapters: list[LoraScale] = Field(max_length=ADAPTERS_MAX)


class LoraScales:
    """The adapters that every model of a server is loaded with. One event loop sets the scales."""

    def __init__(self, named: Sequence[str]) -> None:
        """`named` as in `EngineConfig.lora`. Raises ValueError."""
        self._adapters = named_adapters(named)

    @property
    def default(self) -> Scales:
        """The scales of requests that name none."""
        return tuple(adapter.scale for adapter in self._adapters)

    def listed(self) -> list[dict[str, Any]]:
        """The adapters as llama-server lists them, without their folders. Reads their files."""
        entries: list[dict[str, Any]] = []
        for number, adapter in enumerate(self._adapters):
            metadata = _metadata(adapter.path)
            about = {
                "task_name": metadata.get(_TASK, ""),
                "prompt_prefix": metadata.get(_PREFIX, ""),
            }
            entries.append(
                {"id": number, "path": adapter.path.name, "scale": adapter.scale} | about
            )
        return entries

    def set(self, entries: Sequence[LoraScale]) -> None:
        """Sets the scales of later requests; 0 for adapters that are not named. Raises
        RequestError."""
        self._adapters = rescaled(self._adapters, self._named(entries, "the list"))

    def of_request(self, entries: Sequence[LoraScale] | None) -> Scales:
        """The scales of a request: those that its `lora` names, and 0 for the others; the default
        for an empty one. Raises RequestError."""
        return self._named(entries, "lora") if entries else self.default

    def _named(self, entries: Sequence[LoraScale], place: str) -> Scales:
        scales = [0.0] * len(self._adapters)
        for entry in entries:
            number, scale = entry["id"], entry["scale"]
            if not 0 <= number < len(scales):
                known = f"has those from 0 to {len(scales) - 1}" if scales else "has none"
                raise RequestError(
                    f"{place} names the adapter {shown(number)}, but the server {known}; --lora "
                    "FILE at its start adds one",
                    "lora",
                )
            scales[number] = scale
        try:
            return tuple(adapter.scale for adapter in rescaled(self._adapters, scales))
        except ValueError as error:
            raise RequestError(f"{place} does not fit: {error}", "lora") from None


class ScaleTurns:
    """Turns of requests at the adapter scales of a loaded model. Any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._door = Turnstile(1)  # whoever is in it begins next, and alone may change the scales
        self._users = Turnstile(_ALL)
        self._savers = Turnstile(_ALL)  # which write files, and need no turn

    @contextlib.contextmanager
    def held(self, scales: Scales, cancel: Cancel) -> Iterator[None]:
        """The model has these scales for the ``with`` block. Raises CancelledError if `cancel` is
        set first, ApiError where there is no memory for them."""
        with contextlib.ExitStack() as use:
            with self._door.taken(cancel):
                if scales != tuple(adapter.scale for adapter in self._engine.adapters):
                    with self._users.taken(cancel, _ALL), self._savers.taken(cancel, _ALL):
                        self._change(scales)
                use.enter_context(self._users.taken())
            yield

    def held_as_they_are(
        self, cancel: Cancel | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """The scales do not change during the ``with`` block. Waits for a change that began to wait
        before it, and so for the blocks before that. Raises CancelledError if `cancel` is set
        first."""
        return self._savers.taken(cancel)

    def _change(self, scales: Scales) -> None:
        try:
            self._engine.set_adapter_scales(scales)
        except CapacityError as error:  # of the memory; no prompt is too long
            message = f"there is no memory for a change of LoRA scales: {describe(error)}"
            raise out_of_memory(message) from None


def _metadata(path: Path) -> dict[str, str]:
    """Returns the metadata of an adapter; empty for a file that is gone, or that never existed."""
    try:
        return gguf_header.read(path).metadata
    except (ModelError, OSError):
        return {}
