"""Whole methods on the same prompt: seconds per reply token in their second chunk.

The first chunk reads the query and rebuilds nothing; all later chunks are like the second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tgr_local import methods
from tgr_local.errors import TgrError
from tgr_local.lab.bench import subject
from tgr_local.lab.bench.boundary import Q
from tgr_local.lab.bench.measure import Row, Spread, Target, alternate_timed
from tgr_local.lab.bench.plan import Plan
from tgr_local.options.config import SearchConfig
from tgr_local.search.run import Request, Run


def whole_methods(plan: Plan) -> Iterator[Row]:
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
    for what, seconds, name, reference, bound in (
        ("tgr-latent", tgr, "markov", markov, 1.18),
        ("tgr-latent", tgr, "base", base, 1.18 if gpu else 1.25),
        ("with reuse_winner", with_winner, "base", base, None),
        ("with reuse_winner and shift_cells", with_both, "base", base, 1.06 if gpu else 1.05),
        ("markov", markov, "base", base, None),
    ):
        yield Row(
            "runs",
            f"time per reply token, {at}: {what} / {name}",
            Spread.of(seconds / reference),
            "times",
            {f"ms {what}": Spread.of(1e3 * seconds), f"ms {name}": Spread.of(1e3 * reference)},
            Target(bound) if bound and not plan.quick else None,
        )


def _second_chunk(plan: Plan, method: str, config: SearchConfig) -> float:
    """Seconds per token of the second chunk, from the end of the first one."""
    request = Request(subject.prompt(plan.engine, Q), config, methods.get(method))
    steps = request.method.run(Run(plan.engine, request))
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
