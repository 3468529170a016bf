"""A loaded model: tokens in; tokens, log-probabilities and states out.

The only module that touches the native extension. An `Engine` is one model, one KV cache and one
worker thread that decodes all running work together; any number of Python threads may use it.
Cache room is had by opening a `Session`, which owns `Sequence` and `Injection` handles. Work is a
list of `Task`, run together by `Session.run`, and comes back as one `Output` for each.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import waits
from tgr_local.engine.waits import awaited_by as awaited_by
from tgr_local.engine.waits import awaiting as awaiting
from tgr_local.errors import CancelledError, CapacityError, InstallError, ModelError, TgrError
from tgr_local.options import cache
from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.system import confined, memory

LLAMA_CPP_PYTHON = "0.3.36"

_INT_MAX = 2**31 - 1
_POLL_SECONDS = 0.05  # how often a wait looks for Ctrl-C, a cancel or a deadline
_SMALL_MODEL = 64 << 20  # bytes
_TEMPLATE_MOST = 1 << 20  # characters of a chat template
_MEMORY_SHARE = 0.9  # of the available memory that the cache may take


def _load_native() -> Any:
    """Imports the extension after its libraries. Raises InstallError when the parts do not fit."""
    try:
        installed = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed"
    if installed != LLAMA_CPP_PYTHON:
        raise InstallError(
            f"llama-cpp-python is {installed}, but tgr-local was built for {LLAMA_CPP_PYTHON}; "
            f"run: pip install llama-cpp-python=={LLAMA_CPP_PYTHON}"
        )
    spec = importlib.util.find_spec("llama_cpp")
    if spec is not None and spec.origin is not None:
        # an editable install lies elsewhere than its run path says: loaded once under their own
        # names, the libraries are found all the same
        for library in (Path(spec.origin).parent / "lib").glob("*ggml.[sd]*"):
            if library.suffix in (".so", ".dylib"):
                ctypes.CDLL(str(library))
    try:
        from tgr_local import _engine
    except ImportError as error:
        raise InstallError(
            f"the native engine cannot be loaded ({error}); run: pip install --force-reinstall "
            "--no-deps tgr-local"
        ) from None
    return _engine


_engine = _load_native()


class Cancel:
    """A flag that ends running work from another thread; with a parent, also when that one does."""

    def __init__(self, parent: Cancel | None = None) -> None:
        self._event = threading.Event()
        self._answer = threading.Event()
        self._parent = parent

    def cancel(self) -> None:
        """Ends the work that watches this flag at its next decoded token, in prefill too."""
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set() or (self._parent is not None and self._parent.is_set())

    def answer_now(self) -> None:
        """Has the replies that watch this flag close their thinking and answer. The chunk under way
        is kept; it ends at its next token, or where nobody listens at its last. An answer under
        way goes on."""
        self._answer.set()

    def answers_now(self) -> bool:
        return self._answer.is_set() or (self._parent is not None and self._parent.answers_now())


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the meaning of each field is that of `SearchConfig`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    grammar: str = ""
    """GBNF; empty = none."""
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, config: SearchConfig) -> Sampling:
        shared = {f.name for f in dataclasses.fields(cls)} & {
            f.name for f in dataclasses.fields(config)
        }
        return cls(**{name: getattr(config, name) for name in shared})


@dataclass(frozen=True, eq=False)
class Task:
    """What one sequence does in a run: append `feed`, then generate."""

    sequence: Sequence
    feed: Seq[int]
    """At least one token; their positions follow the sequence's."""
    n_generate: int = 0
    """Tokens to generate at most. The last one is sampled but not decoded."""
    injection: Injection | None = None
    """The injection that every token decoded by this task gets; None = none."""
    sampling: Sampling = Sampling()
    seed: int = 0
    history: Seq[int] = ()
    """Tokens before the feed, for repetition penalties."""
    grammar_history: Seq[int] = ()
    """Tokens that the grammar has read when the first one is generated, so that it holds from task
    to task; those of the feed are read only if they stand here too."""
    stop: tuple[str, ...] = ()
    """Text that ends the generation."""
    tail: bytes = b""
    """Newest text of the reply before this task, for a stop text that began there."""
    ignore_eog: bool = False
    """Go on after an end token."""
    states: bool = False
    """Keep the state that each generated token was sampled from."""
    feed_states: str = "none"
    """States kept of the fed tokens: "none", "last" or "all"."""
    feed_logprobs: bool = False
    norms: bool = False
    """Sum residual norms over the fed tokens."""
    n_top: int = 0
    """Likeliest alternatives kept for each generated token."""


@dataclass(frozen=True, eq=False)
class Output:
    """What a task came to; n is the number of generated tokens."""

    tokens: NDArray[np.int32]
    """[n], an end token included."""
    logprobs: NDArray[np.float32]
    """[n] log p of each token, nats, at temperature 1 and before any filter."""
    sampled_logprobs: NDArray[np.float32]
    """[n] log of the probability that each token was drawn with, nats: after bias, penalties, the
    grammar, filters and the temperature; 0 at temperature 0."""
    entropies: NDArray[np.float32]
    """[n] entropy of the distribution each token was drawn from, nats, at temperature 1."""
    states: NDArray[np.float32]
    """[n, n_embd] final-norm state that each token was sampled from; [0, n_embd] unless asked."""
    feed_states: NDArray[np.float32]
    """[0, 1 or n_feed, n_embd] final-norm states of the fed tokens."""
    feed_logprobs: NDArray[np.float32]
    """[n_feed - 1] log p of feed[1:], each given what stands before it."""
    norm_sums: NDArray[np.float64]
    """[n_layer] sum of the residual norms of the fed tokens after each layer. The last layer, which
    computes output tokens only, is measured on up to 32 evenly spaced ones."""
    norm_counts: NDArray[np.float64]
    """[n_layer] number of tokens in each sum."""
    top_ids: NDArray[np.int32]
    """[n, n_top]"""
    top_logprobs: NDArray[np.float32]
    """[n, n_top]"""
    n_decoded: int
    """Positions that this task decoded."""
    finish: str
    """"length", "stop" (end token or stop text), "cancelled"; "" when nothing was to generate."""


@dataclass(frozen=True)
class EngineStats:
    """A moment's view of the engine; counts run from its start. While a decode takes longer than a
    second, that of the moment before it."""

    n_positions: int
    """Token positions that passed through the model."""
    n_decodes: int
    decode_seconds: float
    sample_seconds: float
    n_ctx: int
    """Cells of the KV cache now."""
    n_seq_max: int
    cells_used: int
    cells_peak: int
    cells_reserved: int
    n_sequences: int
    n_sessions: int
    n_waiting: int
    n_jobs: int


@dataclass(frozen=True)
class DeviceInfo:
    """A device that ggml can compute on."""

    name: str
    description: str
    kind: str
    """"cpu", "gpu", "igpu", "accelerator" or "other"."""
    memory_total: int
    """Bytes."""
    memory_free: int
    """Bytes."""


def backend_devices() -> list[DeviceInfo]:
    """The devices of the installed llama-cpp-python."""
    return [DeviceInfo(*device) for device in _engine.devices()]


def physical_cores() -> int:
    """Physical cores that this process may use: hyper-threads share the units that matter here."""
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    cores = set()
    for cpu in allowed:
        try:
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            ids = ("physical_package_id", "core_id")
            cores.add(tuple((topology / name).read_text() for name in ids))
        except OSError:
            cores.add((str(cpu),))
    return len(cores) or 1


def default_threads(model: Path) -> int:
    """One for a small model, whose layers take less time than threads take to meet, most of all on
    a machine that is busy; else the physical cores."""
    small = model.is_file() and model.stat().st_size < _SMALL_MODEL
    return 1 if small else physical_cores()


class Engine:
    """One model, loaded. Use it from any thread; `close` it or leave its ``with`` block.

    Raises ModelError for a file that cannot be used, with the reason.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(path)
        self.config = config = config or EngineConfig()
        params = _engine.EngineParams()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_gpu_layers", "main_gpu", "use_mmap"):
            setattr(params, name, getattr(config, name))
        try:
            params.path = os.fspath(self.path).encode("utf-8").decode()
        except UnicodeEncodeError:
            raise ModelError(
                f"the path {os.fspath(self.path)!a} is not UTF-8; rename the file"
            ) from None
        params.use_mlock = config.use_mlock
        params.tensor_split = list(config.tensor_split)
        params.n_threads = self.n_threads = config.n_threads or default_threads(self.path)
        params.flash_attn = {"auto": -1, "off": 0, "on": 1}[config.flash_attn]
        params.type_k = cache.CACHE_TYPES[config.type_k].ggml_id
        params.type_v = cache.CACHE_TYPES[config.type_v].ggml_id
        params.n_seq_max = config.n_seq_max
        self._native = _engine.Engine(params)
        self.n_seq_max: int = self._native.stats().n_seq_max
        self.max_cells: int | None = None
        """Cells that the cache may grow to; None = as many as fit into memory."""
        self._known_to_fit = 0  # cells
        # of every open session
        self._reservations: dict[int, waits.Reservation] = {}
        _engines.add(self)

        info = self._native.info
        self.n_vocab: int = info.n_vocab
        self.n_embd: int = info.n_embd
        self.n_layer: int = info.n_layer
        self.n_ctx_train: int = info.n_ctx_train
        self.size_bytes: int = info.size_bytes
        self.bos: int | None = info.bos if info.bos >= 0 else None
        self.eos: int | None = info.eos if info.eos >= 0 else None
        self.fim_pad: int | None = info.fim_pad if info.fim_pad >= 0 else None
        self.end_tokens: frozenset[int] = frozenset(info.eog)
        self.n_params: int = info.n_params
        # llama.cpp knows the sizes of published models only
        size = f"{info.n_params / 1e6:.1f}M"
        self.description: str = info.description.decode("utf-8", "replace").replace("?B", size)
        self.chat_template: str = info.chat_template.decode("utf-8", "replace")
        self.metadata: dict[str, str] = {
            key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for key, value in info.metadata
        }

    def close(self) -> None:
        """Ends running work with CancelledError and frees the model. May be called again."""
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @functools.cached_property
    def model_hash(self) -> str:
        """sha256 of the model file."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    @property
    def n_ctx(self) -> int:
        """Cells of the KV cache now."""
        return self.stats().n_ctx

    def stats(self) -> EngineStats:
        stats = self._native.stats()
        return EngineStats(
            **{f.name: getattr(stats, f.name) for f in dataclasses.fields(EngineStats)}
        )

    def devices(self) -> list[str]:
        """The device of every layer, then of the output layer; [n_layer + 1]."""
        return list(self._native.info.devices)

    # --- text ---

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text. `parse_special` reads control tokens such as ``<|im_end|>``."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text is no valid Unicode at character {error.start}; remove what stands there"
            ) from None
        return list(self._native.tokenize(text, add_special, parse_special))

    def detokenize(self, tokens: Seq[int] | NDArray[np.int32], *, special: bool = False) -> bytes:
        """Bytes of the tokens; `special` also prints control tokens. May end inside a character."""
        return bytes(self._native.detokenize(tokens, special))

    def check_grammar(self, grammar: str) -> None:
        """Raises ValueError for GBNF that does not parse."""
        self._native.check_grammar(grammar)

    def chat_prompt(
        self,
        messages: Seq[Mapping[str, str]],
        *,
        thinking: bool = True,
        cancel: Cancel | None = None,
    ) -> str:
        """The messages in the model's own chat template, open for the assistant's reply.

        The template runs in a process of its own, with limits of time and memory. Raises ModelError
        for a file without a template, or one whose template fails; CancelledError by `cancel`.
        """
        if not self.chat_template:
            raise ModelError(f"{self.path} has no chat template; use --raw, or a chat model")
        if len(self.chat_template) > _TEMPLATE_MOST:
            raise ModelError(
                f"the chat template of {self.path} has {len(self.chat_template)} characters, but "
                f"may have {_TEMPLATE_MOST}; use --raw, or another file of the model"
            )

        def text_of(token: int | None) -> str:
            if token is None:
                return ""
            return self.detokenize([token], special=True).decode(errors="replace")

        variables = {
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": True,
            "enable_thinking": thinking,
            "bos_token": text_of(self.bos),
            "eos_token": text_of(self.eos),
        }
        try:
            return confined.render(self.chat_template, variables, cancel)
        except confined.ConfinedError as error:
            raise ModelError(f"the chat template of {self.path} fails: {error}") from None

    def eoc_token(self, text: str = "") -> int:
        """The end-of-chunk delimiter: the token that `text` names, else ``<|fim_pad|>``,
        ``<|endoftext|>`` or the end token, whichever the vocabulary has first.

        Raises ValueError when `text` is not exactly one token.
        """
        if text:
            tokens = self.tokenize(text)
            if len(tokens) != 1:
                raise ValueError(
                    f"eoc_token is {text!r}, which is {len(tokens)} tokens of this vocabulary; "
                    "name one that is a single token"
                )
            return tokens[0]
        if self.fim_pad is not None:
            return self.fim_pad
        tokens = self.tokenize("<|endoftext|>")
        if len(tokens) == 1:
            return tokens[0]
        if self.eos is None:
            raise ModelError(f"{self.path} has no end token; name a delimiter with eoc_token")
        return self.eos

    # --- work ---

    def reserve(self, n_cells: int, n_sessions: int = 1) -> None:
        """Enlarges the cache, if it may grow and no session is open, so that so many sessions of
        `n_cells` each fit, or as many as there is memory for."""
        _check_whole("n_cells", n_cells, 0, _INT_MAX)
        _check_whole("n_sessions", n_sessions, 0, _INT_MAX)
        if n_cells:
            n_sessions = min(n_sessions, self.most_cells() // n_cells)
        if n_sessions:
            self._native.reserve(n_cells, n_sessions)

    def lockstep_group(self, n: int) -> LockstepGroup:
        """A group of n participants, for sessions that must always meet the same batches."""
        return LockstepGroup(self, self._native.crew(n))

    def session(
        self,
        n_cells: int,
        n_seqs: int,
        *,
        participant: Participant | None = None,
        cancel: Cancel | None = None,
    ) -> Session:
        """Waits for room of `n_cells` cells and `n_seqs` sequences (and as many injections).

        Raises CapacityError if there can never be, or if all that is in the way is used by threads
        that wait for room themselves, this one or those that wait for it among them: the latest
        of them to ask gives up. Raises CancelledError if `cancel` came first.
        """
        _check_whole("n_cells", n_cells, 0, _INT_MAX)
        _check_whole("n_seqs", n_seqs, 0, _INT_MAX)
        self._check_growth(n_cells)
        group, index = (participant.group._native, participant.index) if participant else (None, 0)
        request = self._native.open(n_cells, n_seqs, group, index)

        def in_the_way() -> list[int]:
            try:
                return list(request.in_the_way())
            except TgrError:  # the engine is closed: the wait is over
                return []

        wait = waits.Wait(
            self._reservations, in_the_way, lambda: cancel is not None and cancel.is_set()
        )
        try:
            with _waiting(), waits.noted(wait):
                while (granted := request.wait(_POLL_SECONDS)) is None:
                    if cancel and cancel.is_set():
                        raise CancelledError("cancelled while waiting for cache room")
                    if waits.must_withdraw(wait):
                        raise CapacityError(self._waits_in_vain(n_cells, n_seqs, wait))
                room = waits.Reservation(n_cells, n_seqs, group)
                session = Session(self, granted, room)
                self._reservations[granted] = room
            return session
        except BaseException:
            request.give_up()
            raise

    @functools.cached_property
    def cell_bytes(self) -> int:
        """Bytes of one cell of the KV cache, all layers together."""
        attention = cache.attention(self.metadata, self.n_embd)
        return cache.cell_bytes(attention, self.n_layer, self.config.type_k, self.config.type_v)

    def most_cells(self) -> int:
        """Cells that the KV cache can have: `n_ctx`, or what `max_cells` and the memory that is
        available now allow. A GPU says itself when it has no more."""
        if self.config.n_ctx:
            return self.config.n_ctx
        most = _INT_MAX if self.max_cells is None else self.max_cells
        left = memory.available() if set(self.devices()) == {"CPU"} else None
        if left is not None:
            most = min(most, self.n_ctx + int(_MEMORY_SHARE * left) // self.cell_bytes)
        return most

    def _check_growth(self, n_cells: int) -> None:
        """CapacityError for a cache that may not become so large: the system would end a process
        that takes more memory than there is."""
        if self.config.n_ctx or n_cells <= self._known_to_fit:
            return
        most = self.most_cells()
        if n_cells > most:
            needed, granted = (round(n * self.cell_bytes / 2**20) for n in (n_cells, most))
            raise CapacityError(
                f"needs {n_cells} cells of the KV cache ({needed} MiB), but it can have {most} "
                f"({granted} MiB); shorten the query, lower chunk_len, rollout_len or "
                "n_candidates, or set a smaller type_k and type_v"
            )
        self._known_to_fit = n_cells

    def _waits_in_vain(self, n_cells: int, n_seqs: int, wait: waits.Wait) -> str:
        rooms = list(self._reservations.values())
        own = [room for room in rooms if room.user in wait.line]
        stats = self.stats()

        def held(rooms: list[waits.Reservation], cells: str = "", seqs: str = "") -> str:
            n = (sum(room.n_cells for room in rooms), sum(room.n_seqs for room in rooms))
            return f"{n[0]}{cells} cells and {n[1]}{seqs} sequences"

        whole = held(rooms, f" of {stats.n_ctx}", f" of {stats.n_seq_max}")
        if len(own) == len(rooms):
            where = f"this thread itself holds {whole}"
        elif own:
            where = (
                f"{whole} are held by threads that all wait for room, {held(own)} of them by this "
                "thread itself"
            )
        else:
            where = f"{whole} are held by threads that wait for what this one holds elsewhere"
        return (
            f"needs {n_cells} cells and {n_seqs} sequences, but {where}; close its {len(own)} open "
            "sessions first, or set a larger n_ctx"
        )


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_inside: set[int] = set()  # threads that wait for an engine
_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ending = False


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """A daemon thread that does `work`. CancelledError when the program ends: some versions of
    Python crash where threads begin and end while it does."""
    if _ending:
        raise CancelledError("the program ends")
    thread = threading.Thread(target=work, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    thread = threading.get_ident()
    nested = thread in _inside
    _inside.add(thread)
    try:
        yield
    finally:
        if not nested:
            _inside.discard(thread)


@atexit.register
def _close_all() -> None:
    # a thread that still waits in native code when the interpreter goes would abort the process
    global _ending
    _ending = True
    for engine in list(_engines):
        engine.close()
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError):  # one has just been added
            if not _inside and not any(thread.is_alive() for thread in list(_started)):
                break
        time.sleep(0.005)


def _after_fork() -> None:
    # the child has none of the threads, and engines without their worker
    _inside.clear()
    waits.forget_all()
    _engine.forked()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, eq=False)
class LockstepGroup:
    """Sessions that advance in step: none of their work is decoded while a participant has nothing to
    do, so their batches, and with them the rounding, depend on the seeds alone. Every participant must
    either open its session or `leave`, and must not wait for another participant in between."""

    engine: Engine
    _native: Any

    def participant(self, index: int) -> Participant:
        return Participant(self, index)


@dataclass(frozen=True, eq=False)
class Participant:
    """One place in a group; leaving its ``with`` block leaves the group."""

    group: LockstepGroup
    index: int

    def leave(self) -> None:
        """Nobody waits for this participant any more. May be called again."""
        self.group.engine._native.leave(self.group._native, self.index)

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()


class Session:
    """Reservation in the cache. Close it, or leave its ``with`` block, to give everything back."""

    def __init__(self, engine: Engine, session: int, room: waits.Reservation) -> None:
        self.engine = engine
        self._id = session
        self._native = engine._native
        self._reservation = room

    def close(self) -> None:
        """Cancels what runs and frees all sequences and injections. May be called again."""
        self._native.close_session(self._id)
        self.engine._reservations.pop(self._id, None)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def sequence(self) -> Sequence:
        """An empty sequence."""
        return Sequence(self, self._native.sequence(self._id))

    def injection(self, vectors: NDArray[np.float32]) -> Injection:
        """An injection for every layer; vectors [n_layer, n_embd], added after layers 0 … n_layer-1."""
        expected = (self.engine.n_layer, self.engine.n_embd)
        if np.shape(vectors) != expected:
            raise ValueError(f"vectors have shape {np.shape(vectors)}, but must have {expected}")
        with np.errstate(over="ignore"):
            vectors = np.asarray(vectors, np.float32)
        if not np.isfinite(vectors).all():
            raise ValueError(
                "vectors hold a value that is not finite; check what they were made of"
            )
        return Injection(self, self._native.direction(self._id, vectors))

    def peak_cells(self, *, reset: bool = False) -> int:
        """Cells that this session used at most, since its start or the last reset."""
        return int(self._native.session_peak(self._id, reset))

    def run(
        self,
        tasks: Seq[Task],
        *,
        on_tokens: Callable[[list[list[int]]], None] | None = None,
        cancel: Cancel | None = None,
        deadline: float | None = None,
        stop_early: bool = False,
    ) -> list[Output]:
        """Runs the tasks together and returns their outputs, in order.

        `on_tokens` gets the new tokens of every task as they come. At `deadline`, a reading of
        time.monotonic, the run ends early and the outputs hold what there is; with `stop_early`, also
        when `cancel` is told to answer now. Raises CancelledError when `cancel` is set first.
        """
        if cancel and cancel.is_set():
            raise CancelledError("cancelled")
        with _waiting():
            self._reservation.use()
            job = self._native.submit(self._id, [_native_task(self, task) for task in tasks])
            self._reservation.job = job
            stopped = False
            try:
                while not job.wait(0.0 if on_tokens else _POLL_SECONDS):
                    if on_tokens and any(fresh := job.take(_POLL_SECONDS)):
                        on_tokens(fresh)
                    if cancel and cancel.is_set():
                        raise CancelledError("cancelled")
                    due = deadline and time.monotonic() >= deadline
                    if not stopped and (due or (stop_early and cancel and cancel.answers_now())):
                        job.cancel()
                        stopped = True
            except BaseException:
                job.cancel()
                job.wait(60.0)
                raise
        if on_tokens and any(fresh := job.take(0.0)):
            on_tokens(fresh)
        self._reservation.job = None
        return [Output(**output) for output in job.outputs()]

    @property
    def is_running(self) -> bool:
        """Whether a run is under way; asked from another thread, as of now, between two decodes."""
        job = self._reservation.job
        self.peak_cells()  # answered when the decode under way, and all that it ends, is over
        return job is not None and not job.wait(0.0)


class Sequence:
    """Tokens in the cache. Dropped by `drop` or when it is garbage."""

    def __init__(self, session: Session, sequence: int) -> None:
        self.session = session
        self._id = sequence

    def __len__(self) -> int:
        return int(self.session._native.length(self.session._id, self._id))

    def fork(self) -> Sequence:
        """A sequence with the same tokens, in the same cells."""
        return Sequence(self.session, self.session._native.fork(self.session._id, self._id))

    def truncate(self, n_tokens: int) -> None:
        """Keeps the first `n_tokens` tokens."""
        self.session._native.truncate(self.session._id, self._id, n_tokens)

    def shift(self, start: int, end: int) -> None:
        """Removes the tokens from `start` to before `end` and moves what follows to their place.

        What follows keeps what it has seen of the removed tokens; only its positions change.
        Raises TgrError, and changes nothing, when a fork shares a token that would move, or when
        the model's cache cannot be moved; ValueError when there are no such tokens.
        """
        _check_whole("start", start, 0, _INT_MAX)
        _check_whole("end", end, 0, _INT_MAX)
        self.session._native.shift(self.session._id, self._id, start, end)

    def drop(self) -> None:
        """Frees it. May be called again."""
        if self._id >= 0:
            sequence, self._id = self._id, -1
            self.session._native.drop(self.session._id, sequence)

    def __del__(self) -> None:
        self.drop()


class Injection:
    """An injection for every layer, in the engine's table. Dropped by `drop` or when it is garbage."""

    def __init__(self, session: Session, row: int) -> None:
        self.session = session
        self._row = row

    def drop(self) -> None:
        """Frees it. May be called again."""
        if self._row > 0:
            row, self._row = self._row, -1
            self.session._native.drop_direction(self.session._id, row)

    def __del__(self) -> None:
        self.drop()


def _check_whole(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, but must be between {low} and {high}")


def _native_task(session: Session, task: Task) -> Any:
    if task.feed_states not in _engine.Keep.__members__:
        raise ValueError(f"feed_states is {task.feed_states!r}, but must be none, last or all")
    _check_whole("n_generate", task.n_generate, 0, _INT_MAX)
    _check_whole("n_top", task.n_top, 0, session.engine.n_vocab)
    _check_whole("seed", task.seed, 0, 2**64 - 1)
    native = _engine.Task()
    # ids of another engine's session would be taken for ours
    native.sequence = task.sequence._id if task.sequence.session is session else -1
    if task.injection:
        native.direction = task.injection._row if task.injection.session is session else -1
    native.feed = task.feed
    native.history = task.history
    native.grammar_history = task.grammar_history
    native.feed_states = _engine.Keep.__members__[task.feed_states]
    native.stop = list(task.stop)
    plain = (
        "n_generate",
        "seed",
        "tail",
        "ignore_eog",
        "states",
        "feed_logprobs",
        "norms",
        "n_top",
    )
    for name in plain:
        setattr(native, name, getattr(task, name))
    sampling = _engine.SamplingParams()
    for spec in dataclasses.fields(Sampling):
        value = getattr(task.sampling, spec.name)
        setattr(sampling, spec.name, list(value) if isinstance(value, tuple) else value)
    native.sampling = sampling
    return native
