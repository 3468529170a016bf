"""One boundary of the method in parts, each as a multiple of the plain chunk; and whole methods.

A chunk of 512 tokens takes long, and the speed of the machine may change meanwhile. So the parts of
a boundary are timed one right after the other, at the depth of context that they have in a run: the
rebuild of S tokens after Q, the rollouts after Q + S, and 16 tokens in the middle of the chunk,
after Q + 3S/2, with and without injection. The time of a token grows linearly with its context, so
the mean of a chunk is that of its middle.

`whole_methods` measures whole chunks: seconds per reply token in the second one. The first chunk
reads the query and rebuilds nothing; all later chunks are like the second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tgr_local import methods
from tgr_local.engine import New
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.measure import Figure, Floats, Spread, Target, alternate_timed, clock
from tgr_local.lab.bench.plan import Plan
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Run
from tgr_local.system.errors import TgrError

Q = 64  # tokens of the query
BURST = 16  # tokens measured in the middle of a chunk
CHUNKS, COUNTS, LENGTHS = (256, 512, 1024), (2, 4, 8, 16), (8, 16, 32, 64)  # S, K, s of the sweep
PAPER = (
    "the paper: rollouts 0.18 (0.06 batched), scoring 0.05, KV reset 0.03, chunk 1.00; 1.28 naive, "
    "1.11 optimized"
)


class BoundaryParts:
    """The parts for one chunk length, in a session of their own. Use it in a ``with`` block."""

    def __init__(
        self, plan: Plan, chunk_len: int, most: int, longest: int, *, beside: int = 0
    ) -> None:
        """`beside`: cells for another session, since the cache does not grow while one is open."""
        engine = plan.engine
        self.chunk_len = chunk_len
        self._text = subject.prompt(engine, 2 * chunk_len)
        n_cells = Q + chunk_len + max(chunk_len, most * longest) + BURST + 8
        engine.grow_cache(n_cells + beside)
        self._forks = subject.Forks(engine, subject.prompt(engine, Q), most, n_cells=n_cells)
        self._eoc = engine.eoc_token()

    def rebuild(self) -> float:
        """Reads S tokens after Q, with the residual norms that calibrate the injection."""
        return clock(lambda: self._forks.feed(self._text[: self.chunk_len], norms=True))

    def rollouts(self, n: int, lengths: tuple[int, ...]) -> list[float]:
        """Seconds until n rollouts after Q + S have each of these lengths."""
        start, n_done, marks = time.perf_counter(), 0, {}

        def mark(new: list[New]) -> None:
            nonlocal n_done
            n_done += len(new[0][0])
            for length in lengths:
                if n_done >= length and length not in marks:
                    marks[length] = time.perf_counter() - start

        self._forks.steps(n, lengths[-1], inject=True, states=True, on_tokens=mark)
        return [marks[length] for length in lengths]

    def chunk(self) -> tuple[float, float, float]:
        """Seconds of a chunk plain and with injection, and of reading the state at its end."""
        forks, half = self._forks, self.chunk_len // 2
        forks.feed(self._text[self.chunk_len : self.chunk_len + half])
        plain = clock(lambda: forks.steps(1, BURST)) / BURST * self.chunk_len
        injected = clock(lambda: forks.steps(1, BURST, inject=True)) / BURST * self.chunk_len
        pending = clock(lambda: forks.feed([100], injection=forks.injection(0)))
        return plain, injected, pending + clock(lambda: forks.feed([self._eoc], feed_states="last"))

    def begin(self) -> None:
        """Cuts the sequence back to the query."""
        self._forks.prefix.truncate(Q)

    def __enter__(self) -> BoundaryParts:
        return self

    def __exit__(self, *exc: object) -> None:
        self._forks.session.close()


def decomposition(plan: Plan) -> Iterator[Figure]:
    """The defaults of the method: S, K and s of `SearchConfig`."""
    config = SearchConfig()
    s, n = config.rollout_len, config.n_candidates
    parts = np.zeros((5, plan.repeats + 1))  # the first round warms up
    with BoundaryParts(plan, config.chunk_len, n, s) as boundary:
        for i in range(plan.repeats + 1):
            boundary.begin()
            parts[0, i] = boundary.rebuild()
            (parts[1, i],) = boundary.rollouts(n, (s,))
            parts[2:, i] = boundary.chunk()
    rebuild, rollouts, plain, injected, delimiter = parts[:, 1:]
    scoring = _scoring_seconds(plan, config)
    seconds = {
        "rebuild": rebuild,
        "rollouts": rollouts,
        "scoring": np.full_like(plain, scoring),
        "chunk": injected,
        "delimiter": delimiter,
    }
    title = f"one boundary, S={config.chunk_len} K={n} s={s}: "
    for name, took in seconds.items():
        values = {"s": Spread.of(took)}
        yield Figure("boundary", f"{title}{name}", Spread.of(took / plain), "plain chunks", values)
    values = {"s plain chunk": Spread.of(plain)}
    total = sum(seconds.values())
    share = Spread.of(total / plain)
    yield Figure("boundary", f"{title}all", share, "plain chunks", values, note=PAPER)
    saving = Spread.of((total - rebuild - injected * s / config.chunk_len) / plain)
    yield Figure("boundary", f"{title}with reuse_winner and shift_cells", saving, "plain chunks")


def _scoring_seconds(plan: Plan, config: SearchConfig) -> float:
    """Seconds of everything except rebuild, rollouts, chunk and delimiter: proposing, computing the
    injections, scoring. This does not depend on S, so a run with short chunks measures it."""
    short = SearchConfig(
        chunk_len=4, n_candidates=config.n_candidates, rollout_len=config.rollout_len, max_chunks=4
    )
    seconds = []
    run = Run(plan.engine, subject.prompt(plan.engine, Q), short)
    steps = methods.get("tgr-latent").run(run)
    start = time.perf_counter()
    for step in steps:
        took, parts = time.perf_counter() - start, step.seconds
        seconds.append(took - (parts.total - parts.scoring))
        start = time.perf_counter()
    return float(np.median(seconds[1:] or seconds))


def sweep(plan: Plan) -> Iterator[Figure]:
    """The whole boundary for other S, K and s, from the same parts without scoring, which is too
    small to matter. A rollout of 64 tokens also gives the times of 8, 16 and 32."""
    for chunk_len in CHUNKS:
        fixed = np.zeros((4, plan.few))
        rollouts = np.zeros((len(COUNTS), len(LENGTHS), plan.few))
        with BoundaryParts(plan, chunk_len, COUNTS[-1], LENGTHS[-1]) as boundary:
            for i in range(plan.few):
                boundary.begin()
                fixed[0, i] = boundary.rebuild()
                for j, n in enumerate(COUNTS):
                    rollouts[j, :, i] = boundary.rollouts(n, LENGTHS)
                fixed[1:, i] = boundary.chunk()
        for j, n in enumerate(COUNTS):
            yield _swept(chunk_len, n, fixed, rollouts[j])


def _swept(chunk_len: int, n: int, fixed: Floats, rollouts: Floats) -> Figure:
    rebuild, plain, injected, delimiter = fixed
    totals = {
        s: Spread.of((rebuild + took + injected + delimiter) / plain)
        for s, took in zip(LENGTHS, rollouts, strict=True)
    }
    total = totals.pop(32)
    values = {f"s={s}": spread for s, spread in totals.items()}
    title = f"one boundary, S={chunk_len} K={n} s=32: all"
    return Figure("sweep", title, total, "plain chunks", values)


def whole_methods(plan: Plan) -> Iterator[Figure]:
    """base, markov, and the method at its defaults, with one of its two savings, and with both."""
    # short chunks have other proportions of S, K and s, so the targets do not apply to them
    config = SearchConfig(max_chunks=3)
    if plan.quick:
        config = replace(config, chunk_len=64, rollout_len=4)
    reusing = replace(config, reuse_winner=True)
    compared = (
        ("base", config),
        ("markov", config),
        ("tgr-latent", config),
        ("tgr-latent", reusing),
        ("tgr-latent", replace(reusing, shift_cells=True)),
    )
    base, markov, tgr, with_winner, with_both = alternate_timed(
        max(2, plan.repeats // 2),
        [partial(_second_chunk, plan, method, its) for method, its in compared],
        warm=False,
    )
    at = f"S={config.chunk_len} K={config.n_candidates} s={config.rollout_len}"
    gpu = not plan.settings.on_cpu  # targets there: docs/performance.md, "On a GPU"
    for system, seconds, name, reference, bound in (
        ("tgr-latent", tgr, "markov", markov, 1.18),
        ("tgr-latent", tgr, "base", base, 1.18 if gpu else 1.25),
        ("with reuse_winner", with_winner, "base", base, None),
        ("with reuse_winner and shift_cells", with_both, "base", base, 1.06 if gpu else 1.05),
        ("markov", markov, "base", base, None),
    ):
        yield Figure(
            "runs",
            f"time per reply token, {at}: {system} / {name}",
            Spread.of(seconds / reference),
            "times",
            {f"ms {system}": Spread.of(1e3 * seconds), f"ms {name}": Spread.of(1e3 * reference)},
            Target(bound) if bound and not plan.quick else None,
        )


def _second_chunk(plan: Plan, method: str, config: SearchConfig) -> float:
    """Seconds per token of the second chunk, from the end of the first one."""
    steps = methods.get(method).run(Run(plan.engine, subject.prompt(plan.engine, Q), config))
    first = next(steps)
    start = time.perf_counter()
    second = next(steps, None)
    seconds = time.perf_counter() - start
    steps.close()  # type: ignore[attr-defined]
    if second is None or second.finish is not None:
        n = len(first.tokens) + (len(second.tokens) if second else 0)
        raise TgrError(
            f"a reply of {method} ended after {n} tokens, too early to measure a chunk of "
            f"{config.chunk_len}; use random weights (--shape)"
        )
    return seconds / len(second.tokens)
