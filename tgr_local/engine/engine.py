"""One loaded model: its text functions, the capacity of its cache, and sessions in it."""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import adapters, rpc, threads, vulkan, waits
from tgr_local.engine.adapters import Adapter
from tgr_local.engine.devices import default_threads, gpu_number
from tgr_local.engine.native import native
from tgr_local.engine.records import EngineStats, LayerFit, MemoryUse
from tgr_local.engine.session import (
    INT_MAX,
    Added,
    LockstepGroup,
    Participant,
    Session,
    check_whole,
)
from tgr_local.engine.templates import choice, rendering
from tgr_local.engine.templates.prompt_text import ControlTexts, PromptText
from tgr_local.options import gguf_header
from tgr_local.options.config import CACHE_TYPES, EngineConfig
from tgr_local.system import confined
from tgr_local.system.cancel import Cancel, check_cancelled, watched
from tgr_local.system.errors import CancelledError, CapacityError, ModelError, TgrError

_TEMPLATE_MOST = 1 << 20  # characters of a chat template
_POOLINGS = {"0": "", "1": "mean", "2": "cls", "3": "last", "4": "rank"}  # llama_pooling_type
_SAME_NAMES = (
    "n_ctx", "n_batch", "n_ubatch", "n_gpu_layers", "n_cpu_moe", "use_mmap",
    "use_mlock", "prefix_cells", "reproducible", "step_seconds", "n_seq_max",
)  # fmt: skip


def described(text: str, n_params: int) -> str:
    """llama.cpp's description of a model. llama.cpp guesses the size class from the number of
    layers; where the guess is unknown or far off, the number of parameters replaces it."""

    def size(match: re.Match[str]) -> str:
        stated = float(match[1] or 0) * (1e6 if match[2] == "M" else 1e9)
        right = n_params / 1.5 < stated < n_params * 1.5
        return match[0] if right else f" {n_params / 1e6:.1f}M "

    return re.sub(r" (?:\?|(\d+(?:\.\d+)?))([MB]) ", size, text, count=1)


class Engine:
    """One model, loaded. Use it from any thread; `close` it or leave its ``with`` block.

    Raises ModelError for a file that cannot be used, with the reason; CancelledError when `cancel`
    is set, and in the main thread KeyboardInterrupt on Ctrl-C, while it loads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: EngineConfig | None = None,
        *,
        cancel: Cancel | None = None,
    ) -> None:
        self.path = Path(path)
        self.config = config = config or EngineConfig()
        template = choice.named(config.chat_template)
        params = native.EngineParams()
        for name in _SAME_NAMES:
            setattr(params, name, getattr(config, name))
        params.path = _utf8(self.path)
        gguf_header.check_file(self.path)
        added = adapters.named_adapters(config.lora)
        for adapter in added:
            adapters.check(adapter)
        params.loras = [(_utf8(adapter.path), adapter.scale) for adapter in added]
        if config.rpc and config.n_gpu_layers:
            params.rpc = rpc.endpoints(config.rpc)
            for endpoint in params.rpc:
                rpc.check(endpoint)
        params.tensor_split = list(config.tensor_split)
        params.n_threads = self.n_threads = config.n_threads or default_threads(self.path)
        params.fixed_threads = bool(config.n_threads)
        params.flash_attn = {"auto": -1, "off": 0, "on": 1}[config.flash_attn]
        params.type_k = CACHE_TYPES[config.type_k]
        params.type_v = CACHE_TYPES[config.type_v]
        why = f"cancelled while {self.path} was being loaded"
        if config.n_gpu_layers:
            vulkan.load(config.device)
            params.main_gpu = gpu_number(config.device)
        # before they are loaded: a file that is replaced while it is read counts as replaced
        self._files = adapters.LoadedFiles(self.path, added)
        self._native = native.Engine(params, functools.partial(check_cancelled, cancel, why))
        self.n_seq_max: int = self._native.stats()["n_seq_max"]
        self._max_cells: int | None = None
        self.preempts: bool = False
        """Whether a plain text reserves its cells only as it grows, and gives them up to an older
        text when the cache is full (`session`)."""
        self._reservations: dict[int, waits.Reservation] = {}  # of every open session
        threads.close_at_exit(self._native)  # which sessions hold too, when this object is gone

        info = self._native.info
        self.n_vocab: int = info.n_vocab
        self.n_embd: int = info.n_embd
        self.n_layer: int = info.n_layer
        self.n_ctx_train: int = info.n_ctx_train
        self.size_bytes: int = info.size_bytes
        self.rolls_back: bool = info.rolls_back
        """Whether a sequence can be truncated and shifted. With recurrent layers it cannot: it is
        only appended to, forked and dropped."""
        self.repeats: bool = info.repeats
        """Whether the same seed repeats a text without `reproducible`, whatever else is decoded or
        remembered: the logits of a token are the same bit for bit in every batch."""
        self.cell_bytes: int = max(1, info.cell_bytes)
        """Bytes of one cell of the KV cache, all layers together."""
        self.state_bytes: int = info.state_bytes
        """Bytes of a sequence's recurrent state; 0 for models without recurrent layers."""
        self.bos: int | None = info.bos if info.bos >= 0 else None
        self.eos: int | None = info.eos if info.eos >= 0 else None
        self.fim_pad: int | None = info.fim_pad if info.fim_pad >= 0 else None
        self.end_tokens: frozenset[int] = frozenset(info.eog)
        self.n_params: int = info.n_params
        self.description: str = described(
            info.description.decode("utf-8", "replace"), self.n_params
        )
        self.metadata: dict[str, str] = {
            key.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for key, value in info.metadata
        }
        self.pooling: str = self._pooling()
        """Pooling that the file of an embedding model names: "mean", "cls", "last", or "rank" for
        a reranker; empty for a model that writes text."""
        self.classifier: NDArray[np.float32] = info.classifier
        """Matrix from a text's state to a reranker's scores, [n_classes, n_embd]; [0, n_embd] where
        there is none."""
        self.control_texts = ControlTexts(self.n_vocab, functools.partial(_text_of, self._native))
        """The texts of the vocabulary's control tokens."""
        template = template or choice.of_model(
            info.chat_template.decode("utf-8", "replace"), self.path
        )
        adds_bos = template.stop and self.tokenize("", add_special=True)[:1] == [self.bos]
        self.chat_template: str = ("{{ bos_token }}" if adds_bos else "") + template.text
        self.template_warning: str = template.warning
        """Warning for the user about the chat template; empty = none."""
        if template.stop:
            self.metadata.setdefault("tgr.stop", template.stop)

    def close(self) -> None:
        """Ends running work with CancelledError and frees the model. May be called again.

        It waits until the device has ended its step. In the main thread Ctrl-C ends the wait with
        KeyboardInterrupt, because a device may hang. The model stays in memory then, and work of
        other threads ends with CancelledError.
        """
        # a thread that starts while the interpreter ends never runs, so the wait would not end
        if sys.is_finalizing() or threading.current_thread() is not threading.main_thread():
            if self._native not in threads.HUNG:
                self._native.close()
            return
        closing = threading.Thread(target=self._native.close, daemon=True)
        try:
            closing.start()
            closing.join()
        except RuntimeError:  # no thread can start: the process ends, or has too many
            self._native.close()
        except BaseException:
            threads.HUNG.append(self._native)
            raise

    def __repr__(self) -> str:
        device = "GPU" if any(name != "CPU" for name in self.devices()) else "CPU"
        return (
            f"<Engine {self.path.name}: {self.description}, {self.n_layer} layers, trained for "
            f"{self.n_ctx_train} tokens, on {device}>"
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    _added = Added()  # which a view of this engine may replace

    @property
    def digest(self) -> bytes:
        """Digest of the control vector that is added to everything; empty = none."""
        return self._added.digest

    @property
    def prefix_digest(self) -> bytes:
        """Digest of the control vector and the owner. A prefix is reused only under the same
        digest; empty = neither."""
        return self._added.prefix_digest

    @property
    def file_identity(self) -> str:
        """Identity of the loaded files, their contents and the scales of adapters."""
        return self._files.identity

    @property
    def model_hash(self) -> str:
        """sha256 of the loaded model file; with several parts or adapters, a digest of all files
        and the scales. Raises ModelError where a file was replaced before it was hashed."""
        return self._files.sha256()

    @property
    def known_hash(self) -> str | None:
        """`model_hash` if all files were hashed before and have not changed; else None."""
        return self._files.known_sha256()

    @property
    def is_unchanged(self) -> bool:
        """Whether the model's and the adapters' paths still lead to the files that it loaded."""
        return self._files.replaced() is None

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """LoRA adapters that are added to the model, with their scales now."""
        return self._files.adapters

    def set_adapter_scales(self, scales: Seq[float]) -> None:
        """Adds the adapters with other scales from now on, one for each. Remembered prefixes are
        forgotten, since they were read with the old ones; save or load none meanwhile.

        Raises ValueError for other scales than `EngineConfig.lora` may have, CapacityError where
        the memory for it is not there, and TgrError while a session is open."""
        rescaled = adapters.rescaled(self.adapters, scales)
        if rescaled != self.adapters:
            self._native.set_scales([adapter.scale for adapter in rescaled])
            self._files.adapters = rescaled

    def _pooling(self) -> str:
        number = self.metadata.get(f"{self.metadata.get('general.architecture', '')}.pooling_type")
        if number not in (None, *_POOLINGS):
            raise ModelError(
                f"{self.path} names the pooling type {number!r:.20}, which llama.cpp does not know"
            )
        return _POOLINGS.get(number or "0", "")

    @property
    def n_ctx(self) -> int:
        """Cells of the KV cache now."""
        return self.stats().n_ctx

    @property
    def memory_layout(self) -> str:
        """Description of how keys, values and states lie in memory and how prompts are read. A
        saved prefix can be loaded only where it is the same."""
        return str(self._native.memory_layout())

    def stats(self) -> EngineStats:
        return EngineStats(**self._native.stats())

    def devices(self) -> list[str]:
        """The device of every layer, then of the output layer; [n_layer + 1]."""
        return list(self._native.info.devices)

    @property
    def layer_fit(self) -> LayerFit | None:
        """How much of the model is on GPUs, where n_gpu_layers leaves it open and there is one."""
        info, devices = self._native.info, self.devices()
        if not info.fitted:
            return None
        n_on_gpu = sum(not name.upper().startswith("CPU") for name in devices)
        return LayerFit(n_on_gpu, len(devices), info.n_cpu_moe, info.fit_cells, info.lowered)

    def devices_without_attention(self) -> list[str]:
        """The GPUs that hold layers but have no flash attention for a cache of these types."""
        return list(self._native.info.without_attention)

    # --- text ---

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = True
    ) -> list[int]:
        """Token ids of a text. `parse_special` reads control tokens such as ``<|im_end|>``."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text is not valid Unicode at character {error.start}; remove that character"
            ) from None
        with threads.inside():
            return list(self._native.tokenize(text, add_special, parse_special))

    def detokenize(
        self, tokens: Seq[int] | NDArray[np.int32], *, special: bool = False, shown: Seq[int] = ()
    ) -> bytes:
        """Bytes of the tokens. Control tokens are left out, except those in `shown`, or with
        `special` none. The bytes may end inside a character."""
        with threads.inside():
            return bytes(self._native.detokenize(tokens, special, shown))

    def prompt_tokens(self, prompt: PromptText) -> list[int]:
        """Token ids of a chat's prompt. Text of a message never becomes a control token."""
        parts = self.control_texts.runs(prompt)
        tokens = [self.tokenize(text, parse_special=special) for text, special in parts]
        return [token for part in tokens for token in part]

    def check_grammar(self, grammar: str, prefix: str = "") -> None:
        """Raises ValueError for GBNF that does not parse, or that no text with `prefix` follows."""
        with threads.inside():
            self._native.check_grammar(grammar, prefix)

    def chat_prompt(
        self,
        messages: Seq[Mapping[str, Any]],
        *,
        thinking: bool = True,
        cancel: Cancel | None = None,
    ) -> str:
        """The messages in the chat template of the engine, open for the assistant's reply.

        Raises as `apply_template` does.
        """
        request = {"messages": list(messages), "thinking": thinking, "only_prompt": True}
        return str(self.apply_template(request, cancel=cancel)["prompt"])

    def apply_template(
        self, request: Mapping[str, Any], *, cancel: Cancel | None = None
    ) -> dict[str, Any]:
        """Applies the chat template to a request: returns the prompt, and how replies to it are
        read; both as `rendering.render` has them.

        The template runs in a process of its own, with limits of time and memory. Raises ModelError
        for a template that fails, CancelledError by `cancel`.
        """
        if len(self.chat_template) > _TEMPLATE_MOST:
            raise ModelError(
                f"the chat template of {self.path} has {len(self.chat_template)} characters, but "
                f"may have {_TEMPLATE_MOST}; use raw text, or another file of the model"
            )

        def text_of(token: int | None) -> str:
            if token is None:
                return ""
            return self.detokenize([token], special=True).decode(errors="replace")

        bos, eos = text_of(self.bos), text_of(self.eos)
        try:
            return rendering.render(
                self.chat_template, bos, eos, request, self.control_texts, cancel
            )
        except confined.ConfinedError as error:
            raise ModelError(f"the chat template of {self.path} fails: {error}") from None

    def eoc_token(self, text: str = "") -> int:
        """The end-of-chunk delimiter: the token that `text` names, otherwise the first one that the
        vocabulary has of ``<|fim_pad|>``, ``<|endoftext|>`` and the end token.

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

    def grow_cache(self, n_cells: int, n_sessions: int = 1) -> None:
        """Enlarges the cache for `n_sessions` sessions of `n_cells` each, or for as many as the
        memory allows. Does nothing where `n_ctx` fixes the size, or while a session is open unless
        `max_cells` bounds the cache."""
        check_whole("n_cells", n_cells, 0, INT_MAX)
        check_whole("n_sessions", n_sessions, 0, INT_MAX)
        if n_cells:
            n_sessions = min(n_sessions, self.most_cells() // n_cells)
        if n_sessions:
            self._native.grow_cache(n_cells, n_sessions)

    def shrink_cache(self, n_cells: int) -> None:
        """Shrinks the cache to `n_cells`, or to the size of the remembered prefixes, which stay.
        Does nothing while a session is open or where `n_ctx` fixes the size."""
        check_whole("n_cells", n_cells, 0, INT_MAX)
        self._native.shrink_cache(n_cells)

    def lockstep_group(self, n: int) -> LockstepGroup:
        """A group of n participants: sessions that are always decoded in the same batches."""
        return LockstepGroup(self._native, self._native.group(n))

    def session(
        self,
        n_cells: int,
        n_seqs: int,
        *,
        prompt: Seq[int] = (),
        norms: bool = False,
        preemptible: bool = False,
        participant: Participant | None = None,
        cancel: Cancel | None = None,
    ) -> Session:
        """Reserves `n_cells` cells and `n_seqs` sequences (and as many injections), and waits until
        they are free.

        A `preemptible` session has one sequence, and `n_cells` is the most that it may need: it
        takes them as its text grows. Where no cell is left, the newest of such sessions gives up
        its cells, waits, and its text is read again. With a lockstep group, in a reproducible
        engine, and for a model that cannot roll back, it is a session like any other.

        `prompt` is what a task with `Task.reuse` will read, with `Task.norms` if `norms`: cells of
        it that are in the cache already are not reserved again.

        Raises CapacityError if they can never be free, or on a deadlock: when every session in the
        way is used by a thread that waits for a reservation itself, or for this thread. Of the
        deadlocked threads the last one to ask gets the error. Raises CancelledError if `cancel` is
        set first.
        """
        check_whole("n_cells", n_cells, 0, INT_MAX)
        check_whole("n_seqs", n_seqs, 0, INT_MAX)
        if self._added.vectors is not None:
            n_seqs += 1  # a row of the table for the injection alone
        group, index = (participant.group._native, participant.index) if participant else (None, 0)
        request = self._native.open(
            n_cells, n_seqs, group, index, prompt, self.prefix_digest, norms, preemptible
        )

        def blockers() -> list[int]:
            try:
                return list(request.in_the_way())
            except TgrError:  # the engine is closed: the wait is over
                return []

        wait = waits.Wait(
            self._reservations,
            blockers,
            lambda: cancel is not None and cancel.is_set(),
            withdraw=request.give_up,
        )

        def look() -> None:
            if cancel and cancel.is_set():
                request.give_up()

        try:
            with threads.inside(), watched(cancel, look), waits.registered(wait):
                look()
                while (admitted := request.wait(threads.patience(self._native))) is None:
                    pass
            check_cancelled(cancel)
            reservation = waits.Reservation(n_cells, n_seqs, group)
            return Session(self._native, admitted, reservation, self._reservations, self._added)
        except BaseException as error:
            request.withdraw()
            if isinstance(error, CancelledError):
                if wait.is_withdrawn:
                    raise CapacityError(self._deadlock(n_cells, n_seqs, wait)) from None
                if cancel and cancel.is_set():
                    text = "cancelled while waiting for a cache reservation"
                    raise CancelledError(text) from None
            raise  # also when the engine was closed

    @property
    def max_cells(self) -> int | None:
        """Cells that the cache may grow to; None = as many as fit into memory. With a bound it also
        grows while sessions are open, where it would else wait for them to close, unless the engine
        is reproducible."""
        return self._max_cells

    @max_cells.setter
    def max_cells(self, n_cells: int | None) -> None:
        if n_cells is not None:
            check_whole("max_cells", n_cells, 0, INT_MAX)
        self._max_cells = n_cells
        self._native.bound_cache(INT_MAX if n_cells is None else n_cells)

    def most_cells(self) -> int:
        """The most cells that the KV cache can have: `n_ctx`; without it, `max_cells` or fewer
        where an estimate says that the free memory of the devices is smaller."""
        return self.config.n_ctx or self._native.n_cells_possible()

    def memory(self) -> MemoryUse:
        """Memory of the cache and its buffers now, on all devices."""
        total, buffers = self._native.memory()
        return MemoryUse(total - buffers, buffers)

    def _deadlock(self, n_cells: int, n_seqs: int, wait: waits.Wait) -> str:
        """The message for a wait that a deadlock ends."""
        all_reservations = list(self._reservations.values())
        waiting = [reservation for reservation in all_reservations if reservation.user in wait.line]
        stats = self.stats()

        def held(reservations: list[waits.Reservation], cells: str = "", seqs: str = "") -> str:
            n = (
                sum(reservation.n_cells for reservation in reservations),
                sum(reservation.n_seqs for reservation in reservations),
            )
            return f"{n[0]}{cells} cells and {n[1]}{seqs} sequences"

        whole = held(all_reservations, f" of {stats.n_ctx}", f" of {stats.n_seq_max}")
        if len(waiting) == len(all_reservations):
            where = f"this thread itself holds {whole}"
        elif waiting:
            where = (
                f"{whole} are held by threads that all wait for cache reservations, "
                f"{held(waiting)} of them by this thread itself"
            )
        else:
            where = f"{whole} are held by threads that wait for this thread's other reservations"
        return (
            f"needs {n_cells} cells and {n_seqs} sequences, but {where}; "
            f"close its {len(waiting)} open sessions first, or set a larger n_ctx"
        )


def _utf8(path: Path) -> str:
    """A path as the engine takes it. Raises ModelError."""
    try:
        return os.fspath(path).encode("utf-8").decode()
    except UnicodeEncodeError:
        raise ModelError(f"the path {os.fspath(path)!a} is not UTF-8; rename the file") from None


def _text_of(native_engine: Any, tokens: Seq[int], special: bool) -> bytes:
    with threads.inside():
        return bytes(native_engine.detokenize(tokens, special, ()))
