"""Slots: the texts of the latest requests, saved in files and restored, as with llama-server.

A slot is only a name here: of the prompt of the latest request with its number in `id_slot`. A slot
that no request has named stands for the latest request of all. Requests run and share what is
remembered as without slots. Each model has slots of its own until it is unloaded, and all save into
one folder. Where requests have owners, each has slots of its own, and a folder within that one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from tgr_local.apis.search_options import optional
from tgr_local.apis.validation import RequestBody, RequestError
from tgr_local.engine import Cancel, Engine
from tgr_local.engine.prefix_files import TEMPORARY, load_prefix, remembered, save_prefix
from tgr_local.options.config import ServerConfig
from tgr_local.server.errors import ApiError
from tgr_local.system import paths
from tgr_local.system.errors import PrefixError

_NAME_BYTES = 200  # the name of a temporary file is a little longer


class SlotRequest(RequestBody):
    """The body of /slots/{id_slot} with the action save or restore; erase needs none."""

    filename: str = Field(
        max_length=_NAME_BYTES, description="name of a file in the folder of --slot-save-path"
    )
    model: str | None = optional("the model, where there are several")


class SlotFiles:
    """State shared by the slots of all models: their number, and the folder of their files.
    ValueError for a `slot_save_path` that is not a folder."""

    def __init__(self, limits: ServerConfig) -> None:
        named = limits.slot_save_path
        self.folder = paths.existing_folder("slot_save_path", named) if named else None
        self.n, self.most = limits.max_running, limits.slot_save_mib << 20
        self.writing = threading.Lock()  # so that two files together keep within the limit

    def number(self, id_slot: str, action: str) -> int:
        """The number of a slot for an action. Raises ApiError."""
        if self.folder is None:
            raise ApiError(
                501, "This server does not support slots action. Start it with `--slot-save-path`"
            )
        if not (id_slot.isascii() and id_slot.isdecimal() and len(id_slot) < 4):
            raise ApiError(400, "Invalid slot ID", param="id_slot")
        if int(id_slot) >= self.n:
            raise ApiError(
                400, f"Invalid slot ID: it must be between 0 and {self.n - 1}", param="id_slot"
            )
        if action not in ("save", "restore", "erase"):
            raise ApiError(400, "Invalid action: it must be save, restore or erase", param="action")
        return int(id_slot)

    def path(self, filename: str, digest: bytes) -> Path:
        """A file in the folder, or in the one of those who are told apart by a digest, and nowhere
        else. Raises RequestError."""
        n_bytes = len(filename.encode("utf-8", "replace"))
        if (
            not 0 < n_bytes <= _NAME_BYTES
            or not filename.isprintable()
            or filename.startswith(".")
            or any(part in filename for part in ("/", "\\", ":", ".."))
        ):
            raise RequestError(
                f"Invalid filename: it must have 1 to {_NAME_BYTES} bytes, without separators, "
                '".." and a dot at the beginning',
                "filename",
            )
        assert self.folder is not None
        return self.folder / digest.hex() / filename

    def left(self, path: Path) -> int:
        """Bytes that a file may have beside the others of all owners. Raises OSError."""
        assert self.folder is not None
        folders = [self.folder, *(folder for folder in self.folder.iterdir() if _is_owners(folder))]
        for folder in folders:
            paths.remove_abandoned(folder, f".*.????????{TEMPORARY}")
        others = (file for folder in folders for file in folder.iterdir())
        sizes = (file.stat().st_size for file in others if file != path and file.is_file())
        return max(0, self.most - sum(sizes))


class Slots:
    """The slots of one model. Any thread."""

    def __init__(self, files: SlotFiles) -> None:
        self._n, self._files = files.n, files
        self._lock = threading.Lock()
        self._texts: dict[tuple[bytes, int], Sequence[int]] = {}  # by digest and number
        self._latest: dict[bytes, Sequence[int]] = {}

    def note(self, engine: Engine, id_slot: int | None, prompt: Sequence[int]) -> None:
        """Notes the prompt of a request to this view of the engine. Raises RequestError for a slot
        that does not exist."""
        if id_slot is not None and id_slot >= self._n:
            raise RequestError(
                f"id_slot is {id_slot}, but must be between -1 and {self._n - 1}", "id_slot"
            )
        with self._lock:
            self._latest[engine.prefix_digest] = prompt
            if id_slot is not None and id_slot >= 0:
                self._texts[engine.prefix_digest, id_slot] = prompt

    def shown(self, engine: Engine, n_ctx: int, n_running: int) -> list[dict[str, Any]]:
        """The response to GET /slots, where a conversation may have `n_ctx` tokens."""
        with self._lock:
            texts = [self._texts.get((engine.prefix_digest, i), ()) for i in range(self._n)]
        return [
            {
                "id": i,
                "n_ctx": n_ctx,
                "speculative": False,
                "is_processing": i < n_running,
                "n_prompt_tokens": size,
            }
            for i, size in enumerate(map(len, texts))
        ]

    def erase(self, engine: Engine, id_slot: int) -> dict[str, Any]:
        """Forgets the text of a slot; its cells stay in the cache until room is needed."""
        with self._lock:
            text = self._texts.pop((engine.prefix_digest, id_slot), ())
        return {"id_slot": id_slot, "n_erased": len(text)}

    def save(self, engine: Engine, id_slot: int, filename: str, cancel: Cancel) -> dict[str, Any]:
        """Saves what is remembered of a slot's text, with the reply to it. Raises ApiError."""
        digest = engine.prefix_digest
        start, path = time.monotonic(), self._files.path(filename, digest)
        with self._lock:
            prompt = self._texts.get((digest, id_slot), self._latest.get(digest, ()))
        tokens = _longest(engine, list(prompt))
        with self._files.writing:
            try:
                if digest:
                    path.parent.mkdir(mode=0o700, exist_ok=True)
                left = self._files.left(path)
                saved = save_prefix(
                    engine, tokens, path, digest=digest, most_bytes=left, cancel=cancel
                )
            except (PrefixError, OSError) as error:
                raise _failed("save", error, path) from None
        if saved is None:
            raise ApiError(
                400, f"Unable to save slot: nothing is remembered of the text of slot {id_slot}"
            )
        return {
            "id_slot": id_slot,
            "filename": filename,
            "n_saved": len(saved.tokens),
            "n_written": saved.n_bytes,
            "timings": {"save_ms": _ms_since(start)},
        }

    def restore(
        self, engine: Engine, id_slot: int, filename: str, cancel: Cancel
    ) -> dict[str, Any]:
        """Loads a file; the engine remembers its text from now on. Raises ApiError."""
        start = time.monotonic()
        path = self._files.path(filename, engine.prefix_digest)
        try:
            loaded = load_prefix(engine, path, cancel=cancel)
        except (PrefixError, OSError) as error:
            raise _failed("restore", error, path) from None
        self.note(engine, id_slot, loaded.tokens)
        return {
            "id_slot": id_slot,
            "filename": filename,
            "n_restored": len(loaded.tokens),
            "n_read": loaded.n_bytes,
            "timings": {"restore_ms": _ms_since(start)},
        }


def _is_owners(folder: Path) -> bool:
    """Whether this is the folder of an owner."""
    name = folder.name
    return bool(re.fullmatch("[0-9a-f]{32}", name)) and folder.is_dir() and not folder.is_symlink()


def _longest(engine: Engine, prompt: list[int]) -> list[int]:
    """The latest remembered text that the prompt begins, its last token aside; else the prompt."""
    beginning = prompt[:-1]
    for tokens, digest in remembered(engine):
        is_own = digest == engine.prefix_digest
        if is_own and beginning and tokens[: len(beginning)] == beginning:
            return tokens
    return prompt


def _failed(action: str, error: PrefixError | OSError, path: Path) -> ApiError:
    """The error as clients see it, without the folder."""
    message = f"Unable to {action} slot: "
    if isinstance(error, FileNotFoundError):
        return ApiError(400, f"{message}there is no file {path.name!r}", param="filename")
    if isinstance(error, OSError):
        return ApiError(500, f"{message}{error.strerror}")
    return ApiError(400, message + str(error).replace(str(path), path.name), param="filename")


def _ms_since(start: float) -> float:
    return round(1000 * (time.monotonic() - start), 3)
