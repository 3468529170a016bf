"""The roofline of a decode step, and the share of it that the engine reaches.

A step reads every weight once, and the cached keys and values that its sequences attend to. It
multiplies every weight with the activations of every sequence. So it takes at least

    max(bytes read / memory bandwidth, multiply-adds / peak rate).

The bandwidth is measured: on a CPU the sum of an array of 1 GiB, far larger than any cache, in as
many threads as the engine uses; on an NVIDIA GPU a copy within its memory, counted twice. The peak
rate is the best that the same weights reach in prefill, which multiply-adds limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tgr_local.engine import Engine
from tgr_local.lab.bench import memory, subject
from tgr_local.lab.bench.decode import PREFIX, K
from tgr_local.lab.bench.measure import Row, Spread, alternate
from tgr_local.lab.bench.plan import Plan
from tgr_local.models import gguf_header
from tgr_local.models.gguf_header import Header
from tgr_local.options.cache import attention

READ_AHEAD = 512  # tokens of the prefill that gives the peak rate


@dataclass(frozen=True)
class Work:
    """Bytes and multiply-adds of a dense model per token, from its file's header."""

    weight_bytes: float
    """Read in a step: all but an embedding that is not the output layer."""
    weights: float
    """Numbers that every token is multiplied with."""
    cell_bytes: float
    """Of keys and values in all layers."""
    cell_products: float
    """Multiply-adds per cell that a token attends to."""

    @classmethod
    def of(cls, engine: Engine) -> Work:
        looked_up, looked_up_bytes = 0, 0
        header = gguf_header.read(engine.path)
        if "output.weight" in header.tensors and "token_embd.weight" in header.tensors:
            looked_up = engine.n_vocab * engine.n_embd
            looked_up_bytes = _length(header, "token_embd.weight")
        model = attention(engine.metadata, engine.n_embd)
        return cls(
            engine.size_bytes - looked_up_bytes,
            engine.n_params - looked_up,
            engine.cell_bytes,
            engine.n_layer * model.n_head * (model.key_width + model.value_width),
        )

    def bytes_read(self, n_cells: float) -> float:
        """Bytes of a step whose sequences attend to n_cells cells, shared ones counted once."""
        return self.weight_bytes + n_cells * self.cell_bytes

    def products(self, n_tokens: float, n_cells: float) -> float:
        """Multiply-adds of n tokens that attend to n_cells cells each."""
        return n_tokens * (self.weights + n_cells * self.cell_products)


def _length(header: Header, name: str) -> int:
    """Bytes of a tensor that is not the last: up to the next one."""
    begin = header.tensors[name].offset
    later = (tensor.offset for tensor in header.tensors.values() if tensor.offset > begin)
    return min(later, default=begin) - begin


def shares(plan: Plan) -> Iterator[Row]:
    """The share of the roofline for one sequence and for K."""
    engine, n = plan.engine, plan.n_steps
    text = subject.prompt(engine, READ_AHEAD)
    counts = (1, K)
    # for both sessions: the cache does not grow while one is open
    engine.grow_cache(PREFIX + K * n + READ_AHEAD + 16)
    with (
        subject.Forks(engine, text[:PREFIX], K, n) as forks,
        memory.Reader(engine.n_threads, plan.settings.on_cpu) as reader,
    ):
        contenders: list[Callable[[], object]] = [partial(forks.steps, c, n) for c in counts]
        contenders += [partial(subject.prefill, engine, text), reader.read]
        seconds = alternate(plan.few, contenders)
    work = Work.of(engine)
    # prefill uses the output layer for the last token only, and attends to half the text on average
    output = engine.n_vocab * engine.n_embd
    prefill = work.products(READ_AHEAD, READ_AHEAD / 2) - (READ_AHEAD - 1) * output
    peak = Spread.of(prefill / seconds[-2])
    rate = reader.n_bytes / seconds[-1] if reader.n_bytes else None
    yield Row("roofline", "multiply-adds of a prefill of 512 tokens", peak.scaled(1e-9), "G/s")
    if rate is not None:
        yield Row("roofline", f"memory, {reader.how}", Spread.of(1e-9 * rate), "GB/s")
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
        what = f"decode step of {count} sequence{'s' * (count > 1)}: share of its roofline"
        limit = "memory" if by_memory >= by_products else "multiply-adds"
        yield Row(
            "roofline", what, Spread.of(100 * least / took), "%", values, note=f"limited by {limit}"
        )
