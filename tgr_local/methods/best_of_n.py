"""``best-of-n``: n plain samples side by side; the one with the highest mean log-likelihood stays.

Each is sampled as by `base`, the whole text as context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tgr_local.engine import Cancel, Engine, Participant
from tgr_local.options.config import SearchConfig
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.steps import Listener, Step

resets = False


def run(
    engine: Engine,
    prompt: Sequence[int],
    config: SearchConfig,
    *,
    participant: Participant | None = None,
    on_event: Listener | None = None,
    cancel: Cancel | None = None,
) -> Iterator[Step]:
    """Samples all n, then yields the best."""
    with Branches(
        engine, prompt, config, limit=text_limit(engine, len(prompt), config),
        n_cells=cells(engine, len(prompt), config), n_seqs=sequences(config),
        least=config.n_samples, participant=participant, on_event=on_event, cancel=cancel,
    ) as branches:  # fmt: skip
        samples = branches.sample(config.n_samples)
        ended = sum(sample.ended for sample in samples)
        yield from branches.steps(best(samples), {"samples": len(samples), "ended": ended})


def best(samples: Sequence[Branch]) -> Branch:
    """The likeliest sample. One that has ended goes before those that were cut."""
    return max(samples, key=lambda sample: (sample.ended, sample.likelihood))


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = config.n_samples * text_limit(engine, n_query, config)
    if config.max_forward_tokens:  # which all texts share
        n_texts = min(n_texts, config.max_forward_tokens)
    return cells_for(engine, n_query, n_texts, sequences(config), "n_samples")


def sequences(config: SearchConfig) -> int:
    return config.n_samples
