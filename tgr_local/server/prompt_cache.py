"""Prompts that the models have read, kept in a folder that the owner names, so that they need not
be read again after a restart, or when others have taken their place in the cache. What is
read for one owner serves that owner alone.

In: a loaded engine, the prompts of each request before it begins, a call when requests have ended.
Out: remembered prefixes in the engine, and files of `prefix_files` in the folder, which together
keep within a bound; the least recently used go first. A file that cannot be used is passed over.
A text is written when it is new by half, and when its model rests or leaves. One whose file had to
go is written again once it is used again. No failure of the disk or of memory ends a request, the
thread that writes, or the unloading of a model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, check_cancelled
from tgr_local.engine.prefix_files import (
    TEMPORARY,
    load_prefix,
    n_common,
    remembered,
    save_prefix,
    saved_tokens,
)
from tgr_local.options.config import ServerConfig
from tgr_local.system import paths
from tgr_local.system.errors import CancelledError, PrefixError, PrefixRoomError, TgrError, describe
from tgr_local.system.turnstile import Turnstile

LEAST_TOKENS = 256  # fewer are read again in a few seconds
ENDING = ".prompt"
PAUSE_SECONDS = 10.0  # for a file that found no room, as it is read whole before that is known
_FILES_MOST = 4096  # whose prompts are known, the latest used
_HEADER = 1 << 16  # bytes of a file without its data, at most
_HALF, _QUARTER = 2, 4  # 1/share of a text that must be new, so that it is written again
_LEAST_SHARE = 4  # 1/share of a file that a prompt must have, so that all of it is read

Tell = Callable[[str], object]
_Tokens = NDArray[np.int32]


class PromptFolder:
    """The files of all models of a server. Any thread. ValueError for options that contradict each
    other or the disk."""

    def __init__(self, limits: ServerConfig, prefix_cells: int, tell: Tell) -> None:
        named = limits.prompt_cache
        self.path = paths.existing_folder("prompt_cache", named) if named else None
        self.most, self.writing = limits.prompt_cache_mib << 20, threading.Lock()
        self._tell, self._told = tell, set[str]()
        if self.path and prefix_cells == 0:
            raise ValueError(
                "prompt_cache keeps what is remembered, but prefix_cells is 0; raise prefix_cells, "
                "or leave prompt_cache out"
            )

    def tell(self, line: str) -> None:
        """Tells the owner, the same thing once."""
        if line not in self._told and len(self._told) < _FILES_MOST:
            self._told.add(line)
            self._tell(line)

    def files(self) -> list[tuple[Path, os.stat_result]]:
        """The regular files of the folder with prompts, the latest used first."""
        assert self.path is not None
        files = paths.latest_first(self.path, f"*{ENDING}")
        return [file for file in files if file[0].is_file() and not file[0].is_symlink()]

    def make_room(self, n_bytes: int, replaced: Collection[Path] = ()) -> bool:
        """Removes the least recently used files until this many more bytes fit, without
        the `replaced` ones; False where they never do. The caller holds `writing`."""
        if n_bytes > self.most:
            return False
        assert self.path is not None
        paths.remove_abandoned(self.path, f".*{ENDING}.*{TEMPORARY}")
        total = n_bytes
        for path, about in self.files():
            if path in replaced:
                continue
            total += about.st_size
            if total > self.most:
                path.unlink(missing_ok=True)
        return True


@dataclass
class _Known:
    """Known prompt files of one owner."""

    prompts: dict[Path, _Tokens] = field(default_factory=dict)
    has_looked: bool = False
    """Whether these are all."""


class PromptCache:
    """The prompts of one model. Any thread; files are written by one of its own. A `digest` is
    `Engine.prefix_digest` of an owner's view of the engine, and tells what it may have."""

    def __init__(self, engine: Engine, folder: PromptFolder) -> None:
        self._engine, self._folder = engine, folder
        self._known: dict[bytes, _Known] = defaultdict(_Known)  # by digest
        self._no_room: dict[Path, float] = {}  # when they found none
        self._lock, self._loading = threading.Lock(), Turnstile(1)
        self._changed, self._closed = threading.Event(), False
        if engine.known_hash:  # files of this model are there only if it is
            self._look()
        self._writer = threading.Thread(target=self._work, name="prompt-cache", daemon=True)
        self._writer.start()

    def has_looked(self, digest: bytes = b"") -> bool:
        """Whether the files of the folder are known."""
        with self._lock:
            return self._known[digest].has_looked

    def restore(
        self, prompts: Sequence[Sequence[int]], cancel: Cancel, digest: bytes = b""
    ) -> None:
        """Loads for each prompt the file that saves it the most reading. Raises CancelledError."""
        if not self.has_looked(digest) and self._engine.known_hash:  # the owner's first request
            self._look(digest, cancel)
        for prompt in prompts:
            text = _OwnedPrompt(np.array(prompt, np.int32), digest)
            while not self._restore(text, cancel):
                pass  # its file is no longer known: the next best

    def request_ended(self) -> None:
        """Lets the writer look at what is remembered now."""
        self._changed.set()

    def save(self, share: int = _QUARTER) -> None:
        """Writes every remembered text of which more than 1/share is in no file."""
        having: set[Path | None] = set()
        try:
            for tokens, digest in remembered(self._engine):
                if len(tokens) >= LEAST_TOKENS:
                    _ = self._engine.model_hash  # without which no file can be looked at
                text = _OwnedPrompt(np.array(tokens, np.int32), digest)
                if not self.has_looked(digest) and self._engine.known_hash:
                    self._look(digest)
                path, n_kept = self._best(text, _n_worth)
                having.add(path)
                n_new = len(tokens) - n_kept
                if n_new >= max(LEAST_TOKENS, len(tokens) // share):
                    self._write(tokens, digest)
            self._forget_removed(having)
        except (TgrError, OSError, MemoryError) as error:
            if not isinstance(error, CancelledError):  # the model is leaving
                self._folder.tell(f"a prompt is not kept: {describe(error)}")

    def close(self) -> None:
        """Writes what no file has yet, before the model leaves; nothing where that would take the
        hash of the model file first."""
        self._closed = True
        self._changed.set()
        self._writer.join()
        if self._engine.known_hash:
            self.save(share=1 << 30)

    # ---- the writer ----

    def _work(self) -> None:
        if not self.has_looked():
            if self._folder.files():
                with contextlib.suppress(TgrError, OSError, MemoryError):  # `_look` says so
                    _ = self._engine.model_hash
            self._look()
        while not self._closed:
            self._changed.wait()
            self._changed.clear()
            if not self._closed:
                self.save(share=_HALF)

    def _look(self, digest: bytes = b"", cancel: Cancel | None = None) -> None:
        """Reads which prompts the files of this model have. Raises CancelledError by `cancel`."""
        for path, _ in self._folder.files()[:_FILES_MOST]:
            if self._closed:
                return
            check_cancelled(cancel, "cancelled while kept prompts were looked for")
            try:
                tokens = saved_tokens(self._engine, path, digest)
            except (PrefixError, OSError, MemoryError) as error:
                self._pass_over(path, error)
            except TgrError:  # the model is leaving, or its file was replaced
                return
            else:
                if tokens is not None:
                    with self._lock:
                        self._known[digest].prompts[path] = np.array(tokens, np.int32)
        with self._lock:
            self._known[digest].has_looked = True

    def _write(self, tokens: list[int], digest: bytes) -> None:
        assert self._folder.path is not None
        if (tokens, digest) not in remembered(self._engine):  # it had to go
            return
        path = self._folder.path / f"{self._name(tokens, digest)}{ENDING}"
        engine = self._engine
        norms = 4 * engine.n_layer
        n_bytes = len(tokens) * (engine.cell_bytes + norms + 4) + engine.state_bytes + _HEADER
        replaced = [path, *self._parts(path, _OwnedPrompt(np.array(tokens, np.int32), digest))]
        with self._folder.writing:
            if not self._folder.make_room(n_bytes, replaced):
                self._folder.tell(
                    f"a prompt of {len(tokens)} tokens takes {n_bytes >> 20} MiB, more than the "
                    f"{self._folder.most >> 20} MiB of prompt_cache_mib; raise it to keep such ones"
                )
                return
            saved = save_prefix(
                engine,
                tokens,
                path,
                digest=digest,
                least_tokens=LEAST_TOKENS,
                most_bytes=self._folder.most,
            )
        if saved:
            whole = _OwnedPrompt(np.array(saved.tokens, np.int32), digest)
            parts = self._parts(path, whole)
            with self._lock:
                self._known[digest].prompts[path] = whole.tokens
            for part in parts:
                self._forget(part)
                part.unlink(missing_ok=True)
            with self._folder.writing:  # less than `tokens` may have been saved, and replaced
                self._folder.make_room(0)

    def _parts(self, path: Path, whole: _OwnedPrompt) -> list[Path]:
        """The files that another one makes superfluous: it has all of them, and is worth loading
        for them alone."""
        if not self._engine.rolls_back:
            return []
        with self._lock:
            return [
                other_path
                for other_path, known in self._known[whole.digest].prompts.items()
                if other_path != path and _n_worth(whole.tokens, known) == len(known)
            ]

    def _name(self, tokens: list[int], digest: bytes) -> str:
        sha = hashlib.sha256(self._engine.model_hash.encode())
        sha.update(self._engine.memory_layout.encode())
        sha.update(np.array(tokens, "<i4").tobytes())
        sha.update(digest)
        return sha.hexdigest()[:32]

    # ---- what is known ----

    def _best(
        self, text: _OwnedPrompt, n_same: Callable[[_Tokens, _Tokens], int]
    ) -> tuple[Path | None, int]:
        """The file that has most of a text, by `n_same`, the shortest of several, and how much."""
        with self._lock:
            candidates = [
                (n_same(known, text.tokens), -len(known), path)
                for path, known in self._known[text.digest].prompts.items()
            ]
        n, _, path = max(candidates, default=(0, 0, None), key=lambda candidate: candidate[:2])
        return path, n

    def _n_usable(self, known: _Tokens, tokens: _Tokens) -> int:
        n = n_common(known, tokens)
        return n if self._engine.rolls_back or n == len(known) else 0

    def _n_loadable(self, known: _Tokens, tokens: _Tokens) -> int:
        return min(self._n_usable(known, tokens), _n_worth(known, tokens))

    def _n_remembered(self, text: _OwnedPrompt) -> int:
        known = (prompt for prompt, digest in remembered(self._engine) if digest == text.digest)
        usable = (self._n_usable(np.array(prompt, np.int32), text.tokens) for prompt in known)
        return max(usable, default=0)

    def _restore(self, text: _OwnedPrompt, cancel: Cancel) -> bool:
        """Loads the best file for a prompt if that pays; False where it proved useless."""
        path, n = self._best(text, self._n_loadable)
        if path is None or n < LEAST_TOKENS:
            return True
        try:
            os.utime(path)  # even if it is remembered: files go by their last use
        except FileNotFoundError:
            self._forget(path)
            return False
        except OSError:  # a folder that can be read only
            pass
        with self._loading.taken(cancel):
            if n - self._n_remembered(text) < LEAST_TOKENS or self._pauses(path):
                return True
            return self._load(path, cancel)

    def _pauses(self, path: Path) -> bool:
        failed = self._no_room.get(path)
        return failed is not None and time.monotonic() - failed < PAUSE_SECONDS

    def _load(self, path: Path, cancel: Cancel) -> bool:
        """False for a file that cannot be used."""
        try:
            load_prefix(self._engine, path, cancel=cancel)
        except CancelledError:
            raise
        except (PrefixRoomError, MemoryError):  # later, perhaps
            self._no_room[path] = time.monotonic()
        except (TgrError, OSError) as error:
            self._pass_over(path, error)
            return False
        else:
            self._no_room.pop(path, None)
        return True

    def _pass_over(self, path: Path, error: Exception) -> None:
        self._forget(path)
        if not isinstance(error, FileNotFoundError):  # it had to leave
            self._folder.tell(f"warning: a kept prompt is not used: {describe(error)}")

    def _forget(self, path: Path) -> None:
        with self._lock:
            for known in self._known.values():
                known.prompts.pop(path, None)
            self._no_room.pop(path, None)

    def _forget_removed(self, having: set[Path | None]) -> None:
        """Forgets removed files but those of remembered texts, which would be written again at
        once; `restore` forgets these when they are used."""
        with self._lock:
            known = [path for owner in self._known.values() for path in owner.prompts]
        others = [path for path in known if path not in having]
        for path in others:
            if not os.path.lexists(path):
                self._forget(path)


@dataclass(frozen=True, eq=False)
class _OwnedPrompt:
    """The tokens of a prompt, and whose it is."""

    tokens: _Tokens
    digest: bytes


def _n_worth(known: _Tokens, tokens: _Tokens) -> int:
    """Tokens that both begin with; 0 where `known` has so many more that reading it, which is read
    whole, would not pay."""
    n = n_common(known, tokens)
    return n if _LEAST_SHARE * n >= len(known) else 0
