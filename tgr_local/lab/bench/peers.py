"""The peers of a comparison: llama.cpp through llama_cpp, with the engine's settings.

`Raw` is a bare llama_decode loop, the least that any program on llama.cpp can do. `Library` is
``Llama.generate``, what a user of llama-cpp-python writes.

A peer is measured in a process of its own. Once a process has more OpenMP threads than the machine
has cores, they sleep at every barrier: the threads of the subject and of a peer in one process
would slow each other down, by a quarter on two cores.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tgr_local.engine import LLAMA_CPP_PYTHON, Engine
from tgr_local.engine.installation import peer_library
from tgr_local.options.config import AUTO_LAYERS, CACHE_TYPES, EngineConfig
from tgr_local.system.errors import TgrError

TEMPERATURE = 0.6


@functools.cache
def library() -> Any:
    """The module llama_cpp, which then reports errors only, and computes without AMX; with the
    libllama that was built with the engine, if one was. TgrError if it is not installed."""
    if (built := peer_library()).is_dir():
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(built))
    try:
        import llama_cpp
    except ModuleNotFoundError:
        raise TgrError(
            "llama-cpp-python, which this compares with, is not installed; run: "
            f"pip install llama-cpp-python=={LLAMA_CPP_PYTHON}"
        ) from None

    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    _drop_amx(llama_cpp)
    return llama_cpp


def _drop_amx(llama_cpp: Any) -> None:
    """Makes llama_cpp load every model as on a machine without AMX: gcc before 14 builds AMX
    kernels that end the process; see csrc/graph/graph_hooks.h."""
    if b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info():
        return
    plain = llama_cpp.llama_cpp.llama_model_default_params

    def defaults() -> Any:
        params = plain()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_model_default_params = defaults
    llama_cpp.llama_cpp.llama_model_default_params = defaults


@dataclass(frozen=True)
class ContextSettings:
    """Settings that determine the speed of a context, the same for the subject and the peers."""

    n_threads: int
    flash_attn: str
    on_cpu: bool
    """Whether all layers are on the CPU."""
    config: EngineConfig

    @classmethod
    def of(cls, engine: Engine) -> ContextSettings:
        config, flash_attn = engine.config, engine.config.flash_attn
        on_cpu = all(name.upper().startswith("CPU") for name in engine.devices())
        # the engine's "auto"; llama.cpp itself chooses "on" on a CPU, which is slower
        if flash_attn == "auto" and on_cpu and not config.type_v.startswith("q"):
            flash_attn = "off"
        fit = engine.layer_fit
        if config.n_gpu_layers == AUTO_LAYERS:
            config = dataclasses.replace(config, n_gpu_layers=fit.n_on_gpu if fit else -1)
        return cls(engine.n_threads, flash_attn, on_cpu, config)

    def shown(self) -> dict[str, Any]:
        config = self.config
        return {
            "threads": self.n_threads,
            "flash_attn": self.flash_attn,
            "cache": f"{config.type_k}, {config.type_v}",
            "n_batch": config.n_batch,
            "n_ubatch": config.n_ubatch,
            "n_gpu_layers": config.n_gpu_layers,
        }


def _library_for(settings: ContextSettings) -> Any:
    """`library`; TgrError where the engine uses a GPU and llama_cpp cannot."""
    lib = library()
    if not settings.on_cpu and not lib.llama_supports_gpu_offload():
        raise TgrError(
            "tgr-local uses a GPU here, but llama-cpp-python is built without GPU support, so they "
            "cannot be compared; build it with GPU support, or set LLAMA_CPP_LIB_PATH to a folder "
            "with such a libllama, as bench/gpu.sh does"
        )
    return lib


class Raw:
    """A bare llama_decode loop. With `unified` the sequences share one cache, and a prefix in it;
    otherwise each has a stream of its own. Use it in a ``with`` block."""

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        n_ctx: int,
        n_seqs: int,
        *,
        unified: bool = True,
    ) -> None:
        self._lib = lib = _library_for(settings)
        self._n_batch = settings.config.n_batch
        model_params = lib.llama_model_default_params()
        model_params.n_gpu_layers = settings.config.n_gpu_layers
        model_params.use_mmap = settings.config.use_mmap
        self._model = lib.llama_model_load_from_file(os.fsencode(path), model_params)
        if not self._model:
            raise TgrError(f"llama_cpp cannot load {path} as a peer to compare with")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = n_ctx, n_seqs, unified
        params.n_batch, params.n_ubatch = settings.config.n_batch, settings.config.n_ubatch
        params.n_threads = params.n_threads_batch = settings.n_threads
        params.flash_attn_type = {"auto": -1, "off": 0, "on": 1}[settings.flash_attn]
        params.type_k, params.type_v = (
            CACHE_TYPES[settings.config.type_k],
            CACHE_TYPES[settings.config.type_v],
        )
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise TgrError(f"llama_cpp cannot make a context of {n_ctx} cells to compare with")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = batch = lib.llama_batch_init(n_seqs, 0, 1)
        for i in range(n_seqs):
            batch.seq_id[i][0], batch.n_seq_id[i], batch.logits[i] = i, 1, True
        self._tokens = np.ctypeslib.as_array(batch.token, (n_seqs,))
        self._positions = np.ctypeslib.as_array(batch.pos, (n_seqs,))

    def clear(self) -> None:
        self._lib.llama_memory_clear(self._memory, False)

    def read(self, tokens: list[int]) -> None:
        """Clears the cache, then feeds the tokens."""
        self.clear()
        self.feed(tokens)

    def feed(self, tokens: list[int]) -> None:
        """Appends tokens to sequence 0 and gets the logits of the last one."""
        array = (self._lib.llama_token * len(tokens))(*tokens)
        for start in range(0, len(tokens), self._n_batch):
            n = min(self._n_batch, len(tokens) - start)
            part = (self._lib.llama_token * n)(*array[start : start + n])
            self._decode(self._lib.llama_batch_get_one(part, n))
        self._lib.llama_get_logits_ith(self._context, -1)

    def copy(self, n_seqs: int) -> None:
        """Copies sequence 0 to the others."""
        for seq in range(1, n_seqs):
            self._lib.llama_memory_seq_cp(self._memory, 0, seq, -1, -1)

    def cut(self, n_seqs: int, length: int) -> None:
        """Truncates sequence 0 to `length` tokens and clears the others."""
        self._lib.llama_memory_seq_rm(self._memory, 0, length, -1)
        for seq in range(1, n_seqs):
            self._lib.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def steps(self, n_seqs: int, start: int, n_steps: int) -> None:
        """n_steps decodes of one token for each sequence, without sampling."""
        batch = self._batch
        batch.n_tokens = n_seqs
        for position in range(start, start + n_steps):
            self._tokens[:n_seqs] = 100 + position % 1000
            self._positions[:n_seqs] = position
            self._decode(batch)
            self._lib.llama_get_logits_ith(self._context, n_seqs - 1)

    def forked_steps(self, n_seqs: int, length: int, n_steps: int) -> None:
        """Steps of n_seqs sequences that share a prefix of `length` tokens; the prefix remains."""
        self.copy(n_seqs)
        self.steps(n_seqs, length, n_steps)
        self.cut(n_seqs, length)

    def own_steps(self, prefix: list[int], n_seqs: int, n_steps: int) -> None:
        """Every sequence reads the prefix itself, then all advance together."""
        self.clear()
        batch = self._lib.llama_batch_init(len(prefix), 0, 1)
        batch.n_tokens = len(prefix)
        for seq in range(n_seqs):
            for i, token in enumerate(prefix):
                batch.token[i], batch.pos[i], batch.logits[i] = token, i, False
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, seq
            self._decode(batch)
        self._lib.llama_batch_free(batch)
        self.steps(n_seqs, len(prefix), n_steps)

    def generate(self, n_tokens: int) -> None:
        """A plain reply with llama.cpp's own sampler."""
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(TEMPERATURE))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(1))
        self.clear()
        token = (lib.llama_token * 1)(100)
        for _ in range(n_tokens):
            self._decode(lib.llama_batch_get_one(token, 1))
            token[0] = lib.llama_sampler_sample(chain, self._context, -1)
        lib.llama_sampler_free(chain)

    def _decode(self, batch: Any) -> None:
        if (code := self._lib.llama_decode(self._context, batch)) != 0:
            raise TgrError(f"llama_decode failed with {code} in the peer to compare with")

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lib.llama_batch_free(self._batch)
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)


class Library:
    """The measured model as `llama_cpp.Llama`. Use it in a ``with`` block."""

    def __init__(self, path: Path, settings: ContextSettings, n_ctx: int) -> None:
        self._llama = _library_for(settings).Llama(
            str(path),
            n_ctx=n_ctx,
            n_batch=settings.config.n_batch,
            n_ubatch=settings.config.n_ubatch,
            n_threads=settings.n_threads,
            n_threads_batch=settings.n_threads,
            n_gpu_layers=settings.config.n_gpu_layers,
            flash_attn=settings.flash_attn != "off",
            type_k=CACHE_TYPES[settings.config.type_k],
            type_v=CACHE_TYPES[settings.config.type_v],
            verbose=False,
        )

    def generate(self, n_tokens: int) -> None:
        """A plain reply from one token, without filters."""
        self._llama.reset()
        tokens = self._llama.generate(
            [100], top_k=0, top_p=1.0, min_p=0.0, temp=TEMPERATURE, repeat_penalty=1.0
        )
        for _ in itertools.islice(tokens, n_tokens):
            pass

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *exc: object) -> None:
        self._llama.close()


class Subprocess:
    """`make(*args, **options)`, a context manager of an importable module, in a new process.
    A method call runs there; the caller waits for its end. Use it in a ``with`` block."""

    def __init__(self, make: Callable[..., Any], *args: Any, **options: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, remote = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(remote, partial(make, *args, **options)), daemon=True
        )
        self._process.start()
        remote.close()
        self._answer()

    def __getattr__(self, method: str) -> Any:
        return partial(self._call, method)

    def _call(self, method: str, *args: Any) -> None:
        self._pipe.send((method, args))
        self._answer()

    def _answer(self) -> None:
        try:
            failure: str | None = self._pipe.recv()
        except EOFError:
            raise TgrError("the process of the peer ended unexpectedly") from None
        if failure is not None:
            raise TgrError(failure)

    def __enter__(self) -> Subprocess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()


def _serve(pipe: Connection, make: Callable[[], Any]) -> None:
    try:
        with make() as peer:
            pipe.send(None)
            while True:
                method, args = pipe.recv()
                getattr(peer, method)(*args)
                pipe.send(None)
    except EOFError:
        pass
    except Exception as error:
        pipe.send(str(error))
