"""The roofline of a decode step, and the share of it that the engine reaches.

A step reads every weight once, and the cached keys and values that its sequences attend to. It
multiplies every weight with the activations of every sequence. So it takes at least

    max(bytes read / memory bandwidth, multiply-adds / peak rate).

The bandwidth is measured: on a CPU the sum of an array of 1 GiB, far larger than any cache, in as
many threads as the engine uses; on an NVIDIA GPU a copy within its memory, counted twice. The peak
rate is the best that the same weights reach in prefill, which multiply-adds limit.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from tgr_local.engine import Engine
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.decode import PREFIX, K
from tgr_local.lab.bench.measure import Figure, Spread, alternate
from tgr_local.lab.bench.plan import Plan
from tgr_local.options import gguf_header
from tgr_local.options.gguf_header import GgufHeader
from tgr_local.system.errors import TgrError

READ_AHEAD = 512  # tokens of the prefill that gives the peak rate
SIZE = 1 << 30  # bytes that are read to measure the memory


@dataclass(frozen=True)
class TokenCost:
    """Bytes and multiply-adds of a dense model per token, from its file's header."""

    weight_bytes: float
    """Bytes that a step reads: all but an embedding that is not the output layer."""
    weights: float
    """Numbers that every token is multiplied with."""
    cell_bytes: float
    """Bytes of a KV cell: keys and values in all layers."""
    cell_products: float
    """Multiply-adds per cell that a token attends to."""

    @classmethod
    def of(cls, engine: Engine) -> TokenCost:
        looked_up, looked_up_bytes = 0, 0
        header = gguf_header.read(engine.path)
        if "output.weight" in header.tensors and "token_embd.weight" in header.tensors:
            looked_up = engine.n_vocab * engine.n_embd
            looked_up_bytes = _length(header, "token_embd.weight")
        return cls(
            engine.size_bytes - looked_up_bytes,
            engine.n_params - looked_up,
            engine.cell_bytes,
            engine.n_layer * _products(engine.metadata, engine.n_embd),
        )

    def bytes_read(self, n_cells: float) -> float:
        """Bytes of a step whose sequences attend to n_cells cells, shared ones counted once."""
        return self.weight_bytes + n_cells * self.cell_bytes

    def products(self, n_tokens: float, n_cells: float) -> float:
        """Multiply-adds of n tokens that attend to n_cells cells each."""
        return n_tokens * (self.weights + n_cells * self.cell_products)


def _products(metadata: Mapping[str, str], n_embd: int) -> int:
    """Multiply-adds of one layer per cell, from a GGUF file's metadata; llama.cpp's defaults where
    they do not say, or give one value per layer."""
    architecture = metadata.get("general.architecture", "")

    def number(key: str, default: int) -> int:
        text = metadata.get(f"{architecture}.attention.{key}", "")
        return int(text) if text.isdecimal() else default

    n_head = max(1, number("head_count", 1))
    width = n_embd // n_head
    return n_head * (number("key_length", width) + number("value_length", width))


def _length(header: GgufHeader, name: str) -> int:
    """Bytes of a tensor that is not the last: up to the next one."""
    begin = header.tensors[name].offset
    later = (tensor.offset for tensor in header.tensors.values() if tensor.offset > begin)
    return min(later, default=begin) - begin


def shares(plan: Plan) -> Iterator[Figure]:
    """The share of the roofline for one sequence and for K."""
    engine, n = plan.engine, plan.n_steps
    text = subject.prompt(engine, READ_AHEAD)
    counts = (1, K)
    # for both sessions: the cache does not grow while one is open
    engine.grow_cache(PREFIX + K * n + READ_AHEAD + 16)
    with (
        subject.Forks(engine, text[:PREFIX], K, n) as forks,
        MemoryReader(engine.n_threads, plan.settings.on_cpu) as reader,
    ):
        contenders: list[Callable[[], object]] = [partial(forks.steps, c, n) for c in counts]
        contenders += [partial(subject.prefill, engine, text), reader.read]
        seconds = alternate(plan.few, contenders)
    work = TokenCost.of(engine)
    # prefill uses the output layer for the last token only, and attends to half the text on average
    output = engine.n_vocab * engine.n_embd
    prefill = work.products(READ_AHEAD, READ_AHEAD / 2) - (READ_AHEAD - 1) * output
    peak = Spread.of(prefill / seconds[-2])
    rate = reader.n_bytes / seconds[-1] if reader.n_bytes else None
    yield Figure("roofline", "multiply-adds of a prefill of 512 tokens", peak.scaled(1e-9), "G/s")
    if rate is not None:
        yield Figure("roofline", f"memory, {reader.how}", Spread.of(1e-9 * rate), "GB/s")
    for i, count in enumerate(counts):
        took = seconds[i] / n
        own = (n + 1) / 2  # mean number of a sequence's own cells
        read = work.bytes_read(PREFIX + count * own)
        products = work.products(count, PREFIX + own)
        by_products = products / peak.high
        by_memory = read / rate.max() if rate is not None else 0.0
        least = max(by_memory, by_products)
        values = {
            "ms measured": Spread.of(1e3 * took),
            f"ms by memory, {read / 1e6:,.0f} MB": Spread.of([1e3 * by_memory]),
            f"ms by products, {products / 1e9:,.2f} G": Spread.of([1e3 * by_products]),
        }
        name = f"decode step of {count} sequence{'s' * (count > 1)}: share of its roofline"
        limit = "memory" if by_memory >= by_products else "multiply-adds"
        yield Figure(
            "roofline", name, Spread.of(100 * least / took), "%", values, note=f"limited by {limit}"
        )


# ---- the bandwidth of memory ----


class MemoryReader:
    """Reads an array much larger than any cache. One `read` moves `n_bytes`; 0 where the memory of
    a GPU cannot be measured. Use it in a ``with`` block."""

    def __init__(self, n_threads: int, on_cpu: bool) -> None:
        self.n_bytes, self.how = SIZE, f"summed by {n_threads} threads"
        self._pool = ThreadPoolExecutor(n_threads)
        self._gpu = None
        if on_cpu:
            self._parts = np.array_split(np.ones(SIZE // 8), n_threads)
            return
        self._parts = []
        try:
            self._gpu = _CudaCopy(SIZE)
            self.n_bytes, self.how = 2 * SIZE, "copied within the GPU"
        except (OSError, TgrError):
            self.n_bytes = 0

    def read(self) -> float:
        """Moves the bytes once; the sum of the array on a CPU, 0 on a GPU."""
        if self._gpu:
            self._gpu.run()
            return 0.0
        return float(sum(self._pool.map(np.sum, self._parts)))

    def __enter__(self) -> MemoryReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown()
        if self._gpu:
            self._gpu.close()


class _CudaCopy:
    """A copy within the memory of the first NVIDIA GPU, by its driver. OSError without a driver,
    TgrError when it refuses."""

    def __init__(self, size: int) -> None:
        self._cuda, self._size = ctypes.CDLL("libcuda.so.1"), size
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        try:
            for buffer in self._buffers:
                self._call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        except TgrError:
            self.close()
            raise

    def run(self) -> None:
        to, source = self._buffers
        self._call("cuMemcpyDtoD_v2", to, source, ctypes.c_size_t(self._size))
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        for buffer in self._buffers:
            if buffer.value:
                with contextlib.suppress(TgrError):
                    self._call("cuMemFree_v2", buffer)

    def _call(self, name: str, *args: object) -> None:
        if (code := getattr(self._cuda, name)(*args)) != 0:
            raise TgrError(f"{name} of the NVIDIA driver failed with {code}")
