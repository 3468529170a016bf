"""Remembered prefixes in files; and fake prefixes, which were never decoded, for measurements.

In: an engine, tokens, a path. Out: a file with the keys and values of the longest remembered prefix
of the tokens; the same prefix remembered in another engine that has the same model, cache types and
version of llama.cpp. Everything in a file is checked before its data are read into memory, and the
data before the engine sees them; a file that cannot be used raises PrefixError.

A file is: `_START`, a JSON object, tokens, norms, state, keys and values, sha256 of all before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine.devices import available_memory
from tgr_local.engine.engine import Engine
from tgr_local.engine.native import LLAMA_CPP_PYTHON
from tgr_local.engine.session import Task
from tgr_local.system import files, paths
from tgr_local.system.cancel import Cancel, check_cancelled
from tgr_local.system.errors import CapacityError, PrefixError, PrefixRoomError

MAGIC = b"tgrprefx"
_VERSION = 1
_START = struct.Struct("<8sII")  # magic, version, bytes of the JSON object
_HEADER_MOST, _DIGEST_MOST = 1 << 16, 64  # bytes
_BLOCK = 16 << 20  # bytes read or written between two checks of `cancel`
_STOPPED = "cancelled while a prefix was saved or loaded"
_COPIES = 3  # copies of the keys and values that are in memory at a time, at most
_SHA = hashlib.sha256().digest_size
Tokens = Sequence[int] | NDArray[np.int32]
TEMPORARY = ".part"  # the end of the name of a file that is being written


@dataclass(frozen=True)
class SavedPrefix:
    """A prefix that a file holds."""

    tokens: list[int]
    digest: bytes
    """`Engine.prefix_digest` of the engine that decoded the tokens."""
    n_bytes: int
    """Size of the file, bytes."""


@dataclass(frozen=True)
class PrefixHeader:
    """Description of a file's data; `norms`, `state` and `cells` are numbers of bytes."""

    llama_cpp: str
    model: str
    layout: str
    digest: str
    n_tokens: int
    norms: int
    state: int
    cells: int

    @property
    def n_bytes(self) -> int:
        """Size of the data, bytes."""
        return 4 * self.n_tokens + self.norms + self.state + self.cells


def remembered(engine: Engine) -> list[tuple[list[int], bytes]]:
    """Tokens and digest of every remembered prefix, the latest first."""
    return list(engine._native.prefixes())


def save_prefix(
    engine: Engine,
    tokens: list[int],
    path: Path,
    *,
    digest: bytes = b"",
    least_tokens: int = 1,
    most_bytes: int | None = None,
    cancel: Cancel | None = None,
) -> SavedPrefix | None:
    """Writes the longest remembered prefix of the tokens to a file, which only its owner can read.
    It replaces a file of another prefix in one step. None, and no file, if fewer than
    `least_tokens` are remembered.

    Raises PrefixError if the file would have more than `most_bytes`, if there is another kind of
    file, or too little memory; OSError as the system does; CancelledError by `cancel`.
    """
    if path.exists() and not is_prefix_file(path):
        raise PrefixError(f"{path} exists and is not a saved prefix; name another file")
    _, cell_bytes = _sizes(engine._native.memory_layout())
    n = max(
        (n_common(tokens, known) for known, of in remembered(engine) if of == digest), default=0
    )
    if n < least_tokens:
        return None
    _check_memory(n * cell_bytes, "saving")
    _check_size(n * cell_bytes, most_bytes)
    known, norms, state, cells = engine._native.read_prefix(tokens, digest)
    if len(known) < max(1, least_tokens):  # reclaimed since, or a part that cannot be used alone
        return None
    sizes = len(known), len(norms), len(state), len(cells)
    layout = engine._native.memory_layout()
    header = PrefixHeader(LLAMA_CPP_PYTHON, engine.model_hash, layout, digest.hex(), *sizes)
    text = json.dumps(dataclasses.asdict(header)).encode()
    start = _START.pack(MAGIC, _VERSION, len(text)) + text
    n_bytes = len(start) + header.n_bytes + _SHA
    _check_size(n_bytes, most_bytes)
    with paths.replacing(path, f".{path.name}.", TEMPORARY) as file:
        sha = hashlib.sha256()
        for part in (start, np.array(known, "<i4").tobytes(), norms, state, cells):
            view = memoryview(part)
            for begin in range(0, len(view), _BLOCK):
                check_cancelled(cancel, _STOPPED)
                sha.update(view[begin : begin + _BLOCK])
                file.write(view[begin : begin + _BLOCK])
        file.write(sha.digest())
    return SavedPrefix(known, digest, n_bytes)


def load_prefix(engine: Engine, path: Path, *, cancel: Cancel | None = None) -> SavedPrefix:
    """Reads a prefix from a file; the engine remembers it from now on.

    Raises PrefixError for a file that is damaged, of another model, cache type or version, or does
    not fit into the cache; OSError as the system does; CancelledError by `cancel`.
    """
    with _opened(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        sha = hashlib.sha256()
        header = _read_header(engine, path, file, n_bytes, sha)
        _check_memory(header.cells, "loading")
        sizes = (4 * header.n_tokens, header.norms, header.state, header.cells)
        tokens, norms, state, cells = (_read(path, file, size, sha, cancel) for size in sizes)
        if file.read(_SHA + 1) != sha.digest():
            raise PrefixError(f"{path} is damaged: its checksum does not match its content")
    if not np.isfinite(np.frombuffer(norms, "<f4")).all():
        raise PrefixError(f"{path} is damaged: it holds a norm that is not finite")
    ids = np.frombuffer(tokens, "<i4")
    if ids.min() < 0 or ids.max() >= engine.n_vocab:
        raise PrefixError(f"{path} is damaged: it holds a token that the model does not have")
    prefix = SavedPrefix(ids.tolist(), bytes.fromhex(header.digest), n_bytes)
    added = engine._native.add_prefix(prefix.tokens, prefix.digest, norms, state, cells)
    if not added:
        raise PrefixRoomError(
            f"{path} holds {len(ids)} tokens, for which the cache has no room now; wait until "
            "fewer requests run, or set a larger n_ctx"
        )
    return prefix


def saved_tokens(engine: Engine, path: Path, digest: bytes = b"") -> list[int] | None:
    """Reads only the tokens of a file. None for a prefix of another model, cache type or version,
    or with another digest. Raises PrefixError for a damaged file, and OSError."""
    with _opened(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        try:
            header = _read_header(engine, path, file, n_bytes, hashlib.sha256())
        except _ForeignError:
            return None
        if header.digest != digest.hex():
            return None
        tokens = _read(path, file, 4 * header.n_tokens, hashlib.sha256(), None)
    return [int(token) for token in np.frombuffer(tokens, "<i4")]


def is_prefix_file(path: Path) -> bool:
    """Whether a file begins like a saved prefix of any version. Raises OSError."""
    try:
        with _opened(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except PrefixError:
        return False


# ---- without a file ----


def fill_prefix(engine: Engine, tokens: Sequence[int], n_read: int) -> None:
    """Makes tokens a fake remembered prefix: only the first `n_read` tokens are decoded, and their
    keys and values are repeated for the others. Attention to it has no meaning, but takes as long
    as attention to real tokens. Needs an engine that remembers (`prefix_cells`).

    Raises CapacityError where the cache or the memory has no room for them.
    """
    n_read, n = min(n_read, len(tokens)), len(tokens)
    needed_bytes, free_bytes = _COPIES * n * engine.cell_bytes, available_memory()
    if free_bytes is not None and needed_bytes > free_bytes:
        raise CapacityError(
            f"a context of {n:,} tokens needs {needed_bytes >> 20:,} MiB of memory, but only "
            f"{free_bytes >> 20:,} MiB are available; take a shorter one"
        )
    with engine.session(n_read + 8, 1) as session:
        sequence = session.sequence()
        session.run([Task(sequence, tokens[:n_read])])
        session.remember(sequence)
    _, _, state, cells = engine._native.read_prefix(tokens[:n_read], b"")
    filled = np.resize(np.frombuffer(cells, np.uint8), len(cells) // n_read * n).tobytes()
    if not engine._native.add_prefix(tokens, b"", b"", state, filled):
        raise CapacityError(
            f"the cache has no room for {n:,} more tokens; set a larger n_ctx, or "
            "take a shorter context"
        )


# ---- writing ----


def _check_size(n_bytes: int, most: int | None) -> None:
    if most is not None and n_bytes > most:
        raise PrefixError(
            f"the prefix takes {n_bytes >> 20} MiB, but {most >> 20} MiB are left for files; "
            "remove other files, or raise the limit"
        )


def _check_memory(n_bytes: int, action: str) -> None:
    free_bytes = available_memory()
    if free_bytes is not None and _COPIES * n_bytes > free_bytes:
        raise PrefixRoomError(
            f"{action} the prefix needs {_COPIES * n_bytes >> 20} MiB of memory, but only "
            f"{free_bytes >> 20} MiB are available; end other programs"
        )


# ---- reading ----


class _ForeignError(PrefixError):
    """A prefix of another model, cache type or version."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """A regular file, open for reading; another kind would block, or never end."""
    descriptor = os.open(path, os.O_RDONLY | files.NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PrefixError(f"{path} is not a regular file; name a saved prefix")
    with FileIO(descriptor, "rb") as file:
        yield file


def _read_header(engine: Engine, path: Path, file: FileIO, n_bytes: int, sha: Any) -> PrefixHeader:
    """The header, which fits the engine and the size of the file. Raises PrefixError."""
    start = file.read(_START.size)
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise PrefixError(f"{path} is not a saved prefix; name another file")
    _, version, n_header = _START.unpack(start)
    if version != _VERSION:
        raise _ForeignError(
            f"{path} has version {version} of the format, but this program reads {_VERSION}; save "
            "the prefix again"
        )
    if n_header > min(_HEADER_MOST, n_bytes):
        raise PrefixError(f"{path} is damaged: its header has {n_header} bytes")
    sha.update(start)
    header = _parsed(path, _read(path, file, n_header, sha, None))
    _check_header(engine, path, header)
    expected = _START.size + n_header + header.n_bytes + _SHA
    if n_bytes != expected:
        raise PrefixError(f"{path} is damaged: it has {n_bytes} bytes instead of {expected}")
    return header


def _parsed(path: Path, text: bytearray) -> PrefixHeader:
    fields = {spec.name: {"str": str, "int": int}[str(spec.type)] for spec in _FIELDS}
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != fields.keys():
            raise ValueError("its header has other fields")
        for name, kind in fields.items():
            if type(values[name]) is not kind or (kind is int and values[name] < 0):
                raise ValueError(f"its {name} is not valid")
        if len(bytes.fromhex(values["digest"])) > _DIGEST_MOST:
            raise ValueError("its digest is too long")
    except (ValueError, RecursionError) as error:
        raise PrefixError(f"{path} is damaged: {str(error)[:80]}") from None
    return PrefixHeader(**values)


_FIELDS = dataclasses.fields(PrefixHeader)


def _check_header(engine: Engine, path: Path, header: PrefixHeader) -> None:
    """Raises PrefixError for a prefix that the engine cannot use, the cheapest checks first."""
    layout = engine._native.memory_layout()
    if header.llama_cpp != LLAMA_CPP_PYTHON:
        raise _ForeignError(
            f"{path} was written with llama-cpp-python {header.llama_cpp:.40}, but this is "
            f"{LLAMA_CPP_PYTHON}; save the prefix again"
        )
    if header.layout != layout:
        raise _ForeignError(
            f"{path} is of another model, cache type or attention, or was read in other batches; "
            "use type_k, type_v, flash_attn, reproducible, n_batch and n_ubatch as when it was "
            "saved"
        )
    if engine.config.prefix_cells == 0:
        raise PrefixError(f"{path} cannot be used: prefix_cells is 0; raise it")
    if not 0 < header.n_tokens <= engine.n_ctx_train:
        raise PrefixError(
            f"{path} holds {header.n_tokens} tokens, but the model reads 1 to {engine.n_ctx_train}"
        )
    n, row = header.n_tokens, 4 * engine.n_layer
    state_bytes, cell_bytes = _sizes(layout)
    if (
        header.state != state_bytes
        or header.cells != n * cell_bytes
        or header.norms % row
        or header.norms > n * row
    ):
        raise PrefixError(f"{path} is damaged: the sizes in its header do not fit the model")
    if header.model != engine.model_hash:
        raise _ForeignError(f"{path} was saved with another model; save the prefix again")


def _sizes(layout: str) -> tuple[int, int]:
    """Bytes of a state and of a cell, from the engine's text: ``cells TYPE BYTES …; states …``."""
    cells, states = (part.split()[2::2] for part in layout.split(";")[:2])
    state_bytes, cell_bytes = (sum(int(n.rstrip("t")) for n in part) for part in (states, cells))
    return state_bytes, cell_bytes


def _read(path: Path, file: FileIO, n_bytes: int, sha: Any, cancel: Cancel | None) -> bytearray:
    """The next bytes of the file, which `sha` counts. Raises PrefixError at the file's end."""
    data = bytearray(n_bytes)
    view, begin = memoryview(data), 0
    while begin < n_bytes:
        check_cancelled(cancel, _STOPPED)
        n = file.readinto(view[begin : begin + _BLOCK])
        if not n:
            raise PrefixError(f"{path} is damaged: it ends after {begin} of {n_bytes} bytes")
        sha.update(view[begin : begin + n])
        begin += n
    return data


def n_common(a: Tokens, b: Tokens) -> int:
    """Tokens at the beginning that both have."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n
