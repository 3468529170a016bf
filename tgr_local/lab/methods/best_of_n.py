"""``best-of-n``: n plain samples side by side, of which the likeliest per token wins.

Each is sampled as by `base`, the whole text as context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tgr_local.engine import Engine
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import SampleOptions
from tgr_local.search.branches import Branch, Branches, cells_for, cells_of_texts, text_limit
from tgr_local.search.run import Method, Run
from tgr_local.search.steps import Step


def run(run: Run) -> Iterator[Step]:
    """Samples all n, then yields the best."""
    limit = longest_sample(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=run.config.n_samples) as branches:
        samples = sampled(branches, run.config.n_samples)
        ended = sum(sample.ended for sample in samples)
        yield from branches.steps(best(samples), {"samples": len(samples), "ended": ended})


def sampled(branches: Branches, n: int) -> list[Branch]:
    """n texts, sampled side by side."""
    root = branches.read_query()
    samples = [root, *(branches.fork(root) for _ in range(n - 1))]
    for _ in branches.rounds(samples):
        pass
    return samples


def best(samples: Sequence[Branch]) -> Branch:
    """The likeliest sample. One that has ended goes before those that were cut."""
    return max(samples, key=lambda sample: (sample.ended, sample.likelihood))


def longest_sample(engine: Engine, n_query: int, config: SearchConfig) -> int:
    """Tokens of a sample at most."""
    of_all = partial(cells_of_texts, config, config.n_samples)
    return text_limit(engine, n_query, config, cells=of_all)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = cells_of_texts(config, config.n_samples, longest_sample(engine, n_query, config))
    return cells_for(engine, n_query, n_texts, sequences(engine, config), "n_samples")


def sequences(engine: Engine, config: SearchConfig) -> int:
    return config.n_samples


METHOD = Method(
    "best-of-n",
    run,
    cells,
    sequences,
    about="writes several texts, shows the likeliest one",
    options=(SampleOptions,),
)
