"""A long reply: time per kept token, and memory, while it grows.

The context of `base` is neither written nor read, which would take an hour: the keys and values of
some tokens fill it again and again up to the greatest length, as a remembered prefix. Some tokens
are written there; then it is cut back to the next smaller length, and so on. A step takes as long
as after real ones. Methods that reset have the same context after every chunk. Next to each length
of `base` the parts of one boundary are measured, as in `boundary.py`, and `markov` is counted
without rollouts, injection and delimiter. The chunks of one real reply of `tgr-latent` show that
later ones are like the second. The rows also make a picture, which needs the extra `plot`
(matplotlib).
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tgr_local import methods
from tgr_local.engine.prefix_files import fill_prefix
from tgr_local.lab.bench import shapes, subject
from tgr_local.lab.bench.boundary import BURST, BoundaryParts, Q
from tgr_local.lab.bench.cold_start import of_status, peak_resident
from tgr_local.lab.bench.measure import Figure, Floats, Spread, clock
from tgr_local.lab.bench.plan import Plan
from tgr_local.options.config import SearchConfig
from tgr_local.search.capacity import SPARE_CELLS
from tgr_local.search.run import Run
from tgr_local.system.errors import InstallError

CHUNKS = 4  # of the real reply
READ = 512  # tokens whose keys and values fill the context of `base`
COMPUTED = ("4b", "8b")  # shapes whose memory is computed
STYLES = {"base": "C0o-", "markov": "C1^--", "tgr-latent": "C2s-"}  # of the picture


def growth(plan: Plan) -> Iterator[Figure]:
    """tgr-latent and markov, which reset, compared with base at doubling lengths."""
    config = SearchConfig()
    if plan.quick:
        config = replace(config, chunk_len=64, rollout_len=4)
    lengths = doubling(2 * config.chunk_len, plan.long_tokens)
    yield from _chunks(plan, config)
    needs = methods.get("tgr-latent").cells
    n_cells = needs(plan.engine, Q, replace(config, max_tokens=lengths[-1]))
    constant = resident_with(plan, n_cells)
    growing = [resident_with(plan, Q + length + SPARE_CELLS) for length in lengths]
    measured = np.array(seconds_at(plan, config, lengths))
    for length, resident, (base, markov, tgr) in zip(lengths, growing, measured, strict=True):
        yield Figure(
            "long",
            f"time per token after {length:,} tokens: tgr-latent / base",
            Spread.of(tgr / base),
            "times",
            {
                "tokens": Spread.of([length]),
                "ms base": Spread.of(1e3 * base),
                "ms markov": Spread.of(1e3 * markov),
                "ms tgr-latent": Spread.of(1e3 * tgr),
                "resident MB base": Spread.of([resident / 1e6]),
                "resident MB tgr-latent": Spread.of([constant / 1e6]),
            },
        )
    yield from _crossings(lengths, measured)
    yield from computed_memory(lengths, n_cells)


def doubling(first: int, last: int) -> list[int]:
    """first, twice that, … up to last, which is among them."""
    lengths = itertools.takewhile(lambda n: n < last, (first << i for i in itertools.count()))
    return [*lengths, last]


def _chunks(plan: Plan, config: SearchConfig) -> Iterator[Figure]:
    """The first chunk rebuilds nothing, so it has no row."""
    config, method = replace(config, max_chunks=CHUNKS), methods.get("tgr-latent")
    run = Run(plan.engine, subject.prompt(plan.engine, Q), config)
    start = time.perf_counter()
    for i, step in enumerate(method.run(run), 1):
        seconds, start = time.perf_counter() - start, time.perf_counter()
        if i > 1 and len(step.tokens):
            took = Spread.of([1e3 * seconds / len(step.tokens)])
            yield Figure("long", f"chunk {i} of a reply of tgr-latent: time per token", took, "ms")


def resident_with(plan: Plan, n_cells: int) -> int:
    """Resident bytes of this process with a session of that many cells. The cache never shrinks, so
    measure small sessions first."""
    with plan.engine.session(n_cells, 1):
        return of_status("VmRSS") or peak_resident()


def seconds_at(plan: Plan, config: SearchConfig, lengths: list[int]) -> list[Floats]:
    """Seconds per token [base, markov, tgr-latent; repeats] for replies of these lengths so far."""
    n, s = config.n_candidates, config.rollout_len
    tokens = subject.prompt(plan.engine, Q + lengths[-1])
    n_cells = len(tokens) + BURST + SPARE_CELLS
    boundary = BoundaryParts(plan, config.chunk_len, n, s, beside=n_cells)
    fill_prefix(plan.engine, tokens, READ)
    measured = []
    with boundary, subject.Forks(plan.engine, tokens, 1, n_cells=n_cells) as forks:
        for length in reversed(lengths):
            forks.prefix.truncate(Q + length)
            seconds = np.zeros((3, plan.few + 1))  # the first round warms up
            for i in range(plan.few + 1):
                boundary.begin()
                rebuild = boundary.rebuild()
                (rollouts,) = boundary.rollouts(n, (s,))
                plain, injected, delimiter = boundary.chunk()
                chunk = np.array([rebuild + plain, rebuild + rollouts + injected + delimiter])
                seconds[0, i] = clock(lambda: forks.steps(1, BURST)) / BURST
                seconds[1:, i] = chunk / config.chunk_len
            measured.append(seconds[:, 1:])
    return measured[::-1]


def _crossings(lengths: list[int], seconds: Floats) -> Iterator[Figure]:
    """Yields the reply lengths from which tgr-latent is faster than base, whose time per token
    grows linearly with the length."""
    if len(lengths) < 2:
        return
    crossings = []
    for base, tgr in zip(seconds[:, 0].T, seconds[:, 2].T, strict=True):
        slope, at_zero = np.polyfit(lengths, base, 1)
        if slope <= 0:  # too short a reply, or too noisy a machine, to see it
            return
        crossings.append(max(0.0, (tgr.mean() - at_zero) / slope))
    note = f"from a line through {len(lengths)} lengths up to {lengths[-1]:,} tokens"
    for part, tokens in (
        ("the next token", np.array(crossings)),
        ("the whole reply", 2 * np.array(crossings)),  # its mean token is in its middle
    ):
        title = f"reply length from which {part} takes less time with tgr-latent than with base"
        yield Figure("long", title, Spread.of(tokens), "tokens", note=note)


def computed_memory(lengths: list[int], n_cells: int) -> Iterator[Figure]:
    """Weights and cache of larger shapes: their Q8_0 file and an F16 cache."""
    for name in COMPUTED:
        shape = shapes.SHAPES[name]
        cell_bytes = 2 * 2 * shape.n_layer * shape.n_head_kv * shapes.HEAD_DIM
        weights = shapes.file_bytes(shape, "q8_0")
        constant = weights + n_cells * cell_bytes
        for length in lengths:
            growing = weights + (Q + length + SPARE_CELLS) * cell_bytes
            yield Figure(
                "long",
                f"computed: {name} shape, Q8_0, F16 cache, {length:,} tokens: base / tgr-latent",
                Spread.of([growing / constant]),
                "of the memory",
                {
                    "GB base": Spread.of([growing / 1e9]),
                    "GB tgr-latent": Spread.of([constant / 1e9]),
                    "GB weights": Spread.of([weights / 1e9]),
                },
            )


# ---- the picture ----


def matplotlib_figure() -> Any:
    """The class. InstallError without matplotlib."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise InstallError(
            "the picture needs matplotlib; run: pip install 'tgr-local[plot]'"
        ) from None


def draw(rows: Iterable[Figure], path: Path) -> None:
    """Time per token and resident memory against the length of the reply; nothing without such
    rows. The file's ending is its format."""
    at = [row.values for row in rows if "ms base" in row.values]
    if not at:
        return
    figure = matplotlib_figure()(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    tokens = [values["tokens"].median for values in at]
    for axes, prefix, label in zip(
        panels, ("ms ", "resident MB "), ("ms per kept token", "resident memory, MB"), strict=True
    ):
        for method, style in STYLES.items():
            if prefix + method in at[0]:
                spreads = [values[prefix + method] for values in at]
                below = [spread.median - spread.low for spread in spreads]
                above = [spread.high - spread.median for spread in spreads]
                medians = [spread.median for spread in spreads]
                axes.errorbar(tokens, medians, (below, above), fmt=style, capsize=3, label=method)
        axes.set(xlabel="tokens of the reply so far", ylabel=label, xscale="log")
        axes.set_ylim(0, 1.05 * axes.dataLim.ymax)
        axes.set_xticks(tokens, [f"{n:,.0f}" for n in tokens], rotation=30)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)
